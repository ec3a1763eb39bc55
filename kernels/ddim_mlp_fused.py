"""A frozen diffusion or flow policy as a decoder: all denoising steps of a residual MLP at once.

    x = w + delta
    for k in 1..K:
        h = x Wx + hc + ht[k]
        h = h + relu(relu(h) W1 + b1) W2 + b2     for each of L / 2 residual blocks
        e = h Wo + bo
        x = the DDIM (or Euler) step of `kernels.perturb_ddim_step` with e

The input layer of the network, on (x, time, condition), is split exactly: hc is the part of the
condition with the bias, once per call; ht[k] that of the time, once per model. Sources: the MLP of
DPPO (arXiv 2409.00588) as steered in Lagrangian Perturbation Diffusion Steering (arXiv 2606.01151).

On a GPU one Triton program takes a tile of rows through all layers and steps in one launch; what
passes from layer to layer lies in scratch memory of its own, which stays in cache, so that only
noise, conditions and weights are fetched. It is bound by reading the weights once per program and
step from the second cache. On a CPU, for a few rows the time goes to starting operations: a step is
ten of them, in place, with scale factors inside the products.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import widen
from kernels.perturb_ddim_step import check_clip, ddim_step, mixing
from kernels.perturb_ddim_step import reference as reference_step
from kernels.rq_encode import describe

WEIGHTS = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit
def affine(
    acc,  # [BLOCK_B, BLOCK] float32
    a_ptr,  # [BLOCK_B, COUNT rounded up to BLOCK] float32
    w_ptr,  # [COUNT, WIDTH]
    first,  # of BLOCK columns of w
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    RELU: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """acc + a @ w[:, first : first + BLOCK]; a rounded to w's type, after a relu if RELU."""
    PITCH: tl.constexpr = (COUNT + BLOCK - 1) // BLOCK * BLOCK
    rows, cols = tl.arange(0, BLOCK_B), first + tl.arange(0, BLOCK)
    for start in range(0, COUNT, BLOCK):
        at = start + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + rows[:, None] * PITCH + at[None, :])
        w_at = w_ptr + at[:, None] * WIDTH + cols[None, :]
        if COUNT % BLOCK != 0:
            w = tl.load(w_at, mask=(at < COUNT)[:, None], other=0.0)
        elif WIDTH % BLOCK != 0:
            w = tl.load(w_at, mask=(cols < WIDTH)[None, :], other=0.0)
        else:
            w = tl.load(w_at)
        if RELU:
            a = tl.maximum(a, 0.0)
        a = a.to(w_ptr.dtype.element_ty)
        if WIDEN:
            a, w = a.to(tl.float32), w.to(tl.float32)
        # ieee: the default (TF32) keeps 10 bits of float32.
        acc = tl.dot(a, w, acc, input_precision="ieee")
    return acc


