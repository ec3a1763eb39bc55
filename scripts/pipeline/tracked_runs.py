"""What MLflow should hold of a paper at a scale: its runs, computed from parquet alone.

Names. A metric is `kl/pydoc/bits:1`: the metric, then the dataset and the factors, but only those
that tell its rows apart within the stage. A curve is `curves/<name>`. A metric that would need
more than MAX_NAMES names in one cell is averaged (unweighted mean of rows) over the factor with
the most values, then the next, until it fits; the run's description says over which, and the
whole table is an artifact of the paper's run `verdicts`.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.pipeline.dag import WHOLE, Block, Cell, Dag
from scripts.pipeline.files import digest, read_json, read_table, sha256

if TYPE_CHECKING:
    import pandas as pd

Point = tuple[str, int, float]
"""Metric name, step, value."""

MAX_NAMES = 32

_CURVES = "curves"
_NOT_PLAIN = re.compile(r"[^\w\- .]")
_MAX_NAME = 250
_MAX_PARAM = 6000
_MAX_TAG = 8000


@dataclass(frozen=True)
class TrackedRun:
    """One MLflow run as it should be."""

    key: str
    """paper/scale/stage/arm/seed, or paper/scale/verdicts: a run's identity in any store."""
    params: dict[str, str]
    points: list[Point]
    tags: dict[str, str]
    provenance: dict[str, str]
    """Recipe hashes: they may change when the content does not, and are then set anew."""
    artifacts: dict[str, Path] = field(default_factory=dict)
    """Path in the run's artifacts -> file."""

    @property
    def name(self) -> str:
        """The key without the paper, which is the experiment."""
        return self.key.split("/", 1)[1]

    @cached_property
    def content(self) -> str:
        """Hash of all that is logged, provenance left out."""
        files = {path: sha256(file) for path, file in self.artifacts.items()}
        return digest([self.name, self.params, self.points, self.tags, files])


def cell_key(paper: str, scale: str, stage: str, arm: str, seed: int) -> str:
    return f"{paper}/{scale}/{stage}/{arm}/s{seed}"


def curve_name(name: str) -> str:
    return _shortened(f"{_CURVES}/{_part(name)}")


def metric_name(metric: str, dataset: str = "", factors: Mapping[str, Any] | None = None) -> str:
    """`kl/pydoc/bits:1`: valid in MLflow, and different for different arguments."""
    parts = [_part(metric) if metric != _CURVES else _marked(metric)]
    if dataset:
        parts.append(_part(dataset))
    parts += [f"{_part(key)}:{_part(_plain(value))}" for key, value in (factors or {}).items()]
    return _shortened("/".join(parts))


