"""W from the S-Quant / SeedLM format (`kernels.seed_format`), for prefill: decode, then a GEMM.

    W[o, j C + c] = float32(sum_i q_i v_i[c]) * f

Float32 weights are the definition bit for bit, on every device. On a GPU it is bound by writing W:
a thread decodes a run of channels of one block and stores them 16 bytes at a time. On a CPU the
entries of each basis are rows of a table, gathered and summed as integers.
"""

import torch
import triton
import triton.language as tl

from kernels.rq_encode import describe
from kernels.seed_format import (
    BASES,
    SeedFormat,
    check_exponents,
    coefficient,
    entry_table,
    read_record,
    window,
)
from kernels.seed_gemv import decode, reference_weights, row_chunks

ROWS = 4  # of W per program


@triton.jit
def seed_dequant_kernel(
    records_ptr,  # [n_out, width] int32
    stream_ptr,  # int32 words
    out_ptr,  # [n_out, n_blocks * C]
    n_out,
    n_blocks,
    width,
    base_exp,
    unit,  # 1 / D
    C: tl.constexpr,
    P: tl.constexpr,
    K: tl.constexpr,
    b: tl.constexpr,
    E: tl.constexpr,
    BASIS: tl.constexpr,  # index in BASES
    BLOCK_O: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    FIRST: tl.constexpr = K + E
    R: tl.constexpr = FIRST + b * P
    row = tl.program_id(1).to(tl.int64) * BLOCK_O + tl.arange(0, BLOCK_O)
    row = row[:, None, None]  # int64: n_out * Kin passes 2^31 weights
    block = (tl.program_id(0) * BLOCK_J + tl.arange(0, BLOCK_J))[None, :, None]
    channel = tl.arange(0, BLOCK_C)[None, None, :]
    live = (row < n_out) & (block < n_blocks)
    record = read_record(records_ptr + row * width, block, live, R)
    position = (record & ((1 << K) - 1)).to(tl.int32)
    field = ((record >> K) & ((1 << E) - 1)).to(tl.int32)
    total = tl.zeros([BLOCK_O, BLOCK_J, BLOCK_C], dtype=tl.int32)
    for i in tl.static_range(P):
        q = coefficient(record, field, live, i, FIRST, b, False)
        if BASIS == 2:
            inside = live & (channel < C)
            bits = window(stream_ptr, position + (i * C + channel) * K, inside)
        else:  # C + K - 1 bits hold all entries of a basis
            bits = window(stream_ptr, position + i * C, live) >> channel.to(tl.uint32)
        if BASIS == 0:
            value = 2 * (bits & 1).to(tl.int32) - 1
        else:
            value = (bits & ((1 << K) - 1)).to(tl.int32) - (1 << (K - 1))
        total += q * value
    factor = ((base_exp - field + 127) << 23).to(tl.float32, bitcast=True) * unit
    weight = total.to(tl.float32) * factor
    out = out_ptr + row * (n_blocks * C) + (block * C + channel)
    tl.store(out, weight.to(out_ptr.dtype.element_ty), mask=live & (channel < C))


def tile(c: int) -> dict[str, int]:
    """Tile sizes and launch options: 8 warps of 8 weights a thread on AMD, twice that on CUDA."""
    channels = triton.next_power_of_2(c)
    return {
        "BLOCK_O": ROWS,
        "BLOCK_J": 1024 // channels,
        "BLOCK_C": channels,
        "num_warps": 8,
        "num_stages": 1,
    }


def seed_dequant(
    records: torch.Tensor,
    stream: torch.Tensor,
    *,
    Kin: int,
    base_exp: int,
    C: int,
    P: int,
    K: int,
    b: int,
    e: int,
    basis: str,
    dtype: torch.dtype = torch.float16,
) -> torch.Tensor:
    """Decode a matrix of weights with a fixed number of bases per block.

    Args:
        records, stream, base_exp, C, P, K, b, e, basis: as in `kernels.seed_gemv.seed_gemv`.
        Kin: weights per row, a multiple of C.
        dtype: float16, bfloat16 or float32.

    Returns:
        W [Nout, Kin]; in float32 the definition bit for bit, else that rounded once.

    Raises:
        ValueError: an argument has another type, shape or device or a format that is not allowed;
            or, on a CPU, a position beyond the period.
    """
    form = SeedFormat(C, P, K, b, basis)
    bits = K + e + b * P
    if bits > 64:
        raise ValueError(f"record: {bits} bits with K={K}, e={e}, b={b}, P={P}; 64 allowed")
    check_exponents(base_exp, e)
    form.check_stream(stream)
    form.check_rows("records", records, form.blocks(Kin), bits)
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f"dtype: {dtype}; float16, bfloat16 or float32 allowed")
    if stream.device != records.device:
        raise ValueError(
            f"stream: {describe(stream)} on {stream.device} with records on {records.device}; "
            "one device allowed"
        )
    run = seed_dequant_triton if records.is_cuda else seed_dequant_torch
    return run(records, stream, form, Kin, base_exp, e, dtype)


def seed_dequant_triton(
    records: torch.Tensor,
    stream: torch.Tensor,
    form: SeedFormat,
    inputs: int,
    base_exp: int,
    e: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The Triton path of `seed_dequant` (checked arguments; a GPU, or Triton's interpreter)."""
    n_out, blocks = records.shape[0], inputs // form.C
    out = torch.empty(n_out, inputs, dtype=dtype, device=records.device)
    if out.numel():
        options = tile(form.C)
        # Rows second: a grid's second dimension ends at 65535, 2^18 rows here.
        grid = (triton.cdiv(blocks, options["BLOCK_J"]), triton.cdiv(n_out, ROWS))
        with torch.cuda.device_of(records):  # Triton launches on the current device
            seed_dequant_kernel[grid](
                records.contiguous(), stream.contiguous(), out,
                n_out, blocks, records.shape[1], base_exp, form.unit,
                C=form.C, P=form.P, K=form.K, b=form.b, E=e,
                BASIS=BASES.index(form.basis), **options,
            )  # fmt: skip
    return out


@torch.no_grad()
def seed_dequant_torch(
    records: torch.Tensor,
    stream: torch.Tensor,
    form: SeedFormat,
    inputs: int,
    base_exp: int,
    e: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The CPU path: some rows at a time, so that sums stay in cache."""
    out, table = torch.empty(records.shape[0], inputs, dtype=dtype), entry_table(stream, form)
    for rows in row_chunks(records.shape[0], inputs):
        sums, factor = decode(records[rows], table, form, inputs, base_exp, e)
        out[rows] = sums.float().mul_(factor[..., None]).flatten(1)
    return out


def reference(
    records: torch.Tensor,
    stream: torch.Tensor,
    form: SeedFormat,
    inputs: int,
    base_exp: int,
    e: int,
) -> torch.Tensor:
    """The definition, float64: unpacked bit by bit, bases built, combined."""
    return reference_weights(records, stream, form, inputs, base_exp, e)


def cost(
    inputs: int, n_out: int, form: SeedFormat, record_bits: int, *, itemsize: int = 2
) -> tuple[int, int]:
    """(integer and floating operations, compulsory bytes): records and stream read, W written."""
    records = n_out * (inputs // form.C) * record_bits // 8
    weights = n_out * inputs
    return 2 * weights * (form.P + 1), records + form.stream_words * 4 + weights * itemsize
