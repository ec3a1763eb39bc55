"""Compile every build of every operation for every target and say what it needs.

python -m kernels.inspect    # rewrites results/builds.csv and results/builds.parquet
"""

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import triton

from kernels.aot import TARGETS, aot_compile
from kernels.cases import operations
from kernels.operation import Variant

TABLE = Path(__file__).parent / "results" / "builds.csv"


def main() -> None:
    frame = pd.DataFrame(rows())
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(TABLE, index=False, lineterminator="\n")
    frame.to_parquet(TABLE.with_suffix(".parquet"), index=False)
    print(frame.to_string(index=False))
    broken = [fault for row in frame.itertuples() for fault in faults(row)]
    print("\n".join(["", *broken] if broken else ["", "no spills, no TF32, all wants met"]))
    sys.exit(bool(broken))


def faults(row: Any) -> list[str]:
    """What is wrong with one row of the table, in words."""
    wants = row.wants.split()
    found = {
        f"spills {row.spills}": row.spills > 0,
        f"{row.tf32} TF32 instructions where float32 or half precision is meant": row.tf32 > 0,
        "no tensor-core instruction": "tensor-cores" in wants and row.matrix == 0,
        "no load of 16 bytes": "wide-loads" in wants and row.wide_loads == 0,
        "no store of 16 bytes": "wide-stores" in wants and row.wide_stores == 0,
    }
    where = f"{row.operation} {row.build} on {row.target}"
    return [f"{where}: {fault}" for fault, there in found.items() if there]


def rows() -> list[dict[str, Any]]:
    """What every build needs on every target, with the Triton that is installed."""
    return [
        inspected(operation.name, variant, target)
        for operation in operations()
        for variant in operation.variants()
        for target in TARGETS
    ]


def inspected(operation: str, variant: Variant, target: str) -> dict[str, Any]:
    """One row of the table."""
    wants = {
        "tensor-cores": variant.tensor_cores,
        "wide-loads": variant.wide_loads,
        "wide-stores": variant.wide_stores,
    }
    return {
        "triton": triton.__version__,
        "target": target,
        "operation": operation,
        "build": variant.name,
        "warps": variant.num_warps,
        "wants": " ".join(want for want, wanted in wants.items() if wanted),
        **vars(aot_compile(variant, TARGETS[target])),
    }


if __name__ == "__main__":
    main()
