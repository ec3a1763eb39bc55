"""Every build of every kernel compiles for three GPUs with none present, and spills nothing."""

from dataclasses import replace

import pandas as pd
import pytest
import triton

from kernels.aot import TARGETS, aot_compile
from kernels.cases import operations, rq_encode
from kernels.inspect import TABLE, rows
from kernels.operation import Variant

pytestmark = pytest.mark.compiles
# What one block may have: registers per thread, shared bytes (CUDA programming guide, compute
# capabilities 8.0 and 9.0; CDNA3 ISA).
LIMITS = {"sm_80": (255, 163 * 1024), "sm_90": (255, 227 * 1024), "gfx942": (512, 64 * 1024)}
BUILDS = [
    pytest.param(variant, id=f"{operation.name} {variant.name}")
    for operation in operations()
    for variant in operation.variants()
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("variant", BUILDS)
def test_compiles_without_spills(variant: Variant, target: str) -> None:
    used = aot_compile(variant, TARGETS[target])
    registers, shared = LIMITS[target]
    assert used.spills == 0
    assert used.registers <= registers
    assert used.shared <= shared


def test_the_committed_table_is_what_compiles_today() -> None:
    table = pd.read_csv(TABLE)
    if table.triton[0] != triton.__version__:
        pytest.skip(f"the table is of Triton {table.triton[0]}: python -m kernels.inspect")
    pd.testing.assert_frame_equal(table, pd.DataFrame(rows()))


def test_spills_are_seen() -> None:
    """The parser is not blind: four warps overflow on the widest residual tile."""
    wide = next(v for v in rq_encode.variants() if "d=512" in v.name)
    forced = replace(wide, constexprs=wide.constexprs | {"BLOCK_K": 32}, num_warps=4)
    assert aot_compile(forced, TARGETS["sm_80"]).spills > 0
    crowded = replace(forced, num_warps=8)
    assert aot_compile(crowded, TARGETS["gfx942"]).spills > 0
