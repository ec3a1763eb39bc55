"""Cases of `perturb_ddim_step`. Peers: diffusers' `DDIMScheduler.step` where it is installed, and
the definition."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from kernels import perturb_ddim_step as op
from kernels.harness import TRITON_NAME
from kernels.operation import Comparison, Contender, Operation, Variant, compiled

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, float | None, torch.Tensor | None, bool]
TIMES, STEPS = 20, 5  # of training, of sampling


def alpha_bar(steps: int) -> torch.Tensor:
    """[steps + 1] cosine schedule of 20 times, every so manieth of them, and no noise at the end.

    Nichol and Dhariwal (arXiv 2102.09672): s = 0.008, betas at most 0.999.
    """
    angle = (torch.arange(TIMES + 1, dtype=torch.float64) / TIMES + 0.008) / 1.008
    share = (angle * torch.pi / 2).cos().square()
    total = (share[1:] / share[:-1]).clamp(min=0.001).cumprod(0)
    times = torch.arange(steps).flip(0) * (TIMES // max(1, steps))
    return torch.cat((total[times], torch.ones(1, dtype=torch.float64)))


def coefficients(steps: int, flow: bool) -> torch.Tensor:
    """[steps, 4] float32; a flow's first three columns hold NaN, which nothing may read."""
    coef = op.ddim_coefficients(alpha_bar(steps)).float()
    if flow:
        coef[:, :3], coef[:, 3] = torch.nan, 1 / steps
    return coef


@dataclass(frozen=True)
class StepShape:
    """x of a shape; step: which of five. layout: that of x and delta; step_of: every so manieth
    value of the last axis."""

    name: str
    shape: tuple[int, ...]
    clip: float | None = 1.0
    shift: bool = False
    flow: bool = False
    dtype: torch.dtype = torch.float32
    layout: torch.memory_format = torch.contiguous_format
    step: int = 1
    spacing: int = 1

    def inputs(self, seed: int = 0) -> Operands:
        """x, e, coef, clip, delta, flow."""
        g = torch.Generator().manual_seed(seed)

        def values() -> torch.Tensor:
            *front, last = self.shape
            wide = torch.randn(*front, last * self.spacing, generator=g).to(self.dtype)
            return wide[..., :: self.spacing]

        x, e = values().contiguous(memory_format=self.layout), values()
        coef = coefficients(STEPS, self.flow)[self.step]
        return x, e, coef, self.clip, 0.3 * values() if self.shift else None, self.flow

    def __str__(self) -> str:
        what = "flow" if self.flow else f"clip {self.clip}"
        shift = " delta" if self.shift else ""
        return f"{self.name}: {list(self.shape)} {TRITON_NAME[self.dtype]} {what}{shift}"


SHAPES = (
    StepShape("typical", (7, 33)),
    StepShape("perturbed", (40, 48), shift=True),
    StepShape("last step", (5, 12), step=4, shift=True),
    StepShape("no clip", (130, 11), clip=None),
    StepShape("several tiles", (3, 700), clip=0.5, shift=True),
    StepShape("flow", (9, 30), clip=None, flow=True),
    StepShape("flow, perturbed", (9, 30), clip=None, flow=True, shift=True),
    StepShape("float16", (17, 33), dtype=torch.float16, shift=True),
    StepShape("bfloat16", (17, 33), dtype=torch.bfloat16),
    StepShape("strided", (9, 20), spacing=3, shift=True),
    StepShape("channels last", (2, 3, 5, 4), layout=torch.channels_last, shift=True),
    StepShape("one value", (1,)),
    StepShape("no axes", (1, 1, 1)),
    StepShape("nothing", (0, 12), shift=True),
)
BENCH_CPU = (
    StepShape("one action chunk", (1, 48)),
    StepShape("1024 chunks", (1024, 48), shift=True),
    StepShape("images", (16, 4, 64, 64), clip=None),
)
BENCH_GPU = (
    StepShape("latents of 512 x 512", (64, 4, 64, 64), None, dtype=torch.float16),
    StepShape("large", (64, 16, 128, 128), shift=True),
    StepShape("large, half", (64, 16, 128, 128), dtype=torch.bfloat16),
)
REHEARSE = (StepShape("rehearsal", (6, 20), shift=True),)


def variants() -> Iterator[Variant]:
    """The builds that the launcher makes."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for shift, clip, flow in ((True, True, False), (False, False, False), (True, False, True)):
            kind = f"*{TRITON_NAME[dtype]}"
            what = "flow" if flow else "clip" if clip else "no clip"
            options: dict[str, Any] = op.tile()
            yield Variant(
                name=f"{kind[1:]} {what}{' delta' if shift else ''}",
                kernel=op.perturb_ddim_step_kernel,
                types=(kind, kind, kind, "*fp32", kind, "i32", "fp32"),
                num_warps=options.pop("num_warps"),
                num_stages=options.pop("num_stages"),
                constexprs={"SHIFT": shift, "CLIP": clip, "FLOW": flow, **options},
                aligned=("n",),
                wide_loads=True,
                wide_stores=True,
            )


def scheduler(clip: float | None) -> Any:
    """diffusers' DDIM on the schedule of `alpha_bar`; None where diffusers is not installed."""
    if find_spec("diffusers") is None:
        return None
    from diffusers import DDIMScheduler

    ddim = DDIMScheduler(
        num_train_timesteps=TIMES,
        beta_schedule="squaredcos_cap_v2",
        clip_sample=clip is not None,
        clip_sample_range=clip or 1.0,
        timestep_spacing="leading",
    )
    ddim.set_timesteps(STEPS)
    return ddim


def library(shape: StepShape) -> tuple[Contender, ...]:
    ddim = None if shape.flow else scheduler(shape.clip)
    if ddim is None:
        return ()
    time = ddim.timesteps[shape.step]

    def call(args: Operands) -> torch.Tensor:
        x, e, _, _, delta, _ = args
        x = x if delta is None else x + delta
        return ddim.step(e, time, x, use_clipped_model_output=True).prev_sample

    return (Contender("diffusers DDIMScheduler.step", call),)


def compare(
    shape: StepShape, device: torch.device, run: Callable[..., torch.Tensor], *peers: Contender
) -> Comparison:
    def operands(seed: int) -> Operands:
        x, e, coef, clip, delta, flow = shape.inputs(seed)
        moved = None if delta is None else delta.to(device)
        return x.to(device), e.to(device), coef.to(device), clip, moved, flow

    count = torch.Size(shape.shape).numel()
    flops, traffic = op.cost(count, itemsize=shape.dtype.itemsize, delta=shape.shift)
    definition = Contender("the definition, eager torch", lambda args: op.reference(*args))
    return Comparison(
        shape=str(shape),
        operands=operands,
        ours=Contender("ours", lambda args: run(*args)),
        peers=(definition, *library(shape), *peers),
        flops=flops,
        traffic=traffic,
    )


def public(*args: Any) -> torch.Tensor:
    *rest, flow = args
    return op.perturb_ddim_step(*rest, flow=flow)


def on_cpu(shape: StepShape) -> Comparison:
    return compare(shape, torch.device("cpu"), public)


def on_gpu(shape: StepShape, device: torch.device) -> Comparison:
    step = compiled(lambda args: op.reference(*args))
    return compare(
        shape,
        device,
        op.perturb_ddim_step_triton,
        Contender("the definition, torch.compile", step, slow=True),
    )


OPERATION = Operation(
    "perturb_ddim_step", SHAPES, variants, on_cpu, on_gpu, BENCH_CPU, BENCH_GPU, REHEARSE
)
