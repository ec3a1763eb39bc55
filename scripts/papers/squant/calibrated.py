"""Baselines that read calibration activations: AWQ and GPTQ, through their Gram matrix.

Inputs of a matrix W [rows, cols] are described by gram = X^T X / tokens [cols, cols] and mean = the
mean of |x| per channel [cols].
"""

from __future__ import annotations

import torch
from torch import Tensor

from scripts.papers.squant.scalar import Grouped, grid, grouped, rounded, split

ALPHAS = 20
SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55)
DAMPING = 0.01
COLUMNS = 128


def output_error(difference: Tensor, gram: Tensor) -> Tensor:
    """Mean squared error of the outputs X W^T that a difference in W makes."""
    return ((difference @ gram) * difference).sum()


def awq_scale(
    w: Tensor, gram: Tensor, mean: Tensor, bits: int, group: int | None, every: int = 4
) -> Tensor:
    """Per-channel scale [cols] float16 of AWQ (arXiv 2306.00978): mean^alpha, alpha on a grid.

    The alpha of least output error of every `every`-th row; w * scale is quantized, x / scale read.
    """
    rows, best, found = w[::every], float("inf"), torch.ones_like(mean)
    for step in range(ALPHAS):
        scale = mean.clamp_min(1e-4).pow(step / ALPHAS)
        scale = (scale / (scale.max() * scale.min()).sqrt()).half().float()
        x, _ = split(rows * scale, group)
        made = _decoded(rows, x, *grid(x, bits), bits)
        error = float(output_error(made / scale - rows, gram))
        if error < best:
            best, found = error, scale
    return found.half()


def awq(
    w: Tensor, gram: Tensor, mean: Tensor, bits: int, group: int | None
) -> tuple[Grouped, Tensor]:
    """Quantized w * scale and the scale; ranges are clipped where a group's own output gains."""
    scale = awq_scale(w, gram, mean, bits, group)
    x, size = split(w * scale.float(), group)
    inner = _diagonal_blocks(gram / torch.outer(scale.float(), scale.float()), size)
    best, chosen = None, grid(x, bits)
    for shrink in SHRINKS:
        trial = grid(x, bits, shrink)
        difference = (rounded(x, *trial, bits) - trial[1]) * trial[0].float() - x
        error = ((difference.transpose(0, 1) @ inner).transpose(0, 1) * difference).sum(-1, True)
        if best is None:
            best = error
            continue
        better = error < best
        best = torch.where(better, error, best)
        chosen = tuple(torch.where(better, a, b) for a, b in zip(trial, chosen, strict=True))
    codes = rounded(x, *chosen, bits)
    return grouped(w, codes, *chosen, bits, size, bits), scale


def gptq(w: Tensor, gram: Tensor, bits: int, group: int | None) -> Grouped:
    """GPTQ (arXiv 2210.17323), asymmetric, no activation order, damping 1% of the mean diagonal.

    Columns are rounded one after another; what each loses is spread over those that follow by the
    Cholesky factor of the inverse Gram matrix. A group's grid is set when its first column is due.
    """
    rows, cols = w.shape
    size = min(group or cols, cols)
    damped = gram.double().clone()
    dead = damped.diagonal() == 0
    damped.diagonal().add_(DAMPING * damped.diagonal().mean() + dead.double())
    factor = torch.linalg.cholesky(
        torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True
    )
    factor = factor.float()
    left, codes = w.clone(), torch.empty(rows, cols, dtype=torch.int64, device=w.device)
    scales, zeros = [], []
    for start in range(0, cols, COLUMNS):
        stop = min(start + COLUMNS, cols)
        errors = torch.empty(rows, stop - start, device=w.device)
        for column in range(start, stop):
            if column % size == 0:
                # Columns past this batch have not got its errors yet.
                ahead = slice(stop, min(column + size, cols))
                near = left[:, column : min(column + size, stop)]
                far = left[:, ahead] - errors[:, : column - start] @ factor[start:column, ahead]
                scale, zero = grid(torch.cat([near, far], 1), bits)
                scales.append(scale)
                zeros.append(zero)
            x = left[:, column : column + 1]
            code = rounded(x, scale, zero, bits)
            error = (x - (code - zero) * scale.float()) / factor[column, column]
            left[:, column + 1 : stop] -= error * factor[column, column + 1 : stop]
            codes[:, column], errors[:, column - start] = code[:, 0].long(), error[:, 0]
        left[:, stop:] -= errors @ factor[start:stop, stop:]
    return Grouped(codes, torch.cat(scales, 1), torch.cat(zeros, 1).half(), bits, size, bits)


def _decoded(w: Tensor, x: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    made = (rounded(x, scale, zero, bits) - zero) * scale.float()
    return made.flatten(1)[:, : w.shape[1]]


def _diagonal_blocks(gram: Tensor, size: int) -> Tensor:
    """Blocks [groups, size, size] on the diagonal; rows past the end are 0."""
    spare = -len(gram) % size
    gram = torch.nn.functional.pad(gram, (0, spare, 0, spare))
    return torch.stack([gram[i : i + size, i : i + size] for i in range(0, len(gram), size)])
