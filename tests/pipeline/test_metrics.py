"""The metrics and curves tables: what is refused, what is written, what is read back."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.pipeline import metrics, params
from scripts.pipeline.dag import Dag
from scripts.pipeline.errors import PipelineError
from tests.workflow.project import Project

FACTORS = {"bits": "number", "layer": "integer", "tensor": "string"}
ROW = {"metric": "kl", "value": 0.5, "unit": "nat/token", "n": 10}


def checked(**changes) -> dict:
    return metrics.checked_rows([{**ROW, **changes}], FACTORS, "toy evaluate ours-s0")[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bit": 1}, r"undeclared factor 'bit' \(did you mean 'bits'\?\).*: bits, layer, tensor"),
        ({"value": math.nan}, r"metric 'kl' is nan; allowed: a finite number"),
        ({"value": -math.inf}, r"metric 'kl' is -inf; allowed: a finite number"),
        ({"value": "0.5"}, r"has value='0\.5'; allowed: a number"),
        ({"value": None}, r"has value=None; allowed: a number"),
        ({"unit": ""}, r"metric 'kl' has no unit"),
        ({"unit": "  "}, r"metric 'kl' has no unit"),
        ({"unit": math.nan}, r"has unit=nan; allowed: text"),
        ({"n": 0}, r"n=0; allowed: a count of at least 1"),
        ({"n": -3}, r"n=-3; allowed"),
        ({"n": 2.5}, r"n=2\.5; allowed"),
        ({"n": math.nan}, r"n=nan; allowed"),
        ({"n": math.inf}, r"n=inf; allowed"),
        ({"n": "10"}, r"has n='10'; allowed: a number"),
        ({"metric": 3}, r"has metric=3; allowed: text"),
        ({"dataset": None}, r"has dataset=None; allowed: text"),
        ({"layer": 1.5}, r"factor 'layer' is 1\.5; allowed \(params\.yaml\): integer"),
        ({"layer": "one"}, r"factor 'layer' is 'one'; allowed"),
        ({"bits": "two"}, r"factor 'bits' is 'two'; allowed \(params\.yaml\): number"),
        ({"bits": math.inf}, r"factor 'bits' is inf; allowed"),
        ({"tensor": 7}, r"factor 'tensor' is 7; allowed \(params\.yaml\): string"),
    ],
)
def test_rows_that_are_refused(changes, message):
    with pytest.raises(PipelineError, match=f"toy evaluate ours-s0: .*{message}"):
        checked(**changes)


@pytest.mark.parametrize("key", ["metric", "value", "unit", "n"])
def test_rows_that_lack_a_column(key):
    row = {name: value for name, value in ROW.items() if name != key}
    with pytest.raises(PipelineError, match=f"lacks {key}"):
        metrics.checked_rows([row], FACTORS, "toy")


def test_numbers_of_numpy_and_torch():
    row = checked(value=torch.tensor(1.5), n=np.int64(3), bits=np.float32(0.5), layer=np.int8(4))
    assert row["value"] == 1.5 and type(row["value"]) is float
    assert row["n"] == 3 and type(row["n"]) is int
    assert (row["bits"], row["layer"], row["dataset"]) == (0.5, 4, "")


def test_a_frame_with_gaps_has_nulls():
    frame = pd.DataFrame(
        {
            "metric": ["kl", "cosine"],
            "value": [0.5, 0.25],
            "unit": ["nat", "cosine"],
            "n": [3, 4],
            "bits": [None, 2],
            "layer": [7, None],
            "tensor": ["key", None],
        }
    )
    first, second = metrics.checked_rows(frame.to_dict("records"), FACTORS, "toy")
    assert (first["bits"], first["layer"], first["tensor"]) == (None, 7, "key")
    assert type(first["layer"]) is int
    assert (second["bits"], second["layer"], second["tensor"]) == (2.0, None, None)
    assert checked(layer=pd.NA)["layer"] is None


def test_two_units_of_one_metric_are_refused():
    metrics.one_unit_each([("kl", "nat"), ("kl", "nat"), ("cosine", "cosine")], "toy")
    with pytest.raises(PipelineError, match="toy: metric 'kl' comes in the units 'nat' and 'bit'"):
        metrics.one_unit_each([("kl", "nat"), ("x", "bit"), ("kl", "bit")], "toy")


keys = {"paper": "toy", "scale": "smoke", "stage": "evaluate", "arm": "ours", "seed": 0}
rows = st.lists(
    st.fixed_dictionaries(
        {
            "metric": st.sampled_from(["kl", "cosine"]),
            "value": st.floats(allow_nan=False, allow_infinity=False),
            "unit": st.just("unit"),
            "n": st.integers(1, 2**62),
            "dataset": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        },
        optional={
            "bits": st.none() | st.floats(-1e9, 1e9),
            "layer": st.none() | st.integers(-(2**52), 2**52),
            "tensor": st.none() | st.sampled_from(["key", "value"]),
        },
    ),
    max_size=8,
)


@settings(deadline=None)
@given(rows)
def test_what_is_written_is_read_back(tmp_path_factory, given_rows):
    path = tmp_path_factory.getbasetemp() / "round.parquet"
    full = [{**keys, **row} for row in metrics.checked_rows(given_rows, FACTORS, "toy")]
    schema = metrics.metric_schema(FACTORS)
    metrics.write_rows(path, full, schema)
    table = pa.parquet.read_table(path)
    assert table.schema.equals(schema)
    expected = [{name: row.get(name) for name in schema.names} for row in full]
    assert table.to_pylist() == expected


def test_schemas():
    schema = metrics.metric_schema(FACTORS)
    assert tuple(schema.names) == (*metrics.METRIC_COLUMNS, *FACTORS)
    types = {name: str(schema.field(name).type) for name in schema.names}
    assert [types[name] for name in ("seed", "value", "n", "unit")] == [
        "int64",
        "double",
        "int64",
        "string",
    ]
    assert [types[name] for name in FACTORS] == ["double", "int64", "string"]
    assert [schema.field(name).nullable for name in (*metrics.METRIC_COLUMNS, *FACTORS)] == (
        [False] * len(metrics.METRIC_COLUMNS) + [True] * len(FACTORS)
    )
    assert tuple(metrics.curve_schema().names) == metrics.CURVE_COLUMNS


def test_equal_rows_are_equal_bytes(tmp_path: Path):
    row = {**keys, **checked(bits=1.0)}
    for name in ("a", "b"):
        metrics.write_rows(tmp_path / name, [row], metrics.metric_schema(FACTORS))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# --- load_paper -------------------------------------------------------------------------------


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """The made-up project, with a metrics table for each of beta's blocks."""
    root = Project(tmp_path / "project").root
    for block in Dag(params.load(root / "params.yaml").paper("beta"), "laptop").judged():
        table = [
            {**keys, "paper": "beta", "scale": "laptop", "stage": block.stage, "arm": cell.arm,
             "seed": cell.seed, **checked(value=cell.seed, metric="score", unit="points")}
            for cell in block.cells
        ]  # fmt: skip
        folder = root / block.folder
        metrics.write_rows(folder / "metrics.parquet", table, metrics.metric_schema({}))
        point = [{**keys, "step": 0, "metric": "loss", "value": 1.0}] * len(block.cells)
        metrics.write_rows(folder / "curves.parquet", point, metrics.curve_schema())
    return root