def flattened(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Nested parameters as `a.b: text`; a list is one value, as JSON."""
    return {
        _shortened(_part(key)): _limited(
            value if isinstance(value, str) else json.dumps(value, sort_keys=True), _MAX_PARAM
        )
        for key, value in _leaves(parameters)
    }


def paper_runs(root: Path, dag: Dag) -> list[TrackedRun]:
    """The runs of a paper: its cells in the order of the stages, then the verdicts.

    Raises:
        PipelineError: a table, manifest or the verdicts are missing or damaged.
    """
    return [*_cell_runs(root, dag), _verdicts_run(root, dag)]


def _cell_runs(root: Path, dag: Dag) -> Iterator[TrackedRun]:
    import pandas as pd

    data_hash = _recipe(root, next(block for block in dag.blocks.values() if not block.cells))
    for stage in dag.paper.stages:
        blocks = [block for (of, _), block in dag.blocks.items() if of == stage and block.cells]
        if not blocks:
            continue
        metrics = pd.concat([_table(root, block, "metrics.parquet") for block in blocks])
        curves = pd.concat([_table(root, block, "curves.parquet") for block in blocks])
        values, notes = stage_values(metrics, list(dag.paper.factors))
        points = curve_points(curves)
        for block in blocks:
            recipe = _recipe(root, block)
            for cell in block.cells:
                yield TrackedRun(
                    key=cell_key(block.paper, block.scale, stage, cell.arm, cell.seed),
                    params=_cell_params(dag, stage, cell),
                    points=values.get(cell, []) + points.get(cell, []),
                    tags={
                        "paper": block.paper,
                        "scale": block.scale,
                        "stage": stage,
                        "arm": cell.arm,
                        "seed": str(cell.seed),
                        "mlflow.source.name": f"scripts/papers/{block.paper}/{stage}.py",
                        "mlflow.note.content": _limited(notes, _MAX_TAG),
                    },
                    provenance={"data_hash": data_hash, "recipe_hash": recipe},
                )


def stage_values(table: "pd.DataFrame", factors: list[str]) -> tuple[dict[Cell, list[Point]], str]:
    """Named metrics of each cell of a stage, and what they are, as Markdown.

    Args:
        table: the stage's metrics, all cells (so that a metric has one name in all of them).
        factors: the paper's declared factor columns.
    """
    points: dict[Cell, list[Point]] = {}
    notes = []
    for metric, rows in table.groupby("metric", sort=True):
        spread = {name: rows[name].nunique(dropna=False) for name in ("dataset", *factors)}
        telling = [name for name, values in spread.items() if values > 1]
        averaged = []
        while _names_in_a_cell(rows, telling) > MAX_NAMES and telling != ["dataset"]:
            widest = max((name for name in telling if name != "dataset"), key=spread.__getitem__)
            telling.remove(widest)
            averaged.append(widest)
        groups = rows.groupby(["arm", "seed", *telling], dropna=False, sort=True)["value"]
        for (arm, seed, *values), mean in groups.mean().items():
            known = {key: value for key, value in zip(telling, values, strict=True) if _is(value)}
            name = metric_name(str(metric), known.pop("dataset", ""), known)
            points.setdefault(Cell(arm, int(seed)), []).append((name, 0, float(mean)))
        note = f"- `{metric}`: {rows['unit'].iloc[0]}"
        if averaged:
            note += f"; mean over {', '.join(averaged)} ({int(groups.size().max())} rows each)"
        notes.append(note)
    return points, "\n".join(notes)


def curve_points(curves: "pd.DataFrame") -> dict[Cell, list[Point]]:
    """Points of each cell's curves in order of steps; a value that is not finite has no point."""
    points: dict[Cell, list[Point]] = {}
    ordered = curves.sort_values(["metric", "step"], kind="stable")
    for row in ordered[["arm", "seed", "metric", "step", "value"]].itertuples(index=False):
        if math.isfinite(row.value):
            point = (curve_name(row.metric), int(row.step), float(row.value))
            points.setdefault(Cell(row.arm, int(row.seed)), []).append(point)
    return {cell: list(dict.fromkeys(found)) for cell, found in points.items()}


def _verdicts_run(root: Path, dag: Dag) -> TrackedRun:
    paper, scale = dag.paper.slug, dag.scale
    folder = root / "results" / scale / paper
    made_by = f"snakemake --cores all {Path('results', scale, paper, 'verdicts.json')}"
    verdicts = read_json(folder / "verdicts.json", made_by)
    claims = verdicts["claims"]
    return TrackedRun(
        key=f"{paper}/{scale}/verdicts",
        params={"scale": scale} | {_part(claim["id"]): claim["verdict"] for claim in claims},
        points=_effects(claims),
        tags={
            "paper": paper,
            "scale": scale,
            "stage": "verdicts",
            "mlflow.source.name": f"scripts/papers/{paper}/claims.yaml",
            "mlflow.note.content": _limited(_ledger(claims), _MAX_TAG),
        },
        provenance={
            "data_hash": _recipe(root, next(iter(dag.blocks.values()))),
            "recipe_hash": verdicts.get("recipe", ""),
        },
        artifacts={
            "verdicts.json": folder / "verdicts.json",
            **_figures(root, dag),
            **_metric_tables(root, dag),
        },
    )


def _effects(claims: list[dict]) -> list[Point]:
    """The effect of each check that has one, as `effects/C2.1 <label>`."""
    points = []
    for claim in claims:
        for number, check in enumerate(claim["checks"], start=1):
            if check["effect"] is not None:
                label = " ".join(_NOT_PLAIN.sub(" ", check["label"]).split())[:120]
                name = f"effects/{_part(claim['id'])}.{number} {label}".strip(" .")
                points.append((name, 0, float(check["effect"])))
    return points


def _ledger(claims: list[dict]) -> str:
    """The claims and their verdicts as a Markdown table."""
    lines = ["| | verdict | claim |", "| --- | --- | --- |"]
    for claim in claims:
        text = " ".join(claim["claim"].split()).replace("|", r"\|").replace("<", "&lt;")
        reason = f" ({claim['reason']})" if claim.get("reason") else ""
        lines.append(f"| {claim['id']} | **{claim['verdict']}**{reason} | {text} |")
    return "\n".join(lines)


def _figures(root: Path, dag: Dag) -> dict[str, Path]:
    folder = root / next(block for block in dag.blocks.values() if block.stage == "plot").folder
    return {
        f"figures/{path.name}": path
        for path in sorted(folder.glob("*"))
        if path.suffix in (".svg", ".png", ".pdf")
    }


def _metric_tables(root: Path, dag: Dag) -> dict[str, Path]:
    return {
        f"metrics/{block.stage}{'' if block.name == WHOLE else f'/{block.name}'}.parquet": (
            root / block.folder / "metrics.parquet"
        )
        for block in dag.judged()
        if block.cells
    }


def _cell_params(dag: Dag, stage: str, cell: Cell) -> dict[str, str]:
    settings = dag.settings
    return {
        **flattened({**settings.parameters, "assets": settings.assets}),
        "scale": dag.scale,
        "stage": stage,
        "arm": cell.arm,
        "seed": str(cell.seed),
    }


def _table(root: Path, block: Block, file: str) -> "pd.DataFrame":
    return read_table(root / block.folder / file, block.command)


def _recipe(root: Path, block: Block) -> str:
    return read_json(root / block.manifest, block.command).get("recipe", "")


def _names_in_a_cell(rows: "pd.DataFrame", telling: list[str]) -> int:
    distinct = rows[["arm", "seed", *telling]].drop_duplicates()
    return int(distinct.groupby(["arm", "seed"]).size().max())


def _is(value: object) -> bool:
    """Whether a dataset or factor has a value: not null, and no empty dataset."""
    return value is not None and value == value and value != ""


def _plain(value: object) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(float(value))
    return str(value)


def _leaves(parameters: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in parameters.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        elif value != {}:
            yield f"{prefix}{key}", value


def _part(text: object) -> str:
    """Text as one part of a name; where characters had to go, a hash keeps it distinct."""
    text = str(text)
    return text if text.strip(" .") == text != "" and not _NOT_PLAIN.search(text) else _marked(text)


def _marked(text: str) -> str:
    clean = _NOT_PLAIN.sub("-", text).strip(" .")
    return f"{clean}-{digest(text)[:6]}"


def _shortened(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 7]}-{digest(name)[:6]}"


def _limited(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 80]}... sha256:{digest(text)}"
