"""Compile every build of every operation for every target and say what it needs.

python -m kernels.inspect    # rewrites results/builds.csv and results/builds.parquet
"""

from pathlib import Path
from typing import Any

import pandas as pd
import triton

from kernels.aot import TARGETS, aot_compile
from kernels.cases import operations

TABLE = Path(__file__).parent / "results" / "builds.csv"


def main() -> None:
    frame = pd.DataFrame(rows())
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(TABLE, index=False, lineterminator="\n")
    frame.to_parquet(TABLE.with_suffix(".parquet"), index=False)
    print(frame.to_string(index=False))


def rows() -> list[dict[str, Any]]:
    """What every build needs on every target, with the Triton that is installed."""
    return [
        {
            "triton": triton.__version__,
            "target": target,
            "operation": operation.name,
            "build": variant.name,
            "warps": variant.num_warps,
            **vars(aot_compile(variant, TARGETS[target])),
        }
        for operation in operations()
        for variant in operation.variants()
        for target in TARGETS
    ]


if __name__ == "__main__":
    main()
