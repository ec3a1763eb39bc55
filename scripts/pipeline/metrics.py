"""The metrics and curves tables: one schema for every paper, with units and denominators."""

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

from scripts.pipeline.dag import Dag
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import read_table, write_atomic
from scripts.pipeline.schema import listed, nearest

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

METRIC_KEYS = ("paper", "scale", "stage", "arm", "seed")
METRIC_COLUMNS = (*METRIC_KEYS, "dataset", "metric", "value", "unit", "n")
CURVE_COLUMNS = (*METRIC_KEYS, "step", "metric", "value")
_KINDS = {"metric": str, "unit": str, "dataset": str, "value": SupportsFloat, "n": SupportsFloat}


def metric_schema(factors: Mapping[str, str]) -> "pa.Schema":
    """Arrow schema of metrics.parquet; `factors`: name -> number, integer or string."""
    import pyarrow as pa

    types = {"number": pa.float64(), "integer": pa.int64(), "string": pa.string()}
    text = {"paper", "scale", "stage", "arm", "dataset", "metric", "unit"}
    base = [
        pa.field(
            name,
            pa.string() if name in text else pa.float64() if name == "value" else pa.int64(),
            nullable=False,
        )
        for name in METRIC_COLUMNS
    ]
    return pa.schema([*base, *(pa.field(name, types[kind]) for name, kind in factors.items())])


def curve_schema() -> "pa.Schema":
    """Arrow schema of curves.parquet: a value of a metric at an integer step."""
    import pyarrow as pa

    text = {"paper", "scale", "stage", "arm", "metric"}
    return pa.schema(
        [
            pa.field(
                name,
                pa.string() if name in text else pa.float64() if name == "value" else pa.int64(),
                nullable=False,
            )
            for name in CURVE_COLUMNS
        ]
    )


def checked_rows(
    rows: Iterable[Mapping[str, Any]], factors: Mapping[str, str], where: str
) -> list[dict[str, Any]]:
    """Rows as given by a stage, checked: a unit, a denominator, finite values, known columns.

    Args:
        rows: mappings with metric, value, unit, n, dataset and declared factors.
        factors: the paper's declared factor columns.
        where: paper, stage and cell, for the error.
    """
    allowed = {"dataset", "metric", "value", "unit", "n", *factors}
    checked = []
    for row in rows:
        name = row.get("metric")
        for key in row:
            if key not in allowed:
                raise PipelineError(
                    f"{where}: metric {name!r} has the undeclared factor {key!r}"
                    f"{nearest(key, factors)}; declared in params.yaml: {listed(factors)}"
                )
        missing = {"metric", "value", "unit", "n"} - row.keys()
        if missing:
            raise PipelineError(f"{where}: metric {name!r} lacks {listed(sorted(missing))}")
        for key, kind in _KINDS.items():
            if key in row and not isinstance(row[key], kind):
                raise PipelineError(
                    f"{where}: metric {name!r} has {key}={row[key]!r}; "
                    f"allowed: {'text' if kind is str else 'a number'}"
                )
        if not math.isfinite(row["value"]):
            raise PipelineError(
                f"{where}: metric {name!r} is {row['value']}; allowed: a finite number"
            )
        if not str(row["unit"]).strip():
            raise PipelineError(f"{where}: metric {name!r} has no unit; 'ratio' is one")
        if not (row["n"] >= 1 and float(row["n"]).is_integer()):
            raise PipelineError(
                f"{where}: metric {name!r} has n={row['n']}; allowed: a count of at least 1"
            )
        given = {
            factor: _factor(row[factor], kind, f"{where}: metric {name!r}: factor {factor!r}")
            for factor, kind in factors.items()
            if factor in row
        }
        numbers = {"value": float(row["value"]), "n": int(row["n"])}
        checked.append({"dataset": "", **row, **numbers, **given})
    return checked


def _factor(value: Any, kind: str, where: str) -> Any:
    """A factor's value in its declared type; None where a frame has no value (None, NaN, NA)."""
    if value is None or (isinstance(value, Real) and math.isnan(value)) or _is_na(value):
        return None
    if kind == "string" and isinstance(value, str):
        return str(value)
    if kind != "string" and isinstance(value, Real) and math.isfinite(value):
        if kind == "number":
            return float(value)
        if float(value).is_integer():
            return int(value)
    raise PipelineError(f"{where} is {value!r}; allowed (params.yaml): {kind}")


def _is_na(value: object) -> bool:
    return type(value).__name__ == "NAType"


def one_unit_each(units: Iterable[tuple[str, str]], where: str) -> None:
    """Refuse a metric that comes in two units, where one would be compared with the other."""
    first: dict[str, str] = {}
    for metric, unit in units:
        if first.setdefault(metric, unit) != unit:
            raise PipelineError(
                f"{where}: metric {metric!r} comes in the units {first[metric]!r} and {unit!r}; "
                "allowed: one unit a metric (give one of them another name)"
            )


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], schema: "pa.Schema") -> None:
    """Write rows as parquet in the given schema (columns a row lacks are null)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_atomic(path, sink.getvalue().to_pybytes())


def load_paper(root: Path, paper: str, scale: str) -> "pd.DataFrame":
    """All metrics of a paper at a scale, in the order of its blocks.

    Raises:
        PipelineError: a block's table is missing or damaged, or a metric comes in two units.
    """
    return _load(root, paper, scale, "metrics.parquet")


def load_curves(root: Path, paper: str, scale: str) -> "pd.DataFrame":
    """All curves of a paper at a scale."""
    return _load(root, paper, scale, "curves.parquet")


def _load(root: Path, slug: str, scale: str, file: str) -> "pd.DataFrame":
    import pandas as pd

    from scripts.pipeline import params

    paper = params.load(root / "params.yaml").paper(slug)
    blocks = Dag(paper, scale).judged()
    frames = [read_table(root / block.folder / file, block.command) for block in blocks]
    table = pd.concat(frames, ignore_index=True)
    if "unit" in table:
        pairs = table[["metric", "unit"]].drop_duplicates()
        one_unit_each(pairs.itertuples(index=False), f"{slug} at scale {scale}")
    return table
