"""Attention of one query token per sequence over a residual-quantized key and value cache.

    K_s = rope_s(sum_m kcb[m, kc_s,m]);  V_s = sum_m vcb[m, vc_s,m];  o = softmax(scale q K^T) V

The cache holds only codes: a head vector of D dims is cut into G groups of d, each group a sum of M
codewords. Keys are stored before RoPE (VQLLM, arXiv 2410.15704; GSRQ, arXiv 2607.01065) and turned
to their absolute position when read; q arrives turned. On a GPU this is split-S flash decoding: one
program per (sequence, KV head, run of positions), then a second kernel merges the runs by their
log-sum-exp. On a CPU, runs of positions are decoded into cache, turned and attended to.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from kernels.launch import processors, widen
from kernels.rq_encode import MAX_CODEWORDS, code_dtype, describe

ROPE_LAYOUTS = ("half", "interleaved")
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
WORD = {2: torch.int16, 4: torch.int32, 8: torch.int64}
CPU_VALUES = 2**18  # decoded values per run on a CPU: 1 MiB of float32, about its second cache


class Operands(NamedTuple):
    """The tensors of one call; shapes and types as in `rq_decode_attention`."""

    q: torch.Tensor
    kc: torch.Tensor
    vc: torch.Tensor
    kcb: torch.Tensor
    vcb: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    lens: torch.Tensor


class Attended(NamedTuple):
    """o [B,Hq,D] in q's type; lse [B,Hq] float32, natural log of the sum of exp(scores)."""

    o: torch.Tensor
    lse: torch.Tensor


