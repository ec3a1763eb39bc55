"""What the report page shows, read from the files of a run: `gather` -> `Page`."""

import importlib.metadata
import itertools
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.pipeline import ledger, params, schema
from scripts.pipeline.dag import Block, Dag
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import canonical_json, read_json
from scripts.pipeline.freshness import Freshness
from scripts.pipeline.whiskers import duration, number

PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "scipy",
    "statsmodels",
    "pandas",
    "pyarrow",
    "safetensors",
    "transformers",
    "snakemake",
    "dvc",
    "mlflow",
    "matplotlib",
)
"""Packages whose versions can move a result or its record."""


@dataclass(frozen=True)
class Check:
    """One judged comparison of a claim, as the judge wrote it; None is a number it did not have."""

    label: str
    kind: str
    metric: str
    unit: str | None
    arm: str | None
    than: str | None
    where: dict[str, Any]
    effect: float | None
    effect_unit: str | None
    low: float | None
    high: float | None
    level: float | None
    margin: float | None
    direction: str | None
    p: float | None
    p_holm: float | None
    test: str | None
    n: int | None
    seeds: int | None
    interval: str | None
    mde: float | None
    horizon: float | None
    """For checks along a factor: the largest value of it that was measured."""
    verdict: str
    statement: str


@dataclass(frozen=True)
class Claim:
    """A paper's claim with its verdict."""

    id: str
    claim: str
    span: str | None
    reported: dict[str, Any] | None
    verdict: str
    reason: str | None
    hash: str
    judged_at: list[str]
    checks: list[Check]


@dataclass(frozen=True)
class Figure:
    """A figure with the script that drew it and the table it was drawn from."""

    name: str
    caption: str
    script: str
    data: str
    svg: str


@dataclass(frozen=True)
class StageCost:
    """What a stage's blocks took together, against what params.yaml declares for one block."""

    stage: str
    blocks: int
    device: str
    threads: int
    seconds: float
    cpu_seconds: float
    longest_seconds: float
    declared_minutes: float
    peak_mb: float
    declared_mem_mb: float
    overruns: list[str]
    """A sentence for each block that took more than declared."""


@dataclass(frozen=True)
class PaperReport:
    """One paper's part of the page."""

    slug: str
    title: str
    source: str
    claims: list[Claim]
    figures: list[Figure]
    costs: list[StageCost]
    limitations: str
    """Markdown of the paper's README."""
    recipe: str
    """Hash of everything the prepared data was made from."""


@dataclass(frozen=True)
class AssetFile:
    """One file of a model or data set with its SHA-256."""

    asset: str
    file: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Environment:
    """The machine and the code that wrote the page."""

    python: str
    packages: dict[str, str]
    cpu: str
    cores: int
    system: str
    commit: str | None
    """None outside a git checkout."""
    dirty: bool


@dataclass(frozen=True)
class Page:
    """Everything the page shows."""

    scale: str
    recipe: str
    """What the page was made from (see `freshness`)."""
    papers: list[PaperReport]
    assets: list[AssetFile]
    environment: Environment

    @property
    def claims(self) -> list[Claim]:
        return [claim for paper in self.papers for claim in paper.claims]


_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_NUMBER_OR_NULL = {"type": ["number", "null"]}
_COUNT_OR_NULL = {"type": ["integer", "null"], "minimum": 0}
_AMOUNT = {"type": "number", "minimum": 0}
_VERDICT = {"enum": list(ledger.VERDICTS)}


