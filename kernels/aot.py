"""Builds without a GPU: what a kernel needs on a target, read from the finished machine code.

A build goes through Triton's own front door (`triton.compile` with an explicit target), so it
needs neither a GPU nor a driver; the disassemblers are those that Triton ships.
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
# Opcodes in machine code, each as it stands in SASS or in AMD assembly. A copy that goes straight
# to shared memory (LDGSTS) is a load of global memory too.
MATRIX = re.compile(r"[HIDBQ]G?MMA\b|v_mfma_")
LOAD = re.compile(r"LDG|(?:global|buffer|flat)_load_")
WIDE_LOAD = re.compile(r"LDG.*\.128|(?:global|buffer|flat)_load_dwordx4")
WIDE_STORE = re.compile(r"STG.*\.128|(?:global|buffer|flat)_store_dwordx4")
TF32 = re.compile(r"TF32|xf32", re.IGNORECASE)


@dataclass(frozen=True)
class Build:
    """What one build needs, and what of its machine code matters.

    `registers` per thread; `shared` bytes per block. `spills` is 0 when every value lives in a
    register: on CUDA bytes of stack per thread (what Triton itself reports as spills on a device),
    on AMD spilled registers. Then numbers of instructions, in the text and not as executed: all;
    `matrix` ones (tensor cores; AMD has them for float32 too); loads of global memory; loads and
    stores of 16 bytes a thread. `tf32`: matrix instructions that would round float32 to 10 bits.
    """

    registers: int
    shared: int
    spills: int
    instructions: int
    matrix: int
    loads: int
    wide_loads: int
    wide_stores: int
    tf32: int


def aot_compile(variant: Variant, target: GPUTarget) -> Build:
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
        registers, spills, opcodes = _read_cuda(built.asm["cubin"])
    else:
        registers, spills, opcodes = _read_amd(built.asm["amdgcn"])
    return Build(
        registers,
        built.metadata.shared,
        spills,
        len(opcodes),
        matrix=sum(1 for code in opcodes if MATRIX.match(code)),
        loads=sum(1 for code in opcodes if LOAD.match(code)),
        wide_loads=sum(1 for code in opcodes if WIDE_LOAD.match(code)),
        wide_stores=sum(1 for code in opcodes if WIDE_STORE.match(code)),
        tf32=sum(1 for code in opcodes if TF32.search(code)),
    )


def _read_cuda(cubin: bytes) -> tuple[int, int, list[str]]:
    """Registers, bytes of stack and SASS opcodes, by `cuobjdump` and `nvdisasm`."""
    tools = triton.knobs.nvidia
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        usage, code = (
            subprocess.run([*command, str(path)], check=True, capture_output=True, text=True).stdout
            for command in ([tools.cuobjdump.path, "-res-usage"], [tools.nvdisasm.path, "-c"])
        )
    used = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]+)", code)
    return used["REG"], used["STACK"] + used["LOCAL"], opcodes


def _read_amd(assembly: str) -> tuple[int, int, list[str]]:
    """Vector registers, spilled registers of both kinds and opcodes, from the assembly."""
    found = re.findall(r"\.(vgpr_count|[vs]gpr_spill_count):\s+(\d+)", assembly)
    used = {key: int(value) for key, value in found}
    opcodes = re.findall(r"^\s+((?:v|s|ds|global|buffer|flat|scratch)_\w+)", assembly, re.MULTILINE)
    return used["vgpr_count"], used["vgpr_spill_count"] + used["sgpr_spill_count"], opcodes
