"""Cases of `sinkhorn_halfstep`. Peer: torch's logsumexp over a cost that was stored beforehand,
as geomloss's tensorized back end computes it; storing it is not counted."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernels import sinkhorn_halfstep as op
from kernels.operation import Comparison, Contender, Operation, Variant, compiled

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class HalfstepShape:
    """B pairs of n and m points of d dims. `empty`: one weight of so many is 0; `eps`: of the
    cost, in units of its mean; `step`: points are every step-th of a tensor that is longer."""

    name: str
    b: int
    n: int
    m: int
    d: int
    empty: int = 0
    eps: float = 0.3
    step: int = 1
    dtype: torch.dtype = torch.float32

    def inputs(self, seed: int = 0) -> Operands:
        """Points off the origin, as outcomes are; h as in the middle of a Sinkhorn run."""
        g = torch.Generator().manual_seed(seed)

        def points(count: int) -> torch.Tensor:
            wide = torch.randn(self.b, count * self.step, self.d, generator=g, dtype=self.dtype)
            return wide[:, :: self.step] + 3

        x, y = points(self.n), points(self.m)
        eps = self.eps * self.d * (1 + torch.arange(self.b, dtype=self.dtype) / 4)
        h = 0.5 * torch.randn(self.b, self.m, generator=g, dtype=self.dtype)
        if self.empty:
            h[:, :: self.empty] = -torch.inf
        return x, y, h, eps

    def __str__(self) -> str:
        return f"{self.name}: B={self.b} n={self.n} m={self.m} d={self.d}"


SHAPES = (
    HalfstepShape("typical", 3, 100, 130, 2),
    HalfstepShape("image features", 2, 70, 65, 10, empty=7),
    HalfstepShape("widest direct", 1, 33, 40, 16),
    HalfstepShape("matrix product", 2, 65, 70, 17, empty=3),
    HalfstepShape("many dims", 1, 40, 33, 70, dtype=torch.float32),
    HalfstepShape("one of each", 1, 1, 1, 1),
    HalfstepShape("no rows", 2, 0, 5, 2),
    HalfstepShape("no columns", 2, 5, 0, 2),
    HalfstepShape("no columns, many dims", 2, 5, 0, 24),
    HalfstepShape("no pairs", 0, 5, 5, 2),
    HalfstepShape("no mass", 2, 20, 35, 3, empty=1),
    HalfstepShape("small eps", 2, 50, 60, 3, eps=0.002),
    HalfstepShape("strided", 2, 45, 50, 5, step=3),
)
BENCH_CPU = (
    HalfstepShape("tests of 250", 32, 250, 250, 2, dtype=torch.float64),
    HalfstepShape("tests of 500", 32, 500, 500, 10, dtype=torch.float64),
    HalfstepShape("one large pair", 1, 4000, 4000, 10, dtype=torch.float64),
)
BENCH_GPU = (
    HalfstepShape("tests of 1024", 64, 1024, 1024, 10),
    HalfstepShape("plane, 2048", 64, 2048, 2048, 2),
    HalfstepShape("one large pair", 1, 16384, 16384, 10),
    HalfstepShape("features of 64 dims", 16, 2048, 2048, 64),
)
REHEARSE = (HalfstepShape("rehearsal", 2, 20, 30, 3, empty=4),)


def variants() -> Iterator[Variant]:
    """The builds that the launcher makes: few dims by differences, many by matrix products."""
    for d in (1, 2, 3, 5, 10, 16, 17, 24, 64, 128):
        options: dict[str, Any] = op.tile(d)
        yield Variant(
            name=f"d={d}",
            kernel=op.sinkhorn_halfstep_kernel,
            types=("*fp32", "*fp32", "*fp32", "*fp32", "*fp32", "i32", "i32"),
            num_warps=options.pop("num_warps"),
            num_stages=options.pop("num_stages"),
            constexprs={
                "D": d,
                "DIRECT": d <= op.MAX_DIM_DIRECT,
                "LOG2_E": op.LOG2_E,
                "LN_2": op.LN_2,
                **options,
            },
        )


def stored_cost(args: Operands) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the peer gets for free: cost over eps [B,n,m], and h, eps."""
    x, y, h, eps = args
    return torch.cdist(x, y).square() / (2 * eps[:, None, None]), h, eps


def softmin(args: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cost, h, eps = args
    return -eps[:, None] * (h[:, None] - cost).logsumexp(2)


def on_cpu(shape: HalfstepShape) -> Comparison:
    flops, traffic = op.cost(shape.b, shape.n, shape.m, shape.d)
    return Comparison(
        shape=str(shape),
        operands=shape.inputs,
        ours=Contender("ours", lambda args: op.sinkhorn_halfstep(*args)),
        peers=(Contender("torch.logsumexp, cost stored before", softmin, stored_cost),),
        flops=flops,
        traffic=traffic * shape.dtype.itemsize // 4,
    )


def on_gpu(shape: HalfstepShape, device: torch.device) -> Comparison:
    def operands(seed: int) -> Operands:
        x, y, h, eps = (t.to(device) for t in shape.inputs(seed))
        return x, y, h, eps

    flops, traffic = op.cost(shape.b, shape.n, shape.m, shape.d)
    definition = compiled(lambda args: op.reference(*args))
    return Comparison(
        shape=str(shape),
        operands=operands,
        ours=Contender("ours", lambda args: op.sinkhorn_halfstep_triton(*args)),
        peers=(
            Contender("torch.logsumexp, cost stored before", softmin, stored_cost),
            Contender("torch.compile of the definition", definition, slow=True),
        ),
        flops=flops,
        traffic=traffic,
    )


OPERATION = Operation(
    "sinkhorn_halfstep", SHAPES, variants, on_cpu, on_gpu, BENCH_CPU, BENCH_GPU, REHEARSE
)
