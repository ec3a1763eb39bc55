"""What one decoded token moves and computes: memory traffic, and time on a simple accelerator.

The accelerator's constants are assumptions (params.yaml), not measurements; nothing is said about
area or energy.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Step(NamedTuple):
    """Bytes of one decode step, and seconds of its parts on the accelerator."""

    weight_bytes: float
    other_bytes: float
    memory_s: float
    add_s: float
    multiply_s: float

    @property
    def total_bytes(self) -> float:
        return self.weight_bytes + self.other_bytes


def decode_step(
    shape: dict[str, int],
    bits: float,
    accelerator: dict[str, float],
    size: int | None = None,
    bases: float = 0,
) -> Step:
    """One token of a Llama of a shape.

    shape: layers, hidden, intermediate, heads, kv_heads, vocabulary, context. Linear layers have
    `bits` per weight, all else 16 bits: head, norms, keys and values of the context, activations.
    size, bases: block size and mean number of bases of a seed coder (None: weights are read as they
    are). Each block costs size * bases additions and bases multiplications.
    """
    weights = linear_weights(shape)
    head_dim = shape["hidden"] // shape["heads"]
    cache = 2 * shape["layers"] * shape["kv_heads"] * head_dim * shape["context"]
    head, norms = shape["vocabulary"] * shape["hidden"], (2 * shape["layers"] + 1) * shape["hidden"]
    # Each layer's input, output and intermediate vectors are written and read once.
    activations = 2 * shape["layers"] * (8 * shape["hidden"] + 3 * shape["intermediate"])
    weight_bytes, other_bytes = weights * bits / 8, 2.0 * (head + norms + cache + activations)
    blocks = weights / size if size else 0.0
    return Step(
        weight_bytes,
        other_bytes,
        (weight_bytes + other_bytes) / accelerator["bandwidth"],
        blocks * (size or 0) * bases / (accelerator["adders"] * accelerator["clock"]),
        blocks * bases / (accelerator["multipliers"] * accelerator["clock"]),
    )


def linear_weights(shape: dict[str, int]) -> int:
    """Weights of the linear layers between embedding and head."""
    hidden, inner = shape["hidden"], shape["intermediate"]
    kv = hidden * shape["kv_heads"] // shape["heads"]
    return shape["layers"] * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner)


def summary(
    shape: dict[str, int],
    bits: float,
    accelerator: dict[str, float],
    size: int,
    bases: float,
) -> dict[str, Any]:
    """Ratios against 16-bit weights, and the adders per byte/s at which memory is the limit."""
    full = decode_step(shape, 16, accelerator)
    ours = decode_step(shape, bits, accelerator, size, bases)
    slowest = max(ours.memory_s, ours.add_s, ours.multiply_s)
    additions = linear_weights(shape) * bases
    return {
        "full_bytes": full.total_bytes,
        "token_bytes": ours.total_bytes,
        "full_memory_s": full.memory_s,
        "memory_s": ours.memory_s,
        "compute_s": max(ours.add_s, ours.multiply_s),
        "traffic_ratio": full.total_bytes / ours.total_bytes,
        "weight_traffic_ratio": full.weight_bytes / ours.weight_bytes,
        "time_ratio": full.memory_s / slowest,
        "compute_over_memory": max(ours.add_s, ours.multiply_s) / ours.memory_s,
        "break_even_adders": additions / ours.total_bytes / accelerator["clock"],
    }
