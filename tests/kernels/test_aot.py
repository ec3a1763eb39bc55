"""Every build of every kernel compiles for three GPUs with none present, and spills nothing."""

import csv
from pathlib import Path

import pytest
import triton

from kernels.bench import AOT_TABLE, aot_rows
from kernels.cases import variants
from kernels.harness import TARGETS, Variant, aot_compile

pytestmark = pytest.mark.compiles
# What one block may have: registers per thread, shared bytes (CUDA programming guide, compute
# capabilities 8.0 and 9.0; CDNA3 ISA).
LIMITS = {"sm_80": (255, 163 * 1024), "sm_90": (255, 227 * 1024), "gfx942": (512, 64 * 1024)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("variant", [*variants()], ids=lambda variant: variant.name)
def test_compiles_without_spills(variant: Variant, target: str) -> None:
    used = aot_compile(variant, TARGETS[target])
    registers, shared = LIMITS[target]
    assert used.spills == 0
    assert used.registers <= registers
    assert used.shared <= shared


def test_the_committed_table_is_what_compiles_today() -> None:
    with Path(AOT_TABLE).open() as file:
        table = list(csv.DictReader(file))
    if table[0]["triton"] != triton.__version__:
        pytest.skip(f"the table is of Triton {table[0]['triton']}: python -m kernels.bench --aot")
    assert table == [{key: str(value) for key, value in row.items()} for row in aot_rows()]


def test_spills_are_seen() -> None:
    """The parser is not blind: four warps overflow on the widest residual tile."""
    wide = next(v for v in variants() if "d=512" in v.name)
    forced = Variant(wide.name, wide.kernel, wide.types, wide.constexprs | {"BLOCK_K": 32}, 4, 1)
    assert aot_compile(forced, TARGETS["sm_80"]).spills > 0
    crowded = Variant(wide.name, wide.kernel, wide.types, wide.constexprs | {"BLOCK_K": 32}, 8, 1)
    assert aot_compile(crowded, TARGETS["gfx942"]).spills > 0
