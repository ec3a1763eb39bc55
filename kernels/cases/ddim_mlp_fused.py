"""Cases of `ddim_mlp_fused`. CPU peer: the same network as an `nn.Module` on (x, time, condition),
its step by diffusers' `DDIMScheduler` where it is installed, else by the definition."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import nn

from kernels import ddim_mlp_fused as op
from kernels.cases.perturb_ddim_step import STEPS, coefficients, scheduler
from kernels.harness import TRITON_NAME
from kernels.operation import Comparison, Contender, Operation, Variant, compiled
from kernels.perturb_ddim_step import reference as reference_step

Operands = tuple[Any, ...]  # in the order of `op.reference`
TIME, STATE = 16, 17  # dims of the peer's time embedding and condition


@dataclass(frozen=True)
class DecoderShape:
    """B rows of D dims, L layers of H units, K steps; s: so many stacked models, 0 for one that is
    not stacked. spacing: every operand is every so manieth column of one that is wider."""

    name: str
    b: int
    d: int
    h: int
    k: int = 5
    layers: int = 2
    s: int = 0
    clip: float | None = 1.0
    shift: bool = True
    flow: bool = False
    dtype: torch.dtype = torch.float32
    spacing: int = 1

    def inputs(self, seed: int = 0) -> Operands:
        """Weights such that every layer keeps the size of what it gets."""
        g = torch.Generator().manual_seed(seed)
        front = (self.s,) if self.s else ()

        def values(*shape: int, scale: float = 1.0) -> torch.Tensor:
            *others, last = (*front, *shape)
            wide = torch.randn(*others, last * self.spacing, generator=g)
            return scale * wide[..., :: self.spacing]

        b, d, h, layers = self.b, self.d, self.h, self.layers
        w = values(b, d)
        delta = values(b, d, scale=0.3) if self.shift else None
        hc, ht = values(b, h), values(self.k, h)
        weights = (
            values(d, h, scale=d**-0.5),
            values(layers, h, h, scale=h**-0.5),
            values(layers, h, scale=0.1),
            values(h, d, scale=h**-0.5),
            values(d, scale=0.1),
        )
        Wx, Wh, bh, Wo, bo = (t.to(self.dtype) for t in weights)
        coef = coefficients(self.k, self.flow)
        return w, delta, hc, Wx, ht, Wh, bh, Wo, bo, coef, self.clip, self.flow

    def __str__(self) -> str:
        stack = f"S={self.s} " if self.s else ""
        return (
            f"{self.name}: {stack}B={self.b} D={self.d} H={self.h} L={self.layers} K={self.k} "
            f"{TRITON_NAME[self.dtype]}"
        )


SHAPES = (
    DecoderShape("typical", 7, 48, 128),
    DecoderShape("one step, one row", 1, 12, 128, k=1),
    DecoderShape("eight steps, two blocks", 5, 28, 64, k=8, layers=4),
    DecoderShape("no delta, several tiles", 37, 21, 64, shift=False),
    DecoderShape("no clip", 9, 48, 128, clip=None),
    DecoderShape("no clip, eight steps", 3, 33, 64, k=8, clip=None),
    DecoderShape("flow", 7, 48, 128, clip=None, flow=True),
    DecoderShape("flow, no delta", 7, 17, 64, k=8, clip=None, flow=True, shift=False),
    DecoderShape("float16", 9, 48, 128, dtype=torch.float16),
    DecoderShape("bfloat16", 9, 48, 128, dtype=torch.bfloat16),
    DecoderShape("bfloat16, D of 75", 5, 75, 64, k=8, dtype=torch.bfloat16),
    DecoderShape("stacked, two blocks", 5, 21, 64, layers=4, s=3),
    DecoderShape("stacked, one row, no delta", 1, 48, 128, s=3, shift=False),
    DecoderShape("stacked, float16 flow", 17, 12, 64, s=3, clip=None, flow=True, dtype=torch.half),
    DecoderShape("strided", 5, 20, 64, spacing=2),
    DecoderShape("strided, stacked", 5, 20, 64, s=3, spacing=3),
    DecoderShape("no rows", 0, 48, 64),
    DecoderShape("no rows, stacked", 0, 12, 64, s=3),
    DecoderShape("no steps", 3, 12, 64, k=0),
    DecoderShape("no blocks", 3, 12, 64, layers=0),
    DecoderShape("one dim", 4, 1, 64),
)
BENCH_CPU = (
    DecoderShape("one action, laptop", 1, 48, 128),
    DecoderShape("one action, paper", 1, 48, 512),
    DecoderShape("one action, five seeds", 1, 48, 128, s=5),
    DecoderShape("64 actions", 64, 48, 512),
    DecoderShape("64 actions, five seeds", 64, 48, 128, s=5),
    DecoderShape("1024 actions", 1024, 48, 512),
)
BENCH_GPU = (
    *(
        DecoderShape("paper", b, 48, 512, dtype=dtype)
        for b in (1, 256, 1024, 16384)
        for dtype in (torch.bfloat16, torch.float32)
    ),
    DecoderShape("five seeds", 256, 48, 512, s=5, dtype=torch.bfloat16),
)
REHEARSE = (
    DecoderShape("rehearsal", 3, 12, 64, k=2),
    DecoderShape("rehearsal", 3, 12, 64, k=2, s=2, clip=None, flow=True),
)


def variants() -> Iterator[Variant]:
    """The builds that the launcher makes for the decoders of the paper."""
    for rows, d, h, dtype, flow in (
        (1024, 48, 512, torch.bfloat16, False),
        (16384, 48, 512, torch.bfloat16, False),
        (1024, 48, 512, torch.float16, True),
        (1024, 192, 512, torch.bfloat16, False),
        (16384, 192, 512, torch.bfloat16, False),
        (1024, 28, 512, torch.bfloat16, False),
        (16384, 28, 512, torch.bfloat16, True),
        (1024, 12, 256, torch.bfloat16, False),
        (1024, 48, 128, torch.bfloat16, False),
        (16384, 48, 128, torch.float16, False),
        (1024, 48, 512, torch.float32, False),
        (1024, 192, 512, torch.float32, True),
        (1024, 28, 512, torch.float32, False),
        (1024, 12, 256, torch.float32, False),
        (1024, 48, 128, torch.float32, False),
    ):
        kind = f"*{TRITON_NAME[dtype]}"
        options: dict[str, Any] = op.tile(rows, dtype)
        yield Variant(
            name=f"rows={rows} D={d} H={h} {kind[1:]}{' flow' if flow else ''}",
            kernel=op.ddim_mlp_fused_kernel,
            types=(
                *("*fp32", "*fp32", "*fp32", kind, "*fp32", kind, kind, kind, kind),
                *("*fp32", "*fp32", "*fp32", "i32", "i32", "i32", "fp32"),
            ),
            num_warps=options.pop("num_warps"),
            num_stages=options.pop("num_stages"),
            constexprs={
                "D": d,
                "H": h,
                "SHIFT": True,
                "CLIP": not flow,
                "FLOW": flow,
                "WIDEN": False,
                **options,
            },
            tensor_cores=dtype != torch.float32,
            wide_loads=True,
        )


class Decoder(nn.Module):
    """The network as one would write it: the input layer on (x, time embedding, condition)."""

    def __init__(self, args: Operands) -> None:
        super().__init__()
        w, _, _, Wx, _, Wh, bh, Wo, bo, *_ = args
        d, h = Wx.shape
        self.time = nn.Sequential(nn.Linear(TIME, 2 * TIME), nn.Mish(), nn.Linear(2 * TIME, TIME))
        self.first = nn.Linear(d + TIME + STATE, h)
        self.hidden = nn.ModuleList(nn.Linear(h, h) for _ in Wh)
        self.last = nn.Linear(h, d)
        for layer, weight, bias in zip(self.hidden, Wh, bh, strict=True):
            layer.weight.data, layer.bias.data = weight.T.contiguous(), bias
        self.last.weight.data, self.last.bias.data = Wo.T.contiguous(), bo
        self.to(w.device)
        half = torch.arange(TIME // 2, device=w.device)
        self.register_buffer("frequency", torch.exp(-half * 9.21 / (TIME // 2 - 1)))

    def forward(self, x: torch.Tensor, time: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        angle = time * self.frequency
        embedding = self.time(torch.cat((angle.sin(), angle.cos()))).expand(len(x), -1)
        h = self.first(torch.cat((x, embedding, state), -1))
        for first, second in zip(self.hidden[::2], self.hidden[1::2], strict=True):
            h = h + second(F.relu(first(F.relu(h))))
        return self.last(h)


def sampler(shape: DecoderShape) -> tuple[str, Callable[[Operands], Any]]:
    """The peer's name, and its loop over steps: diffusers' where it is installed."""
    ddim = None if shape.flow or shape.k != STEPS else scheduler(shape.clip)
    name = "nn.Module, " + ("diffusers DDIMScheduler" if ddim else "step by the definition")
    times = torch.arange(shape.k).flip(0) if ddim is None else ddim.timesteps

    @torch.no_grad()
    def call(models: list[tuple[Decoder, torch.Tensor, torch.Tensor, torch.Tensor]]) -> Any:
        for net, x, state, coef in models:
            for k, time in enumerate(times):
                e = net(x, time, state)
                if ddim:
                    x = ddim.step(e, time, x, use_clipped_model_output=True).prev_sample
                else:
                    x = reference_step(x, e, coef[k], shape.clip, flow=shape.flow)
        return x

    return name + (", one seed after the other" if shape.s else ""), call


def modules(args: Operands) -> list[tuple[Decoder, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Peers of the sampler: per seed the network, its noise, a condition and the coefficients."""
    *tensors, coef, _, _ = args
    if args[0].ndim == 2:
        rows = [tensors]
    else:
        rows = [[None if t is None else t[s] for t in tensors] for s in range(len(args[0]))]
    found = []
    for row in rows:
        x = row[0] if row[1] is None else row[0] + row[1]
        found.append((Decoder((*row, coef)), x, torch.zeros(len(x), STATE), coef))
    return found


