"""Bases that a seed generates: windows of the LFSR's cyclic bit stream.

Entry n = iC + c of a seed at position p is channel c of basis i (consecutive chunks of C entries).

    kind    window              value v           divided by
    state   K bits at p + n     v - 2^(K-1)       2^(K-1) - 1    S-Quant as published: neighbours
                                                                 share K - 1 bits and correlate
    word    K bits at p + nK    v - 2^(K-1)       2^(K-1) - 1    a fresh word for each entry
    sign    1 bit at p + n      2v - 1            1              additions only
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from scripts.papers.squant import lfsr

KINDS = ("sign", "state", "word")
CHUNK = 1 << 18  # blocks that are combined at once
RANK_TOLERANCE = 1e-4  # least singular value over the largest; +-1 matrices are exactly singular


@dataclass(frozen=True)
class Generator:
    """Which matrices the seeds stand for: K-bit registers, `count` bases of `size` channels."""

    kind: str
    bits: int
    size: int
    count: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind: {self.kind!r}; allowed: {', '.join(KINDS)}")
        lfsr.check_taps(self.bits, lfsr.TAPS.get(self.bits, ()))
        if not 1 <= self.count <= self.size:
            raise ValueError(f"count: {self.count} bases; 1 to {self.size} (the size) are allowed")

    @property
    def period(self) -> int:
        return (1 << self.bits) - 1

    @property
    def denominator(self) -> int:
        """Integer entries are divided by this."""
        return 1 if self.kind == "sign" else (1 << (self.bits - 1)) - 1


def integers(generator: Generator, positions: Tensor) -> Tensor:
    """Integer entries [..., P, C] int32 of the bases at positions [...]."""
    count = generator.count * generator.size
    stride = generator.bits if generator.kind == "word" else 1
    offset = torch.arange(count, device=positions.device) * stride
    states = _states(generator.bits).to(positions.device)
    window = states[(positions.long()[..., None] + offset) % generator.period]
    value = (window & 1) * 2 - 1 if generator.kind == "sign" else window - (1 << generator.bits - 1)
    return value.unflatten(-1, (generator.count, generator.size))


def combine(generator: Generator, positions: Tensor, coefficients: Tensor) -> Tensor:
    """Sums of integer coefficients [n, P] times integer entries: exact, then float32 [n, C]."""
    parts = [
        (q.int()[..., None] * integers(generator, p)).sum(1, dtype=torch.int32).float()
        for p, q in zip(positions.split(CHUNK), coefficients.split(CHUNK), strict=True)
    ]
    return torch.cat(parts)


def _states(bits: int) -> Tensor:
    return torch.from_numpy(lfsr.cycle(bits).copy())


@dataclass(frozen=True, eq=False)  # hashed by identity, so that what follows from it is cached
class Dictionary:
    """All usable seeds of a generator.

    positions [N] int64 on the cycle; matrices [N, P, C] float32, the bases as rows; orthonormal
    [N, C, P] float32, whose first k columns span the first k bases.
    """

    generator: Generator
    positions: Tensor
    matrices: Tensor
    orthonormal: Tensor


@lru_cache(maxsize=4)
def dictionary(generator: Generator, device: str = "cpu") -> Dictionary:
    """The seeds whose bases are linearly independent (a few per cent of the others drop out)."""
    everywhere = torch.arange(generator.period, device=device)
    matrices = integers(generator, everywhere).double() / generator.denominator
    q, r = torch.linalg.qr(matrices.mT)
    diagonal = r.diagonal(dim1=-2, dim2=-1).abs()
    keep = diagonal.amin(-1) > RANK_TOLERANCE * diagonal.amax(-1)
    return Dictionary(generator, everywhere[keep], matrices[keep].float(), q[keep].float())


def projectors(dictionary: Dictionary, count: int | None = None) -> Tensor:
    """Features [C(C+1)/2, N] float32 of the projectors on the span of the first `count` bases.

    Upper triangle in the order of `torch.triu_indices`, off-diagonal entries doubled, so that the
    product with the entries w_a w_b of a block is the energy that the span explains.
    """
    return _projectors(dictionary, count or dictionary.generator.count)


def pseudo_inverses(
    dictionary: Dictionary, count: int | None = None, index: Tensor | None = None
) -> Tensor:
    """[N, k, C] float32: a block's least-squares coefficients on the first `count` bases.

    index: only of these seeds.
    """
    count = count or dictionary.generator.count
    if index is None:
        return _pseudo_inverses(dictionary, count)
    return _inverted(dictionary.matrices[index, :count])


@lru_cache(maxsize=16)
def _projectors(dictionary: Dictionary, count: int) -> Tensor:
    size = dictionary.generator.size
    a, b = torch.triu_indices(size, size, device=dictionary.positions.device)
    q = dictionary.orthonormal[..., :count].double()
    twice = torch.where(a == b, 1.0, 2.0).to(q)
    features = torch.stack(
        [(q[:, i] * q[:, j]).sum(-1) for i, j in zip(a.tolist(), b.tolist(), strict=True)]
    )
    return (features * twice[:, None]).float().contiguous()


@lru_cache(maxsize=4)
def _pseudo_inverses(dictionary: Dictionary, count: int) -> Tensor:
    return _inverted(dictionary.matrices[:, :count])


def _inverted(matrices: Tensor) -> Tensor:
    u = matrices.double()
    return torch.linalg.solve(u @ u.mT, u).float()
