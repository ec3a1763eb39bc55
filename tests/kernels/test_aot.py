"""Every build of every kernel compiles for three GPUs with none present, and spills nothing."""

from dataclasses import replace

import pandas as pd
import pytest
import triton
import triton.language as tl

from kernels.aot import TARGETS, aot_compile
from kernels.cases import operations, rq_encode
from kernels.inspect import TABLE, faults, inspected
from kernels.operation import Variant

pytestmark = pytest.mark.compiles
# What one block may have: registers per thread, shared bytes (CUDA programming guide, compute
# capabilities 8.0 and 9.0; CDNA3 ISA).
LIMITS = {"sm_80": (255, 163 * 1024), "sm_90": (255, 227 * 1024), "gfx942": (512, 64 * 1024)}
KEY = ["operation", "build", "target"]
BUILDS = [
    pytest.param(operation.name, variant, id=f"{operation.name} {variant.name}")
    for operation in operations()
    for variant in operation.variants()
]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return pd.read_csv(TABLE, keep_default_na=False)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("operation", "variant"), BUILDS)
def test_compiles_as_declared_and_as_committed(
    operation: str, variant: Variant, target: str, table: pd.DataFrame
) -> None:
    """No spills, no TF32, what the build declares; and the row of the committed table."""
    row = inspected(operation, variant, target)
    found = faults(pd.Series(row))
    if set(table.triton) != {triton.__version__}:  # tiles are chosen to spill nowhere with that one
        found = [fault for fault in found if "spills" not in fault]
    assert found == []
    registers, shared = LIMITS[target]
    assert row["registers"] <= registers
    assert row["shared"] <= shared
    committed = table[(table[KEY] == [row[key] for key in KEY]).all(axis=1)]
    assert len(committed) == 1, "python -m kernels.inspect"
    if committed.triton.item() == triton.__version__:
        assert committed.iloc[0].to_dict() == row, "python -m kernels.inspect"


def test_the_committed_table_has_all_builds_and_no_others(table: pd.DataFrame) -> None:
    assert len(table) == len(BUILDS) * len(TARGETS)


def test_every_want_is_declared_somewhere(table: pd.DataFrame) -> None:
    for want in ("tensor-cores", "wide-loads", "wide-stores"):
        assert table.wants.str.contains(want).any()


def test_faults_are_named(table: pd.DataFrame) -> None:
    row = table[table.wants == "tensor-cores wide-loads"].iloc[0]
    broken = row.copy()
    broken[["spills", "matrix", "wide_loads", "tf32"]] = (8, 0, 0, 2)
    assert faults(row) == []
    assert [fault.split(": ")[1] for fault in faults(broken)] == [
        "spills 8",
        "2 TF32 instructions where float32 or half precision is meant",
        "no tensor-core instruction",
        "no load of 16 bytes",
    ]


def test_spills_are_seen() -> None:
    """The parser is not blind: four warps overflow on the widest residual tile."""
    wide = next(v for v in rq_encode.variants() if "d=512" in v.name)
    forced = replace(wide, constexprs=wide.constexprs | {"BLOCK_K": 32}, num_warps=4)
    assert aot_compile(forced, TARGETS["sm_80"]).spills > 0
    crowded = replace(forced, num_warps=8)
    assert aot_compile(crowded, TARGETS["gfx942"]).spills > 0


@triton.jit
def probe_kernel(a_ptr, out_ptr, PRECISION: tl.constexpr, STEP: tl.constexpr):
    at = tl.arange(0, 64)
    a = tl.load(a_ptr + at[:, None] * 64 * STEP + at[None, :] * STEP)
    out = tl.dot(a, a, input_precision=PRECISION)
    tl.store(out_ptr + at[:, None] * 64 + at[None, :], out)


def probe(kind: str, precision: str, step: int) -> Variant:
    values = {"PRECISION": precision, "STEP": step}
    return Variant("probe", probe_kernel, (f"*{kind}", "*fp32"), values, num_warps=4, num_stages=1)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_facts_are_seen(target: str) -> None:
    """Each fact can be otherwise: TF32 where it is asked for, narrow loads of strided rows."""
    exact = aot_compile(probe("fp32", "ieee", 1), TARGETS[target])
    assert (exact.tf32, exact.matrix) == (0, 0) and exact.wide_loads > 0
    rounded = aot_compile(probe("fp32", "tf32", 1), TARGETS[target])
    assert rounded.tf32 > 0 and rounded.matrix > 0
    strided = aot_compile(probe("fp16", "ieee", 3), TARGETS[target])
    assert strided.wide_loads == 0 < strided.loads
    assert strided.matrix > 0 and strided.tf32 == 0


def test_matrix_instructions_are_seen_on_amd() -> None:
    half = aot_compile(probe("fp16", "ieee", 1), TARGETS["gfx942"])
    assert half.matrix > 0 and half.wide_loads > 0
    assert aot_compile(probe("fp16", "ieee", 3), TARGETS["gfx942"]).wide_loads == 0
