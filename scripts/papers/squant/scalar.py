"""Baselines without data: round to nearest, normal-float and half-quadratic group quantization.

Groups are `group` consecutive weights of a row (the last of a row may be shorter; None: the row).
Every scale and zero counts in the total bits, as stored: FP16 scales, packed integer zeros for RTN,
FP16 zeros for HQQ, none for NF.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scripts.papers.squant.packing import pack, unpack

HQQ_STEPS, HQQ_NORM, HQQ_BETA, HQQ_GROWTH = 20, 0.7, 10.0, 1.01


@dataclass(frozen=True)
class Grouped:
    """codes [rows, cols] int64; scale [rows, groups] float16; zero the same, float16, or None.

    A weight is (code - zero) * scale, or for NF levels[code] * scale.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor | None
    bits: int
    group: int
    zero_bits: int

    def total_bits(self) -> float:
        """Bits per weight, scales and zeros included."""
        return self.bits + (16 + self.zero_bits) * self.scale.numel() / self.codes.numel()

    def decode(self) -> Tensor:
        """[rows, cols] float32."""
        where = torch.arange(self.codes.shape[1], device=self.codes.device) // self.group
        scale = self.scale.float()[:, where]
        if self.zero is None:
            return normal_levels(self.bits).to(scale)[self.codes] * scale
        return (self.codes - self.zero.float()[:, where]) * scale

    def tensors(self) -> dict[str, Tensor]:
        """What is stored: packed codes, scales, zeros, and the shape of the matrix."""
        shape = torch.tensor(
            [*self.codes.shape, self.bits, self.group, self.zero_bits], dtype=torch.int32
        )
        stored = {"shape": shape, "codes": pack([self.codes.flatten()], (self.bits,))}
        stored["scale"] = self.scale.contiguous()
        if self.zero is not None and self.zero_bits < 16:
            stored["zero"] = pack([self.zero.long().flatten()], (self.zero_bits,))
        elif self.zero is not None:
            stored["zero"] = self.zero.contiguous()
        return stored

    @classmethod
    def load(cls, stored: dict[str, Tensor]) -> Grouped:
        """Inverse of `tensors`. Raises ValueError for truncated data."""
        rows, cols, bits, group, zero_bits = stored["shape"].tolist()
        (codes,) = unpack(stored["codes"].cpu(), (bits,), rows * cols)
        scale, zero = stored["scale"], stored.get("zero")
        if zero is not None and zero_bits < 16:
            zero = unpack(zero.cpu(), (zero_bits,), scale.numel())[0].view(scale.shape).to(scale)
        codes = codes.view(rows, cols).to(scale.device)
        return cls(codes, scale, zero, bits, group, zero_bits)


def split(w: Tensor, group: int | None) -> tuple[Tensor, int]:
    """Groups [rows, groups, size] and the size; a short last group repeats its last weight."""
    size = min(group or w.shape[1], w.shape[1])
    spare = -w.shape[1] % size
    if spare:
        w = torch.cat([w, w[:, -1:].expand(-1, spare)], 1)
    return w.unflatten(1, (-1, size)), size


def grid(x: Tensor, bits: int, shrink: float = 1.0) -> tuple[Tensor, Tensor]:
    """FP16 scale and integer zero [..., 1] of groups x [..., size]; the range includes 0."""
    low, high = x.amin(-1, keepdim=True).clamp_max(0), x.amax(-1, keepdim=True).clamp_min(0)
    top = (1 << bits) - 1
    scale = ((high - low) * (shrink / top)).clamp_min(1e-7).half()
    return scale, (-low * shrink / scale.float()).round().clamp(0, top)


def rounded(x: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    """Codes of x, as floats."""
    return (x / scale.float() + zero.float()).round().clamp(0, (1 << bits) - 1)


def rtn(w: Tensor, bits: int, group: int | None) -> Grouped:
    """Asymmetric round to nearest."""
    x, size = split(w, group)
    scale, zero = grid(x, bits)
    return grouped(w, rounded(x, scale, zero, bits), scale, zero, bits, size, bits)


def grouped(
    w: Tensor,
    codes: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bits: int,
    size: int,
    zero_bits: int,
) -> Grouped:
    """`Grouped` from codes [rows, groups, size] and scales [rows, groups, 1]."""
    flat = codes.flatten(1)[:, : w.shape[1]].long()
    zeros = None if zero is None else zero[..., 0].half()
    return Grouped(flat, scale[..., 0], zeros, bits, size, zero_bits)


def normal_levels(bits: int) -> Tensor:
    """Levels [2^b] of NormalFloat (QLoRA, arXiv 2305.14314): quantiles of the normal, 0 exact."""
    half, offset = 1 << (bits - 1), 0.9677083
    normal = torch.distributions.Normal(0.0, 1.0)
    up = normal.icdf(torch.linspace(offset, 0.5, half + 1, dtype=torch.float64)[:-1])
    down = -normal.icdf(torch.linspace(offset, 0.5, half, dtype=torch.float64)[:-1])
    levels = torch.cat([down, torch.zeros(1, dtype=torch.float64), up]).sort().values
    return (levels / levels.abs().max()).float()


def normal_float(w: Tensor, bits: int, group: int | None) -> Grouped:
    """NFb: the nearest level times the group's largest magnitude."""
    x, size = split(w, group)
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-7).half()
    levels = normal_levels(bits).to(x)
    codes = torch.bucketize(x / scale.float(), (levels[1:] + levels[:-1]) / 2)
    return grouped(w, codes, scale, None, bits, size, 0)


def hqq(w: Tensor, bits: int, group: int | None) -> Grouped:
    """Half-quadratic quantization (Badri and Shaji 2023): the zero fits an l_p (p = 0.7) loss.

    Alternates a shrinkage of the error and the mean that the zero should have, 20 times, until the
    error no longer falls, as the authors' code does; the scale is RTN's.
    """
    x, size = split(w, group)
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale = ((high - low) / ((1 << bits) - 1)).clamp_min(1e-7).half()
    inverse = 1 / scale.float()
    zero, best, beta = -low * inverse, float("inf"), HQQ_BETA
    top, found = (1 << bits) - 1, -low * inverse
    scaled = x * inverse
    for _ in range(HQQ_STEPS):
        codes = (scaled + zero).round_().clamp_(0, top)
        error = x - (codes - zero) * scale.float()
        size_of = error.abs()
        total = float(size_of.mean())
        if total >= best:
            break
        best, found = total, zero
        shrunk = size_of - size_of.clamp_min(1e-8).pow(HQQ_NORM - 1) / beta
        error = error.sign() * shrunk.clamp_min_(0)
        zero = (codes - (x - error) * inverse).mean(-1, keepdim=True)
        beta *= HQQ_GROWTH
    zero = found.half()
    return grouped(w, rounded(x, scale, zero, bits), scale, zero, bits, size, 16)


def affine_error(w: Tensor, bits: int = 4, group: int = 32) -> float:
    """Relative squared error of 2^b even levels between each group's extremes, in full precision.

    0 means that w still lies on such a grid (as weights from a Q4_1 file do), so that results of
    scalar quantizers on it say nothing.
    """
    x, _ = split(w.double(), group)
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    step = ((high - low) / ((1 << bits) - 1)).clamp_min(1e-30)
    error = x - (((x - low) / step).round() * step + low)
    return float(error.square().sum() / x.square().sum())
