"""A made-up project whose stages have run, for the tests of tracking; and a look into a store."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from scripts.pipeline import metrics, params
from scripts.pipeline.dag import Dag
from scripts.pipeline.files import ROOT
from scripts.pipeline.freshness import Freshness, write_manifest

ARMS = ("fp", "kmeans", "gsrq")
SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="320" height="180">
<path d="M20 160 100 90 180 50 300 30" fill="none" stroke="#0072B2" stroke-width="3"/>
<text x="120" y="170">bits</text></svg>
"""
TRACK = "from scripts.pipeline.tracking import main; raise SystemExit(main())"


def make_project(root: Path, papers: tuple[str, ...] = ("toy",), **parameters: Any) -> Path:
    """A project folder with the code of this one and papers whose results are there (smoke)."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "scripts" / "papers").mkdir(parents=True)
    (root / "data").mkdir()
    for name in ("scripts/pipeline", "workflow", "scripts/__init__.py"):
        (root / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "data" / "sources.csv", root / "data")
    for slug in papers:
        folder = root / "scripts" / "papers" / slug
        folder.mkdir()
        for stage in ("prepare", "compress", "evaluate", "plot"):
            (folder / f"{stage}.py").write_text("", encoding="utf-8")
        (folder / "claims.yaml").write_text("[]\n", encoding="utf-8")
        schema = {"type": "object", "properties": {"bits": {}, "codebook": {}}}
        (folder / "params.schema.yaml").write_text(yaml.safe_dump(schema), encoding="utf-8")
    set_parameters(root, papers, **parameters)
    for slug in papers:
        fill(root, slug)
    return root


def set_parameters(root: Path, papers: tuple[str, ...] = ("toy",), **parameters: Any) -> None:
    """Write params.yaml."""
    section = {
        "title": "Gain-Shape Residual Quantization",
        "source": "arXiv 2607.01065",
        "factors": {"bits": "number", "layer": "integer"},
        "stages": {
            "prepare": None,
            "compress": {"arms": list(ARMS)},
            "evaluate": {"arms": list(ARMS)},
            "plot": None,
        },
        "common": {"bits": [0.5, 1.0], "codebook": {"size": 256, "stages": 4}, **parameters},
        "smoke": {"seeds": 2, "single_seed": ["fp"]},
        "laptop": {"seeds": 1, "fan_out": ["arm"]},
        "paper": {"seeds": 1, "fan_out": ["arm", "seed"]},
    }
    value = {"scale": "smoke", "papers": list(papers), **dict.fromkeys(papers, section)}
    (root / "params.yaml").write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")


def fill(root: Path, slug: str = "toy", scale: str = "smoke", shift: float = 0.0) -> None:
    """Write the results of all stages of a paper; `shift` moves the metric of one cell."""
    settings = params.load(root / "params.yaml")
    dag = Dag(settings.paper(slug), scale)
    freshness = Freshness(settings, scale)
    for block in dag.blocks.values():
        folder = root / block.folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if block.stage == "plot":
            (folder / "rate.svg").write_text(SVG, encoding="utf-8")
        else:
            rows, curves = _tables(block, shift)
            schema = metrics.metric_schema(dag.paper.factors)
            metrics.write_rows(folder / "metrics.parquet", rows, schema)
            metrics.write_rows(folder / "curves.parquet", curves, metrics.curve_schema())
        write_manifest(folder, freshness.block(dag, block).recipe)
    _write_verdicts(root, freshness, slug, scale)


def _tables(block: Any, shift: float) -> tuple[list[dict], list[dict]]:
    rows, curves = [], []
    for place, cell in enumerate(block.cells):
        keys = {"paper": block.paper, "scale": block.scale, "stage": block.stage}
        keys |= {"arm": cell.arm, "seed": cell.seed}
        if block.stage == "compress":
            curves += [
                keys | {"step": step, "metric": "objective", "value": 1 / (1 + step + place)}
                for step in range(40)
            ]
            continue
        moved = shift if cell.name == "gsrq-s1" else 0.0
        row = keys | {"unit": "nat/token", "n": 1000}
        for dataset in ("pydoc", "license"):
            for bits in (None,) if cell.arm == "fp" else (0.5, 1.0):
                value = place + (bits or 0.0) + len(dataset) / 100 + moved
                rows.append(
                    row | {"metric": "kl", "dataset": dataset, "bits": bits, "value": value}
                )
        rows += [
            row | {"metric": "cosine", "unit": "cosine", "dataset": "pydoc", "bits": bits,
                   "layer": layer, "value": 1 / (1 + layer + place)}
            for bits in (0.5, 1.0) for layer in range(30)
        ]  # fmt: skip
    return rows, curves


def _write_verdicts(root: Path, freshness: Freshness, slug: str, scale: str) -> None:
    product = freshness.judge(slug)
    checks = [
        {"label": f"bits={bits}", "effect": effect}
        for bits, effect in ((0.5, -0.05), (1.0, -0.1), (2.0, None))
    ]
    claims = [
        {"id": "C1", "claim": "The model stays close | nearly <equal>.", "verdict": "reproduced",
         "reason": None, "checks": checks},
        {"id": "C2", "claim": "It is fast.", "verdict": "not testable here",
         "reason": "no GPU", "checks": []},
    ]  # fmt: skip
    for output in product.outputs:
        (root / output).parent.mkdir(parents=True, exist_ok=True)
        (root / output).write_text("{}", encoding="utf-8")
    value = {"paper": slug, "scale": scale, "recipe": product.recipe, "claims": claims}
    (root / product.outputs[0]).write_text(json.dumps(value), encoding="utf-8")


def start_track(
    root: Path, *arguments: str, program: str = TRACK, uri: str = ""
) -> subprocess.Popen:
    """Start `track` in a process of its own, in the project folder."""
    environment = {**os.environ, "MLFLOW_TRACKING_URI": uri, "PYTHONPATH": str(root)}
    return subprocess.Popen(
        [sys.executable, "-c", program, "--scale", "smoke", *arguments],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def dump(database: Path) -> list[str]:
    """The whole of an SQLite store as SQL."""
    with sqlite3.connect(database) as connection:
        lines = list(connection.iterdump())
    connection.close()
    return lines


def keys_of(database: Path) -> list[str]:
    """Tag `key` of the runs that are not deleted, each as often as it occurs."""
    return _tags_of(database, "key")


def complete_keys_of(database: Path) -> list[str]:
    """Keys of the runs that count as complete."""
    with sqlite3.connect(database) as connection:
        found = connection.execute(
            "SELECT k.value FROM runs JOIN tags k USING (run_uuid) JOIN tags c USING (run_uuid) "
            "WHERE lifecycle_stage = 'active' AND k.key = 'key' AND c.key = 'complete' "
            "AND c.value = 'true' ORDER BY k.value"
        ).fetchall()
    connection.close()
    return [key for (key,) in found]


def _tags_of(database: Path, tag: str) -> list[str]:
    with sqlite3.connect(database) as connection:
        found = connection.execute(
            "SELECT value FROM runs JOIN tags USING (run_uuid) "
            "WHERE lifecycle_stage = 'active' AND key = ? ORDER BY value",
            (tag,),
        ).fetchall()
    connection.close()
    return [value for (value,) in found]


def expected_keys(slug: str = "toy", scale: str = "smoke") -> list[str]:
    """Keys of the runs that a paper of `make_project` has."""
    cells = ["fp/s0", *(f"{arm}/s{seed}" for arm in ARMS[1:] for seed in (0, 1))]
    runs = [f"{stage}/{cell}" for stage in ("compress", "evaluate") for cell in cells]
    return sorted(f"{slug}/{scale}/{name}" for name in [*runs, "verdicts"])
