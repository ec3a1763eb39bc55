"""Keys, values and importance weights of a model on token segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scripts.papers.gsrq.hooks import projections
from scripts.papers.gsrq.weights import attention_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Key = tuple[int, str]  # (layer, "k" or "v")


@torch.no_grad()
def keys_values(model: PreTrainedModel, ids: Tensor) -> dict[Key, Tensor]:
    """Keys before RoPE and values [B, T, H, D] per layer of the segments ids [B, T]."""
    found: dict[Key, Tensor] = {}

    def record(layer: int, kind: str, x: Tensor) -> Tensor:
        found[layer, kind] = x
        return x

    with projections(model, record):
        model.model(ids, use_cache=False)
    return found


def gradient_weights(
    model: PreTrainedModel, ids: Tensor
) -> tuple[dict[Key, Tensor], dict[Key, Tensor]]:
    """Keys and values [T, H, D] of one segment ids [T], and their weights [T, H].

    Weight: squared length of the gradient of the summed next-token loss by the vector (the diagonal
    of an empirical Fisher matrix, summed over the vector). Gradients of activations only.
    """
    found: dict[Key, Tensor] = {}

    def record(layer: int, kind: str, x: Tensor) -> Tensor:
        found[layer, kind] = x
        return x

    with torch.enable_grad(), projections(model, record):
        # Weights carry no gradient, so the embeddings must, or nothing would be recorded.
        embeds = model.get_input_embeddings()(ids[None]).requires_grad_(True)
        logits = model(inputs_embeds=embeds, use_cache=False).logits[0, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum")
        gradients = torch.autograd.grad(loss, list(found.values()))
    weights = {key: g[0].float().square().sum(-1) for key, g in zip(found, gradients, strict=True)}
    return {key: x.detach()[0] for key, x in found.items()}, weights


@torch.no_grad()
def output_weights(
    model: PreTrainedModel, ids: Tensor
) -> tuple[dict[Key, Tensor], dict[Key, Tensor]]:
    """Keys and values [T, H, D] of one segment ids [T], and `attention_weights` [T, H]."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    queries: list[Tensor] = []
    handles = [
        layer.self_attn.q_proj.register_forward_hook(lambda _m, _i, out: queries.append(out))
        for layer in model.model.layers
    ]
    vectors = {key: x[0] for key, x in keys_values(model, ids[None]).items()}
    for handle in handles:
        handle.remove()
    positions = torch.arange(len(ids), device=ids.device)[None]
    cos, sin = model.model.rotary_emb(queries[0], positions)
    weights: dict[Key, Tensor] = {}
    for layer, query in enumerate(queries):
        q = query.unflatten(-1, (-1, model.config.head_dim)).transpose(1, 2)
        k = vectors[layer, "k"].transpose(0, 1)[None]
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        w_k, w_v = attention_weights(q[0], k[0], vectors[layer, "v"].transpose(0, 1))
        weights[layer, "k"], weights[layer, "v"] = w_k.T, w_v.T
    return vectors, weights
