"""The Sinkhorn treatment effect and the kernel (MMD) one: plug-in, one-step estimate, second order.

Points are z = (y, s): outcomes of the n evaluation rows, then those of the m nuisance rows. With
signed rows B [n, n + m] (each sums to 0) the second-order influence matrix is I2 = B K B^T. K has
low rank to machine accuracy (its pivoted Cholesky factor is L), so that I2 = Q Q^T with Q = B L C.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scripts.papers.sinkhorn_te.nuisance import Half, Nuisance
from scripts.papers.sinkhorn_te.second_order import (
    centred_kernel,
    low_rank_root,
    pivoted_cholesky,
)
from scripts.papers.sinkhorn_te.sinkhorn import (
    Array,
    Gibbs,
    log_weights,
    pair_potentials,
    symmetric_potentials,
)

TRACE_TOLERANCE = 1e-8  # share of the trace that the low-rank factor may miss
MAX_RANK = 400
MAX_LOG_SCALING = 30.0  # an outcome where xi(y, y) > e^60 lies off the support


@dataclass(frozen=True)
class Effect:
    """One estimated effect of R replicates.

    plug_in, one_step, standard_error: [R]; statistic: n times the second-order estimate [R].
    root: Q [R, n, r] with I2 = Q Q^T.
    """

    plug_in: Array
    one_step: Array
    standard_error: Array
    statistic: Array
    root: Array


@dataclass(frozen=True)
class Geometry:
    """Half-steps from evaluation and nuisance outcomes to nuisance outcomes, shared by all arms."""

    rows: Half
    support: Array
    eps: float

    @cached_property
    def inner(self) -> Gibbs:
        return Gibbs(self.support, self.support, self.eps)

    @cached_property
    def outer(self) -> Gibbs:
        return Gibbs(self.rows.y, self.support, self.eps)


@dataclass(frozen=True)
class Laws:
    """Both counterfactual laws on the support: weights and log scalings of their transports.

    Weights p1, p0 and p (the reference law) are [R, m]; own scalings of the reference at z.
    """

    p1: Array
    p0: Array
    p: Array
    first1: Array
    first0: Array
    reference: Array
    iterations: int


def transports(geometry: Geometry, nuisance: Nuisance, reference: str = "pooled") -> Laws:
    """Solve the transports (p1, p0), (p1, p1), (p0, p0), (p, p) and extend them to all points.

    Args:
        reference: the law of the second-order kernel, "pooled" (p1 + p0) / 2 or "treated" p1.

    Returns:
        Laws with first1, first0 [R, n + m]: derivatives of S at z in P1 and in P0.
    """
    p1, p0 = nuisance.marginals()
    p = 0.5 * (p1 + p0) if reference == "pooled" else p1
    logs = np.stack([log_weights(p1), log_weights(p0), log_weights(p)], axis=1)
    own = symmetric_potentials(geometry.inner, logs)
    both = pair_potentials(geometry.inner, logs[:, 0], logs[:, 1], own.f[:, 1])
    # The soft c-transform of converged potentials extends each to every point, support included.
    pair = np.stack([logs[:, 1] + both.g, logs[:, 0] + both.f], axis=1)
    sources = np.concatenate([logs + own.f, pair], axis=1)
    at_z = np.concatenate([geometry.outer.rows(sources), geometry.inner.rows(sources)], axis=-1)
    self1, self0, pooled, f, g = np.moveaxis(at_z, 1, 0)
    if pooled.max() > MAX_LOG_SCALING:
        raise ValueError(
            "y: an outcome is so far from all of the nuisance half that its log scaling is "
            f"{pooled.max():.3g}; at most {MAX_LOG_SCALING:g} is allowed: transform heavy tails, "
            "or take a larger eps"
        )
    eps = geometry.eps
    iterations = own.iterations + both.iterations
    return Laws(p1, p0, p, eps * (f - self1), eps * (g - self0), pooled, iterations)


def sinkhorn_effect(
    geometry: Geometry, nuisance: Nuisance, signed: SignedRows, laws: Laws, factor: Array | None
) -> Effect:
    """Sinkhorn treatment effect [paper: Alg. 1, Thm 3.2, Alg. 2, eq. 12].

    Args:
        factor: L [R, n + m, r] with xi = L L^T (`second_order_factor`); None takes the dense path,
            which forms K on all points.
    """
    n = geometry.rows.y.shape[1]
    scores = scores_of(geometry.rows, nuisance, laws.first1, laws.first0)
    plug_in = (laws.p1 * laws.first1[:, n:] + laws.p0 * laws.first0[:, n:]).sum(-1)
    if factor is None:
        z = np.concatenate([geometry.rows.y, geometry.support], axis=1)
        kernel = centred_kernel(z, laws.reference, n, laws.p, geometry.eps)
        return _dense_effect(plug_in, scores, signed, kernel)
    root = np.sqrt(geometry.eps) * low_rank_root(signed @ factor, factor[:, n:], laws.p)
    return _effect(plug_in, scores, root)


def kernel_effect(
    geometry: Geometry, nuisance: Nuisance, signed: SignedRows, laws: Laws, factor: Array | None
) -> Effect:
    """MMD treatment effect [paper: App. F]: half the squared MMD with the kernel exp(-c / eps)."""
    n = geometry.rows.y.shape[1]
    w = laws.p1 - laws.p0
    mean = np.concatenate([geometry.outer.kernel, geometry.inner.kernel], axis=1) @ w[..., None]
    value = 0.5 * (w * mean[:, n:, 0]).sum(-1)
    scores = scores_of(geometry.rows, nuisance, mean[..., 0], -mean[..., 0]) - value[:, None]
    if factor is None:
        z = np.concatenate([geometry.rows.y, geometry.support], axis=1)
        gram = Gibbs(z, z, geometry.eps).kernel
        return _dense_effect(value, scores, signed, gram)
    return _effect(value, scores, signed @ kernel_features(laws, factor))


def kernel_features(laws: Laws, factor: Array) -> Array:
    """A factor [R, n + m, r] of the Gaussian kernel exp(-c / eps), from that of xi."""
    return factor * np.exp(-laws.reference)[..., None]


def second_order_factor(geometry: Geometry, laws: Laws) -> Array | None:
    """L [R, n + m, r] with xi = exp((phi + phi' - c) / eps) = L L^T on all points.

    None when the rank that TRACE_TOLERANCE needs is above MAX_RANK; the dense path then applies.
    """
    z = np.concatenate([geometry.rows.y, geometry.support], axis=1)
    return pivoted_cholesky(z, laws.reference, geometry.eps, TRACE_TOLERANCE, MAX_RANK)


def scores_of(rows: Half, nuisance: Nuisance, first1: Array, first0: Array) -> Array:
    """AIPW scores [R, n] of the derivatives first1, first0 [R, n + m] [paper: Alg. 1]."""
    n = rows.y.shape[1]
    mean1, mean0 = nuisance.conditional_means(first1[:, n:], first0[:, n:])
    treated = rows.a / nuisance.propensity
    control = (1 - rows.a) / (1 - nuisance.propensity)
    return treated * (first1[:, :n] - mean1) + mean1 + control * (first0[:, :n] - mean0) + mean0


@dataclass(frozen=True)
class SignedRows:
    """B [R, n, n + m], B_i = w_i (delta_{y_i} - W^{A_i}(x_i)) + W^1(x_i) - W^0(x_i) - (p1 - p0).

    w_i = A_i / e_i - (1 - A_i) / (1 - e_i); the paper's I - P_Y + P_A P_Y - P_X P_A P_Y. Kept as
    the weights of a row's own outcome, own [R, n], and those of the support, laws [R, n, m].
    """

    own: Array
    laws: Array

    def __matmul__(self, values: Array) -> Array:
        """B V [R, n, k] of values V [R, n + m, k] at all points."""
        n = self.own.shape[1]
        return self.own[..., None] * values[:, :n] + self.laws @ values[:, n:]

    def matrix(self) -> Array:
        """B itself."""
        own = self.own[..., None] * np.eye(self.own.shape[1])
        return np.concatenate([own, self.laws], axis=-1)


def signed_rows(rows: Half, nuisance: Nuisance) -> SignedRows:
    """The signed rows of the evaluation half."""
    treated = rows.a / nuisance.propensity
    control = (1 - rows.a) / (1 - nuisance.propensity)
    p1, p0 = nuisance.marginals()
    arm = nuisance.treated[:, None]
    signs = np.where(arm == 1, (1 - treated)[..., None], (control - 1)[..., None])
    laws = np.multiply(nuisance.weights, signs, out=signs)
    laws -= (p1 - p0)[:, None]
    return SignedRows(treated - control, laws)


def _effect(plug_in: Array, scores: Array, root: Array) -> Effect:
    n = scores.shape[1]
    one_step = scores.mean(axis=1)
    total, trace = np.square(root.sum(axis=1)).sum(-1), np.square(root).sum((1, 2))
    statistic = n * one_step + (total - trace) / (2 * (n - 1))
    return Effect(plug_in, one_step, scores.std(axis=1) / np.sqrt(n), statistic, root)


def _dense_effect(plug_in: Array, scores: Array, signed: SignedRows, kernel: Array) -> Effect:
    """The same from I2 = B K B^T, whose root is that of its eigenvalues."""
    matrix = signed @ np.swapaxes(signed @ kernel, 1, 2)
    values, vectors = np.linalg.eigh(0.5 * (matrix + np.swapaxes(matrix, 1, 2)))
    return _effect(plug_in, scores, vectors * np.sqrt(np.maximum(values, 0.0))[:, None])
