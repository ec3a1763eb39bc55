"""Total bits per cached element: codes, scales and everything kept in full precision."""

from __future__ import annotations

import math


def code_bits(codewords: int) -> int:
    """Bits of one code: the next whole number of log2(codewords), at least 1."""
    return max(1, math.ceil(math.log2(codewords)))


def total_bits(
    per_element: float,
    head_dim: int,
    scale_bits: float = 0,
    fp_tokens: int = 0,
    context: int = 1,
) -> float:
    """Bits per element of a cache of `context` tokens.

    per_element: code bits per element; scale_bits: side information per head vector;
    fp_tokens: tokens (sinks, windows) kept at 16 bits *besides* the quantized ones' share.
    """
    coded = per_element + scale_bits / head_dim
    kept = min(fp_tokens, context) / context
    return coded * (1 - kept) + 16 * kept


def residual_bits(stages: int, codewords: int, dim: int) -> float:
    """Code bits per element of M stages of K codewords on groups of dim."""
    return stages * code_bits(codewords) / dim


def codebook_bits(values: int, tensors_elements: int, width: int = 16) -> float:
    """Codebook storage in bits per cached element; reported apart from `total_bits`.

    values: numbers in the codebooks of one tensor; tensors_elements: cached elements they serve.
    """
    return values * width / tensors_elements
