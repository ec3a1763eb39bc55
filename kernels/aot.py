"""Builds without a GPU: what a kernel needs on a target, read from the finished binary.

A build goes through Triton's own front door (`triton.compile` with an explicit target), so it
needs neither a GPU nor a driver.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.operation import Variant

TARGETS: dict[str, GPUTarget] = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


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
    wide = [
        i
        for i, (name, kind) in enumerate(runtime.items())
        if kind[0] == "*" or name in variant.aligned
    ]
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
