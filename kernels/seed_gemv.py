"""y = x W^T with W in the S-Quant / SeedLM format (`kernels.seed_format`), for a few rows of x.

In decoding, a weight matrix is read once per token and the time is that of the bytes: here the
records alone, about a quarter of float16, at the price of arithmetic per weight. The bit stream of
the generator (8 KiB at K = 16) stays in the first cache.

A thread owns whole blocks: it unpacks a record once and walks over the C channels. For the "sign"
basis the sum of the coefficients whose bit is set is kept for 4 channels at once, one byte each: 4
bits are spread to 4 bytes by one multiplication and scaled by another. One row of x is summed on
plain units in float32; 2 to 16 rows go through tensor cores, with weights rounded to x's type.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import widen
from kernels.rq_encode import describe
from kernels.seed_format import (
    BASES,
    MAX_BATCH,
    SeedFormat,
    block_sums,
    check_exponents,
    coefficient,
    entry_table,
    read_record,
    stream_values,
    to_signed,
    unpack,
    window,
)

CPU_WEIGHTS = 2**17  # weights decoded at once on a CPU: sums and entries in a core's second cache


@triton.jit
def lane_sums(
    stream_ptr, position, source, count, mask,
    first: tl.constexpr, C: tl.constexpr, P: tl.constexpr, LANES: tl.constexpr,
    FIRST: tl.constexpr, b: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """Of channels `first` to `first + LANES`: sums of the q_i whose bit is set, plus half a lane.

    Carries cross lanes while a sum is negative; with the bias no lane is, and all are right.
    """
    SPREAD: tl.constexpr = 0x00204081 if LANES == 4 else 0x00008001
    ONES: tl.constexpr = 0x01010101 if LANES == 4 else 0x00010001
    BIAS: tl.constexpr = 0x80808080 if LANES == 4 else 0x80008000
    total = tl.full(position.shape, BIAS, dtype=tl.uint32)
    for i in tl.static_range(P):
        q = coefficient(source, count, mask, i, FIRST, b, RAGGED).to(tl.uint32, bitcast=True)
        word = window(stream_ptr, position + (i * C + first) // 32 * 32, mask)
        bits = word >> ((i * C + first) % 32)
        total += (((bits & ((1 << LANES) - 1)) * SPREAD) & ONES) * q
    return total


@triton.jit
def seed_gemv_kernel(
    x_ptr,  # [C, n_blocks, BATCH], channel c of block j of row b; float32 if BATCH is 1
    records_ptr,  # [n_out, width]
    coefs_ptr,  # RAGGED: [...] int8
    row_start_ptr,  # RAGGED: [n_out + 1] int64
    scales_ptr,  # RAGGED: [n_out, groups] float16
    stream_ptr,  # int32 words
    y_ptr,  # [rows of x, n_out] out
    n_x,
    n_out,
    n_blocks,
    width,
    groups,
    base_exp,
    unit,  # 1 / D; RAGGED: 2^base_exp / D
    C: tl.constexpr,
    P: tl.constexpr,
    K: tl.constexpr,
    b: tl.constexpr,
    E: tl.constexpr,  # bits of the exponent field; RAGGED: of the count of coefficients
    G: tl.constexpr,
    BASIS: tl.constexpr,  # index in BASES
    LANES: tl.constexpr,
    RAGGED: tl.constexpr,
    WIDEN: tl.constexpr,
    BATCH: tl.constexpr,  # 1 or 16
    BLOCK_O: tl.constexpr,
    BLOCK_J: tl.constexpr,
):
    FIRST: tl.constexpr = K + E  # bit of q_0 in a record
    R: tl.constexpr = FIRST if RAGGED else FIRST + b * P
    LANE: tl.constexpr = 32 // LANES
    rows = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    row = rows.to(tl.int64)  # records pass 2^31 words on large matrices
    row_live = rows < n_out
    record_row = records_ptr + (row * width)[:, None]
    batch = tl.arange(0, BATCH)
    same_x = tl.zeros([BLOCK_O, 1], dtype=tl.int32)
    if BATCH == 1:
        total = tl.zeros([BLOCK_O, BLOCK_J], dtype=tl.float32)
    else:
        total = tl.zeros([BLOCK_O, BATCH], dtype=tl.float32)
    if RAGGED:
        coefs_row = coefs_ptr + tl.load(row_start_ptr + row, mask=row_live, other=0)
        before = tl.zeros([BLOCK_O], dtype=tl.int32)
    for start in range(0, n_blocks, BLOCK_J):
        block = start + tl.arange(0, BLOCK_J)
        live = block < n_blocks
        mask = row_live[:, None] & live[None, :]
        record = read_record(record_row, block[None, :], mask, R)
        position = (record & ((1 << K) - 1)).to(tl.int32)
        field = ((record >> K) & ((1 << E) - 1)).to(tl.int32)
        if RAGGED:
            count = tl.where(mask, field + 2, 0)
            upto = tl.cumsum(count, 1)
            source = coefs_row[:, None] + (before[:, None] + upto - count)
            before += tl.sum(count, 1)
            group = (row * groups)[:, None] + (block // G)[None, :]
            factor = tl.load(scales_ptr + group, mask=mask, other=0.0).to(tl.float32) * unit
        else:
            count = field
            source = record
            factor = ((base_exp - field + 127) << 23).to(tl.float32, bitcast=True) * unit
        sum_q = tl.zeros([BLOCK_O, BLOCK_J], dtype=tl.int32)
        for i in tl.static_range(P):
            sum_q += coefficient(source, count, mask, i, FIRST, b, RAGGED)
        if BATCH == 1:
            inner = tl.zeros([BLOCK_O, BLOCK_J], dtype=tl.float32)
        for c in tl.static_range(C):
            if BASIS == 0:
                if c % LANES == 0:
                    lanes = lane_sums(
                        stream_ptr, position, source, count, mask,
                        c, C, P, LANES, FIRST, b, RAGGED,
                    )  # fmt: skip
                part = (lanes >> (LANE * (c % LANES))) & ((1 << LANE) - 1)
                value = 2 * (part.to(tl.int32) - (1 << (LANE - 1))) - sum_q
            else:
                value = -(1 << (K - 1)) * sum_q
                for i in tl.static_range(P):
                    if BASIS == 1:  # consecutive entries overlap: one window serves a basis
                        bits = window(stream_ptr, position + i * C, mask) >> c
                    else:
                        bits = window(stream_ptr, position + (i * C + c) * K, mask)
                    entry = (bits & ((1 << K) - 1)).to(tl.int32)
                    value += coefficient(source, count, mask, i, FIRST, b, RAGGED) * entry
            x_at = x_ptr + (c * n_blocks + block) * BATCH
            if BATCH == 1:
                # Each row of W loads x anew, in the layout of the records: 16 bytes a thread from
                # the first cache, where one load for all would pass through shared memory.
                x = tl.load(x_at[None, :] + same_x, mask=mask, other=0.0)
                inner += value.to(tl.float32) * x
            else:
                x = tl.load(x_at[:, None] + batch[None, :], mask=live[:, None], other=0.0)
                weight = (value.to(tl.float32) * factor).to(x.dtype)
                if WIDEN:
                    weight, x = weight.to(tl.float32), x.to(tl.float32)
                total = tl.dot(weight, x, total, input_precision="ieee")
        if BATCH == 1:
            total += inner * factor
    out = y_ptr + batch[None, :] * n_out + rows[:, None]
    y = tl.sum(total, 1)[:, None] if BATCH == 1 else total
    stored = row_live[:, None] & (batch < n_x)[None, :]
    tl.store(out, y.to(y_ptr.dtype.element_ty), mask=stored)


def is_light(form: SeedFormat, ragged: bool) -> bool:
    """Whether 8 blocks fit a thread: "word" keeps a window per entry, ragged ones k_max bases."""
    return form.basis != "word" and not ragged and form.P * form.C <= 64


def tile(batch: int, blocks: int, light: bool) -> dict[str, int]:
    """Tile sizes and launch options for `batch` rows of x and so many blocks per row of W.

    One row of x: 8 rows of W a program, so that 4096 of them fill 132 processors four times over,
    and 4 consecutive records a thread. More: 32 rows, the 16 x 8 tiles of 4 warps. Where a block
    takes many registers (not light), a thread holds one block, or two; more would spill.
    """
    single = batch == 1
    widest = 128 if single and light else 32
    return {
        "BATCH": 1 if single else MAX_BATCH,
        "BLOCK_O": (8 if light else 4) if single else 32 if light else 16,
        "BLOCK_J": max(16, min(widest, triton.next_power_of_2(blocks))),
        "num_warps": 4 if single or light else 8,
        "num_stages": 1,
    }


def seed_gemv(
    x: torch.Tensor,
    records: torch.Tensor,
    stream: torch.Tensor,
    *,
    base_exp: int,
    C: int,
    P: int,
    K: int,
    b: int,
    e: int,
    basis: str,
) -> torch.Tensor:
    """x W^T with a fixed number of bases per block and one exponent field of e bits.

    A record is position (K bits), field, q_0 ... q_(P-1) (b bits each); f = 2^(base_exp - field)/D.

    Args:
        x: [B, Kin] float16, bfloat16 or float32, B <= 16, Kin a multiple of C.
        records: [Nout, W] int32, the records of each row from bit 0 on; at least one spare word a
            row unless a record is 32 bits. W a multiple of 16 lets a GPU read 16 bytes at a time.
        stream: int32 words of the generator's bits, wrapped around its end.
        base_exp, C, P, K, b, e, basis: the format.

    Returns:
        y [B, Nout] in x's type, summed in float32.

    Raises:
        ValueError: an argument has another type, shape or device or a format that is not allowed;
            or, on a CPU, a position beyond the period. (On a GPU the caller vouches for it.)
    """
    form = SeedFormat(C, P, K, b, basis)
    bits = K + e + b * P
    if bits > 64:
        raise ValueError(f"record: {bits} bits with K={K}, e={e}, b={b}, P={P}; 64 allowed")
    check_exponents(base_exp, e)
    _check(x, form, records=records, stream=stream)
    form.check_rows("records", records, form.blocks(x.shape[1]), bits)
    run = seed_gemv_triton if x.is_cuda else seed_gemv_torch
    return run(x, records, stream, form, base_exp, e)


def seed_gemv_ragged(
    x: torch.Tensor,
    heads: torch.Tensor,
    coefs: torch.Tensor,
    row_start: torch.Tensor,
    scales: torch.Tensor,
    stream: torch.Tensor,
    *,
    unit: float,
    C: int,
    K: int,
    G: int,
    kb: int,
    basis: str,
    k_max: int | None = None,
) -> torch.Tensor:
    """x W^T with 2 to k_max int8 coefficients per block and a float16 scale per G blocks.

    A head is position (K bits) and count - 2 (kb bits). The coefficients of a row are consecutive;
    block j begins where those before it end, which a program finds by a running sum over the row.
    Every block pays the arithmetic of k_max bases, masked, and the bytes of its own.

    Args:
        x: [B, Kin] float16, bfloat16 or float32, B <= 16, Kin a multiple of C.
        heads: [Nout, W] int32, rows of heads as in `seed_gemv`.
        coefs: [n] int8, all coefficients, row by row.
        row_start: [Nout + 1] int64, where each row begins in coefs.
        scales: [Nout, ceil(Kin / C / G)] float16.
        stream: as in `seed_gemv`.
        unit: float32(2^base_exp / D); f = float32(scale) * unit.
        C, K, G, kb, basis: the format; k_max: the largest count, default 2^kb + 1.

    Returns, Raises: as `seed_gemv`.
    """
    if not 1 <= kb <= 4 or G < 1:
        raise ValueError(f"kb: {kb}, G: {G}; kb 1 to 4 and G >= 1 are allowed")
    most = min(2**kb + 1, 16) if k_max is None else k_max
    form = SeedFormat(C, most, K, 8, basis)
    _check(
        x, form, heads=heads, coefs=coefs, row_start=row_start, scales=scales, stream=stream
    )  # fmt: skip
    blocks, rows = form.blocks(x.shape[1]), heads.shape[0]
    form.check_rows("heads", heads, blocks, K + kb)
    for name, t, dtype, shape in (
        ("coefs", coefs, torch.int8, tuple(coefs.shape[:1])),
        ("row_start", row_start, torch.int64, (rows + 1,)),
        ("scales", scales, torch.float16, (rows, triton.cdiv(blocks, G))),
    ):
        if t.dtype != dtype or t.shape != shape:
            raise ValueError(f"{name}: {describe(t)}; {dtype} of shape {list(shape)} expected")
    run = seed_gemv_ragged_triton if x.is_cuda else seed_gemv_ragged_torch
    return run(x, heads, coefs, row_start, scales, stream, form, unit, G, kb)


def seed_gemv_triton(
    x: torch.Tensor,
    records: torch.Tensor,
    stream: torch.Tensor,
    form: SeedFormat,
    base_exp: int,
    e: int,
) -> torch.Tensor:
    """The Triton path of `seed_gemv` (checked arguments; a GPU, or Triton's interpreter)."""
    constants = {"E": e, "G": 1, "RAGGED": False}
    return _launch(x, records, (stream,) * 3, stream, form, (0, base_exp, form.unit), constants)


def seed_gemv_ragged_triton(
    x: torch.Tensor,
    heads: torch.Tensor,
    coefs: torch.Tensor,
    row_start: torch.Tensor,
    scales: torch.Tensor,
    stream: torch.Tensor,
    form: SeedFormat,
    unit: float,
    g: int,
    kb: int,
) -> torch.Tensor:
    """The Triton path of `seed_gemv_ragged` (checked arguments; a GPU, or the interpreter)."""
    constants = {"E": kb, "G": g, "RAGGED": True}
    ragged = (coefs.contiguous(), row_start.contiguous(), scales.contiguous())
    return _launch(x, heads, ragged, stream, form, (scales.shape[1], 0, unit), constants)


def _launch(
    x: torch.Tensor,
    records: torch.Tensor,
    ragged: tuple[torch.Tensor, ...],
    stream: torch.Tensor,
    form: SeedFormat,
    scalars: tuple[int, int, float],
    constants: dict[str, int],
) -> torch.Tensor:
    (n_x, inputs), n_out = x.shape, records.shape[0]
    blocks = inputs // form.C
    y = torch.empty(n_x, n_out, dtype=x.dtype, device=x.device)
    if n_x == 0 or n_out == 0:
        return y
    options = tile(n_x, blocks, is_light(form, constants["RAGGED"]))
    # Channel by channel, so that the threads of a warp, which own neighbouring blocks, read
    # neighbouring values: one small copy.
    kind = torch.float32 if n_x == 1 else x.dtype
    turned = x.new_zeros(form.C, blocks, options["BATCH"], dtype=kind)
    turned[:, :, :n_x] = x.view(n_x, blocks, form.C).permute(2, 1, 0)
    grid = (triton.cdiv(n_out, options["BLOCK_O"]),)
    with torch.cuda.device_of(x):  # Triton launches on the current device, not on x's
        seed_gemv_kernel[grid](
            turned, records.contiguous(), *ragged, stream.contiguous(), y,
            n_x, n_out, blocks, records.shape[1], *scalars,
            C=form.C, P=form.P, K=form.K, b=form.b, BASIS=BASES.index(form.basis),
            LANES=form.lanes, WIDEN=widen(x), **constants, **options,
        )  # fmt: skip
    return y


@torch.no_grad()
def seed_gemv_torch(
    x: torch.Tensor,
    records: torch.Tensor,
    stream: torch.Tensor,
    form: SeedFormat,
    base_exp: int,
    e: int,
) -> torch.Tensor:
    """The CPU path: some rows of W at a time, decoded into cache, then one matrix product."""
    y = torch.empty(x.shape[0], records.shape[0])
    wide, table = x.float(), entry_table(stream, form)
    for rows in row_chunks(records.shape[0], x.shape[1]):
        sums, factor = decode(records[rows], table, form, x.shape[1], base_exp, e)
        weights = sums.float().mul_(factor[..., None]).flatten(1)
        torch.mm(wide, weights.T, out=y[:, rows]) if len(weights) else None
    return y.to(x.dtype)


@torch.no_grad()
def seed_gemv_ragged_torch(
    x: torch.Tensor,
    heads: torch.Tensor,
    coefs: torch.Tensor,
    row_start: torch.Tensor,
    scales: torch.Tensor,
    stream: torch.Tensor,
    form: SeedFormat,
    unit: float,
    g: int,
    kb: int,
) -> torch.Tensor:
    """The CPU path of `seed_gemv_ragged`, likewise."""
    y = torch.empty(x.shape[0], heads.shape[0])
    wide, table = x.float(), entry_table(stream, form)
    for rows in row_chunks(heads.shape[0], x.shape[1]):
        begin = row_start[:-1][rows]
        sums, factor = decode_ragged(
            heads[rows], coefs, begin, scales[rows], table, form, x.shape[1], unit, g, kb
        )
        weights = sums.float().mul_(factor[..., None]).flatten(1)
        y[:, rows] = wide @ weights.T
    return y.to(x.dtype)


def row_chunks(rows: int, inputs: int) -> list[slice]:
    """Runs of rows of about CPU_WEIGHTS weights."""
    step = max(1, CPU_WEIGHTS // max(1, inputs))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def decode(
    records: torch.Tensor, table: torch.Tensor, form: SeedFormat, inputs: int, base_exp: int, e: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Integer sums [rows, blocks, C] int32 and factors [rows, blocks] float32 (CPU)."""
    k, b, blocks, bits = form.K, form.b, inputs // form.C, form.K + e + form.b * form.P
    position = unpack(records, blocks, bits, 0, k)
    field = unpack(records, blocks, bits, k, e)
    q = [to_signed(unpack(records, blocks, bits, k + e + b * i, b), b) for i in range(form.P)]
    factor = (base_exp - field + 127 << 23).int().view(torch.float32) * form.unit
    return block_sums(position, torch.stack(q, -1), table, form), factor


def decode_ragged(
    heads: torch.Tensor,
    coefs: torch.Tensor,
    begin: torch.Tensor,
    scales: torch.Tensor,
    table: torch.Tensor,
    form: SeedFormat,
    inputs: int,
    unit: float,
    g: int,
    kb: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `decode`, of rows that begin at `begin` in coefs."""
    blocks = inputs // form.C
    position = unpack(heads, blocks, form.K + kb, 0, form.K)
    count = unpack(heads, blocks, form.K + kb, form.K, kb) + 2
    if count.numel() and int(count.max()) > form.P:
        raise ValueError(f"heads: a count of {int(count.max())}; at most k_max={form.P} allowed")
    ends = begin[:, None] + count.cumsum(1)
    if ends.numel() and int(ends.max()) > len(coefs):
        raise ValueError(f"coefs: {len(coefs)} values; the counts ask for {int(ends.max())}")
    at = (ends - count)[..., None] + torch.arange(form.P)
    held = torch.arange(form.P) < count[..., None]
    q = coefs[at.clamp_(max=max(0, len(coefs) - 1))] * held if len(coefs) else held.to(torch.int8)
    factor = scales.float().repeat_interleave(g, 1)[:, :blocks] * unit
    return block_sums(position, q, table, form), factor


def reference(
    x: torch.Tensor, records: torch.Tensor, stream: torch.Tensor, form: SeedFormat, base_exp: int,
    e: int,
) -> torch.Tensor:  # fmt: skip
    """The definition of `seed_gemv`, in x's floating type (float64 for tests), bit by bit."""
    return x @ reference_weights(records, stream, form, x.shape[1], base_exp, e).to(x.dtype).T


def reference_weights(
    records: torch.Tensor,
    stream: torch.Tensor,
    form: SeedFormat,
    inputs: int,
    base_exp: int,
    e: int,
) -> torch.Tensor:
    """W [Nout, Kin] as float64: unpack, build the bases, combine."""
    blocks, bits = inputs // form.C, form.K + e + form.b * form.P
    bit = ((records[..., None] >> torch.arange(32)) & 1).flatten(1)[:, : blocks * bits]
    bit = bit.unflatten(1, (blocks, bits)).double()

    def number(first: int, width: int) -> torch.Tensor:
        return bit[..., first : first + width] @ (2.0 ** torch.arange(width)).double()

    q = torch.stack([number(form.K + e + form.b * i, form.b) for i in range(form.P)], -1)
    q = torch.where(q >= 2 ** (form.b - 1), q - 2**form.b, q)
    entry = torch.arange(form.P * form.C).view(form.P, form.C) * form.step
    values = stream_values(stream, form.basis, form.K).double()
    bases = values[number(0, form.K).long()[..., None, None] + entry] / form.denominator
    weights = torch.einsum("ojp,ojpc->ojc", q, bases)
    return (weights * 2.0 ** (base_exp - number(form.K, e))[..., None]).flatten(1)


def cost(
    n_x: int, inputs: int, n_out: int, form: SeedFormat, record_bits: int, *, itemsize: int = 2
) -> tuple[int, int]:
    """(floating point operations, compulsory bytes): the records once, the stream, x and y.

    Operations: P + 1 multiply-adds per weight for one row of x, one more per further row.
    """
    flops = 2 * inputs * n_out * (form.P + n_x)
    records = n_out * (inputs // form.C) * record_bits // 8
    return flops, records + form.stream_words * 4 + n_x * (inputs + n_out) * itemsize


def _check(x: torch.Tensor, form: SeedFormat, **others: torch.Tensor) -> None:
    if x.ndim != 2 or x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(
            f"x: {describe(x)}; float16, bfloat16 or float32 of shape [B, Kin] expected"
        )
    if x.shape[0] > MAX_BATCH:
        raise ValueError(f"x: {x.shape[0]} rows; at most {MAX_BATCH} are allowed")
    for name, other in others.items():
        if other.device != x.device:
            raise ValueError(f"{name}: on {other.device} with x on {x.device}; one device allowed")
    form.check_stream(others["stream"])
