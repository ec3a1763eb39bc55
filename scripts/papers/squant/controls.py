"""Controls of the seed search on a few rows of a matrix: counts, and when the seed is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scripts.papers.squant import adaptive, fixed
from scripts.papers.squant.adaptive import FIRST, AdaptiveConfig
from scripts.papers.squant.designs import snr
from scripts.papers.squant.fixed import FixedConfig
from scripts.papers.squant.packing import blocks_of


def shortlists(w: Tensor, config: FixedConfig, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """SNR by the number of seeds whose quantized error is compared (1: chosen before)."""
    blocks = blocks_of(w, config.generator.size)
    return [
        {
            "shortlist": length,
            "bits": config.bits,
            "value": snr(blocks, fixed.decode(fixed.encode(blocks, config, length), config)),
        }
        for length in lengths
    ]


def equal_counts(w: Tensor, config: AdaptiveConfig, count: int) -> dict[str, Any]:
    """SNR of the int8 coder with one count for all blocks (not stored)."""
    blocks, per_row = blocks_of(w, config.generator.size), w.shape[1] // config.generator.size
    found = adaptive.scan(blocks, config)
    counts = torch.full((len(blocks),), count, device=w.device)
    value = _snr(found, counts, blocks, config, per_row)
    return {"bits": config.published_bits(count, per_row), "value": value}


def at_rate_of(
    w: Tensor, config: AdaptiveConfig, other: AdaptiveConfig, count: int
) -> dict[str, Any]:
    """SNR of the adaptive coder at the total bits that another spends with one count for all."""
    blocks, per_row = blocks_of(w, config.generator.size), w.shape[1] // config.generator.size
    bits = other.published_bits(count, w.shape[1] // other.generator.size)
    found = adaptive.scan(blocks, config)
    wanted = max(float(FIRST), config.mean_count(bits, per_row))
    counts = found.counts(adaptive.threshold_for(found, wanted))
    value = _snr(found, counts, blocks, config, per_row)
    return {"bits": config.bits(float(counts.double().mean()), per_row), "value": value}


def exhaustive_loss(
    weights: Sequence[Tensor], config: FixedConfig, shortlist: int, count: int
) -> tuple[float, int]:
    """SNR that the shortlist loses against all seeds, in dB, and the blocks it was seen on."""
    size = config.generator.size
    each = -(-count // len(weights))
    parts = []
    for weight in weights:
        blocks = blocks_of(weight, size)
        parts.append(blocks[:: max(1, len(blocks) // each)][:each])
    blocks = torch.cat(parts)[:count]
    listed, best = (
        snr(blocks, fixed.decode(fixed.encode(blocks, config, length), config))
        for length in (shortlist, config.generator.period)
    )
    return best - listed, len(blocks)


def _snr(
    found: adaptive.Scan, counts: Tensor, blocks: Tensor, config: AdaptiveConfig, per_row: int
) -> float:
    index = found.index.gather(1, counts[:, None] - FIRST)[:, 0]
    codes = adaptive.quantize(blocks, index, counts, config, per_row)
    return snr(blocks, adaptive.decode(codes, config, per_row))
