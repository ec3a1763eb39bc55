"""Residual quantisation: each stage codes what the stages before it left (greedy, nested)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scripts.papers.gsrq.gain_shape import fit_gain_shape, fit_gain_shape_released
from scripts.papers.gsrq.kmeans import fit_kmeans, spherical_start
from scripts.papers.gsrq.lloyd import (
    Fit,
    projection_identity_error,
    shrinkage,
    usage_entropy,
)

StageFit = Callable[[Tensor, Tensor, Tensor], Fit]  # (x, weight, initial points) -> Fit


def stage_fit(
    method: str, iterations: int, start_iterations: int = 0, options: dict[str, str] | None = None
) -> StageFit:
    """The codebook fit of one stage by name: kmeans, gain_shape or released.

    start_iterations: rounds of the spherical start that come before (0: start at the points);
    options: keywords of `fit_gain_shape`. Raises ValueError for another method.
    """
    if method == "released":
        return lambda x, w, points: fit_gain_shape_released(
            x, w, points, start_iterations, iterations
        )
    if method not in ("kmeans", "gain_shape"):
        raise ValueError(f"unknown codebook method {method!r}; kmeans, gain_shape or released")

    def fit(x: Tensor, w: Tensor, points: Tensor) -> Fit:
        start = points
        if start_iterations:
            shapes, gains = spherical_start(x, w, points, start_iterations)
            start = shapes * gains[:, None]
        if method == "kmeans":
            return fit_kmeans(x, w, start, iterations)
        return fit_gain_shape(x, w, start, iterations, **(options or {}))

    return fit


def fit_residual(
    x: Tensor,
    weight: Tensor,
    orders: Tensor,
    codewords: int,
    fit: StageFit,
    identity: bool = False,
) -> tuple[Tensor, list[dict[str, Any]]]:
    """Fit one codebook per stage on the residual of the earlier ones.

    x [N, d]; weight [N]; orders [M, N] = an order of the rows for each stage, whose first usable
    residuals are the initial points (the same draw for every arm). Returns codebooks [M, K, d] and
    per stage the objective of each iterate ("objective"), code usage entropy in bits ("usage"),
    shrink factor ("rho") and, if asked for, the error of the projection identity ("identity").
    """
    books, log = [], []
    residual = x
    for order in orders:
        before = residual
        result = fit(before, weight, before[usable(before, order, codewords)])
        residual = result.residual
        books.append(result.codebook)
        entry: dict[str, Any] = {
            "objective": result.objective,
            "usage": usage_entropy(result.index, codewords),
            "rho": shrinkage(before, result.codebook, result.index),
        }
        if identity:
            entry["identity"] = projection_identity_error(before, result.index, codewords)
        log.append(entry)
    return torch.stack(books), log


def usable(x: Tensor, order: Tensor, count: int) -> Tensor:
    """The first `count` rows of x in `order` that are not zero, then zero ones if there are fewer.

    A vector that is alone in its cluster leaves a residual of exactly zero. As initial points such
    rows would not be distinct, and a codeword at the origin would win almost every vector.
    """
    norms, order = x.norm(dim=1), order.to(x.device)
    alive = norms[order] > 1e-5 * norms.mean()
    return torch.cat([order[alive], order[~alive]])[:count]


def decode(codes: Tensor, codebooks: Tensor) -> Tensor:
    """Sum of the chosen codewords: codes [N, M], codebooks [at least M, K, d] -> [N, d]."""
    stages = codes.shape[1]
    return sum(codebooks[m].index_select(0, codes[:, m].long()) for m in range(stages))


def draw_orders(rows: int, stages: int, generator: torch.Generator) -> Tensor:
    """A random order of the rows for each stage [stages, rows]; shared by all arms of a seed."""
    return torch.stack([torch.randperm(rows, generator=generator) for _ in range(stages)])
