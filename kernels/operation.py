"""What an operation tells tests, `kernels.inspect` and `kernels.bench` about itself.

`kernels/cases/<op>.py` fills one `Operation`; everything that runs over all operations reads only
these classes, so that adding an operation touches no shared file.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import triton


@dataclass(frozen=True)
class Variant:
    """One build of one kernel: what is compiled ahead of time and what the launcher launches.

    `types` are Triton's names of the types of the runtime arguments, which come first in the
    kernel's signature. `aligned` names the integers among them that are multiples of 16, as K = 256
    is; a launch specialises on that. `tensor_cores`: it has a dot in half precision, which must run
    there. `wide_loads`, `wide_stores`: it reads, writes contiguous rows 16 bytes at a time.
    """

    name: str
    kernel: Any
    types: tuple[str, ...]
    constexprs: dict[str, Any]
    num_warps: int
    num_stages: int
    aligned: tuple[str, ...] = ()
    tensor_cores: bool = False
    wide_loads: bool = False
    wide_stores: bool = False


@dataclass(frozen=True)
class Contender:
    """One way to do an operation: `call` is timed, on what `prepare` made of the operands before.

    `slow` contenders (a compilation, an interpreter) are left out first when time runs short.
    """

    name: str
    call: Callable[[Any], Any]
    prepare: Callable[[Any], Any] = lambda operands: operands
    slow: bool = False


@dataclass(frozen=True)
class Comparison:
    """One shape, ours beside its peers.

    `operands(seed)` makes fresh operands on the device of the comparison; `flops` and `traffic`
    are what `cost` says; `arithmetic` names the matrix product whose rate bounds the flops:
    "float16" where they run on tensor cores, "float32" where they do not. `facts(operands)` are
    further columns: what the peers store, how well they do.
    """

    shape: str
    operands: Callable[[int], Any]
    ours: Contender
    peers: tuple[Contender, ...]
    flops: int
    traffic: int
    arithmetic: str = "float32"
    facts: Callable[[Any], dict[str, float]] = lambda operands: {}


@dataclass(frozen=True)
class Operation:
    """All cases of one operation.

    Shapes are dataclasses of the operation's own with a `name` and `inputs(seed)`. Tests run over
    `shapes` (typical, odd, strided, empty, tiny ones); the benchmark over `bench_cpu`, `bench_gpu`
    and, in a rehearsal of the GPU benchmark without a GPU, over `rehearse`.
    """

    name: str
    shapes: tuple[Any, ...]
    variants: Callable[[], Iterator[Variant]]
    on_cpu: Callable[[Any], Comparison]
    on_gpu: Callable[[Any, torch.device], Comparison]
    bench_cpu: tuple[Any, ...] = field(default=())
    bench_gpu: tuple[Any, ...] = field(default=())
    rehearse: tuple[Any, ...] = field(default=())


def compiled(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`torch.compile` for one fixed shape; in a rehearsal traced, but not compiled."""
    backend = "eager" if triton.knobs.runtime.interpret else "inductor"
    return torch.compile(call, dynamic=False, backend=backend)
