"""Half a Sinkhorn iteration in the log domain, from coordinates: the cost matrix is never stored.

    f_i = -eps log sum_j exp(h_j - c(x_i, y_j) / eps),   c(x, y) = |x - y|^2 / 2,
    h_j = log b_j + g_j / eps

This is the soft c-transform of the potential g under weights b (Sinkhorn Treatment Effects, arXiv
2605.08485; Cuturi 2013). A weight of 0 is h = -inf. With the potential f' of the step before, the
factor by which row i misses its mass is exp((f'_i - f_i) / eps): the stopping test needs no second
output.

On a GPU one Triton program keeps a tile of rows and streams the columns with a running maximum
and sum; per pair it computes 2d + 8 flops and one exponential, so it is bound by the exponential
unit, while a logsumexp over a stored cost writes and reads B n m numbers. On a CPU the scores are
matrix products in float64, in chunks that stay in cache.
"""

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
MAX_DIM_DIRECT = 16  # up to here costs are sums of squared differences; above, one matrix product
CPU_SCORES = 2**16  # scores per chunk on a CPU: 512 KiB of float64


@triton.jit
def sinkhorn_halfstep_kernel(
    x_ptr,  # [B, N, D] float32
    y_ptr,  # [B, M, D] float32
    h_ptr,  # [B, M] float32, -inf where there is no mass
    eps_ptr,  # [B] float32
    f_ptr,  # [B, N] float32 out
    n,
    m,
    D: tl.constexpr,
    DIRECT: tl.constexpr,
    LOG2_E: tl.constexpr,
    LN_2: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64)  # B * n * d may pass 2^31
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    x_row = x_ptr + (batch * n + rows) * D
    eps = tl.load(eps_ptr + batch)
    scale = LOG2_E / eps
    top = tl.full([BLOCK_N], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_N], dtype=tl.float32)
    for start in range(0, m, BLOCK_M):
        cols = start + tl.arange(0, BLOCK_M)
        y_row = y_ptr + (batch * m + cols) * D
        cost = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
        if DIRECT:
            for d in range(D):  # static_range fetches all columns at once and spills
                xd = tl.load(x_row + d, mask=rows < n, other=0.0)
                yd = tl.load(y_row + d, mask=cols < m, other=0.0)
                gap = xd[:, None] - yd[None, :]
                cost += gap * gap
        else:
            for first in tl.static_range(0, D, BLOCK_D):
                dims = first + tl.arange(0, BLOCK_D)
                x_live = (rows < n)[:, None] & (dims < D)[None, :]
                y_live = (cols < m)[None, :] & (dims < D)[:, None]
                x = tl.load(x_row[:, None] + dims[None, :], mask=x_live, other=0.0)
                y = tl.load(y_row[None, :] + dims[:, None], mask=y_live, other=0.0)
                norms = tl.sum(x * x, 1)[:, None] + tl.sum(y * y, 0)[None, :]
                # ieee: the default (TF32) keeps 10 bits, which the division by eps magnifies.
                cost += norms - 2.0 * tl.dot(x, y, input_precision="ieee")
        h = tl.load(h_ptr + batch * m + cols, mask=cols < m, other=float("-inf"))
        score = LOG2_E * h[None, :] - (0.5 * scale) * cost
        above = tl.maximum(top, tl.max(score, 1))
        # Without mass so far `above` is -inf, and -inf - -inf would be NaN.
        shift = tl.where(above == float("-inf"), 0.0, above)
        total = total * tl.exp2(top - shift) + tl.sum(tl.exp2(score - shift[:, None]), 1)
        top = above
    # No mass at all: top = -inf and total = 0 give f = +inf, as the definition does.
    shift = tl.where(top == float("-inf"), 0.0, top)
    tl.store(f_ptr + batch * n + rows, -eps * LN_2 * (shift + tl.log2(total)), mask=rows < n)


def tile(d: int) -> dict[str, int]:
    """Tile sizes and launch options for points of d dimensions: the widest that spill nowhere."""
    direct = d <= MAX_DIM_DIRECT
    return {
        "BLOCK_N": 64,
        "BLOCK_M": 32 if direct else 64,
        "BLOCK_D": 32,
        "num_warps": 8,
        "num_stages": 1,
    }


def sinkhorn_halfstep(
    x: torch.Tensor, y: torch.Tensor, h: torch.Tensor, eps: torch.Tensor
) -> torch.Tensor:
    """The soft c-transform at the points x of the potential and weights in h.

    Args:
        x: [B, n, d] points, float32 (on a GPU), float32 or float64 (on a CPU).
        y: [B, m, d] points; m may be 0.
        h: [B, m] log b + g / eps; -inf for a weight of 0, never +inf or NaN.
        eps: [B] regularisations, > 0.

    Returns:
        f [B, n], in the type of x; +inf where no column has mass. A CPU sums in float64.

    Raises:
        ValueError: an argument has another type, shape or device, or, on a CPU, eps is not > 0.
    """
    _check(x, y, h, eps)
    run = sinkhorn_halfstep_triton if x.is_cuda else sinkhorn_halfstep_torch
    return run(x.detach(), y.detach(), h.detach(), eps.detach())