def compare(
    shape: DecoderShape,
    device: torch.device,
    run: Callable[..., torch.Tensor],
    peers: tuple[Contender, ...],
) -> Comparison:
    def operands(seed: int) -> Operands:
        return tuple(t.to(device) if isinstance(t, torch.Tensor) else t for t in shape.inputs(seed))

    size = shape.b, shape.d, shape.h, shape.layers, shape.k
    flops, traffic = op.cost(*size, s=shape.s or 1, itemsize=shape.dtype.itemsize)
    return Comparison(
        shape=str(shape),
        operands=operands,
        ours=Contender("ours", lambda args: run(*args)),
        peers=peers,
        flops=flops,
        traffic=traffic,
        arithmetic="float32" if shape.dtype == torch.float32 else "float16",
    )


def public(*args: Any) -> torch.Tensor:
    *rest, flow = args
    return op.ddim_mlp_fused(*rest, flow=flow)


def on_cpu(shape: DecoderShape) -> Comparison:
    name, call = sampler(shape)
    peers = (
        Contender(name, call, modules),
        Contender("the definition, eager torch", lambda args: op.reference(*args)),
    )
    return compare(shape, torch.device("cpu"), public, peers)


def on_gpu(shape: DecoderShape, device: torch.device) -> Comparison:
    """Against eager torch, a CUDA graph of it, and torch.compile; all with the input layer split
    and products in the weights' type."""
    step = compiled(batched)
    peers = (
        Contender("eager torch", batched),
        Contender("eager torch, CUDA graph", lambda graph: graph(), graphed),
        Contender("torch.compile", step, slow=True),
    )
    return compare(shape, device, op.ddim_mlp_fused_triton, peers)