@triton.jit
def ddim_mlp_fused_kernel(
    w_ptr,  # [S, B, D] float32
    delta_ptr,  # [S, B, D] float32, untouched unless SHIFT
    hc_ptr,  # [S, B, H] float32
    wx_ptr,  # [S, D, H] of the weights' type, as wh, bh, wo and bo
    ht_ptr,  # [S, K, H] float32
    wh_ptr,  # [S, L, H, H]
    bh_ptr,  # [S, L, H]
    wo_ptr,  # [S, H, D]
    bo_ptr,  # [S, D]
    coef_ptr,  # [K, 4] float32
    out_ptr,  # [S, B, D] float32
    scratch_ptr,  # float32, BLOCK_B * (2 H + PITCH) per program
    batch,
    layers,
    steps,
    clip,  # without meaning unless CLIP
    D: tl.constexpr,
    H: tl.constexpr,  # a multiple of BLOCK
    SHIFT: tl.constexpr,
    CLIP: tl.constexpr,
    FLOW: tl.constexpr,
    WIDEN: tl.constexpr,  # only in the interpreter, see `kernels.launch.widen`
    BLOCK_B: tl.constexpr,
    BLOCK: tl.constexpr,
):
    PITCH: tl.constexpr = (D + BLOCK - 1) // BLOCK * BLOCK
    # int64: S * B * H and S * L * H * H may pass 2^31.
    seed = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    live = (rows < batch)[:, None]
    row = (seed * batch + rows)[:, None]
    wx_ptr += seed * D * H
    ht_ptr += seed * steps * H
    wh_ptr += seed * layers * H * H
    bh_ptr += seed * layers * H
    wo_ptr += seed * H * D
    bo_ptr += seed * D
    # This program's own: h and u [BLOCK_B, H], x [BLOCK_B, PITCH]. Its threads read what others of
    # them wrote, hence a barrier after each layer.
    program = seed * tl.num_programs(0) + tl.program_id(0)
    h_ptr = scratch_ptr + program * (BLOCK_B * (2 * H + PITCH))
    u_ptr = h_ptr + BLOCK_B * H
    x_ptr = u_ptr + BLOCK_B * H
    at_h = tl.arange(0, BLOCK_B)[:, None] * H + tl.arange(0, BLOCK)[None, :]
    at_x = tl.arange(0, BLOCK_B)[:, None] * PITCH + tl.arange(0, BLOCK)[None, :]
    for first in range(0, D, BLOCK):
        dims = first + tl.arange(0, BLOCK)
        inside = live & (dims < D)[None, :]
        x = tl.load(w_ptr + row * D + dims[None, :], mask=inside, other=0.0)
        if SHIFT:
            x += tl.load(delta_ptr + row * D + dims[None, :], mask=inside, other=0.0)
        tl.store(x_ptr + at_x + first, x)
    tl.debug_barrier()
    for k in range(steps):
        for first in range(0, H, BLOCK):
            units = first + tl.arange(0, BLOCK)
            h = tl.load(hc_ptr + row * H + units[None, :], mask=live, other=0.0)
            h += tl.load(ht_ptr + k * H + units)[None, :]
            h = affine(h, x_ptr, wx_ptr, first, D, H, False, WIDEN, BLOCK_B, BLOCK)
            tl.store(h_ptr + at_h + first, h)
        tl.debug_barrier()
        for layer in range(0, layers, 2):
            w1_ptr, b1_ptr = wh_ptr + layer * H * H, bh_ptr + layer * H
            for first in range(0, H, BLOCK):
                b = tl.load(b1_ptr + first + tl.arange(0, BLOCK)).to(tl.float32)
                u = tl.zeros([BLOCK_B, BLOCK], dtype=tl.float32) + b[None, :]
                u = affine(u, h_ptr, w1_ptr, first, H, H, True, WIDEN, BLOCK_B, BLOCK)
                tl.store(u_ptr + at_h + first, u)
            tl.debug_barrier()
            for first in range(0, H, BLOCK):
                b = tl.load(b1_ptr + H + first + tl.arange(0, BLOCK)).to(tl.float32)
                h = tl.load(h_ptr + at_h + first) + b[None, :]
                h = affine(h, u_ptr, w1_ptr + H * H, first, H, H, True, WIDEN, BLOCK_B, BLOCK)
                tl.store(h_ptr + at_h + first, h)
            tl.debug_barrier()
        for first in range(0, D, BLOCK):
            dims = first + tl.arange(0, BLOCK)
            b = tl.load(bo_ptr + dims, mask=dims < D, other=0.0).to(tl.float32)
            e = tl.zeros([BLOCK_B, BLOCK], dtype=tl.float32) + b[None, :]
            e = affine(e, h_ptr, wo_ptr, first, H, D, False, WIDEN, BLOCK_B, BLOCK)
            x = tl.load(x_ptr + at_x + first)
            tl.store(x_ptr + at_x + first, ddim_step(x, e, coef_ptr + 4 * k, clip, CLIP, FLOW))
        tl.debug_barrier()
    for first in range(0, D, BLOCK):
        dims = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at_x + first)
        tl.store(out_ptr + row * D + dims[None, :], x, mask=live & (dims < D)[None, :])


