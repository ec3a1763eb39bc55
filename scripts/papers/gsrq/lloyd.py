"""The alternation that every codebook arm shares: assign, repair dead codewords, update.

K-means and gain-shape K-means differ only in the `update` (and possibly the `assign`) that they
pass to `alternate`; initial points, iterations, dead-code repair and the choice of the iterate that
is kept are this module's, so that no arm is favoured by its bookkeeping.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

CHUNK = 2048  # rows of the score matrix held at once: 2048 x 256 floats are 2 MiB

Assign = Callable[[Tensor, Tensor], Tensor]
Update = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass
class Fit:
    """One fitted codebook and what it leaves.

    codebook [K, d]; residual [N, d] = x minus its nearest codeword; index [N] of that codeword;
    objective[t] = weighted mean squared error of iterate t under the arm's own assignment.
    """

    codebook: Tensor
    residual: Tensor
    index: Tensor
    objective: list[float]


def nearest(x: Tensor, codebook: Tensor) -> Tensor:
    """Index [N] of the nearest codeword; ties go to the lowest index."""
    return nearest_score(x, codebook)[0]


def scratch(x: Tensor, codebook: Tensor) -> Tensor:
    """Memory for the scores of a chunk of rows; taken once per fit, not once per round."""
    return x.new_empty(min(CHUNK, len(x)), len(codebook))


def nearest_score(
    x: Tensor, codebook: Tensor, scores: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Index [N] of the nearest codeword and its score 2<x,c> - |c|^2 = |x|^2 - |x-c|^2.

    |x|^2 is common to all codewords and would cost digits in the comparison. On a CPU numpy's
    argmax is used because it is vectorised and torch's is not.
    """
    bias = codebook.square().sum(1) * -0.5
    if x.device.type != "cpu":
        parts = x.split(max(1, (1 << 28) // len(codebook)))
        best = [torch.addmm(bias, p, codebook.T).max(1) for p in parts]
        return torch.cat([b.indices for b in best]), 2 * torch.cat([b.values for b in best])
    index, score = np.empty(len(x), dtype=np.int64), torch.empty(len(x), dtype=x.dtype)
    scores = scratch(x, codebook) if scores is None else scores
    for start in range(0, len(x), CHUNK):
        rows = x[start : start + CHUNK]
        out = scores[: len(rows)]
        torch.addmm(bias, rows, codebook.T, out=out)
        np.argmax(out.numpy(), axis=1, out=index[start : start + CHUNK])
        torch.amax(out, 1, out=score[start : start + CHUNK])
    return torch.from_numpy(index), score.mul_(2)


def alternate(
    x: Tensor,
    weight: Tensor,
    start: Tensor,
    iterations: int,
    update: Update,
    assign: Assign | None = None,
) -> Fit:
    """Run `iterations` rounds of assign and update and keep the iterate of least objective.

    x [N, d]; weight [N] >= 0; start [K, d]. `update(index)` returns the codebook [K, d] and the
    weight per cluster [K]; `assign(x, codebook)` the index [N], by default of the nearest codeword.
    A cluster without weight moves to one of the points with the largest weight * squared error
    (distinct points), in every arm alike.
    """
    codebook, best, best_index, best_value = start, start, None, math.inf
    total = weight.sum().clamp_min(torch.finfo(x.dtype).tiny)
    norms, scores = x.square().sum(1), scratch(x, start)
    objective: list[float] = []
    for step in range(iterations + 1):
        if assign is None:
            index, score = nearest_score(x, codebook, scores)
            error = (norms - score).clamp_min(0)
        else:
            index = assign(x, codebook)
            error = (x - codebook.index_select(0, index)).square().sum(1)
        cost = error * weight
        objective.append(float(cost.sum() / total))
        if objective[-1] < best_value:
            best, best_index, best_value = codebook, index, objective[-1]
        if step < iterations:
            codebook, mass = update(index)
            codebook = repair(codebook, mass, x, cost)
    if assign is not None or best_index is None:
        best_index = nearest(x, best)
    return Fit(best, x - best.index_select(0, best_index), best_index, objective)


def repair(codebook: Tensor, mass: Tensor, x: Tensor, cost: Tensor) -> Tensor:
    """Move every codeword without mass to one of the worst-coded points (distinct points)."""
    dead = (mass <= 0).nonzero().squeeze(1)
    if len(dead) == 0:
        return codebook
    worst = cost.topk(min(len(dead), len(x))).indices
    codebook = codebook.clone()
    codebook[dead[: len(worst)]] = x[worst]
    return codebook


def cluster_sum(values: Tensor, index: Tensor, clusters: int) -> Tensor:
    """Sum of the rows of values [N, d] (or entries of [N]) per cluster."""
    shape = (clusters, *values.shape[1:])
    return values.new_zeros(shape).index_add_(0, index, values)


def usage_entropy(index: Tensor, clusters: int) -> float:
    """Entropy in bits of the code usage; at most log2(clusters)."""
    p = torch.bincount(index, minlength=clusters).double() / len(index)
    return float(-(p[p > 0] * p[p > 0].log2()).sum())


def shrinkage(x: Tensor, codebook: Tensor, index: Tensor) -> float:
    """rho = sum_i |c_{a_i}| / sum_i |x_i|: population-weighted length kept by the codewords."""
    return float(codebook.norm(dim=1)[index].sum() / x.norm(dim=1).sum())


def projection_identity_error(x: Tensor, index: Tensor, clusters: int) -> float:
    """Largest relative error of |c| = mean_i |x_i| cos(x_i, c) over clusters with c their mean.

    Computed in float64 (claim C1 a); clusters whose mean is zero have no direction and are skipped.
    """
    x = x.double()
    counts = torch.bincount(index, minlength=clusters).double().clamp_min(1)
    means = cluster_sum(x, index, clusters) / counts[:, None]
    norms = means.norm(dim=1)
    point = x.norm(dim=1)
    cosine = (x * means[index]).sum(1) / (point * norms[index]).clamp_min(1e-300)
    projected = cluster_sum(point * cosine, index, clusters) / counts
    keep = norms > 0
    return float(((projected - norms).abs() / norms.clamp_min(1e-300))[keep].max())
