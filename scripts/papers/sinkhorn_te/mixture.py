"""A mixture that moves apart around a Gaussian of the same mean: what no average effect can see."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from scripts.papers.sinkhorn_te.sinkhorn import Array, Gibbs, sinkhorn_divergence

# Median of |y - y'|^2 / 2 for two standard normal points in the plane: log 4, at theta = 0.
EPS = float(np.log(4))


def saturation_curve(
    thetas: Iterable[float], points: int, rng: np.random.Generator
) -> list[tuple[float, float, float]]:
    """(theta, S, half squared MMD) between N(0, I2) and its mixture at -theta 1 and theta 1.

    Plug-in values of two independent samples, the same for all theta; both laws are symmetric about
    0 and half of the mixture's points lie on either side, so that the means stay equal.
    """
    x, y = rng.standard_normal((2, points, 2))
    side = np.where(np.arange(points) % 2 == 0, 1.0, -1.0)[:, None]
    weights = np.full((1, points), 1 / points)
    found = []
    for theta in thetas:
        first, second = (y + theta * side)[None], x[None]
        value = sinkhorn_divergence(first, weights, second, weights, EPS)[0]
        found.append((theta, float(value[0]), _half_mmd(first, second)))
    return found


def _half_mmd(x: Array, y: Array) -> float:
    def mean(a: Array, b: Array) -> float:
        return float(Gibbs(a, b, EPS).kernel.mean())

    return 0.5 * (mean(x, x) + mean(y, y) - 2 * mean(x, y))


def exact_curve(thetas: Iterable[float], nodes: int = 601) -> list[tuple[float, float, float]]:
    """The same for the laws themselves, by quadrature in one dimension.

    Along (1, 1) the laws are N(0, 1) and a mixture at +-sqrt(2) theta, across it they are equal;
    the divergence of products is the sum of the divergences.
    """
    found = []
    for theta in thetas:
        reach = np.sqrt(2) * theta + 8.0
        z = np.linspace(-reach, reach, nodes)
        density = np.exp(-0.5 * z**2)
        shift = np.sqrt(2) * theta
        mixture = np.exp(-0.5 * (z - shift) ** 2) + np.exp(-0.5 * (z + shift) ** 2)
        p1, p0 = mixture / mixture.sum(), density / density.sum()
        line = z[None, :, None]
        value = sinkhorn_divergence(line, p1[None], line, p0[None], EPS)[0]
        found.append((theta, float(value[0]), _exact_half_mmd(theta)))
    return found


def _exact_half_mmd(theta: float) -> float:
    """Half the squared MMD under exp(-|x - y|^2 / (2 EPS)) in closed form."""

    def inner(squared_gap: float) -> float:
        return EPS / (EPS + 2) * np.exp(-0.5 * squared_gap / (EPS + 2))

    own = 0.5 * inner(0.0) + 0.5 * inner(8 * theta**2)
    return float(0.5 * (inner(0.0) + own - 2 * inner(2 * theta**2)))
