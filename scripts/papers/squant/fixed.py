"""A fixed number of bases per block, coefficients of few bits with one shared exponent.

A block w of C weights is sum_i q_i B_i 2^E: b-bit integers q, one power of two. The shortlist of T
seeds comes from the energy that their spans explain; among them the *quantized* error decides, so
that with T = all seeds the search is exhaustive. SeedLM (arXiv 2410.10714) is this coder with word
bases; with sign bases it is our reading of S-Quant before the adaptive count (`adaptive.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.seed_search import seed_search
from scripts.papers.squant.basis import (
    Dictionary,
    Generator,
    combine,
    dictionary,
    projectors,
    pseudo_inverses,
)

CHUNK = 256  # blocks whose shortlists are scored at once
LOWEST = -126  # exponent of a block of zeros; the least that float32 scales by exactly


@dataclass(frozen=True)
class FixedConfig:
    """C = generator.size, P = generator.count, K = generator.bits; b and e below."""

    generator: Generator
    coefficient_bits: int
    exponent_bits: int

    def __post_init__(self) -> None:
        if not 2 <= self.coefficient_bits <= 8:
            raise ValueError(f"coefficient_bits: {self.coefficient_bits}; 2 to 8 are allowed")
        if not 1 <= self.exponent_bits <= 8:
            raise ValueError(f"exponent_bits: {self.exponent_bits}; 1 to 8 are allowed")

    @property
    def block_bits(self) -> int:
        """Bits of one block: seed, exponent, coefficients."""
        return (
            self.generator.bits + self.exponent_bits + self.coefficient_bits * self.generator.count
        )

    @property
    def bits(self) -> float:
        """Total bits per weight (one base exponent per tensor besides)."""
        return self.block_bits / self.generator.size


class FixedCodes(NamedTuple):
    """position [n] int64, exponent [n] int64 (E = base - field), coefficients [n, P] int64."""

    position: Tensor
    field: Tensor
    coefficients: Tensor
    base_exponent: int


def encode(w: Tensor, config: FixedConfig, shortlist: int = 16) -> FixedCodes:
    """Encode blocks w [n, C] float32.

    Raises ValueError where w holds values that are not finite.
    """
    if not w.isfinite().all():
        raise ValueError("w: values that are not finite; finite values are allowed")
    seeds = dictionary(config.generator, str(w.device))
    scan, inverse = projectors(seeds), pseudo_inverses(seeds)
    index = torch.empty(len(w), dtype=torch.int64, device=w.device)
    exponent = torch.empty_like(index)
    coefficients = torch.empty(len(w), config.generator.count, device=w.device)
    everywhere = torch.arange(len(seeds.positions), device=w.device)
    shortlist = min(shortlist, len(everywhere))
    chunk = max(1, CHUNK * 16 // shortlist)
    for start in range(0, len(w), chunk):
        rows = slice(start, start + chunk)
        if shortlist < len(everywhere):
            listed = seed_search(w[rows], scan, shortlist).index.long()
        else:
            listed = everywhere.expand(len(w[rows]), -1)
        index[rows], exponent[rows], coefficients[rows] = _best(
            w[rows], listed, seeds, inverse, config
        )
    live = coefficients.any(1)
    base = int(exponent[live].max()) if live.any() else 0
    lowest = base - (1 << config.exponent_bits) + 1
    small = live & (exponent < lowest)  # blocks too small for the field share its least exponent
    t = (inverse[index[small]] @ w[small, :, None])[..., 0]
    coefficients[small] = _rounded(t / 2.0**lowest, config)
    field = (base - exponent).clamp(0, (1 << config.exponent_bits) - 1)
    return FixedCodes(seeds.positions[index], field, coefficients.long(), base)


def _best(
    w: Tensor, listed: Tensor, seeds: Dictionary, inverse: Tensor, config: FixedConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Index, exponent and coefficients of least squared error among the listed seeds [n, T]."""
    n, top = listed.shape
    p, c = inverse.shape[1:]
    flat = listed.flatten()
    t = torch.bmm(inverse.index_select(0, flat).view(n, top * p, c), w[:, :, None])
    t = t.view(n, top, 1, p)
    largest = (1 << (config.coefficient_bits - 1)) - 1
    exponent = (t.abs().amax(-1, keepdim=True) / largest).log2().ceil().clamp_min(LOWEST + 1)
    exponent = torch.cat([exponent, exponent - 1], 2)  # the lower one clips the largest
    scale = exponent.exp2()
    q = _rounded(t / scale, config)
    matrices = seeds.matrices.index_select(0, flat)
    made = torch.bmm((q * scale).view(n * top, 2, p), matrices).view(n, top * 2, c)
    at = made.sub_(w[:, None]).square_().sum(-1).argmin(1)
    rows = torch.arange(n, device=w.device)
    return listed[rows, at // 2], exponent.view(n, -1)[rows, at].long(), q.view(n, -1, p)[rows, at]


def _rounded(t: Tensor, config: FixedConfig) -> Tensor:
    half = 1 << (config.coefficient_bits - 1)
    return t.round().clamp(-half, half - 1)


def decode(codes: FixedCodes, config: FixedConfig) -> Tensor:
    """Blocks [n, C] float32: the sum of integers, rounded once, times a float32 factor."""
    total = combine(config.generator, codes.position, codes.coefficients)
    steps = range(1 << config.exponent_bits)
    powers = torch.tensor([2.0 ** (codes.base_exponent - k) for k in steps], device=total.device)
    factor = powers[codes.field] * torch.tensor(1 / config.generator.denominator)
    return total * factor[:, None]