def test_all_blocks_in_order(filled):
    table = metrics.load_paper(filled, "beta", "laptop")
    assert list(table["arm"]) == ["base"] * 3 + ["ours"] * 3
    assert list(table["value"]) == [0.0, 1.0, 2.0] * 2
    assert table["seed"].dtype == table["n"].dtype == "int64"
    assert len(metrics.load_curves(filled, "beta", "laptop")) == 6


def test_factor_columns_keep_their_types_when_a_block_has_none(filled):
    folder = filled / "results/laptop/beta/stages/evaluate"
    schema = metrics.metric_schema(FACTORS)
    for arm in ("base", "ours"):
        row = {**keys, **checked(**({"bits": 0.5, "layer": 3} if arm == "ours" else {}))}
        metrics.write_rows(folder / arm / "metrics.parquet", [row], schema)
    metrics.write_rows(filled / "data/laptop/beta/metrics.parquet", [], schema)
    table = metrics.load_paper(filled, "beta", "laptop")
    assert [math.isnan(value) for value in table["bits"]] == [True, False]
    assert table["bits"].iloc[1] == 0.5 and table["layer"].iloc[1] == 3


def test_a_missing_block_is_named_with_its_command(filled):
    lost = filled / "results/laptop/beta/stages/evaluate/ours/metrics.parquet"
    lost.unlink()
    command = "snakemake --cores all results/laptop/beta/stages/evaluate/ours/manifest.json"
    with pytest.raises(PipelineError, match=f"{lost}: missing. It is made by: {command}"):
        metrics.load_paper(filled, "beta", "laptop")


def test_a_damaged_block_is_named_with_its_command(filled):
    path = filled / "results/laptop/beta/stages/evaluate/ours/metrics.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(PipelineError, match=f"{path}: damaged .*Delete it and make it again"):
        metrics.load_paper(filled, "beta", "laptop")


def test_units_are_compared_over_blocks(filled):
    row = {**keys, **checked(metric="score", unit="percent")}
    path = filled / "results/laptop/beta/stages/evaluate/ours/metrics.parquet"
    metrics.write_rows(path, [row], metrics.metric_schema({}))
    with pytest.raises(PipelineError, match="'score' comes in the units 'points' and 'percent'"):
        metrics.load_paper(filled, "beta", "laptop")