def tile(rows: int, dtype: torch.dtype) -> dict[str, int]:
    """Tile sizes and launch options for S B rows: the largest that spill nowhere.

    16 rows, the least `tl.dot` takes, spread them over as many programs as there are; from 2048 on
    those fill a GPU, and 64 rows share each weight that is read. An exact float32 product runs on
    plain FMA units on CUDA and overflows the registers in wider tiles.
    """
    if dtype == torch.float32:
        return {"BLOCK_B": 16, "BLOCK": 32, "num_warps": 8, "num_stages": 2}
    wide = rows > 2048
    return {
        "BLOCK_B": 64 if wide else 16,
        "BLOCK": 64,
        "num_warps": 4 if wide else 8,
        "num_stages": 2,
    }


def ddim_mlp_fused(
    w: torch.Tensor,
    delta: torch.Tensor | None,
    hc: torch.Tensor,
    Wx: torch.Tensor,
    ht: torch.Tensor,
    Wh: torch.Tensor,
    bh: torch.Tensor,
    Wo: torch.Tensor,
    bo: torch.Tensor,
    coef: torch.Tensor,
    clip: float | None = None,
    *,
    flow: bool = False,
) -> torch.Tensor:
    """Decode noise into actions; forward only.

    All operands but coef may have one more axis in front, S models of one architecture: w
    [S, B, D], Wx [S, D, H], ... Weights are laid out (in, out): transpose those of `nn.Linear`.

    Args:
        w: [B, D] noise, float32 (float64 on a CPU too); B may be 0; all operands of any strides.
            On a GPU H must be a multiple of 64.
        delta: [B, D] added to w, or None.
        hc: [B, H] condition times its part of the input layer, plus that layer's bias.
        Wx: [D, H] the part of the input layer that meets x.
        ht: [K, H] time embeddings times their part of the input layer, in the order of the steps.
        Wh: [L, H, H] hidden layers, L even: two to a residual block.
        bh: [L, H] their biases.
        Wo: [H, D] output layer.
        bo: [D] its bias.
        coef: [K, 4], `ddim_coefficients`; flow: rows (_, _, 1, dt), of which dt alone is read.
        clip: bound on |x0|, > 0; None for none. A flow has none.
        flow: Euler steps with the network as velocity, instead of DDIM steps.

        delta, hc, ht and coef are of w's type; Wx, Wh, bh, Wo and bo of one type, w's or float16 or
        bfloat16.

    Returns:
        Actions like w, in w's type. On a GPU the operands of each product are rounded to the
        weights' type and summed in float32; on a CPU weights are widened to w's type.

    Raises:
        ValueError: an argument has another type, shape, device or range; on a CPU also where
            coef[:, 0] or coef[:, 1] is not > 0.
    """
    _check(w, delta, hc, Wx, ht, Wh, bh, Wo, bo, coef)
    check_clip(clip, flow)
    if w.is_cuda and Wx.shape[-1] % 64:
        raise ValueError(f"Wx: H is {Wx.shape[-1]}; the GPU kernel takes multiples of 64")
    run = ddim_mlp_fused_triton if w.is_cuda else ddim_mlp_fused_torch
    return run(w, delta, hc, Wx, ht, Wh, bh, Wo, bo, coef, clip, flow)


