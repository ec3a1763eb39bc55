"""One matrix as one string of bytes: a header and tightly packed fields; nothing else is needed.

    header      see HEADER; taps as a mask, bit t - 1 for tap t
    fixed       a record per block, LSB first, no padding between: seed (K bits), exponent field
                (e), coefficients (b each, two's complement)
    adaptive    FP16 scales; a record per block: seed (K), count - 2; int8 coefficients, as many
                as the count says

Blocks are consecutive weights of a row. The stored seed is the register's state; decoders that
read the bit stream use its position (`lfsr.positions`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from scripts.papers.squant import adaptive, fixed, lfsr
from scripts.papers.squant.adaptive import FIRST, AdaptiveCodes, AdaptiveConfig
from scripts.papers.squant.basis import KINDS, Generator
from scripts.papers.squant.fixed import FixedCodes, FixedConfig

HEADER = struct.Struct("<4sBBIIBBBIBHh")
"""magic, coder, basis, rows, columns, C, P, K, taps, b, e or G, base exponent."""
MAGIC = b"SQ01"
FIXED, ADAPTIVE = 0, 1
Config = FixedConfig | AdaptiveConfig


def blocks_of(weight: Tensor, size: int) -> Tensor:
    """Blocks [rows * cols / size, size] of a matrix.

    Raises ValueError when the size does not divide the columns.
    """
    if weight.shape[1] % size:
        raise ValueError(
            f"size: blocks of {size} do not divide the {weight.shape[1]} columns of the matrix; "
            "a divisor is allowed"
        )
    return weight.reshape(-1, size)


def pack_matrix(codes: FixedCodes | AdaptiveCodes, config: Config, columns: int) -> Tensor:
    """The bytes (uint8) of a coded matrix of that many columns."""
    generator = config.generator
    state = torch.from_numpy(lfsr.cycle(generator.bits).copy())[codes.position.cpu()].long()
    rows = len(state) * generator.size // columns
    fits = isinstance(config, FixedConfig)
    mask = sum(1 << (tap - 1) for tap in lfsr.TAPS[generator.bits])
    head = HEADER.pack(
        MAGIC, FIXED if fits else ADAPTIVE, KINDS.index(generator.kind), rows, columns,
        generator.size, generator.count, generator.bits, mask,
        config.coefficient_bits if fits else 8, config.exponent_bits if fits else config.group,
        codes.base_exponent,
    )  # fmt: skip
    if fits:
        fields = [state, codes.field, *codes.coefficients.unbind(1)]
        parts = [pack(fields, _fixed_widths(config))]
    else:
        parts = [
            codes.scale.cpu().view(torch.uint8),
            pack([state, codes.count - FIRST], (generator.bits, config.count_bits)),
            codes.coefficients.cpu().to(torch.int8).view(torch.uint8),
        ]
    return torch.cat([torch.frombuffer(bytearray(head), dtype=torch.uint8), *parts])


def unpack_matrix(data: Tensor) -> tuple[FixedCodes | AdaptiveCodes, Config, tuple[int, int]]:
    """Codes, configuration and shape of the matrix that the bytes hold.

    Raises ValueError for bytes that are cut off or too many, no such file, an unknown polynomial or
    basis, a block size that does not divide the columns, a seed of 0 or an impossible count.
    """
    data = data.cpu()
    raw = data.numpy().tobytes()
    if len(raw) < HEADER.size:
        raise ValueError(f"data: {len(raw)} bytes, truncated; the header alone has {HEADER.size}")
    magic, coder, kind, rows, columns, size, count, bits, mask, width, extra, base = HEADER.unpack(
        raw[: HEADER.size]
    )
    if magic != MAGIC or coder not in (FIXED, ADAPTIVE) or kind >= len(KINDS):
        raise ValueError(
            f"data: starts with {magic!r}, coder {coder}, basis {kind}; allowed: {MAGIC!r}, "
            f"{FIXED} or {ADAPTIVE}, 0 to {len(KINDS) - 1}"
        )
    taps = tuple(t for t in range(32, 0, -1) if mask >> (t - 1) & 1)
    lfsr.check_taps(bits, taps)
    generator = Generator(KINDS[kind], bits, size, count)
    if columns % size:
        raise ValueError(
            f"data: blocks of {size} do not divide {columns} columns; a divisor is allowed"
        )
    n, body = rows * columns // size, data[HEADER.size :]
    if coder == FIXED:
        config: Config = FixedConfig(generator, width, extra)
        state, field, *q = unpack(body, _fixed_widths(config), n)
        half = 1 << (width - 1)
        signed = (torch.stack(q, 1) ^ half) - half
        return FixedCodes(_positions(state, bits), field, signed, base), config, (rows, columns)
    config = AdaptiveConfig(generator, extra)
    scales = 2 * rows * -(-(columns // size) // extra)
    heads = scales + -(-n * (bits + config.count_bits) // 8)
    state, more = unpack(body[scales:heads], (bits, config.count_bits), n)
    if n and int(more.max()) + FIRST > count:
        raise ValueError(
            f"data: a block of {int(more.max()) + FIRST} bases; at most {count} allowed"
        )
    _check_length(body, heads + int(more.sum()) + FIRST * n)
    coefficients = body[heads:].clone().view(torch.int8).long()
    scale = body[:scales].clone().view(torch.float16)
    codes = AdaptiveCodes(_positions(state, bits), more + FIRST, coefficients, scale, base)
    return codes, config, (rows, columns)


def decode_matrix(data: Tensor) -> Tensor:
    """The matrix [rows, columns] float32 from its bytes alone; see `unpack_matrix` for errors."""
    codes, config, (rows, columns) = unpack_matrix(data)
    if isinstance(config, FixedConfig):
        return fixed.decode(codes, config).view(rows, columns)
    per_row = columns // config.generator.size
    return adaptive.decode(codes, config, per_row).view(rows, columns)


class KernelOperands(NamedTuple):
    """A fixed coder's matrix as `kernels.seed_dequant` and `kernels.seed_gemv` read it.

    records [rows, words] and stream [words] int32, lowest bit first; options: the keyword arguments
    of both that describe the format.
    """

    records: Tensor
    stream: Tensor
    options: dict[str, int | str]


def kernel_operands(data: Tensor) -> KernelOperands:
    """What the kernels read, from the bytes of a matrix; seeds become positions.

    Raises ValueError as `unpack_matrix` does, and for an adaptive coder's matrix.
    """
    codes, config, (rows, _) = unpack_matrix(data)
    if not isinstance(config, FixedConfig):
        raise ValueError("data: an adaptive coder's matrix; a fixed coder's is allowed")
    generator = config.generator
    fields = [codes.position, codes.field, *codes.coefficients.unbind(1)]
    options = {
        "base_exp": codes.base_exponent, "C": generator.size, "P": generator.count,
        "K": generator.bits, "b": config.coefficient_bits, "e": config.exponent_bits,
        "basis": generator.kind,
    }  # fmt: skip
    stride = generator.bits if generator.kind == "word" else 1
    reach = generator.count * generator.size * stride + generator.bits + 32
    bits = np.resize(lfsr.cycle(generator.bits) & 1, generator.period + reach).astype(np.uint8)
    return KernelOperands(
        kernel_records(fields, _fixed_widths(config), rows), _words(bits[None])[0], options
    )


def kernel_records(fields: Sequence[Tensor], widths: Sequence[int], rows: int) -> Tensor:
    """Records of blocks as int32 words [rows, words]; each row starts at a word."""
    return _words(_planes(fields, widths).reshape(rows, -1))


def _words(bits: np.ndarray) -> Tensor:
    """Rows of bits as int32 words, and a spare word so that a read of 64 bits stays inside."""
    spare = -bits.shape[1] % 32 + 32
    data = np.packbits(np.pad(bits, ((0, 0), (0, spare))), axis=1, bitorder="little")
    return torch.from_numpy(data).view(torch.int32)


def pack(fields: Sequence[Tensor], widths: Sequence[int]) -> Tensor:
    """Records of integer fields [n] (negative ones in two's complement) as bytes, LSB first."""
    return torch.from_numpy(np.packbits(_planes(fields, widths).ravel(), bitorder="little"))


def unpack(data: Tensor, widths: Sequence[int], n: int) -> list[Tensor]:
    """Inverse of `pack`: unsigned fields [n] int64. Raises ValueError for another length."""
    _check_length(data, -(-n * sum(widths) // 8))
    planes = np.unpackbits(data.numpy(), count=n * sum(widths), bitorder="little")
    planes = planes.reshape(n, sum(widths))
    fields, start = [], 0
    for width in widths:
        field = planes[:, start : start + width] @ (1 << np.arange(width, dtype=np.int64))
        fields.append(torch.from_numpy(field))
        start += width
    return fields


def _planes(fields: Sequence[Tensor], widths: Sequence[int]) -> np.ndarray:
    """Bits [n, sum of widths] uint8 of the fields, lowest first."""
    parts = []
    for field, width in zip(fields, widths, strict=True):
        values = field.cpu().numpy().astype(np.int64)
        parts.append((values[:, None] >> np.arange(width) & 1).astype(np.uint8))
    return np.concatenate(parts, 1)


def _fixed_widths(config: FixedConfig) -> tuple[int, ...]:
    each = (config.coefficient_bits,) * config.generator.count
    return (config.generator.bits, config.exponent_bits, *each)


def _positions(state: Tensor, bits: int) -> Tensor:
    found = torch.from_numpy(lfsr.positions(bits).copy())[state].long()
    if (found < 0).any():
        block = int((found < 0).nonzero()[0])
        raise ValueError(f"data: block {block} has seed 0; 1 to {(1 << bits) - 1} are allowed")
    return found


def _check_length(data: Tensor, expected: int) -> None:
    if len(data) != expected:
        what = "truncated" if len(data) < expected else "too long"
        raise ValueError(f"data: {len(data)} bytes where {expected} are due; the file is {what}")
