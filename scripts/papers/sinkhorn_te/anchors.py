"""Finite differences of the divergence on small discrete laws: anchors of both derivatives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scripts.papers.sinkhorn_te.second_order import centred_kernel
from scripts.papers.sinkhorn_te.sinkhorn import (
    Array,
    Gibbs,
    log_weights,
    sinkhorn_divergence,
    symmetric_potentials,
)

TIGHT = 1e-12  # differences of S are divided by steps and steps squared
FIRST_STEP, SECOND_STEP = 1e-3, 3e-3  # of central differences, both of order 4


class SecondOrder(NamedTuple):
    """At mu = nu: relative error of gamma^T K gamma, the same without eps in K, the largest first
    derivative, and how far the smallest eigenvalue of K lies below 0."""

    error: float
    error_printed: float
    largest_first: float
    below_zero: float


def random_law(points: int, dim: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """(y [points, d], weights mu, weights nu) with no weight near 0."""
    weights = 0.5 + rng.random((2, points))
    mu, nu = weights / weights.sum(axis=1, keepdims=True)
    return rng.standard_normal((points, dim)), mu, nu


def mass_zero(points: int, rng: np.random.Generator) -> Array:
    """A signed measure of total mass 0 [points], small enough to be added to a random law."""
    direction = rng.standard_normal(points)
    direction -= direction.mean()
    return direction / np.abs(direction).sum()


def _values(y: Array, mus: Array, nus: Array, eps: float) -> Array:
    points = np.broadcast_to(y, (len(mus), *y.shape))
    return sinkhorn_divergence(points, mus, points, nus, eps, TIGHT)[0]


def first_order_error(y: Array, mu: Array, nu: Array, gamma: Array, eps: float) -> float:
    """Relative error of <v1, gamma1> + <v0, gamma0> [paper: Lemma 3.1] against differences of S.

    gamma: [2, points], directions for mu and for nu.
    """
    _, v1, v0 = sinkhorn_divergence(y[None], mu[None], y[None], nu[None], eps, TIGHT)
    t = FIRST_STEP * np.array([-2.0, -1.0, 1.0, 2.0])[:, None]
    stencil = np.array([1.0, -8.0, 8.0, -1.0]) / (12 * FIRST_STEP)
    difference = stencil @ _values(y, mu + t * gamma[0], nu + t * gamma[1], eps)
    return float(abs(v1[0] @ gamma[0] + v0[0] @ gamma[1] - difference) / abs(difference))


def second_order_check(y: Array, mu: Array, gamma: Array, eps: float) -> SecondOrder:
    """K of the law mu against the fourth-order second difference of S(mu + t gamma, mu).

    In a direction of P1 alone gamma^T K gamma is the second derivative.
    """
    own = symmetric_potentials(Gibbs(y[None], y[None], eps), log_weights(mu)[None, None], TIGHT)
    kernel = centred_kernel(y[None], own.f[:, 0], 0, mu[None], eps)[0]
    form = gamma @ kernel @ gamma
    # Clusters that hardly exchange mass bend S more: there the step must be smaller.
    step = SECOND_STEP / max(1.0, np.abs(kernel @ gamma).max() / eps)
    t = step * np.array([-2.0, -1.0, 0.0, 1.0, 2.0])[:, None]
    stencil = np.array([-1.0, 16.0, -30.0, 16.0, -1.0]) / (12 * step**2)
    difference = stencil @ _values(y, mu + t * gamma, np.broadcast_to(mu, (5, len(mu))), eps)
    _, v1, v0 = sinkhorn_divergence(y[None], mu[None], y[None], mu[None], eps, TIGHT)
    lowest = np.linalg.eigvalsh(0.5 * (kernel + kernel.T))[0]
    return SecondOrder(
        float(abs(form - difference) / abs(difference)),
        float(abs(form / eps - difference) / abs(difference)),
        float(max(np.abs(v1).max(), np.abs(v0).max())),
        float(max(0.0, -lowest)),
    )
