"""One deterministic denoising step (DDIM, eta = 0; or Euler along a flow), elementwise.

    x  = x + delta                        (noise perturbation, at the first step)
    x0 = clamp((x - c0 e) / c1, -clip, clip)
    x' = c2 x0 + c3 (x - c1 x0) / c0      (the noise recomputed from the clipped x0)

with c = (sqrt(1 - abar), sqrt(abar), sqrt(abar_prev), sqrt(1 - abar_prev)). Flow: x' = x + c3 e.
Sources: DDIM (arXiv 2010.02502, equation 12); clipping and perturbation as in Lagrangian
Perturbation Diffusion Steering (arXiv 2606.01151). For backbones whose products stay in the
library.

x' is linear in x and x0: x' = a x + b x0, a = c3 / c0, b = c2 - a c1. On a GPU one pass reads two
or three tensors and writes one, so it is bound by memory. On a CPU it is four passes over chunks
that stay in cache.
"""

import torch
import triton
import triton.language as tl

from kernels.rq_encode import describe

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
CPU_VALUES = 2**16  # per chunk on a CPU: x, e and the result are 768 KiB of float32


@triton.jit
def ddim_step(x, e, coef_ptr, clip, CLIP: tl.constexpr, FLOW: tl.constexpr):
    """x' in float32, from float32 x, e and the four coefficients at coef_ptr."""
    c3 = tl.load(coef_ptr + 3)
    if FLOW:
        x += c3 * e
    else:
        c0, c1, c2 = tl.load(coef_ptr), tl.load(coef_ptr + 1), tl.load(coef_ptr + 2)
        x0 = (x - c0 * e) / c1
        if CLIP:
            x0 = tl.minimum(tl.maximum(x0, -clip), clip)
        keep = c3 / c0
        x = keep * x + (c2 - keep * c1) * x0
    return x


