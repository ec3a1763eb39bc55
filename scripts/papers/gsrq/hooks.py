"""Quantize keys (before RoPE) and values inside a transformers decoder by wrapping two projections.

Teacher-forced scoring with these hooks equals decoding from a quantized cache, because each vector
is quantized once, alone, before its position enters (tests hold it against `cache`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Quantizer = Callable[[int, str, Tensor], Tensor]  # (layer, "k" or "v", [B, T, H, D]) -> same shape


@contextmanager
def projections(model: PreTrainedModel, replace: Quantizer) -> Iterator[None]:
    """Within the context every layer's k_proj and v_proj output passes through `replace`."""
    head_dim = model.config.head_dim
    handles = []
    for number, layer in enumerate(model.model.layers):
        for kind in ("k", "v"):
            module = getattr(layer.self_attn, f"{kind}_proj")

            def hook(_module, _inputs, output: Tensor, number=number, kind=kind) -> Tensor:
                heads = output.unflatten(-1, (-1, head_dim))
                return replace(number, kind, heads).flatten(-2).to(output.dtype)

            handles.append(module.register_forward_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def keep_first(quantizer: Quantizer, tokens: int) -> Quantizer:
    """The quantizer with the first `tokens` positions left in full precision (attention sinks)."""
    if tokens == 0:
        return quantizer

    def quantize(layer: int, kind: str, x: Tensor) -> Tensor:
        out = quantizer(layer, kind, x).clone()
        out[:, :tokens] = x[:, :tokens]
        return out

    return quantize
