"""Head vectors to residual codes and back: grouping, scale, centre and codebooks of one tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.rq_encode import rq_encode
from scripts.papers.gsrq.residual import decode


def split_groups(x: Tensor, dim: int, strided: bool = False) -> Tensor:
    """Cut [..., D] into [..., D/dim, dim]; strided: group g takes channels g, g+D/dim, ... (VQLLM).

    Raises ValueError when dim does not divide D.
    """
    width = x.shape[-1]
    if width % dim:
        raise ValueError(f"group size {dim} does not divide the head size {width}")
    if strided:
        return x.unflatten(-1, (dim, width // dim)).transpose(-1, -2)
    return x.unflatten(-1, (width // dim, dim))


def join_groups(groups: Tensor, strided: bool = False) -> Tensor:
    """Inverse of `split_groups`."""
    return (groups.transpose(-1, -2) if strided else groups).flatten(-2)


def token_scale(x: Tensor) -> Tensor:
    """Standard deviation over the head dimension, as stored: float16, never zero. [..., 1]."""
    smallest = torch.finfo(torch.float16).tiny
    return x.std(-1, keepdim=True).clamp_min(smallest).half().to(x.dtype)


@dataclass
class HeadCoder:
    """Residual vector quantizer of one layer's keys or values.

    codebooks [M, K, d]; scaled: divide each head vector by its float16 standard deviation (VQLLM);
    strided: channel order of the groups; centre [H, D] or None: mean removed before coding.
    """

    codebooks: Tensor
    scaled: bool = False
    strided: bool = False
    centre: Tensor | None = None

    @property
    def stages(self) -> int:
        return len(self.codebooks)

    def prefix(self, stages: int) -> HeadCoder:
        """The coder of the first `stages` stages (codes are nested)."""
        return HeadCoder(self.codebooks[:stages], self.scaled, self.strided, self.centre)

    def vectors(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the codebooks see: [..., H, D] to groups [..., H, G, d], and the scale if stored."""
        if self.centre is not None:
            x = x - self.centre
        scale = token_scale(x) if self.scaled else None
        return split_groups(x if scale is None else x / scale, self._dim, self.strided), scale

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """[..., H, D] -> codes [..., H, G, M] and the stored scale [..., H, 1] or None."""
        groups, scale = self.vectors(x)
        codes = rq_encode(groups.reshape(-1, self._dim), self.codebooks, want_xhat=False).codes
        return codes.reshape(*groups.shape[:-1], self.stages), scale

    def decode(self, codes: Tensor, scale: Tensor | None = None) -> Tensor:
        """Codes [..., H, G, M] and scale -> [..., H, D]."""
        flat = decode(codes.reshape(-1, codes.shape[-1]), self.codebooks)
        return self._restore(flat.reshape(*codes.shape[:-1], self._dim), scale)

    def __call__(self, x: Tensor) -> Tensor:
        """Quantize and dequantize [..., H, D]."""
        groups, scale = self.vectors(x)
        xhat = rq_encode(groups.reshape(-1, self._dim), self.codebooks).xhat
        return self._restore(xhat.reshape(groups.shape), scale)

    @property
    def _dim(self) -> int:
        return self.codebooks.shape[-1]

    def _restore(self, groups: Tensor, scale: Tensor | None) -> Tensor:
        x = join_groups(groups, self.strided)
        if scale is not None:
            x = x * scale
        return x if self.centre is None else x + self.centre
