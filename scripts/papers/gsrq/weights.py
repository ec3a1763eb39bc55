"""Importance of each cached vector for the weighted objective (one number per token and head)."""

from __future__ import annotations

import torch
from torch import Tensor


def attention_weights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """First-order output error caused by a unit error in a key or value; forward pass only.

    q [Hq, T, D], k and v [H, T, D], q and k after RoPE; causal. Returns w_k, w_v [H, T]:
    w^V_j = sum_i A_ij^2 and w^K_j = sum_i A_ij^2 |v_j - o_i|^2 |q_i|^2 / D, summed over the query
    heads that share the key head, with A the attention and o the attention output.
    """
    heads, length, dim = k.shape
    q = q.unflatten(0, (heads, -1))
    scores = torch.einsum("hgid,hjd->hgij", q, k) / dim**0.5
    future = torch.ones(length, length, dtype=torch.bool, device=k.device).triu(1)
    squared = scores.masked_fill(future, float("-inf")).softmax(-1)
    out = torch.einsum("hgij,hjd->hgid", squared, v)
    squared = squared.square_()
    w_v = squared.sum((1, 2))
    reach = squared * (q.square().sum(-1) / dim)[..., None]
    cross = torch.einsum("hgid,hjd->hgij", out, v)
    distance = v.square().sum(-1)[:, None, None, :] - 2 * cross + out.square().sum(-1)[..., None]
    w_k = (reach * distance.clamp_min(0)).sum((1, 2))
    return w_k, w_v


def clipped(weight: Tensor, quantile: float = 0.99) -> Tensor:
    """Clip one tensor's weights at a quantile and divide by their mean."""
    top = torch.quantile(weight.flatten().float(), quantile)
    weight = weight.clamp_max(top)
    return weight / weight.mean().clamp_min(1e-30)


def log_smoothed(weight: Tensor) -> Tensor:
    """log(1 + w / median w) over one tensor, divided by its mean: tames the tail of gradients.

    The paper smooths its gradient weights by a logarithm; this exact form is assumed.
    """
    weight = torch.log1p(weight / weight.median().clamp_min(1e-30))
    return weight / weight.mean().clamp_min(1e-30)
