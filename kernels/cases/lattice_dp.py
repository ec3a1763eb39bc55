"""Cases of `lattice_dp`. Peer: the definition in torch, edge by edge, vectorised over labels; no
library computes segmentations under many label distributions at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernels import lattice_dp as op
from kernels.harness import TRITON_NAME
from kernels.operation import Comparison, Contender, Operation, Variant

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, op.Semiring]


@dataclass(frozen=True)
class LatticeShape:
    """Words of 0 to `length` bytes over `tokens` tokens and `labels` labels.

    `broken`: one offset of so many is reached by no edge, which a vocabulary of all bytes rules
    out; `absent`: the share of token scores that are -inf; `step`: w is every step-th row.
    """

    name: str
    words: int
    length: int
    labels: int
    tokens: int = 300
    semiring: op.Semiring = "max"
    dtype: torch.dtype = torch.float32
    broken: int = 0
    absent: float = 0.0
    step: int = 1

    def inputs(self, seed: int = 0) -> Operands:
        """A byte edge to every offset that is not broken, and a longer token to about half."""
        g = torch.Generator().manual_seed(seed)
        pointer, edges = [0], []
        for length in torch.randint(self.length + 1, (self.words,), generator=g).tolist():
            for dst in range(1, length + 1):
                if self.broken and dst % self.broken == 0:
                    continue
                spans = 1 + torch.randperm(min(dst, 5), generator=g)[:2].sort().values
                edges += [(dst - span, dst) for span in {1, *spans.tolist()}]
            pointer.append(len(edges))
        src, dst = torch.tensor(edges, dtype=torch.int16).reshape(-1, 2).unbind(1)
        token = torch.randint(self.tokens, (len(edges),), generator=g, dtype=torch.int32)
        w = -12 * torch.rand(self.tokens * self.step, self.labels, generator=g)
        w[torch.rand(w.shape, generator=g) < self.absent] = -torch.inf
        w = w.to(self.dtype)[:: self.step]
        return w, torch.tensor(pointer), src.contiguous(), dst.contiguous(), token, self.semiring

    def __str__(self) -> str:
        return f"{self.name}: {self.words} words, L={self.labels} {self.semiring}"


SHAPES = (
    LatticeShape("typical", 12, 9, 40),
    LatticeShape("typical, log", 12, 9, 40, semiring="log"),
    LatticeShape("half, several blocks", 5, 8, 300, dtype=torch.float16),
    LatticeShape("one label, log", 6, 7, 1, semiring="log"),
    LatticeShape("absent tokens", 10, 9, 33, absent=0.4),
    LatticeShape("absent tokens, log", 10, 9, 33, semiring="log", absent=0.4),
    LatticeShape("unreached offsets", 10, 9, 33, broken=3),
    LatticeShape("unreached offsets, log", 10, 9, 33, semiring="log", broken=3),
    LatticeShape("strided", 6, 6, 20, step=3),
    LatticeShape("empty words", 4, 0, 10),
    LatticeShape("no words", 0, 5, 10),
    LatticeShape("no labels", 3, 5, 0),
)
BENCH_CPU = (
    LatticeShape("laptop, 160 labels", 300, 12, 160, 16000),
    LatticeShape("laptop, 443 labels", 300, 12, 443, 16000),
    LatticeShape("laptop, total", 100, 12, 160, 16000, "log"),
)
BENCH_GPU = (
    LatticeShape("UDHR, 443 labels", 4096, 12, 443, 16000, dtype=torch.float16),
    LatticeShape("GlotLID, 1940 labels", 4096, 12, 1940, 100_000, dtype=torch.float16),
    LatticeShape("GlotLID, total", 4096, 12, 1940, 100_000, "log", torch.float16),
)
REHEARSE = (LatticeShape("rehearsal", 4, 5, 20, 50, dtype=torch.float16),)


def variants() -> Iterator[Variant]:
    """The builds that the launcher makes for few and many labels."""
    for labels, dtype in ((40, torch.float32), (443, torch.float16), (1940, torch.float16)):
        for semiring in op.SEMIRINGS:
            options: dict[str, Any] = op.tile(labels)
            yield Variant(
                name=f"L={labels} {TRITON_NAME[dtype]} {semiring}",
                kernel=op.lattice_dp_kernel,
                types=(
                    f"*{TRITON_NAME[dtype]}",
                    *("*i64", "*i16", "*i16", "*i32"),
                    *("*fp32", "*fp32", "i32", "i32", "i32"),
                ),
                num_warps=options.pop("num_warps"),
                num_stages=options.pop("num_stages"),
                constexprs={"LOG": semiring == "log", **options},
            )


def compare(shape: LatticeShape, device: torch.device, ours: Contender) -> Comparison:
    def operands(seed: int) -> Operands:
        *tensors, semiring = shape.inputs(seed)
        w, pointer, src, dst, token = (t.to(device) for t in tensors)
        return w, pointer, src, dst, token, semiring

    edges = len(shape.inputs()[2])
    flops, traffic = op.cost(shape.words, edges, shape.labels, itemsize=shape.dtype.itemsize)
    definition = Contender(
        "torch, edge by edge", lambda args: op.reference(args[0].float(), *args[1:]), slow=True
    )
    return Comparison(
        shape=f"{shape}, {edges} edges",
        operands=operands,
        ours=ours,
        peers=(definition,),
        flops=flops,
        traffic=traffic,
    )


def on_cpu(shape: LatticeShape) -> Comparison:
    ours = Contender("ours, numba", lambda args: op.lattice_dp(*args))
    return compare(shape, torch.device("cpu"), ours)


def on_gpu(shape: LatticeShape, device: torch.device) -> Comparison:
    return compare(shape, device, Contender("ours", lambda args: op.lattice_dp_triton(*args)))


OPERATION = Operation(
    "lattice_dp", SHAPES, variants, on_cpu, on_gpu, BENCH_CPU, BENCH_GPU, REHEARSE
)