@torch.no_grad()
def ddim_mlp_fused_triton(
    w: torch.Tensor,
    delta: torch.Tensor | None,
    hc: torch.Tensor,
    Wx: torch.Tensor,
    ht: torch.Tensor,
    Wh: torch.Tensor,
    bh: torch.Tensor,
    Wo: torch.Tensor,
    bo: torch.Tensor,
    coef: torch.Tensor,
    clip: float | None = None,
    flow: bool = False,
) -> torch.Tensor:
    """The Triton path of `ddim_mlp_fused` (checked arguments; a GPU, or the interpreter)."""
    w, hc, Wx, ht, Wh, bh, Wo, bo, coef = (
        t.contiguous() for t in (w, hc, Wx, ht, Wh, bh, Wo, bo, coef)
    )
    shift = w if delta is None else delta.contiguous()
    (b, d), (layers, h, _), k = w.shape[-2:], Wh.shape[-3:], len(coef)
    seeds = len(w) if w.ndim == 3 else 1
    out = torch.empty_like(w)
    if w.numel():
        options = tile(seeds * b, Wx.dtype)
        block_b, block = options["BLOCK_B"], options["BLOCK"]
        grid = (triton.cdiv(b, block_b), seeds)
        pitch = 2 * h + triton.cdiv(d, block) * block
        scratch = torch.empty(grid[0] * seeds * block_b * pitch, device=w.device)
        with torch.cuda.device_of(w):  # Triton launches on the current device, not on w's
            ddim_mlp_fused_kernel[grid](
                w, shift, hc, Wx, ht, Wh, bh, Wo, bo, coef, out, scratch,
                b, layers, k, 0.0 if clip is None else float(clip),
                D=d, H=h, SHIFT=delta is not None, CLIP=clip is not None, FLOW=flow,
                WIDEN=widen(Wx), **options,
            )  # fmt: skip
    return out


@torch.no_grad()
def ddim_mlp_fused_torch(
    w: torch.Tensor,
    delta: torch.Tensor | None,
    hc: torch.Tensor,
    Wx: torch.Tensor,
    ht: torch.Tensor,
    Wh: torch.Tensor,
    bh: torch.Tensor,
    Wo: torch.Tensor,
    bo: torch.Tensor,
    coef: torch.Tensor,
    clip: float | None,
    flow: bool,
) -> torch.Tensor:
    """The CPU path of `ddim_mlp_fused`."""
    if Wx.dtype != w.dtype:
        Wx, Wh, bh, Wo, bo = (t.to(w.dtype) for t in (Wx, Wh, bh, Wo, bo))
    affine = torch.addmm if w.ndim == 2 else torch.baddbmm  # out = beta bias + alpha a @ b
    x = torch.empty(w.shape, dtype=w.dtype)
    x.copy_(w) if delta is None else torch.add(w, delta, out=x)
    h, r, u = (torch.empty(hc.shape, dtype=w.dtype) for _ in range(3))
    move = torch.empty_like(x)
    layers = list(zip(Wh.unbind(-3), bh.unsqueeze(-2).unbind(-3), strict=True))
    blocks = list(zip(layers[::2], layers[1::2], strict=True))
    bias = bo.unsqueeze(-2)
    inputs = (hc.unsqueeze(-3) + ht.unsqueeze(-2)).unbind(-3)
    for into, row in zip(inputs, coef.tolist(), strict=True):
        affine(into, x, Wx, out=h)
        for (w1, b1), (w2, b2) in blocks:
            torch.clamp_min(h, 0, out=r)
            affine(b1, r, w1, out=u)
            affine(h, u.relu_(), w2, out=h).add_(b2)
        c0, c1, _, c3 = row
        if flow:
            affine(x, h, Wo, alpha=c3, out=x).add_(bias, alpha=c3)
            continue
        keep, gain = mixing(*row)
        torch.sub(x, bias, alpha=c0, out=move)
        affine(move, h, Wo, beta=gain / c1, alpha=-gain * c0 / c1, out=move)
        if clip is not None:
            bound = abs(gain) * clip
            move.clamp_(-bound, bound)
        torch.add(move, x, alpha=keep, out=x)
    return x


