"""One matrix through any arm: from weights to what is stored, and back from that alone.

An option says what to do: {"target": rate, **design} for the seed coders, {"bits": b, "group": g}
for the baselines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scripts.papers.squant import adaptive, calibrated, fixed, scalar
from scripts.papers.squant.adaptive import AdaptiveConfig
from scripts.papers.squant.designs import config_of
from scripts.papers.squant.packing import HEADER, blocks_of, decode_matrix, pack_matrix

Inputs = Callable[[], dict[str, Tensor]]
"""Gives the statistics of the matrix's inputs, gram and mean; a call counts as reading data."""
RATE_SAMPLE = 2048  # blocks by which the threshold of a matrix is set


class Coded(NamedTuple):
    """stored: what a decoder needs; made: the encoder's own reconstruction; bits: in total."""

    stored: dict[str, Tensor]
    made: Tensor
    bits: float
    details: dict[str, float]


def compress(
    arm: dict[str, Any], weight: Tensor, option: dict[str, Any], shortlist: int, inputs: Inputs
) -> Coded:
    """Compress a matrix [rows, cols] float32. Only arms that calibrate call `inputs`."""
    if arm["coder"] in ("fixed", "adaptive"):
        return _by_seeds(arm, weight, option, shortlist, inputs)
    bits, group = option["bits"], option["group"]
    extra: dict[str, Tensor] = {}
    total, scale = 0.0, None
    if arm["coder"] == "awq":
        grouped, scale = calibrated.awq(weight, **inputs(), bits=bits, group=group)
        extra, total = {"channel_scale": scale}, 16 / len(weight)
    elif arm["coder"] == "gptq":
        grouped = calibrated.gptq(weight, inputs()["gram"], bits, group)
    else:
        method = {"rtn": scalar.rtn, "nf": scalar.normal_float, "hqq": scalar.hqq}[arm["coder"]]
        grouped = method(weight, bits, group)
    made = _unscaled(grouped.decode(), scale)
    return Coded({**grouped.tensors(), **extra}, made, total + grouped.total_bits(), {})


def decode(stored: dict[str, Tensor]) -> Tensor:
    """The matrix [rows, cols] float32 from what is stored."""
    made = (
        decode_matrix(stored["bytes"])
        if "bytes" in stored
        else scalar.Grouped.load(stored).decode()
    )
    return _unscaled(made, stored.get("channel_scale"))


def _unscaled(made: Tensor, scale: Tensor | None) -> Tensor:
    return made if scale is None else made / scale.float()


def _by_seeds(
    arm: dict[str, Any], weight: Tensor, option: dict[str, Any], shortlist: int, inputs: Inputs
) -> Coded:
    config = config_of(option)
    extra: dict[str, Tensor] = {}
    scale = None
    if arm.get("scaled", False):
        scale = calibrated.awq_scale(weight, **inputs(), bits=round(option["target"]), group=128)
        weight, extra = weight * scale.float(), {"channel_scale": scale}
    blocks = blocks_of(weight, config.generator.size)
    per_row = weight.shape[1] // config.generator.size
    if isinstance(config, AdaptiveConfig):
        made, data, details = _adaptive(blocks, config, option["target"], per_row)
    else:
        codes = fixed.encode(blocks, config, shortlist)
        made, details = fixed.decode(codes, config), {}
        data = pack_matrix(codes, config, weight.shape[1])
        details["formula"] = config.bits
    bits = 8 * (len(data) - HEADER.size) / weight.numel() + (16 / len(weight) if extra else 0)
    made = _unscaled(made.view(weight.shape), scale)
    return Coded({"bytes": data, **extra}, made, bits, details)


def _adaptive(
    blocks: Tensor, config: AdaptiveConfig, target: float, per_row: int
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """At the threshold that makes the target rate on a sample of the matrix's own blocks."""
    sample = blocks[:: max(1, len(blocks) // RATE_SAMPLE)]
    wanted = config.mean_count(target, per_row)
    threshold = adaptive.threshold_for(adaptive.scan(sample, config), wanted)
    codes, reached = adaptive.encode(blocks, config, threshold, per_row)
    share = torch.bincount(codes.count).double() / len(blocks)
    mean = float(codes.count.double().mean())
    details = {
        "formula": config.bits(mean, per_row),
        "published_bits": config.published_bits(mean, per_row),
        "entropy_bits": config.published_bits(mean, per_row)
        + float(torch.special.entr(share).sum() / torch.log(torch.tensor(2.0)))
        / config.generator.size,
        "mean_count": mean,
        "threshold": threshold,
        "unreached": float((~reached).double().mean()),
    }
    made = adaptive.decode(codes, config, per_row)
    return made, pack_matrix(codes, config, per_row * config.generator.size), details
