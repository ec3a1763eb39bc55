"""A transformers cache that stores nothing but packed codes (and scales) of keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.models.llama.modeling_llama import rotate_half

from scripts.papers.gsrq.bits import code_bits
from scripts.papers.gsrq.coder import HeadCoder
from scripts.papers.gsrq.hooks import projections
from scripts.papers.gsrq.packing import pack, unpack


class PackedLayer(DynamicLayer):
    """One layer's cache: a packed chunk per forward pass for keys and for values.

    `update` is called by the model with rotated keys; they are ignored, because the codes were
    taken before RoPE by `store`; what it returns is decoded from the bytes and then rotated.
    """

    def __init__(self, coders: dict[str, HeadCoder], rotary: torch.nn.Module):
        super().__init__()
        self.coders, self.rotary = coders, rotary
        self.chunks: dict[str, list[tuple[Tensor, Tensor | None, tuple[int, ...]]]] = {}
        self.reset()

    def store(self, kind: str, x: Tensor) -> None:
        """Encode and pack x [B, T, H, D]."""
        coder = self.coders[kind]
        codes, scale = coder.encode(x)
        stored = None if scale is None else scale.half()
        bits = code_bits(coder.codebooks.shape[1])
        self.chunks[kind].append((pack(codes, bits), stored, tuple(codes.shape)))

    def restore(self, kind: str) -> Tensor:
        """Decode all chunks to [B, H, T, D]."""
        coder = self.coders[kind]
        bits = code_bits(coder.codebooks.shape[1])
        codes = torch.cat([unpack(data, bits, shape) for data, _, shape in self.chunks[kind]], 1)
        scales = [scale for _, scale, _ in self.chunks[kind] if scale is not None]
        scale = torch.cat(scales, 1).float() if scales else None
        return coder.decode(codes, scale).transpose(1, 2)

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs):
        keys, values = self.restore("k"), self.restore("v")
        cos, sin = self.rotary(keys, torch.arange(keys.shape[2], device=keys.device)[None])
        return keys * cos[:, None] + rotate_half(keys) * sin[:, None], values

    def get_seq_length(self) -> int:
        return sum(shape[1] for _, _, shape in self.chunks["v"])

    def reset(self) -> None:
        self.chunks = {"k": [], "v": []}

    def nbytes(self) -> int:
        """Bytes held: packed codes and float16 scales."""
        return sum(
            data.nbytes + (0 if scale is None else scale.nbytes)
            for chunks in self.chunks.values()
            for data, scale, _ in chunks
        )


class PackedCache(Cache):
    """Cache of `PackedLayer`s. Use inside `attached(model)`, which feeds it unrotated keys."""

    def __init__(self, model: PreTrainedModel, coders: dict[tuple[int, str], HeadCoder]):
        rotary = model.model.rotary_emb
        layers = range(model.config.num_hidden_layers)
        super().__init__(
            layers=[PackedLayer({t: coders[i, t] for t in ("k", "v")}, rotary) for i in layers]
        )

    @contextmanager
    def attached(self, model: PreTrainedModel) -> Iterator[PackedCache]:
        """Within the context the model's projections write into this cache."""

        def record(layer: int, kind: str, x: Tensor) -> Tensor:
            self.layers[layer].store(kind, x)
            return x

        with projections(model, record):
            yield self

    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.nbytes() for layer in self.layers)