@triton.jit
def perturb_ddim_step_kernel(
    x_ptr,  # [n]
    e_ptr,  # [n]
    delta_ptr,  # [n], untouched unless SHIFT
    coef_ptr,  # [4] float32
    out_ptr,  # [n]
    n,
    clip,  # without meaning unless CLIP
    SHIFT: tl.constexpr,
    CLIP: tl.constexpr,
    FLOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
    e = tl.load(e_ptr + at, mask=at < n).to(tl.float32)
    if SHIFT:
        x += tl.load(delta_ptr + at, mask=at < n).to(tl.float32)
    x = ddim_step(x, e, coef_ptr, clip, CLIP, FLOW)
    tl.store(out_ptr + at, x.to(out_ptr.dtype.element_ty), mask=at < n)


def ddim_coefficients(alpha_bar: torch.Tensor) -> torch.Tensor:
    """Coefficients of DDIM steps from the signal shares of the times visited.

    Args:
        alpha_bar: [K + 1], from the noisiest time to that of the result (1: no noise), in (0, 1)
            but for the last.

    Returns:
        [K, 4] of alpha_bar's type: sqrt(1 - abar), sqrt(abar), sqrt(abar'), sqrt(1 - abar').
    """
    now, then = alpha_bar[:-1], alpha_bar[1:]
    return torch.stack((1 - now, now, then, 1 - then), 1).sqrt()


def perturb_ddim_step(
    x: torch.Tensor,
    e: torch.Tensor,
    coef: torch.Tensor,
    clip: float | None = None,
    delta: torch.Tensor | None = None,
    *,
    flow: bool = False,
) -> torch.Tensor:
    """One step from x with the prediction e.

    Args:
        x: state of any shape and strides, float32, bfloat16 or float16 (float64 on a CPU too).
        e: predicted noise (flow: velocity) of x's shape, of any of these types.
        coef: [4], a row of `ddim_coefficients`, float32 (or float64) on x's device. Flow:
            (_, _, 1, dt), of which dt alone is read.
        clip: bound on |x0|, > 0; None for none. A flow has none.
        delta: added to x before the step, of x's shape; None for none.
        flow: Euler instead of DDIM.

    Returns:
        x' in x's type; computed in float32 (float64 where x is).

    Raises:
        ValueError: an argument has another type, shape, device or range; on a CPU also where
            coef[0] or coef[1] is not > 0.
    """
    _check(x, e, coef, clip, delta, flow)
    run = perturb_ddim_step_triton if x.is_cuda else perturb_ddim_step_torch
    return run(x.detach(), e.detach(), coef.detach(), clip, delta, flow)


def tile() -> dict[str, int]:
    """Tile size and launch options: 16 bytes of half values a thread on AMD, twice that on CUDA."""
    return {"BLOCK": 2048, "num_warps": 4, "num_stages": 1}


def perturb_ddim_step_triton(
    x: torch.Tensor,
    e: torch.Tensor,
    coef: torch.Tensor,
    clip: float | None = None,
    delta: torch.Tensor | None = None,
    flow: bool = False,
) -> torch.Tensor:
    """The Triton path of `perturb_ddim_step` (checked arguments; a GPU, or the interpreter)."""
    x, e, delta = same_layout(x, e, delta)
    out, options = torch.empty_like(x), tile()
    if x.numel():
        with torch.cuda.device_of(x):  # Triton launches on the current device, not on x's
            perturb_ddim_step_kernel[(triton.cdiv(x.numel(), options["BLOCK"]),)](
                x, e, x if delta is None else delta, coef.float().contiguous(), out,
                x.numel(), 0.0 if clip is None else float(clip),
                SHIFT=delta is not None, CLIP=clip is not None, FLOW=flow, **options,
            )  # fmt: skip
    return out


def same_layout(
    x: torch.Tensor, e: torch.Tensor, delta: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The operands such that equal offsets in memory are equal places, copied only where not.

    Channels-last images stay what they are if all are.
    """
    layout = torch.contiguous_format
    if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last):
        layout = torch.channels_last
    x, e = x.contiguous(memory_format=layout), e.contiguous(memory_format=layout)
    return x, e, None if delta is None else delta.contiguous(memory_format=layout)


@torch.no_grad()
def perturb_ddim_step_torch(
    x: torch.Tensor,
    e: torch.Tensor,
    coef: torch.Tensor,
    clip: float | None,
    delta: torch.Tensor | None,
    flow: bool,
) -> torch.Tensor:
    """The CPU path of `perturb_ddim_step`."""
    row = coef.tolist()
    keep, gain = (1.0, row[3]) if flow else mixing(*row)
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32

    def step(x: torch.Tensor, e: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        x, e = x.to(kind), e.to(kind)
        if delta is not None:
            x = x + delta.to(kind)
        if flow:
            return torch.add(x, e, alpha=gain)
        move = torch.sub(x, e, alpha=row[0]).mul_(gain / row[1])
        if clip is not None:
            bound = abs(gain) * clip
            move.clamp_(-bound, bound)
        return move.add_(x, alpha=keep)

    if x.numel() <= CPU_VALUES:
        return step(x, e, delta).to(x.dtype)
    out = torch.empty(x.shape, dtype=x.dtype)
    result, *sources = (t.reshape(-1).split(CPU_VALUES) for t in (out, x, e))
    shifts = [None] * len(result) if delta is None else delta.reshape(-1).split(CPU_VALUES)
    for into, *chunks in zip(result, *sources, shifts, strict=True):
        into.copy_(step(*chunks))
    return out


def reference(
    x: torch.Tensor,
    e: torch.Tensor,
    coef: torch.Tensor,
    clip: float | None = None,
    delta: torch.Tensor | None = None,
    flow: bool = False,
) -> torch.Tensor:
    """The definition, in the floating type of the arguments (float64 for tests)."""
    c0, c1, c2, c3 = coef
    if delta is not None:
        x = x + delta
    if flow:
        return x + c3 * e
    x0 = (x - c0 * e) / c1
    if clip is not None:
        x0 = x0.clamp(-clip, clip)
    return c2 * x0 + c3 * (x - c1 * x0) / c0


def mixing(c0: float, c1: float, c2: float, c3: float) -> tuple[float, float]:
    """(a, b) of x' = a x + b x0."""
    if not (c0 > 0 and c1 > 0):
        raise ValueError(f"coef: sqrt(1 - abar), sqrt(abar) = {c0:g}, {c1:g}; > 0 allowed")
    keep = c3 / c0
    return keep, c2 - keep * c1


def check_clip(clip: float | None, flow: bool) -> None:
    """Raise ValueError for a bound that is not one, or that a flow has no use for."""
    if clip is not None and flow:
        raise ValueError(f"clip: {clip} with flow; a flow has no x0 to clip, None allowed")
    if clip is not None and not 0 < clip < float("inf"):
        raise ValueError(f"clip: {clip}; a finite number > 0 or None allowed")


def cost(n: int, *, itemsize: int = 4, delta: bool = False) -> tuple[int, int]:
    """(floating point operations, compulsory bytes) of one step of n values of one type."""
    return n * (6 + delta), n * itemsize * (3 + delta)


def _check(
    x: torch.Tensor,
    e: torch.Tensor,
    coef: torch.Tensor,
    clip: float | None,
    delta: torch.Tensor | None,
    flow: bool,
) -> None:
    allowed = FLOATS if x.is_cuda else (*FLOATS, torch.float64)
    for name, value in (("x", x), ("e", e), ("delta", delta)):
        if value is None:
            continue
        if value.shape != x.shape or value.dtype not in allowed or value.device != x.device:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
            raise ValueError(
                f"{name}: {describe(value)} on {value.device}; {names} of x's shape "
                f"{list(x.shape)} on {x.device} expected"
            )
    if (
        coef.shape != (4,)
        or coef.dtype not in (torch.float32, torch.float64)
        or coef.device != x.device
    ):
        raise ValueError(
            f"coef: {describe(coef)} on {coef.device}; float32 or float64 of shape [4] on "
            f"{x.device} expected"
        )
    check_clip(clip, flow)
