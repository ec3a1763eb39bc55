"""Scalar baselines: each channel of a key or value is rounded by itself. Shapes [B, T, H, D]."""

from __future__ import annotations

import torch
from torch import Tensor


def round_groups(x: Tensor, bits: int) -> Tensor:
    """Asymmetric round-to-nearest over the last dimension with float16 minimum and step."""
    low = x.amin(-1, keepdim=True).half().to(x.dtype)
    step = ((x.amax(-1, keepdim=True) - low) / (2**bits - 1)).half().to(x.dtype)
    safe = torch.where(step > 0, step, torch.ones_like(step))
    level = ((x - low) / safe).round().clamp(0, 2**bits - 1)
    return low + level * step


def per_token(x: Tensor, bits: int) -> Tensor:
    """RTN: one minimum and step per token and head."""
    return round_groups(x, bits)


def kivi(x: Tensor, kind: str, bits: int, group: int) -> Tensor:
    """KIVI (arXiv 2402.02750): keys per channel in groups of tokens, values per token in groups.

    No full-precision residual window is kept, so no bits are hidden in it; a key group at the end
    of the text may be shorter than `group`.
    """
    if kind == "k":
        parts = x.split(group, dim=1)
        return torch.cat([round_groups(p.movedim(1, -1), bits).movedim(-1, 1) for p in parts], 1)
    return round_groups(x.unflatten(-1, (-1, group)), bits).flatten(-2)


def sign_scale(x: Tensor) -> Tensor:
    """One bit per element: the sign times the mean magnitude of the head vector (float16)."""
    scale = x.abs().mean(-1, keepdim=True).half().to(x.dtype)
    return torch.where(x < 0, -scale, scale)


def fit_levels(x: Tensor, weight: Tensor, bits: int, iterations: int) -> Tensor:
    """Per-channel weighted Lloyd-Max levels [H, D, 2^bits] of x [T, H, D], weight [T, H].

    KVQuant's non-uniform type (arXiv 2401.18079) without its outlier storage; starts at quantiles.
    A level that loses all its points keeps its place.
    """
    count = 2**bits
    at = (torch.arange(count, dtype=x.dtype, device=x.device) + 0.5) / count
    levels = torch.quantile(x, at, dim=0).permute(1, 2, 0).contiguous()
    for _ in range(iterations):
        index = nearest_level(x, levels)
        mass = torch.zeros_like(levels)
        total = torch.zeros_like(levels)
        for level in range(count):
            w = (index == level) * weight[..., None]
            mass[..., level] = w.sum(0)
            total[..., level] = (w * x).sum(0)
        levels = torch.where(mass > 0, total / mass.clamp_min(1e-30), levels)
        levels = levels.sort(-1).values
    return levels


def nearest_level(x: Tensor, levels: Tensor) -> Tensor:
    """Index of the nearest of the sorted levels [H, D, L] for each element of x [..., H, D]."""
    middles = (levels[..., 1:] + levels[..., :-1]) / 2
    return (x[..., None] > middles).sum(-1)


def quantize_levels(x: Tensor, levels: Tensor) -> Tensor:
    """Replace each element of [..., H, D] by the nearest level of its channel."""
    index = nearest_level(x, levels)
    return torch.gather(levels.expand(*index.shape, -1), -1, index[..., None])[..., 0]
