"""VQLLM's codebook training (arXiv 2410.15704, repository iankur/vqllm): K-means, then EMA passes.

The vectors are already divided by their token's standard deviation and grouped (see `coder`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scripts.papers.gsrq.kmeans import fit_kmeans
from scripts.papers.gsrq.lloyd import cluster_sum, nearest
from scripts.papers.gsrq.residual import fit_residual


def fit_vqllm(
    x: Tensor,
    orders: Tensor,
    codewords: int,
    iterations: int,
    passes: int,
    batch: int,
    generator: torch.Generator,
    decay: float = 0.99,
    eps: float = 1e-5,
) -> tuple[Tensor, list[dict[str, Any]]]:
    """Residual codebooks [M, K, d] of x [N, d]: K-means start, then `passes` EMA passes over x.

    In a pass every minibatch is coded through all stages; each stage's running cluster sizes and
    sums are updated with `decay` and its codewords become their smoothed quotient. No weights and
    no model gradient, as in the repository.
    """
    weight = x.new_ones(len(x))
    books, log = fit_residual(
        x, weight, orders, codewords, lambda a, w, points: fit_kmeans(a, w, points, iterations)
    )
    sizes = torch.stack(_shares(x, books))
    sums = books * sizes[..., None]
    for _ in range(passes):
        for rows in torch.randperm(len(x), generator=generator).split(batch):
            residual = x[rows]
            for m, book in enumerate(books):
                index = nearest(residual, book)
                share = cluster_sum(residual.new_ones(len(rows)), index, codewords) / len(rows)
                total = cluster_sum(residual, index, codewords) / len(rows)
                residual = residual - book[index]
                sizes[m] = decay * sizes[m] + (1 - decay) * share
                sums[m] = decay * sums[m] + (1 - decay) * total
                smooth = (sizes[m] + eps) / (sizes[m].sum() + codewords * eps) * sizes[m].sum()
                books[m] = sums[m] / smooth[:, None]
    return books, log


def _shares(x: Tensor, books: Tensor) -> list[Tensor]:
    """Share of x in each cluster, per stage."""
    shares, residual = [], x
    for book in books:
        index = nearest(residual, book)
        shares.append(torch.bincount(index, minlength=len(book)).to(x.dtype) / len(x))
        residual = residual - book[index]
    return shares
