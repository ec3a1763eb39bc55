"""Gain-shape K-means (GSKM): a codeword is a unit direction times a gain.

Weighted objective: sum_i w_i |x_i - g_{a_i} u_{a_i}|^2. The paper's text and its released figure
scripts differ; both readings are here and are told apart by the claims.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scripts.papers.gsrq.kmeans import spherical_start, unit
from scripts.papers.gsrq.lloyd import Fit, alternate, cluster_sum, nearest


def fit_gain_shape(
    x: Tensor,
    weight: Tensor,
    start: Tensor,
    iterations: int,
    *,
    assign: str = "l2",
    direction: str = "unit",
    gain: str = "proj",
) -> Fit:
    """GSKM as the text describes it, from the codewords `start` [K, d].

    assign: "l2" = nearest codeword, "cos" = largest <x, u>. direction: "unit" averages x/|x|,
    "raw" averages x. gain: "proj" = weighted mean of <x, u>, the least-squares gain given
    assignment and direction; "norm" = weighted mean of |x|. With ("l2", "raw", "proj") every
    iterate equals Lloyd's, because the mean's projection on its own direction is its length.
    The update is not monotone for "unit" or "cos"; `alternate` keeps the best iterate.
    """
    norm = x.norm(dim=1)
    weighted = x * weight[:, None]
    towards = unit(x) * weight[:, None] if direction == "unit" else weighted
    weighted_norm = weight * norm
    clusters = len(start)

    def update(index: Tensor) -> tuple[Tensor, Tensor]:
        mass = cluster_sum(weight, index, clusters)
        shapes = unit(cluster_sum(towards, index, clusters))
        if gain == "proj":
            total = (cluster_sum(weighted, index, clusters) * shapes).sum(1).clamp_min(0)
        else:
            total = cluster_sum(weighted_norm, index, clusters)
        return shapes * (total / mass.clamp_min(1e-30))[:, None], mass

    if assign == "cos":
        return alternate(x, weight, start, iterations, update, lambda a, c: nearest(a, unit(c)))
    return alternate(x, weight, start, iterations, update)


def fit_gain_shape_released(
    x: Tensor, weight: Tensor, points: Tensor, start_iterations: int, iterations: int
) -> Fit:
    """GSKM as the authors' figure scripts do it.

    Spherical start, then per alternation: assign by 2 g <x,u> - g^2 with g rounded to bfloat16;
    directions from the raw members; gains from projections on the *old* directions; a cluster
    without members keeps its direction and gain.
    """
    shapes, gains = spherical_start(x, weight, points, start_iterations)
    weighted = x * weight[:, None]
    objective: list[float] = []
    for _ in range(iterations):
        rounded = gains.to(torch.bfloat16).to(x.dtype)
        index = nearest(x, shapes * rounded[:, None])
        error = (x - (shapes * gains[:, None])[index]).square().sum(1)
        objective.append(float((weight * error).sum() / weight.sum()))
        mass = cluster_sum(weight, index, len(points))
        sums = cluster_sum(weighted, index, len(points))
        alive = mass > 0
        projected = ((sums * shapes).sum(1) / mass.clamp_min(1e-30)).clamp_min(1e-4)
        gains = torch.where(alive, projected, gains)
        shapes = torch.where(alive[:, None], unit(sums), shapes)
    codebook = shapes * gains[:, None]
    index = nearest(x, codebook)
    residual = x - codebook[index]
    objective.append(float((weight * residual.square().sum(1)).sum() / weight.sum()))
    return Fit(codebook, residual, index, objective)


def round_operations(method: str, rows: int, clusters: int, dim: int) -> int:
    """Floating point operations of one round on x [rows, dim] with `clusters` codewords.

    Assignment (scores and argmax), residual and its square, and the update: sums per cluster, then
    for kmeans a division, for gain_shape a second sum, normalisation, projection and gain.
    """
    assign = 2 * rows * clusters * dim + 2 * rows * clusters + 2 * clusters * dim
    residual = 3 * rows * dim + rows
    update = rows * (dim + 1) + clusters * dim
    if method == "gain_shape":
        update += rows * dim + 6 * clusters * dim + clusters
    return assign + residual + update
