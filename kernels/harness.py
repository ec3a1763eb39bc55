"""What the kernels share for tests and benchmarks: numerical agreement and builds without a GPU.

The operation files import `Variant` from here to name what they launch; this module knows no
operation. A build goes through Triton's own front door (`triton.compile` with an explicit target),
so it needs neither a GPU nor a driver; registers and spills are read from the finished binary.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS: dict[str, GPUTarget] = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}

TRITON_NAME: dict[torch.dtype, str] = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.uint8: "u8",
    torch.int16: "i16",
}

# Root-mean-square error over root-mean-square value. Half types: a few units in the last place of
# the inputs and of the one rounding of the output; float32: a sum of a few thousand terms.
TOLERANCE: dict[torch.dtype, float] = {
    torch.float64: 1e-12,
    torch.float32: 2e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


@dataclass(frozen=True)
class Variant:
    """One build of one kernel: what `aot_compile` compiles and what the launcher launches.

    `types` are Triton's names of the types of the runtime arguments, which come first in the
    kernel's signature. `aligned`: the integers among them are multiples of 16, as K = 256 is; a
    launch specialises on that.
    """

    name: str
    kernel: Any
    types: tuple[str, ...]
    constexprs: dict[str, Any]
    num_warps: int
    num_stages: int
    aligned: bool = True


@dataclass(frozen=True)
class Resources:
    """What one build needs: registers per thread, shared bytes per block, spills.

    `spills` is 0 when every value lives in a register. On CUDA it counts bytes of stack per
    thread (what Triton itself reports as spills on a device), on AMD spilled registers.
    """

    registers: int
    shared: int
    spills: int


def aot_compile(variant: Variant, target: GPUTarget) -> Resources:
    """Compile `variant` for `target` with no GPU present and read off what it needs.

    Pointers are taken as 16-byte aligned, as torch allocates them.
    """
    runtime = dict(zip(variant.kernel.arg_names, variant.types, strict=False))
    wide = [i for i, kind in enumerate(variant.types) if kind[0] == "*" or variant.aligned]
    source = ASTSource(
        variant.kernel,
        signature=runtime | dict.fromkeys(variant.constexprs, "constexpr"),
        constexprs=variant.constexprs,
        attrs={(i,): [["tt.divisibility", 16]] for i in wide},
    )
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    built = triton.compile(source, target=target, options=options)
    if target.backend == "cuda":
        return _cuda_resources(built.asm["cubin"], built.metadata.shared)
    return _amd_resources(built.asm["amdgcn"], built.metadata.shared)


def _cuda_resources(cubin: bytes, shared: int) -> Resources:
    """Ask the `cuobjdump` that Triton ships what the machine code uses."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    used = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return Resources(used["REG"], shared, used["STACK"] + used["LOCAL"])


def _amd_resources(assembly: str, shared: int) -> Resources:
    """Read the metadata block of the AMD assembly (vector registers; both kinds of spill)."""
    used = {
        key: int(value)
        for key, value in re.findall(r"\.(vgpr_count|[vs]gpr_spill_count):\s+(\d+)", assembly)
    }
    spills = used["vgpr_spill_count"] + used["sgpr_spill_count"]
    return Resources(used["vgpr_count"], shared, spills)


def rms_ratio(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """|actual - expected| over |expected|, both root mean square, in float64. 0 for empty input.

    An all-zero `expected` is compared absolutely. NaN in `actual` gives NaN.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"shapes differ: {tuple(actual.shape)} and {tuple(expected.shape)}")
    if expected.numel() == 0:
        return 0.0
    want = expected.detach().double().cpu()
    error = (actual.detach().double().cpu() - want).square().mean().sqrt()
    size = want.square().mean().sqrt()
    return float(error / size) if size > 0 else float(error)


def assert_close(
    actual: torch.Tensor,
    expected: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    tolerance: float | None = None,
) -> None:
    """Assert that `rms_ratio` is within the tolerance of `dtype` (default: that of `actual`)."""
    limit = TOLERANCE[dtype or actual.dtype] if tolerance is None else tolerance
    ratio = rms_ratio(actual, expected)
    # `not <=` rather than `>`: NaN must fail.
    if not ratio <= limit:
        raise AssertionError(f"RMS error ratio {ratio:.3g} exceeds {limit:.3g}")
