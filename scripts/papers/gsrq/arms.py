"""What each arm of params.yaml means: its codebook fits, and the quantizer it puts in the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scripts.papers.gsrq import scalar
from scripts.papers.gsrq.bits import residual_bits, total_bits
from scripts.papers.gsrq.coder import HeadCoder
from scripts.papers.gsrq.coupled import quantize_coupled
from scripts.papers.gsrq.hooks import Quantizer

KINDS = ("k", "v")
SCALE_BITS = 16  # float16 per head vector


def codebook_name(dim: int, layer: int, kind: str) -> str:
    """Key of a codebook in codebooks.safetensors."""
    return f"d{dim}.{kind}.{layer}"


def arm_table(params: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The arms by name, with those that the scale replaces."""
    return {**params["arms"], **params["arm_changes"]}


def is_residual(arm: dict[str, Any]) -> bool:
    """Whether the arm codes by residual codebooks (the others have coders of their own)."""
    return arm["coder"] == "residual"


def fits_of(
    arm: dict[str, Any], study: list[int], layers: int, seed: int
) -> list[tuple[int, int, list[int]]]:
    """(group size, stages, layers) of each codebook fit of an arm with this seed.

    Scope of a fit: "study" = the study layers, "model" = all layers, "model_once" = all layers with
    seed 0 and nothing with the others. Fits of one group size are merged, the most layers win.
    """
    wanted: dict[tuple[int, int], list[int]] = {}
    for fit in arm["fits"]:
        if fit["scope"] == "model_once" and seed != 0:
            continue
        chosen = study if fit["scope"] == "study" else list(range(layers))
        key = (fit["dim"], fit["stages"])
        wanted[key] = max(wanted.get(key, []), chosen, key=len)
    return [(dim, stages, chosen) for (dim, stages), chosen in wanted.items()]


def coder_of(
    arm: dict[str, Any], books: dict[str, Tensor], dim: int, layer: int, kind: str
) -> HeadCoder:
    """HeadCoder of one tensor from the arm's saved codebooks."""
    scaled = arm.get("scaled", False)
    codebooks = books[codebook_name(dim, layer, kind)].float()
    centre = books[f"centre.{kind}.{layer}"].float() if arm.get("centred", False) else None
    return HeadCoder(codebooks, scaled=scaled, strided=scaled and kind == "k", centre=centre)


def residual_quantizer(
    arm: dict[str, Any], books: dict[str, Tensor], dim: int, stages: int, layers: int
) -> Quantizer:
    """Quantizer of all layers with the first `stages` codebooks of groups of `dim`."""
    coders = {
        (layer, kind): coder_of(arm, books, dim, layer, kind).prefix(stages)
        for layer in range(layers)
        for kind in KINDS
    }
    return lambda layer, kind, x: coders[layer, kind](x)


def residual_rate(
    arm: dict[str, Any], dim: int, stages: int, codewords: int, head_dim: int
) -> float:
    """Total bits per element of a residual arm without tokens in full precision."""
    scale_bits = SCALE_BITS if arm.get("scaled", False) else 0
    return total_bits(residual_bits(stages, codewords, dim), head_dim, scale_bits)


def other_quantizer(
    arm: dict[str, Any], books: dict[str, Tensor], option: dict[str, Any], head_dim: int
) -> tuple[Quantizer, float]:
    """Quantizer and total bits per element of an arm without residual codebooks."""
    coder = arm["coder"]
    if coder == "coupled":
        channels = option["channels"]
        tables = {n: b.float() for n, b in books.items() if n.startswith(f"c{channels}.")}
        codewords = next(iter(tables.values())).shape[-2]
        return (
            lambda layer, kind, x: quantize_coupled(x, tables[f"c{channels}.{kind}.{layer}"]),
            residual_bits(1, codewords, channels),
        )
    if coder == "sign":
        return (lambda layer, kind, x: scalar.sign_scale(x)), total_bits(1, head_dim, SCALE_BITS)
    bits = option["bits"]
    if coder == "levels":
        tables = {n: b.float() for n, b in books.items() if n.startswith(f"b{bits}.")}
        return (
            lambda layer, kind, x: scalar.quantize_levels(x, tables[f"b{bits}.{kind}.{layer}"]),
            float(bits),
        )
    if coder == "kivi":
        group = option["group"]
        rate = total_bits(bits + 2 * SCALE_BITS / group, head_dim)
        return (lambda layer, kind, x: scalar.kivi(x, kind, bits, group)), rate
    if coder == "rtn":
        return (lambda layer, kind, x: scalar.per_token(x, bits)), total_bits(
            bits, head_dim, 2 * SCALE_BITS
        )
    raise ValueError(f"unknown coder {coder!r}")


def sample_rows(count: int, wanted: int, generator: torch.Generator) -> Tensor:
    """Distinct row numbers [min(count, wanted)], the same for every arm of a seed."""
    return torch.randperm(count, generator=generator)[:wanted]