@triton.jit
def gather_sum(
    codes_ptr,  # codes of one (sequence, head): [S, G, M]; CODE_BITS > 0: [S, G] words of M codes
    cb_ptr,  # [M, K, GROUP]
    positions,  # [BLOCK_S]
    here,  # [BLOCK_S] which of them to read
    dims,  # [BLOCK_D] dims of the head vector
    limit: tl.constexpr,  # dims from here on are 0
    K,
    G: tl.constexpr,
    M: tl.constexpr,
    GROUP: tl.constexpr,
    CODE_BITS: tl.constexpr,
):
    """Dims `dims` of the decoded vectors at `positions`, float32."""
    # The threads of a group read the same code: one transaction, served by the first cache.
    mask = here[:, None] & (dims < limit)[None, :]
    vector = positions[:, None] * G + (dims // GROUP)[None, :]
    if CODE_BITS > 0:
        if G == 1:  # one word a position, however many threads share it
            packed = tl.load(codes_ptr + positions, mask=here, other=0)[:, None]
        else:
            packed = tl.load(codes_ptr + vector, mask=mask, other=0)
    word = cb_ptr + (dims % GROUP)[None, :]
    total = tl.zeros(mask.shape, dtype=tl.float32)
    # A loop, not `static_range`: unrolled, the loads of all stages are in flight at once and spill.
    for m in range(M):
        if CODE_BITS > 0:
            index = ((packed >> (m * CODE_BITS)) & ((1 << CODE_BITS) - 1)).to(tl.int32)
        else:
            index = tl.load(codes_ptr + vector * M + m, mask=mask, other=0).to(tl.int32)
        total += tl.load(word + (m * K + index) * GROUP, mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit
def product(a, b, WIDEN: tl.constexpr):
    """a b, summed in float32; float32 operands never as TF32."""
    if WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def attend_kernel(
    q_ptr,  # [B, Hq, D]
    kc_ptr,  # [B, Hkv, S, G, M], or words as in `gather_sum`
    vc_ptr,  # like kc
    kcb_ptr,  # [M, K, GROUP]
    vcb_ptr,  # [M, K, GROUP]
    cos_ptr,  # [S, D / 2]
    sin_ptr,  # [S, D / 2]
    lens_ptr,  # [B] int32
    part_ptr,  # [B, Hq, splits, D] float32 out, normalised within the split
    part_lse_ptr,  # [B, Hq, splits] float32 out, base 2; -inf where the split has no position
    S,
    K,
    split_len,  # positions per split
    scale_log2: tl.constexpr,  # scale * log2(e): exp2 is the GPU's native exponential
    HKV: tl.constexpr,
    R: tl.constexpr,  # query heads per KV head
    G: tl.constexpr,
    M: tl.constexpr,
    GROUP: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    CODE_BITS: tl.constexpr,  # of a code in a word that holds all M of a group; 0: not packed
    WIDEN: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr,  # half a head vector, padded
    BLOCK_D: tl.constexpr,
):
    D: tl.constexpr = G * GROUP
    HALF: tl.constexpr = D // 2
    pair_of = tl.program_id(0)  # b * HKV + h
    split, splits = tl.program_id(1), tl.num_programs(1)
    length = tl.load(lens_ptr + pair_of // HKV)
    # int64: B * Hkv * S * G * M passes 2^31 codes on long caches.
    cache = pair_of.to(tl.int64) * S * (G if CODE_BITS > 0 else G * M)

    # A rotation mixes two dims; the two members of every pair are two tiles of equal shape.
    # Interleaved ones are loaded whole, 16 bytes a thread, and split in registers.
    pair = tl.arange(0, BLOCK_H)
    dims = tl.arange(0, BLOCK_D)
    heads = pair_of * R + tl.arange(0, BLOCK_R)
    live = tl.arange(0, BLOCK_R) < R
    q_row = q_ptr + heads[:, None] * D
    if INTERLEAVED:
        q = tl.load(q_row + dims[None, :], mask=live[:, None] & (dims < D)[None, :], other=0.0)
        q_first, q_second = tl.split(tl.reshape(q, [BLOCK_R, BLOCK_H, 2]))
    else:
        q_mask = live[:, None] & (pair < HALF)[None, :]
        q_first = tl.load(q_row + pair[None, :], mask=q_mask, other=0.0)
        q_second = tl.load(q_row + HALF + pair[None, :], mask=q_mask, other=0.0)

    top = tl.full([BLOCK_R], float("-inf"), dtype=tl.float32)
    norm = tl.zeros([BLOCK_R], dtype=tl.float32)
    acc = tl.zeros([BLOCK_R, BLOCK_D], dtype=tl.float32)
    begin = split * split_len
    end = tl.minimum(begin + split_len, length)
    for start in range(begin, end, BLOCK_S):
        positions = start + tl.arange(0, BLOCK_S)
        here = positions < end
        k_mask = here[:, None] & (pair < HALF)[None, :]
        angle = positions[:, None] * HALF + pair[None, :]
        cos = tl.load(cos_ptr + angle, mask=k_mask, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + angle, mask=k_mask, other=0.0).to(tl.float32)
        kc, vc = kc_ptr + cache, vc_ptr + cache
        if INTERLEAVED:
            k = gather_sum(kc, kcb_ptr, positions, here, dims, D, K, G, M, GROUP, CODE_BITS)
            k_first, k_second = tl.split(tl.reshape(k, [BLOCK_S, BLOCK_H, 2]))
        else:
            k_first = gather_sum(
                kc, kcb_ptr, positions, here, pair, HALF, K, G, M, GROUP, CODE_BITS
            )
            k_second = gather_sum(
                kc, kcb_ptr, positions, here, HALF + pair, D, K, G, M, GROUP, CODE_BITS
            )
        turned = (k_first * cos - k_second * sin).to(q_first.dtype)
        score = product(q_first, tl.trans(turned), WIDEN)
        turned = (k_second * cos + k_first * sin).to(q_first.dtype)
        score += product(q_second, tl.trans(turned), WIDEN)
        score = tl.where(here[None, :], score * scale_log2, float("-inf"))

        new_top = tl.maximum(top, tl.max(score, 1))  # finite: a tile has a live position
        weight = tl.exp2(score - new_top[:, None])
        keep = tl.exp2(top - new_top)
        norm = norm * keep + tl.sum(weight, 1)
        v = gather_sum(vc, vcb_ptr, positions, here, dims, D, K, G, M, GROUP, CODE_BITS)
        v = v.to(q_first.dtype)
        acc = acc * keep[:, None]
        acc += product(weight.to(v.dtype), v, WIDEN)
        top = new_top

    empty = norm == 0.0
    acc = acc / tl.where(empty, 1.0, norm)[:, None]
    lse = tl.where(empty, float("-inf"), top + tl.log2(tl.where(empty, 1.0, norm)))
    slot = heads.to(tl.int64) * splits + split
    out = part_ptr + slot[:, None] * D + dims[None, :]
    tl.store(out, acc, mask=live[:, None] & (dims < D)[None, :])
    tl.store(part_lse_ptr + slot, lse, mask=live)


@triton.jit
def merge_kernel(
    part_ptr,  # [B * Hq, splits, D] float32
    part_lse_ptr,  # [B * Hq, splits] float32, base 2
    o_ptr,  # [B * Hq, D] out
    lse_ptr,  # [B * Hq] float32 out, natural log
    splits,
    LN_2: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """o = sum_i exp(lse_i - lse) o_i: one program per query head, splits in order."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    top = float("-inf")
    for i in range(splits):
        top = tl.maximum(top, tl.load(part_lse_ptr + row * splits + i))
    # A sequence of length 0 has only -inf: -inf - 0 keeps weights 0 where -inf + inf is NaN.
    shift = tl.where(top == float("-inf"), 0.0, top)
    norm = 0.0
    acc = tl.zeros([BLOCK_D], dtype=tl.float32)
    for i in range(splits):
        weight = tl.exp2(tl.load(part_lse_ptr + row * splits + i) - shift)
        part = tl.load(part_ptr + (row * splits + i) * D + dims, mask=dims < D, other=0.0)
        norm += weight
        acc += weight * part
    safe = tl.where(norm == 0.0, 1.0, norm)
    tl.store(o_ptr + row * D + dims, (acc / safe).to(o_ptr.dtype.element_ty), mask=dims < D)
    tl.store(lse_ptr + row, (top + tl.log2(safe)) * LN_2)


def tile(d_head: int, r: int, rope: str) -> dict[str, int]:
    """Tile sizes and launch options for head vectors of `d_head` dims, `r` queries per KV head.

    16 query rows is the least that `tl.dot` takes; 64 positions over 8 warps are as many as keep
    the two key halves and the value tile in registers, 32 beyond 128 dims, or beyond 64 where the
    halves are one tile before they are split.
    """
    half = max(16, triton.next_power_of_2((d_head + 1) // 2))
    return {
        "BLOCK_R": max(16, triton.next_power_of_2(r)),
        "BLOCK_S": 64 if d_head <= (128 if rope == "half" else 64) else 32,
        "BLOCK_H": half,
        "BLOCK_D": 2 * half,
        "num_warps": 8,
        "num_stages": 1,
    }


def code_bits(m: int, k: int) -> int:
    """Bits of a code where the M codes of a group make one word of 2, 4 or 8 bytes, else 0."""
    size = code_dtype(k).itemsize
    return 8 * size if m > 1 and m * size in WORD else 0


def as_words(codes: torch.Tensor) -> torch.Tensor:
    """The codes [..., M] of each group as one integer [..., 1], read by a single load."""
    word = WORD[codes.shape[-1] * codes.element_size()]
    codes = codes.contiguous()
    # A view of a larger tensor may begin in the middle of a word.
    aligned = codes.storage_offset() * codes.element_size() % word.itemsize == 0
    return (codes if aligned else codes.clone()).view(word)


def split_count(pairs: int, s: int, block_s: int, processors: int) -> int:
    """Splits per (sequence, KV head): about two programs per processor, four tiles or more each.

    Fewer leave processors idle at batch 1; more spend the time in the merge.
    """
    wanted = triton.cdiv(2 * processors, pairs)
    return max(1, min(wanted, triton.cdiv(s, 4 * block_s)))


def rq_decode_attention(
    q: torch.Tensor,
    kc: torch.Tensor,
    vc: torch.Tensor,
    kcb: torch.Tensor,
    vcb: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    lens: torch.Tensor,
    scale: float,
    *,
    rope: str = "half",
) -> Attended:
    """Attend with one query token per sequence over a cache of residual codes.

    Args:
        q: [B, Hq, D] float16, bfloat16 or float32 queries, already turned to their position.
        kc, vc: [B, Hkv, S, G, M] codes (uint8 if K <= 256, else int16) of keys before RoPE and of
            values; Hq is a multiple of Hkv. Other strides are copied.
        kcb, vcb: [M, K, d] codebooks, D = G * d. Read in q's type.
        cos, sin: [S, D/2] of the absolute positions 0..S-1, in any float type. At batch 1 these
            tables weigh more than one bit per element of codes: float16 ones halve that.
        lens: [B] integers in 0..S, the positions of each sequence that are filled.
        scale: factor of the scores, usually D**-0.5.
        rope: "half" turns dims (i, i + D/2) together (Llama), "interleaved" (2i, 2i + 1).

    Returns:
        `Attended(o, lse)`. A sequence of length 0 gives o = 0 and lse = -inf.

    Raises:
        ValueError: an argument has another type, shape or device; or, on a CPU, codes or lens out
            of range. (On a GPU that check would wait for the device: the caller vouches for it.)
    """
    args = Operands(q, kc, vc, kcb, vcb, cos, sin, lens)
    _check(args, rope)
    run = rq_decode_attention_triton if q.is_cuda else rq_decode_attention_torch
    return run(args, scale, rope=rope)


def rq_decode_attention_triton(
    args: Operands,
    scale: float,
    *,
    rope: str = "half",
    splits: int | None = None,
) -> Attended:
    """The Triton path (checked arguments; a GPU, or Triton's interpreter). splits: for tests."""
    q, kc, vc, kcb, vcb, cos, sin, lens = args
    b, hq, d_head = q.shape
    _, hkv, s, g, m = kc.shape
    options = tile(d_head, hq // hkv, rope)
    if splits is None:
        splits = split_count(b * hkv, s, options["BLOCK_S"], processors(q.device))
    # Whole tiles per split, so that only the last tile of a sequence is partly empty.
    split_len = triton.cdiv(triton.cdiv(s, splits), options["BLOCK_S"]) * options["BLOCK_S"]
    f32 = {"dtype": torch.float32, "device": q.device}
    part = torch.empty(b, hq, splits, d_head, **f32)
    part_lse = torch.empty(b, hq, splits, **f32)
    o, lse = torch.empty(b, hq, d_head, dtype=q.dtype, device=q.device), torch.empty(b, hq, **f32)
    if b == 0:
        return Attended(o, lse)
    packed = code_bits(m, kcb.shape[1])
    kc, vc = (as_words(t) if packed else t.contiguous() for t in (kc, vc))
    with torch.cuda.device_of(q):  # Triton launches on the current device, not on q's
        attend_kernel[(b * hkv, splits)](
            q.contiguous(), kc, vc,
            kcb.to(q.dtype).contiguous(), vcb.to(q.dtype).contiguous(),
            cos.contiguous(), sin.contiguous(), lens.int().contiguous(),
            part, part_lse, s, kcb.shape[1], split_len,
            scale_log2=float(scale) * LOG2_E, HKV=hkv, R=hq // hkv, G=g, M=m, GROUP=d_head // g,
            INTERLEAVED=rope == "interleaved", CODE_BITS=packed, WIDEN=widen(q), **options,
        )  # fmt: skip
        merge_kernel[(b * hq,)](
            part, part_lse, o, lse, splits,
            LN_2=LN_2, D=d_head, BLOCK_D=options["BLOCK_D"], num_warps=1, num_stages=1,
        )  # fmt: skip
    return Attended(o, lse)


@torch.no_grad()
def rq_decode_attention_torch(args: Operands, scale: float, *, rope: str = "half") -> Attended:
    """The CPU path: decode runs of keys and of values that stay in cache, attend in float32."""
    q, kc, vc, kcb, vcb, cos, sin, lens = args
    (b, hq, d_head), hkv = q.shape, kc.shape[1]
    kcb, vcb, cos, sin = kcb.float(), vcb.float(), cos.float(), sin.float()
    q_heads = (q.float() * scale).reshape(b, hkv, hq // hkv, d_head).contiguous()
    o, lse = torch.zeros_like(q_heads), torch.full(q_heads.shape[:3], float("-inf"))
    step = max(16, CPU_VALUES // (hkv * d_head))
    for i, length in enumerate(lens.tolist()):
        if length == 0:
            continue
        runs = [slice(start, min(start + step, length)) for start in range(0, length, step)]
        score = torch.empty(hkv, hq // hkv, length)
        for run in runs:
            keys = rotate(dequantize(kc[i, :, run], kcb), cos[run], sin[run], rope)
            score[:, :, run] = q_heads[i] @ keys.mT
        lse[i] = score.logsumexp(-1)
        weight = score.softmax(-1)
        for run in runs:
            o[i].baddbmm_(weight[:, :, run], dequantize(vc[i, :, run], vcb))
    return Attended(o.view(b, hq, d_head).to(q.dtype), lse.view(b, hq))


def dequantize(codes: torch.Tensor, cb: torch.Tensor) -> torch.Tensor:
    """Decode [..., G, M] codes with [M, K, d] codebooks to [..., G * d] vectors, in cb's type.

    Raises ValueError (CPU) for a code outside 0..K-1.
    """
    m, k, d = cb.shape
    index = codes.reshape(-1, m).int()
    if k != 256 and not index.is_cuda and index.numel():
        low, high = (int(end) for end in index.aminmax())
        if low < 0 or high >= k:
            raise ValueError(f"codes: {low}..{high} found; 0..{k - 1} are allowed")
    # One table of M * K rows: gather and sum in one pass, in stage order.
    index += torch.arange(0, m * k, k, dtype=torch.int32, device=index.device)
    vectors = F.embedding_bag(index, cb.reshape(m * k, d), mode="sum")
    return vectors.view(*codes.shape[:-2], codes.shape[-2] * d)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rope: str) -> torch.Tensor:
    """RoPE: turn each pair of dims of x [..., S, D] by the angle with that cos and sin [S, D/2]."""

    def pairs(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return t.chunk(2, -1) if rope == "half" else (t[..., 0::2], t[..., 1::2])

    cos, sin, turned = cos.to(x.dtype), sin.to(x.dtype), torch.empty_like(x)
    (first, second), (out_first, out_second) = pairs(x), pairs(turned)
    # Written in place: on a CPU, temporaries cost more here than the arithmetic.
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin)
    return turned


def reference(args: Operands, scale: float, *, rope: str = "half") -> Attended:
    """The definition, in the floating type of the arguments (float64 for tests), head by head."""
    q, kc, vc, kcb, vcb, cos, sin, lens = args
    o, lse = torch.zeros_like(q), torch.full(q.shape[:2], float("-inf"), dtype=q.dtype)

    def decode(codes: torch.Tensor, cb: torch.Tensor) -> torch.Tensor:  # [S, G, M] -> [S, D]
        return sum(c[codes[:, :, m].long()] for m, c in enumerate(cb)).flatten(1)

    for b, length in enumerate(lens.tolist()):
        for h in range(q.shape[1] if length else 0):
            cached = (b, h * kc.shape[1] // q.shape[1], slice(length))
            k = rotate(decode(kc[cached], kcb), cos[:length], sin[:length], rope)
            score = scale * k @ q[b, h]
            o[b, h] = score.softmax(0) @ decode(vc[cached], vcb)
            lse[b, h] = score.logsumexp(0)
    return Attended(o, lse)


def cost(
    b: int,
    hq: int,
    hkv: int,
    s: int,
    g: int,
    d: int,
    m: int,
    k: int,
    *,
    itemsize: int = 2,
    table_itemsize: int = 4,
) -> tuple[int, int]:
    """(floating point operations, compulsory bytes) with all S positions filled.

    Operations: the two products, the gather adds of both caches and the rotation. Bytes: codes of
    both caches, both codebooks once (the second cache holds them), cos and sin once, q and o.
    """
    d_head = g * d
    flops = 4 * b * hq * s * d_head + 2 * b * hkv * s * d_head * (m + 3)
    codes = 2 * b * hkv * s * g * m * code_dtype(k).itemsize
    books = 2 * m * k * d * itemsize
    tables = s * d_head * table_itemsize
    return flops, codes + books + tables + 2 * b * hq * d_head * itemsize


def _check(args: Operands, rope: str) -> None:
    q, kc, vc, kcb, vcb, cos, sin, lens = args
    if q.ndim != 3 or q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f"q: {describe(q)}; float16, bfloat16 or float32 of [B, Hq, D] expected")
    if rope not in ROPE_LAYOUTS:
        raise ValueError(f"rope: {rope!r}; {' or '.join(ROPE_LAYOUTS)} are allowed")
    b, hq, d_head = q.shape
    for name, cb in (("kcb", kcb), ("vcb", vcb)):
        if cb.ndim != 3 or cb.shape != kcb.shape or not cb.is_floating_point() or not cb.numel():
            raise ValueError(f"{name}: {describe(cb)}; floats of [M, K, d], alike, expected")
    m, k, d = kcb.shape
    if k > MAX_CODEWORDS:
        raise ValueError(f"kcb: K={k}; 1 to {MAX_CODEWORDS} are allowed")
    if d_head % 2 or d_head == 0 or d_head % d:
        raise ValueError(f"q: D={d_head} with groups of d={d}; an even multiple of d is allowed")
    for name, codes in (("kc", kc), ("vc", vc)):
        if codes.dtype != code_dtype(k) or codes.ndim != 5 or codes.shape != kc.shape:
            raise ValueError(
                f"{name}: {describe(codes)}; {code_dtype(k)} of [B, Hkv, S, G, M], alike, expected"
            )
    hkv, s = kc.shape[1:3]
    if kc.shape != (b, hkv, s, d_head // d, m) or hkv == 0 or hq % hkv:
        raise ValueError(
            f"kc: {describe(kc)}; [{b}, Hkv dividing {hq}, S, {d_head // d}, {m}] expected"
        )
    for name, table in (("cos", cos), ("sin", sin)):
        if table.shape != (s, d_head // 2) or not table.is_floating_point():
            raise ValueError(f"{name}: {describe(table)}; floats of [{s}, {d_head // 2}] expected")
    if lens.shape != (b,) or lens.is_floating_point() or lens.dtype == torch.bool:
        raise ValueError(f"lens: {describe(lens)}; integers of shape [{b}] expected")
    if kc[0:1, 0:1].numel() >= 2**31:
        raise ValueError(f"kc: {describe(kc)}; S * G * M below 2^31 is allowed")
    for name, other in args._asdict().items():
        if other.device != q.device:
            raise ValueError(f"{name}: on {other.device} with q on {q.device}; one device allowed")
    if not q.is_cuda and b and not 0 <= int(lens.min()) <= int(lens.max()) <= s:
        raise ValueError(f"lens: {int(lens.min())}..{int(lens.max())}; 0..{s} are allowed")