def sinkhorn_halfstep_triton(
    x: torch.Tensor, y: torch.Tensor, h: torch.Tensor, eps: torch.Tensor
) -> torch.Tensor:
    """The Triton path of `sinkhorn_halfstep` (checked arguments; a GPU, or the interpreter)."""
    (b, n, d), m = x.shape, y.shape[1]
    direct = d <= MAX_DIM_DIRECT
    if not direct and m:
        # Distances do not change, and |x|^2 + |y|^2 - 2xy loses fewer digits near the origin.
        centre = y.mean(1, keepdim=True)
        x, y = x - centre, y - centre
    x, y, h, eps = x.contiguous(), y.contiguous(), h.contiguous(), eps.contiguous()
    f = torch.empty(b, n, dtype=torch.float32, device=x.device)
    if b and n:
        options = tile(d)
        grid = (triton.cdiv(n, options["BLOCK_N"]), b)
        with torch.cuda.device_of(x):  # Triton launches on the current device, not on x's
            sinkhorn_halfstep_kernel[grid](
                x, y, h, eps, f, n, m,
                D=d, DIRECT=direct, LOG2_E=LOG2_E, LN_2=LN_2, **options,
            )  # fmt: skip
    return f


@torch.no_grad()
def sinkhorn_halfstep_torch(
    x: torch.Tensor, y: torch.Tensor, h: torch.Tensor, eps: torch.Tensor
) -> torch.Tensor:
    """The CPU path of `sinkhorn_halfstep`: matrix products and sums of exponentials in float64."""
    if not bool((eps > 0).all()):
        raise ValueError(f"eps: {eps.tolist()}; values > 0 are allowed")
    (b, n, _), m = x.shape, y.shape[1]
    if m == 0:
        return x.new_full((b, n), float("inf"))
    kind = x.dtype
    x, y, h, eps = x.double(), y.double(), h.double(), eps.double()[:, None]
    centre = y.mean(1, keepdim=True)
    x, y = x - centre, y - centre
    bias = (h - y.square().sum(-1) / (2 * eps))[:, None]
    y_scaled = (y / eps[:, None]).mT
    f = x.square().sum(-1).div_(2)  # the part of the cost that a row's terms share
    rows = max(1, CPU_SCORES // max(1, b * m))
    for start in range(0, n, rows):
        chunk = slice(start, start + rows)
        score = torch.baddbmm(bias, x[:, chunk], y_scaled)
        top = score.amax(2, keepdim=True).clamp_(min=torch.finfo(torch.float64).min)
        total = score.sub_(top).exp_().sum(2).log_().add_(top[..., 0])
        f[:, chunk] -= eps * total
    return f.to(kind)


def reference(x: torch.Tensor, y: torch.Tensor, h: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
    """The definition, in the floating type of the arguments (float64 for tests)."""
    cost = (x[:, :, None] - y[:, None]).square().sum(-1) / 2
    scores = h[:, None] - cost / eps[:, None, None]
    return -eps[:, None] * torch.logsumexp(scores, 2)


def cost(b: int, n: int, m: int, d: int) -> tuple[int, int]:
    """(floating point operations, compulsory bytes); beside them B n m exponentials."""
    return b * n * m * (2 * d + 8), 4 * b * ((n + m) * d + m + n + 1)


def _check(x: torch.Tensor, y: torch.Tensor, h: torch.Tensor, eps: torch.Tensor) -> None:
    allowed = (torch.float32,) if x.is_cuda else (torch.float32, torch.float64)
    if x.ndim != 3 or x.dtype not in allowed or x.shape[2] == 0:
        raise ValueError(f"x: {_describe(x)}; {_names(allowed)} of shape [B, n, d] expected")
    b, _, d = x.shape
    shapes = {"y": (y, (b, "m", d)), "h": (h, (b, y.shape[1] if y.ndim == 3 else "m"))}
    for name, (value, shape) in (shapes | {"eps": (eps, (b,))}).items():
        fits = value.ndim == len(shape) and all(
            want in ("m", size) for want, size in zip(shape, value.shape, strict=True)
        )
        if not fits or value.dtype != x.dtype or value.device != x.device:
            raise ValueError(
                f"{name}: {_describe(value)} on {value.device}; like x, {_names((x.dtype,))} of "
                f"shape [{', '.join(map(str, shape))}] on {x.device} expected"
            )


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _describe(t: torch.Tensor) -> str:
    return f"{_names((t.dtype,))} of shape {list(t.shape)}"
