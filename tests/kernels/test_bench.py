"""The benchmark: the GPU path end to end under the interpreter, and what a row says."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from kernels.bench import line, roofline
from kernels.cases import operations
from kernels.operation import Comparison, Contender


def test_rehearsal_runs_every_operation_and_contender(tmp_path: Path) -> None:
    output = tmp_path / "rows.parquet"
    done = subprocess.run(
        [sys.executable, "-m", "kernels.bench", "--rehearse", "--output", str(output)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = pd.read_parquet(output)
    assert set(rows.operation) == {"ceilings", *(operation.name for operation in operations())}
    measured = rows[rows.operation != "ceilings"]
    assert (measured[["ms", "peer_ms", "of_roofline", "gb_s", "tflop_s"]] > 0).all(axis=None)
    assert measured.groupby("operation").peer.nunique().min() >= 1


def test_a_loss_is_as_plain_as_a_win() -> None:
    row = {"operation": "op", "shape": "n=1", "peer": "cuBLAS", "ms": 2.0, "peer_ms": 1.0}
    assert "2.00 x slower than cuBLAS" in line(row | {"speedup": 0.5})
    assert "2.00 x faster than cuBLAS" in line(row | {"ms": 0.5, "speedup": 2.0})


@pytest.mark.parametrize(
    ("flops", "traffic", "bound", "share"),
    [(10**9, 10**9, "memory", 0.5), (10**12, 10**6, "float16 arithmetic", 0.25)],
)
def test_roofline(flops: int, traffic: int, bound: str, share: float) -> None:
    """1 ms: 1 TB/s of 2; 1000 TFLOP/s of 4000."""
    nothing = Contender("", lambda operands: None)
    comparison = Comparison("", lambda seed: None, nothing, (), flops, traffic, "float16")
    found = roofline(comparison, 1.0, {"gb_s": 2000.0, "tflop_s_float16": 4000.0})
    assert found["bound"] == bound
    assert found["of_roofline"] == pytest.approx(share)
