"""An exactly function-preserving rotation of a Llama: the residual stream in another basis.

RMSNorm without gain commutes with rotations, so gains are folded into the matrices that follow
(SliceGPT, arXiv 2401.15024; QuaRot, arXiv 2404.00456). It takes weights off any grid on which a
file stored them, without which scalar quantizers would look perfect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

READERS = {
    "self_attn.q_proj": "input_layernorm",
    "self_attn.k_proj": "input_layernorm",
    "self_attn.v_proj": "input_layernorm",
    "mlp.gate_proj": "post_attention_layernorm",
    "mlp.up_proj": "post_attention_layernorm",
}
"""Matrices that read the residual stream, and the norm before each."""
WRITERS = ("self_attn.o_proj", "mlp.down_proj")
MATRICES = (*READERS, *WRITERS)


def random_rotation(size: int, generator: torch.Generator) -> Tensor:
    """A uniform orthogonal matrix [size, size] float64."""
    q, r = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    return q * r.diagonal().sign()


def rotated(name: str, weight: Tensor, gain: Tensor | None, rotation: Tensor) -> Tensor:
    """A layer's matrix in the rotated basis; gain: that of the norm it reads (READERS)."""
    if name in READERS:
        made = (weight.double() * gain.double()) @ rotation
    else:
        made = rotation.T @ weight.double()
    return made.to(weight.dtype)


@torch.no_grad()
def rotate_llama(model: PreTrainedModel, rotation: Tensor) -> None:
    """Rotate a model in place; its head is untied, its norms get the gain 1."""
    inner, gain = model.model, model.model.norm.weight
    head = (model.lm_head.weight.double() * gain.double()) @ rotation
    embedding = inner.embed_tokens.weight
    model.lm_head.weight = nn.Parameter(head.to(embedding.dtype), requires_grad=False)
    embedding.copy_(embedding.double() @ rotation)
    gain.fill_(1)
    for layer in inner.layers:
        for name in MATRICES:
            module = layer.get_submodule(name)
            norm = READERS.get(name)
            before = layer.get_submodule(norm).weight if norm else None
            module.weight.copy_(rotated(name, module.weight, before, rotation))
        for norm in set(READERS.values()):
            layer.get_submodule(norm).weight.fill_(1)
