"""The benchmark: the GPU path end to end under the interpreter, and what a row says."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from kernels.bench import line, roofline
from kernels.cases import operations
from kernels.operation import Comparison, Contender
from kernels.timing import COPIES, GPU_CALLS, GpuClock


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
    assert "cuBLAS: failed, no memory" in line(
        row | {"speedup": 2.0, "error": "no memory\nand more"}
    )


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


class FakeEvent:
    """A CUDA event of which each pair is 2 ms apart."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: "FakeEvent") -> float:
        return 2.0


def test_gpu_clock_rotates_operands_and_reports_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it but the device: events are false, the spin is left out."""
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    clock = object.__new__(GpuClock)
    clock.scratch = torch.ones(8)
    seen: list[int] = []

    def fail(operands: int) -> None:
        raise torch.OutOfMemoryError("no memory")

    contenders = [Contender("good", seen.append, lambda x: 10 * x), Contender("bad", fail)]
    good, bad = clock.measure(contenders, [1, 2, 3])
    assert good.ms == 2.0 and good.host_ms is not None and good.error is None
    assert seen[:COPIES] == [10, 20, 30] and seen[COPIES + 1 :][:4] == [10, 20, 30, 10]
    assert len(seen) == COPIES + 1 + GPU_CALLS[1]  # 125 calls of 2 ms would fit; at most 100
    assert not clock.scratch.any()  # the second cache was overwritten
    assert bad.ms != bad.ms and "no memory" in bad.error
