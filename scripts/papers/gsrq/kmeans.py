"""Weighted Lloyd K-means (the codebook of VQLLM, CQ and KM-RQ) and its spherical start."""

from __future__ import annotations

from torch import Tensor

from scripts.papers.gsrq.lloyd import Fit, alternate, cluster_sum


def unit(x: Tensor) -> Tensor:
    """Rows scaled to length one; zero rows stay zero."""
    return x / x.norm(dim=1, keepdim=True).clamp_min(1e-30)


def fit_kmeans(x: Tensor, weight: Tensor, start: Tensor, iterations: int) -> Fit:
    """Weighted Lloyd iterations from the codebook `start` [K, d]."""
    weighted = x * weight[:, None]

    clusters = len(start)

    def update(index: Tensor) -> tuple[Tensor, Tensor]:
        mass = cluster_sum(weight, index, clusters)
        mean = cluster_sum(weighted, index, clusters) / mass.clamp_min(1e-30)[:, None]
        return mean, mass

    return alternate(x, weight, start, iterations, update)


def spherical_start(
    x: Tensor, weight: Tensor, points: Tensor, iterations: int, floor: float = 1e-4
) -> tuple[Tensor, Tensor]:
    """Directions [K, d] and gains [K] from K-means on x/|x| (initialisation of the released code).

    Centroids of the unit vectors are renormalised; the gain of a cluster is the mean norm of its
    members, at least `floor`.
    """
    directions = unit(x)
    fit = fit_kmeans(directions, weight, unit(points), iterations)
    mass = cluster_sum(weight, fit.index, len(points))
    norms = cluster_sum(weight * x.norm(dim=1), fit.index, len(points))
    return unit(fit.codebook), (norms / mass.clamp_min(1e-30)).clamp_min(floor)
