"""S-Quant as published: as many bases as a block needs, int8 coefficients, shared FP16 scales.

Algorithm 1: the count k starts at 2 and grows until the best seed for that k explains a share
R_k = |P_k w|^2 / |w|^2 of the block's energy that reaches a threshold, or k is k_max. The seed is
chosen on this unquantized share. Coefficients are least squares, then int8 with one FP16 scale for
G consecutive blocks of a row. The count itself must be stored: `AdaptiveConfig.bits` counts it,
`published_bits` does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.seed_search import seed_search
from scripts.papers.squant.basis import (
    Generator,
    combine,
    dictionary,
    projectors,
    pseudo_inverses,
)

FIRST = 2
"""The least count of bases (Algorithm 1)."""
LARGEST = 127
SCALE_BITS = 16


@dataclass(frozen=True)
class AdaptiveConfig:
    """B = generator.size, k_max = generator.count, S = generator.bits; G = group."""

    generator: Generator
    group: int

    def __post_init__(self) -> None:
        if self.generator.count < FIRST:
            raise ValueError(f"count: {self.generator.count} bases; at least {FIRST} are allowed")
        if self.group < 1:
            raise ValueError(f"group: {self.group} blocks; at least 1 is allowed")

    @property
    def counts(self) -> range:
        return range(FIRST, self.generator.count + 1)

    @property
    def count_bits(self) -> int:
        """Bits of one stored count, ceil(log2(k_max - 1))."""
        return (len(self.counts) - 1).bit_length()

    def bits(self, mean_count: float, per_row: int) -> float:
        """Total bits per weight at a mean count, in rows of `per_row` blocks."""
        return self.published_bits(mean_count, per_row) + self.count_bits / self.generator.size

    def published_bits(self, mean_count: float, per_row: int) -> float:
        """The published formula (S + 8k + 16/G) / B, which leaves the stored count out."""
        scales = SCALE_BITS * -(-per_row // self.group) / per_row
        return (self.generator.bits + 8 * mean_count + scales) / self.generator.size

    def mean_count(self, bits: float, per_row: int) -> float:
        """The mean count that makes `bits` in total; the inverse of `bits`."""
        return FIRST + (bits - self.bits(FIRST, per_row)) * self.generator.size / 8


class Scan(NamedTuple):
    """Of each block and count (columns k = 2..k_max): index of the best seed, share explained.

    Columns past the count at which a block stopped hold -1 and 1.
    """

    index: Tensor
    share: Tensor

    def counts(self, threshold: float) -> Tensor:
        """Count of bases [n] int64 of each block at a threshold (not above that of the scan)."""
        short = (self.share[:, :-1] < threshold).long()
        return FIRST + short.cumprod(1).sum(1)


class AdaptiveCodes(NamedTuple):
    """position [n], count [n], coefficients [sum of counts] int64; scale [groups] float16.

    Coefficients of consecutive blocks follow each other.
    """

    position: Tensor
    count: Tensor
    coefficients: Tensor
    scale: Tensor
    base_exponent: int


def scan(w: Tensor, config: AdaptiveConfig, threshold: float = float("inf")) -> Scan:
    """Search the seeds for k = 2, 3, ... among the blocks w [n, C] that are still short.

    With the default threshold every count is searched for every block.
    """
    seeds = dictionary(config.generator, str(w.device))
    energy = w.square().sum(1)
    index = torch.full((len(w), len(config.counts)), -1, dtype=torch.int64, device=w.device)
    share = torch.ones(index.shape, device=w.device)
    left = torch.arange(len(w), device=w.device)
    for column, count in enumerate(config.counts):
        found = seed_search(w[left], projectors(seeds, count), 1)
        # A block of zeros is explained by any seed.
        ratio = torch.where(energy[left] > 0, found.energy[:, 0] / energy[left], 1.0)
        index[left, column], share[left, column] = found.index[:, 0].long(), ratio
        left = left[ratio < threshold]
    return Scan(index, share)


def threshold_for(sample: Scan, mean_count: float) -> float:
    """The largest threshold at which the mean count of the scanned blocks is at most `mean_count`.

    A block's count is 2 plus the number of its shares (but the last) below the threshold, as shares
    grow with the count; so the threshold is an order statistic of all of them. Raises ValueError
    for a mean count below 2.
    """
    if mean_count < FIRST:
        raise ValueError(f"mean_count: {mean_count:g}; at least {FIRST} is allowed")
    shares = sample.share[:, :-1].flatten().sort().values
    below = int((mean_count - FIRST) * len(sample.share))
    return float(shares[below]) if below < len(shares) else float("inf")


def encode(
    w: Tensor, config: AdaptiveConfig, threshold: float, per_row: int
) -> tuple[AdaptiveCodes, Tensor]:
    """Encode blocks w [n, C] float32 of rows of `per_row` blocks.

    Returns the codes, and of each block [n] whether it reached the threshold (else it has k_max).
    Raises ValueError where w holds values that are not finite.
    """
    if not w.isfinite().all():
        raise ValueError("w: values that are not finite; finite values are allowed")
    found = scan(w, config, threshold)
    count = found.counts(threshold)
    index = found.index.gather(1, count[:, None] - FIRST)[:, 0]
    reached = found.share.gather(1, count[:, None] - FIRST)[:, 0] >= threshold
    return quantize(w, index, count, config, per_row), reached


def quantize(
    w: Tensor, index: Tensor, count: Tensor, config: AdaptiveConfig, per_row: int
) -> AdaptiveCodes:
    """Least squares on the first `count` bases of the seeds at `index`, then int8 by groups."""
    seeds = dictionary(config.generator, str(w.device))
    t = w.new_zeros(len(w), config.generator.count)
    for k in config.counts:
        rows = (count == k).nonzero()[:, 0]
        used, which = index[rows].unique(return_inverse=True)
        inverse = pseudo_inverses(seeds, k, used)[which]
        t[rows, :k] = (inverse @ w[rows, :, None])[..., 0]
    group = _groups(len(w), per_row, config.group, w.device)
    largest = w.new_zeros(int(group[-1]) + 1 if len(group) else 0)
    largest.scatter_reduce_(0, group, t.abs().amax(1), "amax")
    base = int(largest.max().div(LARGEST).log2().floor()) if largest.any() else 0
    scale = (largest / LARGEST * 2.0**-base).half()
    # Blocks far below the rest may find a scale of 0; their coefficients are 0 then.
    divisor = (scale.float() * 2.0**base)[group, None]
    q = torch.where(divisor > 0, t / divisor, 0.0).round().clamp(-LARGEST, LARGEST)
    live = torch.arange(t.shape[1], device=w.device) < count[:, None]
    return AdaptiveCodes(seeds.positions[index], count, q[live].long(), scale, base)


def decode(codes: AdaptiveCodes, config: AdaptiveConfig, per_row: int) -> Tensor:
    """Blocks [n, C] float32: the sum of integers, rounded once, times a float32 factor."""
    n, device = len(codes.position), codes.position.device
    live = torch.arange(config.generator.count, device=device) < codes.count[:, None]
    q = torch.zeros(live.shape, dtype=torch.int32, device=device)
    q[live] = codes.coefficients.int()
    total = combine(config.generator, codes.position, q)
    group = _groups(n, per_row, config.group, device)
    unit = 2.0**codes.base_exponent / config.generator.denominator
    factor = codes.scale.float() * torch.tensor(unit, device=device)
    return total * factor[group, None]


def _groups(n: int, per_row: int, size: int, device: torch.device) -> Tensor:
    """Group of each block [n]: `size` consecutive blocks of a row, the last ones of a row fewer."""
    block = torch.arange(n, device=device)
    return block // per_row * -(-per_row // size) + block % per_row // size