def batched(args: Operands) -> torch.Tensor:
    """The definition as one would run it: products in the weights' type, all seeds at once."""
    w, delta, hc, Wx, ht, Wh, bh, Wo, bo, coef, clip, flow = args
    x = w if delta is None else w + delta
    kind = Wx.dtype
    for k in range(len(coef)):
        h = x.to(kind) @ Wx + hc + ht[..., k, None, :]
        for i in range(0, Wh.shape[-3], 2):
            b1, b2 = bh[..., i, None, :], bh[..., i + 1, None, :]
            u = h.relu().to(kind) @ Wh[..., i, :, :] + b1
            h = h + (u.relu() @ Wh[..., i + 1, :, :] + b2)
        x = reference_step(
            x, (h.to(kind) @ Wo + bo[..., None, :]).float(), coef[k], clip, flow=flow
        )
    return x


def graphed(args: Operands) -> Callable[[], torch.Tensor]:
    """`batched` recorded once, replayed on the same operands; in a rehearsal not recorded."""
    if triton.knobs.runtime.interpret:
        return lambda: batched(args)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        batched(args)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = batched(args)

    def replay() -> torch.Tensor:
        graph.replay()
        return out

    return replay


OPERATION = Operation(
    "ddim_mlp_fused", SHAPES, variants, on_cpu, on_gpu, BENCH_CPU, BENCH_GPU, REHEARSE
)
