"""The files the judge writes, the printed ledger and the command line."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from scripts.pipeline import ledger, metrics, params
from scripts.pipeline.dag import Dag
from scripts.pipeline.files import ROOT
from scripts.pipeline.freshness import Freshness, write_manifest
from scripts.pipeline.ledger import REPRODUCED
from tests.pipeline.claim_tables import (
    CLEAR,
    FACTORS,
    KINDS,
    claim,
    gold,
    greater,
    quick_holm,  # noqa: F401 (a fixture)
    scores,
    table,
    verdicts,
)


def everything(folder: Path) -> dict[str, Any]:
    entries: list[dict[str, Any]] = [
        {"id": f"C{at}", "check": check} for at, check in enumerate(KINDS.values(), 1)
    ]
    entries.append({"id": "C99", "check": greater(metric="longbench"), "judged_at": ["paper"]})
    return verdicts(folder, gold(), *entries)


def test_judging_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        paths = ledger.write(tmp_path / name, everything(tmp_path))
        contents.append([path.read_bytes() for path in paths])
    assert contents[0] == contents[1]


def test_files_say_the_same(tmp_path: Path) -> None:
    result = everything(tmp_path)
    ledger.write(tmp_path, result)
    folder = tmp_path / "results" / "laptop"
    written = json.loads((folder / "made_up" / "verdicts.json").read_text())
    beside = written.pop("files")
    assert written == result
    assert set(beside) == {"verdicts.parquet", "../metrics/made_up.json"}
    for name, entry in beside.items():
        assert (folder / "made_up" / name).stat().st_size == entry["size"]
    rows = pd.read_parquet(folder / "made_up" / "verdicts.parquet")
    assert len(rows) == len(KINDS) + 1
    assert rows["claim_verdict"].tolist() == [claim["verdict"] for claim in result["claims"]]
    assert rows["effect"].dtype == "Float64"
    assert rows["label"].isna().tolist() == [False] * len(KINDS) + [True]
    numbers = json.loads((folder / "metrics" / "made_up.json").read_text())
    assert numbers["reproduced"] == len(KINDS)
    assert numbers["not testable here"] == 1
    assert numbers["C1 greater score"] == result["claims"][0]["checks"][0]["effect"]
    assert all(isinstance(number, int | float) for number in numbers.values())


def test_equal_labels_keep_their_numbers_apart(tmp_path: Path) -> None:
    found = verdicts(tmp_path, scores(CLEAR), {"checks": [greater(), greater(better="lower")]})
    numbers = ledger.flat_numbers(found)
    assert numbers["C1 greater score"] == -numbers["C1 greater score (2)"]


def test_show_prints_a_line_per_claim(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    result = everything(tmp_path)
    ledger.write(tmp_path, result)
    assert ledger.main(["show", "--scale", "laptop", "--root", str(tmp_path)]) == 0
    lines = capfd.readouterr().out.splitlines()
    for record in result["claims"]:
        (line,) = [line for line in lines if f" {record['id']} " in line]
        assert record["verdict"] in line
        if record["checks"] and record["checks"][0]["low"] is not None:
            assert f"[{record['checks'][0]['low']:.3g}, " in line


def test_show_without_verdicts_says_what_to_run(
    tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    assert ledger.main(["show", "--scale", "smoke", "--paper", "x", "--root", str(tmp_path)]) == 1
    assert "no verdicts of x; run: snakemake" in capfd.readouterr().err


def project(root: Path, frame: pd.DataFrame) -> Path:
    """A project of one paper whose stages have run and left these metrics."""
    schemas = Path("workflow", "schemas")
    (root / schemas).mkdir(parents=True)
    shutil.copy(ROOT / schemas / "params.schema.yaml", root / schemas)
    paper = root / "scripts" / "papers" / "made_up"
    paper.mkdir(parents=True)
    for stage in ("prepare", "evaluate", "plot"):
        (paper / f"{stage}.py").touch()
    (paper / "claims.yaml").write_text(yaml.safe_dump([claim(check=greater())]))
    scales: dict[str, Any] = {scale: {"seeds": 8} for scale in ("smoke", "laptop", "paper")}
    stages = {"prepare": None, "evaluate": {"arms": ["ours", "theirs"]}, "plot": None}
    factors = {name: "number" for name in FACTORS if name != "segment"}
    section: dict[str, Any] = {"title": "Made up", "factors": factors, "stages": stages}
    settings = {"scale": "laptop", "papers": ["made_up"], "made_up": section | scales}
    (root / "params.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    loaded = params.load(root / "params.yaml")
    dag, products = Dag(loaded.paper("made_up"), "laptop"), Freshness(loaded, "laptop")
    for block in dag.judged():
        rows = frame.to_dict("records") if block.stage == "evaluate" else []
        path = root / block.folder / "metrics.parquet"
        metrics.write_rows(path, rows, metrics.metric_schema(factors))
        write_manifest(path.parent, products.block(dag, block).recipe)
    return root


def test_metrics_of_other_parameters_are_not_judged(
    tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    root = project(tmp_path, scores(CLEAR).drop(columns="segment"))
    text = (root / "params.yaml").read_text()
    (root / "params.yaml").write_text(text.replace("seeds: 8", "seeds: 9"))
    assert ledger.main(["judge", "--scale", "laptop", "--paper", "made_up", "--root", str(root)])
    assert "missing, damaged or out of date" in capfd.readouterr().err


def test_the_judge_command_reads_metrics_and_writes_verdicts(tmp_path: Path) -> None:
    root = project(tmp_path, scores(CLEAR).drop(columns="segment"))
    command = ["judge", "--scale", "laptop", "--paper", "made_up", "--root", str(root)]
    assert ledger.main(command) == 0
    (found,) = ledger.read(root, "laptop")
    assert (found["title"], found["claims"][0]["verdict"]) == ("Made up", REPRODUCED)
    product = Freshness(params.load(root / "params.yaml"), "laptop").judge("made_up")
    assert found["recipe"] == product.recipe
    assert all((root / path).is_file() for path in product.outputs)
    before = [(root / path).read_bytes() for path in product.outputs]
    assert ledger.main(command) == 0
    assert [(root / path).read_bytes() for path in product.outputs] == before


@pytest.mark.parametrize(
    ("paper", "words"),
    [
        ("made_op", "unknown paper 'made_op' .did you mean 'made_up'"),
        ("made_up", "no metric 'score'"),
    ],
)
def test_the_judge_command_ends_with_one_message(
    tmp_path: Path, capfd: pytest.CaptureFixture, paper: str, words: str
) -> None:
    root = project(tmp_path, table([]).drop(columns="segment"))
    command = ["judge", "--scale", "laptop", "--paper", paper, "--root", str(root)]
    assert ledger.main(command) == 1
    said = capfd.readouterr().err
    assert re.match(f"error: judge {paper} at scale laptop: .*{words}", said)
    assert "Traceback" not in said
