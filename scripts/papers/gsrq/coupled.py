"""Coupled quantization (CQ): K-means on groups of channels, one codebook per head and group."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.rq_encode import rq_encode
from scripts.papers.gsrq.coder import join_groups, split_groups
from scripts.papers.gsrq.kmeans import fit_kmeans


def fit_coupled(x: Tensor, weight: Tensor, channels: int, rows: Tensor, iterations: int) -> Tensor:
    """Codebooks [H, G, K, channels] of x [T, H, D] with weight [T, H]; rows [K] start every one.

    Bits per element: log2(K) / channels.
    """
    groups = split_groups(x, channels)
    return torch.stack(
        [
            torch.stack(
                [
                    fit_kmeans(vectors, weight[:, head], vectors[rows], iterations).codebook
                    for vectors in (groups[:, head, g].contiguous() for g in range(groups.shape[2]))
                ]
            )
            for head in range(x.shape[1])
        ]
    )


def quantize_coupled(x: Tensor, codebooks: Tensor) -> Tensor:
    """Quantize and dequantize [..., H, D] with codebooks [H, G, K, channels]."""
    groups = split_groups(x, codebooks.shape[-1])
    out = torch.empty_like(groups)
    for head in range(codebooks.shape[0]):
        for g in range(codebooks.shape[1]):
            vectors = groups[..., head, g, :]
            xhat = rq_encode(vectors.reshape(-1, vectors.shape[-1]), codebooks[head, g][None]).xhat
            out[..., head, g, :] = xhat.reshape(vectors.shape)
    return join_groups(out)
