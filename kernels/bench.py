"""Time every operation beside its peers; on a GPU also against the measured ceilings of the card.

    python -m kernels.bench               # on a GPU if there is one, else on a CPU (one thread)
    python -m kernels.bench --rehearse    # the GPU benchmark without a GPU: interpreted, tiny

`speedup` is the peer's time over ours: below 1 the peer is faster, and the line says "slower than".
On a GPU, `of_roofline` is the time that the card's own copy and matmul rates allow over ours. Rows
go to results/<card, cpu or rehearsal>/bench.parquet, or to `--output`.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import triton

from kernels.cases import operations
from kernels.operation import Comparison, Contender, Operation
from kernels.timing import Clock, CpuClock, GpuClock, Rehearsal

RESULTS = Path(__file__).parent / "results"
SECONDS = 380  # after these a GPU run starts no contender that compiles first; after 420, no other
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rehearse", action="store_true", help="no GPU: interpreted, tiny shapes")
    parser.add_argument("--only", metavar="OPERATION", help="one operation")
    parser.add_argument("--output", type=Path, help="where the rows go")
    args = parser.parse_args()
    if args.rehearse and not triton.knobs.runtime.interpret:
        # Triton decides when it is imported: begin again.
        os.environ["TRITON_INTERPRET"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "kernels.bench", *sys.argv[1:]])
    chosen = [operation for operation in operations() if args.only in (None, operation.name)]
    if not chosen:
        parser.error(f"--only {args.only}: {', '.join(o.name for o in operations())} are there")
    torch.set_num_threads(1)
    if args.rehearse:
        where, rows = "rehearsal", gpu_rows(chosen, torch.device("cpu"), Rehearsal())
    elif torch.cuda.is_available():
        where = re.sub(r"\W+", "-", torch.cuda.get_device_name()).strip("-").lower()
        rows = gpu_rows(chosen, torch.device("cuda"), GpuClock())
    else:
        where, rows = "cpu", cpu_rows(chosen)
    frame = pd.DataFrame(show(rows, where))
    output = args.output or RESULTS / where / "bench.parquet"
    output.parent.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(output, index=False)
    print(f"\n{len(frame)} rows in {output}")
    if "ms" in frame and frame.ms[frame.operation != "ceilings"].isna().any():
        sys.exit("a kernel failed, or time ran out")


def cpu_rows(chosen: Iterable[Operation]) -> Iterator[Row]:
    """Every CPU case: the torch path beside its peers, on one thread."""
    for operation in chosen:
        for shape in operation.bench_cpu:
            for row in compare(operation.on_cpu(shape), CpuClock(), slow=True):
                yield {"operation": operation.name, **row}


def gpu_rows(chosen: Iterable[Operation], device: torch.device, clock: Clock) -> Iterator[Row]:
    """Every GPU case beside the ceilings of the card; on a CPU device, the rehearsal of it."""
    rehearsed = device.type == "cpu"
    ceilings = measure_ceilings(device, clock)
    yield {"operation": "ceilings", "shape": "measured", **ceilings}
    start = time.perf_counter()
    for operation in chosen:
        for shape in operation.rehearse if rehearsed else operation.bench_gpu:
            spent = time.perf_counter() - start
            if spent > SECONDS + 40:
                yield {"operation": operation.name, "shape": str(shape), "peer": "no time left"}
                continue
            comparison = operation.on_gpu(shape, device)
            for row in compare(comparison, clock, slow=spent < SECONDS):
                rates = roofline(comparison, row["ms"], ceilings)
                yield {"operation": operation.name, **row, **rates}
            torch.cuda.empty_cache()


def compare(comparison: Comparison, clock: Clock, *, slow: bool) -> list[Row]:
    """One row per peer, ours in each. slow: also the contenders that must be compiled."""
    operands = [comparison.operands(seed) for seed in range(clock.copies)]
    peers = [peer for peer in comparison.peers if slow or not peer.slow]
    ours, *theirs = clock.measure([comparison.ours, *peers], operands)
    facts = comparison.facts(operands[0])
    return [
        {
            "shape": comparison.shape,
            "peer": peer.name,
            "ms": ours.ms,
            "peer_ms": timing.ms,
            "speedup": timing.ms / ours.ms,
            "gflop_s": comparison.flops / ours.ms / 1e6,
            "host_ms": ours.host_ms,
            "peer_host_ms": timing.host_ms,
            "error": ours.error or timing.error,
            **facts,
        }
        for peer, timing in zip(peers, theirs, strict=True)
    ]


def roofline(comparison: Comparison, ms: float, ceilings: Row) -> Row:
    """Achieved rates, and the time that the slower of the two ceilings would allow over ours."""
    gb_s, tflop_s = comparison.traffic / ms / 1e6, comparison.flops / ms / 1e9
    memory = gb_s / ceilings["gb_s"]
    arithmetic = tflop_s / ceilings[f"tflop_s_{comparison.arithmetic}"]
    return {
        "gb_s": gb_s,
        "tflop_s": tflop_s,
        "bound": "memory" if memory > arithmetic else f"{comparison.arithmetic} arithmetic",
        "of_roofline": max(memory, arithmetic),
    }


def measure_ceilings(device: torch.device, clock: Clock) -> Row:
    """What this card reaches: a copy of 1 GiB, and square matrix products."""
    length, side = (2**28, 8192) if device.type == "cuda" else (2**12, 32)

    def ms(call: Callable[[Any], Any], operands: Any) -> float:
        return clock.measure([Contender("ceiling", call)], [operands])[0].ms

    source, target = torch.zeros(2, length, device=device)
    copying = ms(lambda pair: pair[1].copy_(pair[0]), (source, target))
    rates: Row = {"gb_s": 2 * source.nbytes / copying / 1e6}
    for dtype in (torch.float16, torch.float32):  # float32 without TF32, torch's default
        a = torch.randn(side, side, device=device).to(dtype)
        rates[f"tflop_s_{str(dtype)[6:]}"] = 2 * side**3 / ms(lambda x: x @ x, a) / 1e9
    return rates


def show(rows: Iterable[Row], where: str) -> Iterator[Row]:
    """Print rows as they come, wins and losses alike."""
    title = None
    for row in rows:
        if row["operation"] != title:
            title = row["operation"]
            print(f"\n{title} on {where}")
        print("  " + line(row), flush=True)
        yield row


def line(row: Row) -> str:
    """A row as a sentence."""
    if row.get("error"):
        return f"{row['shape']}, {row['peer']}: failed, {row['error'].splitlines()[0]}"
    known = ("operation", "shape", "peer", "ms", "peer_ms", "speedup")
    rest = ", ".join(
        f"{key} {value if isinstance(value, str) else format(value, '.4g')}"
        for key, value in row.items()
        if key not in known and value is not None
    )
    if "speedup" not in row:
        return ": ".join(part for part in (row["shape"], row.get("peer"), rest) if part)
    ratio = row["speedup"]
    verdict = f"{ratio:.2f} x faster than" if ratio >= 1 else f"{1 / ratio:.2f} x slower than"
    return (
        f"{row['shape']}: {row['ms']:.4g} ms, {verdict} {row['peer']} ({row['peer_ms']:.4g} ms)"
        f"; {rest}"
    )


if __name__ == "__main__":
    main()
