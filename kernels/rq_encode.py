"""Residual quantization, the encoder: the nearest codeword of what the earlier stages left over.

    r = x;   for m in 1..M:   i_m = argmin_k |r - C[m,k]|^2;   r = r - C[m,i_m]

The argmin is taken as argmax of `2<r,c> - |c|^2`: nothing is subtracted from |r|^2, which would
cost digits when |r| is large; ties go to the lowest index, so that all paths agree. Source: greedy
residual quantization as in VQLLM (arXiv 2410.15704) and GSRQ (arXiv 2607.01065).

On a GPU one Triton program keeps a tile of residuals in registers through all M stages, so that x
is read once. On a CPU it is a matrix product and an argmax per stage, in chunks that stay in cache.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

MAX_CODEWORDS = 32768  # a code fits int16
MAX_DIM_GPU = 512  # the residual tile must fit the register file
CPU_SCORES = 2**18  # scores per chunk on a CPU: 1 MiB of float32, about one core's second cache


class Encoded(NamedTuple):
    """codes [N,M] (uint8 if K <= 256, else int16), xhat [N,d] float32 or None, err [N] float32."""

    codes: torch.Tensor
    xhat: torch.Tensor | None
    err: torch.Tensor


@triton.jit
def rq_encode_kernel(
    x_ptr,  # [N, D], rows x_stride apart
    cb_ptr,  # [M, K, D] float32
    cn_ptr,  # [M, K] float32, squared norms
    codes_ptr,  # [N, M] out
    xhat_ptr,  # [N, D] float32 out, untouched unless WANT_XHAT
    err_ptr,  # [N] float32 out
    n,
    x_stride,
    K,
    D: tl.constexpr,
    M: tl.constexpr,
    WANT_XHAT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    # int64: N * d passes 2^31 elements for caches of a few million vectors.
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    live = (rows < n)[:, None] & (dims < D)[None, :]
    r = tl.load(x_ptr + rows[:, None] * x_stride + dims[None, :], mask=live, other=0.0)
    r = r.to(tl.float32)
    xhat = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    for m in range(M):
        best = tl.full([BLOCK_N], float("-inf"), dtype=tl.float32)
        code = tl.zeros([BLOCK_N], dtype=tl.int32)
        for start in range(0, K, BLOCK_K):
            cols = start + tl.arange(0, BLOCK_K)
            words = cb_ptr + (m * K + cols)[None, :] * D + dims[:, None]
            c = tl.load(words, mask=(cols < K)[None, :] & (dims < D)[:, None], other=0.0)
            # Infinite norm: a codeword past the end scores -inf and cannot win.
            cn = tl.load(cn_ptr + m * K + cols, mask=cols < K, other=float("inf"))
            # ieee: the default (TF32) keeps 10 bits of the product and flips near ties.
            score = 2.0 * tl.dot(r, c, input_precision="ieee") - cn[None, :]
            top, at = tl.max(score, 1, return_indices=True, return_indices_tie_break_left=True)
            # Strict: an equal score in a later tile has a higher index.
            better = top > best
            code = tl.where(better, start + at, code)
            best = tl.where(better, top, best)
        tl.store(codes_ptr + rows * M + m, code.to(codes_ptr.dtype.element_ty), mask=rows < n)
        word = tl.load(cb_ptr + (m * K + code)[:, None] * D + dims[None, :], mask=live, other=0.0)
        r -= word
        if WANT_XHAT:
            xhat += word
    if WANT_XHAT:
        tl.store(xhat_ptr + rows[:, None] * D + dims[None, :], xhat, mask=live)
    tl.store(err_ptr + rows, tl.sum(r * r, 1), mask=rows < n)


def tile(n: int, d: int) -> dict[str, int]:
    """Tile sizes and launch options for N vectors of d dimensions.

    A decode step encodes only B * Hkv vectors: BLOCK_N=16 (the least `tl.dot` takes) spreads them
    over as many programs as there are. Many vectors share each codebook read among up to 64 rows,
    fewer when d is large. The rest is the largest tile that spills nowhere: an exact float32
    product runs on plain FMA units and unrolls over d, with 4 warps or wider tiles of codewords it
    overflows 255 registers (tests/kernels/test_aot.py holds all of this).
    """
    block_d = max(16, triton.next_power_of_2(d))
    small = n <= 2048
    return {
        "BLOCK_N": 16 if small else max(16, min(64, 4096 // block_d)),
        "BLOCK_K": 16 if block_d == 512 else 64 if small and block_d <= 128 else 32,
        "BLOCK_D": block_d,
        "num_warps": 8,
        "num_stages": 1,
    }


def rq_encode(
    x: torch.Tensor,
    cb: torch.Tensor,
    cn: torch.Tensor | None = None,
    *,
    want_xhat: bool = True,
) -> Encoded:
    """Encode vectors by greedy residual quantization.

    Args:
        x: [N, d] float16, bfloat16 or float32 vectors; any strides; N may be 0.
        cb: [M, K, d] float32 codebooks, K <= 32768.
        cn: [M, K] float32 squared norms of the codewords; computed when absent.
        want_xhat: also return the reconstruction.

    Returns:
        `Encoded(codes, xhat, err)`: codes [N, M]; xhat [N, d], the codewords summed in stage order;
        err [N], the squared error that is left. Ties go to the lowest index. Two nearly equal
        scores may fall either way with the order of summation, hence with device and batch size.

    Raises:
        ValueError: an argument has another type, shape or device; or, on a CPU, values that are not
            finite. (On a GPU that check would wait for the device: err is not finite instead, and
            codes stay in range.)
    """
    _check(x, cb, cn)
    x, cb = x.detach(), cb.detach().contiguous()
    cn = cb.square().sum(-1) if cn is None else cn.detach().contiguous()
    run = rq_encode_triton if x.is_cuda else rq_encode_torch
    return run(x, cb, cn, want_xhat=want_xhat)


def rq_encode_triton(
    x: torch.Tensor, cb: torch.Tensor, cn: torch.Tensor, *, want_xhat: bool = True
) -> Encoded:
    """The Triton path of `rq_encode` (checked arguments; a GPU, or Triton's interpreter)."""
    (n, d), (m, k, _) = x.shape, cb.shape
    if d > MAX_DIM_GPU:
        raise ValueError(f"x: d is {d}; the GPU kernel allows 1 to {MAX_DIM_GPU}")
    if x.stride(1) != 1:
        x = x.contiguous()
    codes = torch.empty(n, m, dtype=code_dtype(k), device=x.device)
    xhat = torch.empty(n, d, dtype=torch.float32, device=x.device) if want_xhat else None
    err = torch.empty(n, dtype=torch.float32, device=x.device)
    if n:
        options = tile(n, d)
        grid = (triton.cdiv(n, options["BLOCK_N"]),)
        with torch.cuda.device_of(x):  # Triton launches on the current device, not on x's
            rq_encode_kernel[grid](
                x, cb, cn, codes, err if xhat is None else xhat, err, n, x.stride(0), k,
                D=d, M=m, WANT_XHAT=want_xhat, **options,
            )  # fmt: skip
    return Encoded(codes, xhat, err)


@torch.no_grad()
def rq_encode_torch(
    x: torch.Tensor, cb: torch.Tensor, cn: torch.Tensor, *, want_xhat: bool = True
) -> Encoded:
    """The CPU path of `rq_encode`: one matrix product per chunk and stage, then an argmax."""
    (n, d), (m, k, _) = x.shape, cb.shape
    # A codeword that is not finite has such a norm: M * K values to look at, not M * K * d.
    if not cn.isfinite().all():
        raise ValueError("cb: values or squared norms that are not finite; finite float32 allowed")
    codes = torch.empty(n, m, dtype=code_dtype(k))
    xhat = torch.empty(n, d) if want_xhat else None
    err = torch.empty(n)
    rows = max(16, min(n, CPU_SCORES // k))
    rank = torch.arange(k, 0, -1, dtype=torch.float32)
    scores, marks = torch.empty(rows, k), torch.empty(rows, k)
    stages = list(zip(cb, cb.mT, cn * -0.5, codes.T, strict=True))
    for start in range(0, n, rows):
        chunk = slice(start, start + rows)
        r = torch.empty_like(x[chunk], dtype=torch.float32, memory_format=torch.contiguous_format)
        r.copy_(x[chunk])
        score, mark = scores[: len(r)], marks[: len(r)]
        total = None if xhat is None else xhat[chunk].zero_()
        for words, words_t, bias, stage_codes in stages:
            torch.addmm(bias, r, words_t, out=score)
            code = first_argmax(score, rank, mark)
            stage_codes[chunk] = code
            word = words.index_select(0, code)
            r.sub_(word)
            if total is not None:
                total.add_(word)
        torch.sum(r.square_(), 1, out=err[chunk])
    if not err.isfinite().all():
        row = int(err.isfinite().logical_not().nonzero()[0])
        raise ValueError(
            f"x: row {row} has a value that is not finite or whose square overflows float32; "
            "finite squares are allowed"
        )
    return Encoded(codes, xhat, err)


def first_argmax(score: torch.Tensor, rank: torch.Tensor, mark: torch.Tensor) -> torch.Tensor:
    """argmax of each row, lowest index on ties, [n] int64. rank: K..1; mark: scratch like score.

    `torch.argmax` documents the first maximum, but does not vectorise: on large tiles it takes as
    long as the matrix product. Three passes that do vectorise (row maximum, mark where it stands,
    highest descending rank of a mark) take a third of that; on small ones they cost more to start.
    """
    if score.numel() < 2**15:
        return score.argmax(1)
    torch.eq(score, score.amax(1, keepdim=True), out=mark)
    # A row with NaN marks nothing; the clamp keeps its code in range until err reports it.
    return (len(rank) - mark.mul_(rank).amax(1)).long().clamp_(max=len(rank) - 1)


def reference(x: torch.Tensor, cb: torch.Tensor) -> Encoded:
    """The definition, in the floating type of the arguments (float64 for tests); codes as int64."""
    r, xhat, codes = x, torch.zeros_like(x), []
    for c in cb:
        code = (2 * (r @ c.T) - (c * c).sum(-1)).argmax(1)  # documented: the first maximum
        codes.append(code)
        r, xhat = r - c[code], xhat + c[code]
    return Encoded(torch.stack(codes, 1), xhat, (r * r).sum(-1))


def cost(
    n: int, d: int, m: int, k: int, *, itemsize: int = 2, want_xhat: bool = False
) -> tuple[int, int]:
    """(floating point operations, compulsory bytes): each operand read once, each result written.

    The codebooks count once: programs share them in the second cache.
    """
    code_bytes = n * m * code_dtype(k).itemsize
    traffic = n * d * itemsize + m * k * (d + 1) * 4 + code_bytes + n * 4 + want_xhat * n * d * 4
    return 2 * n * m * k * d, traffic


def code_dtype(k: int) -> torch.dtype:
    """The storage type of a code among K codewords."""
    return torch.uint8 if k <= 256 else torch.int16


def _check(x: torch.Tensor, cb: torch.Tensor, cn: torch.Tensor | None) -> None:
    if x.ndim != 2 or x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f"x: {describe(x)}; float16, bfloat16 or float32 of shape [N, d] expected")
    if cb.ndim != 3 or cb.dtype != torch.float32:
        raise ValueError(f"cb: {describe(cb)}; float32 of shape [M, K, d] expected")
    m, k, d = cb.shape
    if d != x.shape[1] or d == 0:
        raise ValueError(f"cb: codewords of {d} dims for x of {x.shape[1]}; they must agree, >= 1")
    if m == 0 or not 1 <= k <= MAX_CODEWORDS:
        raise ValueError(f"cb: M={m}, K={k}; M >= 1 and 1 <= K <= {MAX_CODEWORDS} are allowed")
    if cb.numel() >= 2**31:
        raise ValueError(f"cb: {cb.numel()} values; fewer than 2^31 are allowed")
    if cn is not None and (cn.shape != (m, k) or cn.dtype != torch.float32):
        raise ValueError(f"cn: {describe(cn)}; float32 of shape [{m}, {k}] expected")
    for name, other in (("cb", cb), ("cn", cn)):
        if other is not None and other.device != x.device:
            raise ValueError(f"{name}: on {other.device} with x on {x.device}; one device allowed")


def describe(t: torch.Tensor) -> str:
    """Type and shape in a few characters, for error messages."""
    return f"{str(t.dtype).removeprefix('torch.')} of shape {list(t.shape)}"
