"""Cases of `seed_search`. Peer: the same product, then `torch.topk` over all seeds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernels import seed_search
from kernels.harness import TRITON_NAME
from kernels.operation import Comparison, Contender, Operation, Variant, compiled


@dataclass(frozen=True)
class SearchShape:
    """n blocks of C weights, N seeds of P bases each, the `top` best kept."""

    name: str
    n: int
    c: int
    seeds: int
    top: int
    p: int = 3
    dtype: torch.dtype = torch.float32

    def inputs(self, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """w [n,c], as small as weights are, and projectors on random subspaces."""
        g = torch.Generator().manual_seed(seed)
        w = 0.02 * torch.randn(self.n, self.c, generator=g)
        a, b = torch.triu_indices(self.c, self.c)
        weight = torch.where(a == b, 1.0, 2.0)
        packed = []
        for start in range(0, self.seeds, 4096):
            count = min(4096, self.seeds - start)
            q = torch.linalg.qr(torch.randn(count, self.c, self.p, generator=g)).Q
            packed.append(((q @ q.mT)[:, a, b] * weight).T)
        return w, torch.cat(packed, 1).to(self.dtype).contiguous()

    def __str__(self) -> str:
        return (
            f"{self.name}: n={self.n} C={self.c} N={self.seeds} top={self.top} "
            f"{TRITON_NAME[self.dtype]}"
        )


SHAPES = (
    SearchShape("typical", 100, 8, 255, 16),
    SearchShape("the best one", 70, 8, 255, 1),
    SearchShape("all seeds", 9, 4, 40, 40, p=2),
    SearchShape("odd everywhere", 67, 12, 301, 5, p=4),
    SearchShape("16 channels", 20, 16, 130, 3, p=8),
    SearchShape("one seed", 5, 4, 1, 1, p=2),
    SearchShape("no blocks", 0, 8, 255, 4),
    SearchShape("one channel", 3, 1, 7, 2, p=1),
    SearchShape("float16 projectors", 65, 8, 200, 8, dtype=torch.float16),
)
BENCH_CPU = (
    SearchShape("S-Quant, K=12", 4096, 8, 4095, 16, 4),
    SearchShape("S-Quant, K=12, the best one", 4096, 8, 4095, 1, 4),
    SearchShape("12 channels, K=12", 2048, 12, 4095, 16, 5),
    SearchShape("S-Quant, K=16", 256, 8, 65535, 16, 4),
)
BENCH_GPU = (
    SearchShape("S-Quant, K=16", 32768, 8, 65535, 16, 4),
    SearchShape("S-Quant, K=16, the best one", 32768, 8, 65535, 1, 4),
    SearchShape("S-Quant, K=16", 32768, 8, 65535, 16, 4, torch.float16),
    SearchShape("S-Quant, K=16", 32768, 8, 65535, 64, 4, torch.float16),
)
REHEARSE = (SearchShape("rehearsal", 20, 4, 63, 3, 2, torch.float16),)


def variants() -> Iterator[Variant]:
    """The builds that the launcher makes for the shapes of the paper."""
    for c, top, dtype in (
        (8, 1, torch.float32),
        (8, 16, torch.float32),
        (16, 16, torch.float32),
        (8, 1, torch.float16),
        (8, 16, torch.float16),
        (8, 64, torch.float16),
        (12, 32, torch.float16),
        (16, 16, torch.float16),
    ):
        options: dict[str, Any] = seed_search.tile(c, top, dtype.itemsize)
        yield Variant(
            name=f"C={c} top={top} {TRITON_NAME[dtype]}",
            kernel=seed_search.seed_search_kernel,
            types=("*fp32", f"*{TRITON_NAME[dtype]}", "*i32", "*i32", "*fp32", "i32", "i32", "i32"),
            num_warps=options.pop("num_warps"),
            num_stages=options.pop("num_stages"),
            constexprs={"C": c, "T": top, **options},
            aligned=("n_padded",),
            tensor_cores=dtype == torch.float16,
            wide_loads=True,
        )


def full_list(shape: SearchShape, args: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    w, projectors = args
    a, b = torch.triu_indices(shape.c, shape.c, device=w.device)
    return torch.topk((w[:, a] * w[:, b]).to(projectors.dtype) @ projectors, shape.top, 1).indices


def on_cpu(shape: SearchShape) -> Comparison:
    flops, traffic = seed_search.cost(shape.n, shape.c, shape.seeds, shape.top)
    return Comparison(
        shape=str(shape),
        operands=shape.inputs,
        ours=Contender("ours", lambda args: seed_search.seed_search(*args, shape.top)),
        peers=(Contender("torch.mm, torch.topk", lambda args: full_list(shape, args)),),
        flops=flops,
        traffic=traffic,
        facts=lambda args: {"weights": float(args[0].numel())},
    )


def on_gpu(shape: SearchShape, device: torch.device) -> Comparison:
    """The peers store all n x N energies: 8.6 GB at float32."""

    def operands(seed: int) -> tuple[torch.Tensor, ...]:
        return tuple(t.to(device) for t in shape.inputs(seed))

    def eager(args: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return full_list(shape, args)

    flops, traffic = seed_search.cost(
        shape.n, shape.c, shape.seeds, shape.top, itemsize=shape.dtype.itemsize
    )
    return Comparison(
        shape=str(shape),
        operands=operands,
        ours=Contender("ours", lambda args: seed_search.seed_search_triton(*args, shape.top)),
        peers=(
            Contender("torch.mm, torch.topk, eager", eager),
            Contender("torch.mm, torch.topk, torch.compile", compiled(eager), slow=True),
        ),
        flops=flops,
        traffic=traffic,
        arithmetic=str(shape.dtype)[6:],
        facts=lambda args: {"weights": float(args[0].numel())},
    )


OPERATION = Operation(
    "seed_search", SHAPES, variants, on_cpu, on_gpu, BENCH_CPU, BENCH_GPU, REHEARSE
)