def reference(
    w: torch.Tensor,
    delta: torch.Tensor | None,
    hc: torch.Tensor,
    Wx: torch.Tensor,
    ht: torch.Tensor,
    Wh: torch.Tensor,
    bh: torch.Tensor,
    Wo: torch.Tensor,
    bo: torch.Tensor,
    coef: torch.Tensor,
    clip: float | None = None,
    flow: bool = False,
) -> torch.Tensor:
    """The definition, in the floating type of the arguments (float64 for tests)."""
    if w.ndim == 3:
        stacked = zip(hc, Wx, ht, Wh, bh, Wo, bo, strict=True)
        shifts = [None] * len(w) if delta is None else delta
        rest = zip(w, shifts, stacked, strict=True)
        return torch.stack([reference(a, b, *model, coef, clip, flow) for a, b, model in rest])
    x = w if delta is None else w + delta
    for k in range(len(coef)):
        h = x @ Wx + hc + ht[k]
        for i in range(0, len(Wh), 2):
            h = h + ((h.relu() @ Wh[i] + bh[i]).relu() @ Wh[i + 1] + bh[i + 1])
        x = reference_step(x, h @ Wo + bo, coef[k], clip, flow=flow)
    return x


def cost(
    b: int, d: int, h: int, layers: int, k: int, *, s: int = 1, itemsize: int = 4
) -> tuple[int, int]:
    """(floating point operations, compulsory bytes): weights and states read once, x written.

    itemsize: of the weights.
    """
    weights = 2 * d * h + layers * (h * h + h) + d
    return 2 * s * b * k * (2 * d * h + layers * h * h), s * (
        weights * itemsize + 4 * (2 * b * d + b * h + k * h)
    )


def _check(
    w: torch.Tensor,
    delta: torch.Tensor | None,
    hc: torch.Tensor,
    Wx: torch.Tensor,
    ht: torch.Tensor,
    Wh: torch.Tensor,
    bh: torch.Tensor,
    Wo: torch.Tensor,
    bo: torch.Tensor,
    coef: torch.Tensor,
) -> None:
    kinds = (torch.float32,) if w.is_cuda else (torch.float32, torch.float64)
    if w.ndim not in (2, 3) or w.dtype not in kinds or w.shape[-1] == 0:
        raise ValueError(
            f"w: {describe(w)}; {_names(kinds)} of shape [B, D] or [S, B, D], D >= 1, expected"
        )
    *front, b, d = w.shape
    if Wx.ndim == 0 or Wx.shape[-1] == 0 or Wx.dtype not in (w.dtype, *WEIGHTS):
        raise ValueError(f"Wx: {describe(Wx)}; {_names(WEIGHTS)} of shape [D, H], H >= 1, expected")
    if Wh.ndim < 3 or Wh.shape[-3] % 2:
        raise ValueError(f"Wh: {describe(Wh)}; shape [L, H, H] with an even L expected")
    if coef.ndim != 2:
        raise ValueError(f"coef: {describe(coef)}; shape [K, 4] expected")
    h, layers, k = Wx.shape[-1], Wh.shape[-3], len(coef)
    kind, weights = w.dtype, Wx.dtype
    expected = (
        ("Wx", Wx, [*front, d, h], weights),
        ("delta", w if delta is None else delta, [*front, b, d], kind),
        ("hc", hc, [*front, b, h], kind),
        ("ht", ht, [*front, k, h], kind),
        ("Wh", Wh, [*front, layers, h, h], weights),
        ("bh", bh, [*front, layers, h], weights),
        ("Wo", Wo, [*front, h, d], weights),
        ("bo", bo, [*front, d], weights),
        ("coef", coef, [k, 4], kind),
    )
    for name, value, shape, dtype in expected:
        if list(value.shape) != shape or value.dtype != dtype or value.device != w.device:
            raise ValueError(
                f"{name}: {describe(value)} on {value.device}; {_names((dtype,))} of shape {shape} "
                f"on {w.device} expected with w {list(w.shape)}, Wx {list(Wx.shape)}, "
                f"L={layers}, K={k}"
            )


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