def _record(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_CHECK = _record(
    dict.fromkeys(("label", "kind", "metric", "statement"), _TEXT)
    | dict.fromkeys(
        ("unit", "arm", "than", "effect_unit", "direction", "test", "interval"), _TEXT_OR_NULL
    )
    | dict.fromkeys(
        ("effect", "low", "high", "level", "margin", "p", "p_holm", "mde", "horizon"),
        _NUMBER_OR_NULL,
    )
    | dict.fromkeys(("n", "seeds"), _COUNT_OR_NULL)
    | {"where": {"type": "object"}, "verdict": _VERDICT}
)
_CLAIM = _record(
    {
        "id": _TEXT,
        "claim": _TEXT,
        "span": _TEXT_OR_NULL,
        "reported": {"type": ["object", "null"]},
        "verdict": _VERDICT,
        "reason": _TEXT_OR_NULL,
        "hash": _TEXT,
        "judged_at": _list(_TEXT),
        "checks": _list(_CHECK),
    }
)
_FIGURE = _record(dict.fromkeys(("name", "caption", "script", "data", "file"), _TEXT))
_COST = _record(
    dict.fromkeys(
        ("seconds", "cpu_seconds", "peak_mb", "threads", "declared_mem_mb", "declared_minutes"),
        _AMOUNT,
    )
    | {"device": _TEXT}
)
_FILE = _record({"size": {"type": "integer"}, "sha256": _TEXT})
_MANIFEST = _record({"files": {"type": "object", "additionalProperties": _FILE}})
_PREPARED = _record({"recipe": _TEXT})


def gather(root: Path, scale: str) -> Page:
    """Read what a run at `scale` left under `root`.

    Raises:
        PipelineError: for a missing or damaged file, with the command that makes it.
    """
    settings = params.load(root / "params.yaml")
    products = Freshness(settings, params.check_scale(scale, "--scale"))
    return Page(
        scale=scale,
        recipe=products.report().recipe,
        papers=[_paper(root, graph) for graph in products.dags.values()],
        assets=[file for name in products.asset_names for file in _asset(root, name)],
        environment=_environment(root),
    )


def _checked(root: Path, path: Path, shape: dict[str, Any], made_by: str) -> Any:
    """The JSON value of a file below `root`, once it has the shape that this page needs."""
    value = read_json(root / path, made_by)
    try:
        schema.check(value, shape, str(path))
        canonical_json(value)
    except PipelineError as error:
        raise PipelineError(f"{error}\n{path} is damaged; make it again: {made_by}") from None
    except ValueError as error:  # NaN or an infinity, which JSON does not have
        raise PipelineError(
            f"{path}: damaged ({error}); allowed: finite numbers or null. Make it again: {made_by}"
        ) from None
    return value


def _make_again(path: Path) -> str:
    return f"snakemake --cores all --force {path}"


def _paper(root: Path, graph: Dag) -> PaperReport:
    paper = graph.paper
    prepared, *_, plotted = graph.blocks.values()
    manifest = _checked(root, prepared.manifest, _PREPARED, _make_again(prepared.manifest))
    return PaperReport(
        slug=paper.slug,
        title=paper.title,
        source=paper.source,
        claims=_claims(root, Path("results", graph.scale, paper.slug, "verdicts.json")),
        figures=_figures(root, plotted),
        costs=_costs(root, graph),
        limitations=_limitations(root, Path("scripts", "papers", paper.slug, "README.md")),
        recipe=manifest["recipe"],
    )


def _claims(root: Path, path: Path) -> list[Claim]:
    made_by = f"{_make_again(path)} (rule judge)"
    verdicts = _checked(root, path, _record({"claims": _list(_CLAIM)}), made_by)
    return [
        Claim(
            **{name: record[name] for name in _CLAIM["properties"] if name != "checks"},
            checks=[
                Check(**{name: check[name] for name in _CHECK["properties"]})
                for check in record["checks"]
            ],
        )
        for record in verdicts["claims"]
    ]


def _figures(root: Path, plotted: Block) -> list[Figure]:
    made_by = _make_again(plotted.manifest)
    index = plotted.folder / "figures.json"
    records = _checked(root, index, _list(_FIGURE), made_by)
    for record in records:
        if Path(record["file"]).name != record["file"]:
            raise PipelineError(
                f"{index}: found the file {record['file']!r}; allowed: a file of that folder. "
                f"Make it again: {made_by}"
            )
    return [
        Figure(
            name=record["name"],
            caption=record["caption"],
            script=record["script"],
            data=record["data"],
            svg=_svg(root, plotted.folder / record["file"], made_by),
        )
        for record in records
    ]


def _svg(root: Path, path: Path, made_by: str) -> str:
    remedy = f"make it again: {made_by}"
    text = _text(root, path, remedy)
    if "<svg" not in text or not text.rstrip().endswith("</svg>"):
        raise PipelineError(f"{path}: damaged (no whole SVG); {remedy}")
    return text


def _text(root: Path, path: Path, remedy: str) -> str:
    try:
        return (root / path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PipelineError(f"{path}: missing; {remedy}") from None
    except UnicodeDecodeError as error:
        raise PipelineError(f"{path}: damaged ({error}); {remedy}") from None


def _costs(root: Path, graph: Dag) -> list[StageCost]:
    costs = []
    for stage in graph.paper.stages:
        blocks = [block for block in graph.blocks.values() if block.stage == stage]
        spent = {
            block.name: _checked(
                root, block.folder / "cost.json", _COST, _make_again(block.manifest)
            )
            for block in blocks
        }
        overruns = [
            line for name, cost in spent.items() for line in _overruns(f"{stage} ({name})", cost)
        ]
        costs.append(
            StageCost(
                stage=stage,
                blocks=len(blocks),
                device=", ".join(sorted({cost["device"] for cost in spent.values()})),
                threads=max(cost["threads"] for cost in spent.values()),
                seconds=sum(cost["seconds"] for cost in spent.values()),
                cpu_seconds=sum(cost["cpu_seconds"] for cost in spent.values()),
                longest_seconds=max(cost["seconds"] for cost in spent.values()),
                declared_minutes=max(cost["declared_minutes"] for cost in spent.values()),
                peak_mb=max(cost["peak_mb"] for cost in spent.values()),
                declared_mem_mb=max(cost["declared_mem_mb"] for cost in spent.values()),
                overruns=overruns,
            )
        )
    return costs


def _overruns(job: str, cost: dict[str, Any]) -> Iterable[str]:
    if cost["peak_mb"] > cost["declared_mem_mb"]:
        yield (
            f"{job} took {number(round(cost['peak_mb']))} MB of memory; "
            f"{number(cost['declared_mem_mb'])} MB are declared."
        )
    if cost["seconds"] > 60 * cost["declared_minutes"]:
        yield (
            f"{job} took {duration(cost['seconds'])}; "
            f"{duration(60 * cost['declared_minutes'])} are declared."
        )


def _limitations(root: Path, path: Path) -> str:
    """The text under the README's heading "Limitations", down to the next heading of its level."""
    remedy = "write there what is scaled down, what is assumed and what cannot be judged"
    text = _text(root, path, remedy)
    headings = [
        (opening.tag, opening.map, inline.content.strip().lower())
        for opening, inline in itertools.pairwise(markdown_parser().parse(text))
        if opening.type == "heading_open" and opening.level == 0
    ]
    for i, (tag, (_, start), title) in enumerate(headings):
        if title == "limitations":
            end = next((first for later, (first, _), _ in headings[i + 1 :] if later <= tag), None)
            body = "\n".join(text.split("\n")[start:end]).strip()
            if body:
                return body
    raise PipelineError(f'{path}: no section "Limitations" with text; {remedy}')


def markdown_parser() -> Any:
    """CommonMark with tables. Raw HTML stays text; images, which load from elsewhere, links."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")


def _asset(root: Path, name: str) -> list[AssetFile]:
    path = Path("data", "assets", name, "manifest.json")
    manifest = _checked(root, path, _MANIFEST, f"{_make_again(path)} (rule assets)")
    return [
        AssetFile(asset=name, file=file, size=entry["size"], sha256=entry["sha256"])
        for file, entry in sorted(manifest["files"].items())
    ]


def _environment(root: Path) -> Environment:
    status = _git(root, "status", "--porcelain")
    return Environment(
        python=f"{platform.python_implementation()} {platform.python_version()}",
        packages={name: _version(name) for name in PACKAGES},
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        system=f"{platform.system()} {platform.release()} ({platform.machine()})",
        commit=_git(root, "rev-parse", "HEAD"),
        dirty=bool(status),
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.is_file() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
