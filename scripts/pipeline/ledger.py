"""The claim ledger: a pure function (metrics table, claims, scale) -> verdicts, and its files.

`python -m scripts.pipeline.ledger judge --scale laptop --paper gsrq` writes a paper's verdicts,
`python -m scripts.pipeline.ledger show --scale laptop [--paper gsrq]` prints the ledger.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.pipeline.claims import Check, Claim, load
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import read_json, write_atomic
from scripts.pipeline.params import SCALES
from scripts.pipeline.program import run
from scripts.pipeline.schema import listed

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from scripts.pipeline.kinds import Measured

REPRODUCED = "reproduced"
PARTLY = "partly"
NOT_REPRODUCED = "not reproduced"
NOT_TESTABLE = "not testable here"
WIRING_ONLY = "wiring only"
VERDICTS = (REPRODUCED, PARTLY, NOT_REPRODUCED, NOT_TESTABLE, WIRING_ONLY)
STYLES = dict(zip(VERDICTS, ("green", "yellow", "red", "dim", "dim"), strict=True))
RANK = {NOT_REPRODUCED: 0, PARTLY: 1, REPRODUCED: 2}
LEVEL = 0.95
PRINTED_WIDTH = 140
ATOM_TYPES: dict[str, type] = {
    "label": str,
    "part": str,
    "kind": str,
    "metric": str,
    "unit": str,
    "arm": str,
    "than": str,
    "where": str,
    "effect": float,
    "effect_unit": str,
    "low": float,
    "high": float,
    "level": float,
    "margin": float,
    "direction": str,
    "p": float,
    "p_holm": float,
    "test": str,
    "n": int,
    "seeds": int,
    "interval": str,
    "mde": float,
    "horizon": float,
    "verdict": str,
    "statement": str,
}


@dataclass
class Judged:
    """An atom on its way to a verdict: what it measured, or why it could not (smoke only)."""

    atom: Check
    found: Measured | None
    missing: str = ""
    p_holm: float | None = None
    verdict: str = ""


def judge(
    table: pd.DataFrame, claims: list[Claim], scale: str, *, paper: str, title: str = ""
) -> dict[str, Any]:
    """Verdicts of a paper's claims from its metrics table.

    Args:
        table: metrics in long format (metric, arm, seed, value, unit, n, factors), any row order.
        claims: from `claims.load`.
        scale: smoke, laptop or paper; at smoke every verdict is "wiring only".

    Returns:
        The content of verdicts.json; the same input gives the same output to the last bit.

    Raises:
        PipelineError: a claim judged at this scale names a metric, arm or level that the table
            lacks, pairs without a match, or unequal units.
    """
    from scripts.pipeline import kinds, stats

    judged: dict[str, list[Judged]] = {}
    for claim in claims:
        if scale == "smoke" or scale in claim.judged_at:
            judged[claim.id] = [
                _measure(table, claim, atom, scale, paper)
                for check in claim.checks
                for atom in check.atoms()
            ]
    everything = [item for items in judged.values() for item in items]
    tested = [item for item in everything if item.found and item.found.p is not None]
    for item, p in zip(tested, stats.holm([item.found.p for item in tested]), strict=True):
        item.p_holm = float(p)
    for item in everything:
        if scale == "smoke":
            item.verdict = WIRING_ONLY
        else:
            item.verdict = kinds.decide(item.found, item.p_holm, item.atom.by)
    return {
        "paper": paper,
        "title": title,
        "scale": scale,
        "claims": [_claim(claim, judged.get(claim.id), scale) for claim in claims],
    }


def _measure(table: pd.DataFrame, claim: Claim, atom: Check, scale: str, paper: str) -> Judged:
    """Measure an atom. At smoke a table may lack levels, and all that only `paper` measures."""
    from scripts.pipeline import kinds
    from scripts.pipeline.units import NotHere

    place = f"{paper}, claim {claim.id}, check {atom.index} ({atom.label}) at scale {scale}"
    tolerated = NotHere if "laptop" in claim.judged_at else PipelineError
    try:
        return Judged(atom, kinds.measure(table, atom, place))
    except tolerated as error:
        if scale != "smoke":
            raise
        return Judged(atom, None, missing=str(error))


def _claim(claim: Claim, judged: list[Judged] | None, scale: str) -> dict[str, Any]:
    if judged is None:
        verdict = NOT_TESTABLE
        reason = claim.not_testable.get(scale) or (
            f"judged at {listed(claim.judged_at)} only" if claim.judged_at else "not judged"
        )
    elif scale == "smoke":
        verdict, reason = WIRING_ONLY, "a smoke run shows that the pipeline works, no more"
    else:
        verdict, reason = claim_verdict(claim, judged)
    return {
        "id": claim.id,
        "claim": claim.claim,
        "span": claim.span,
        "reported": claim.reported,
        "verdict": verdict,
        "reason": reason,
        "hash": claim.hash,
        "judged_at": list(claim.judged_at),
        "checks": [_atom(item) for item in judged or []],
    }


def combine(verdicts: Iterable[str]) -> str:
    """All reproduced, none reproduced (nor partly), or partly."""
    kinds_seen = set(verdicts)
    return kinds_seen.pop() if len(kinds_seen) == 1 else PARTLY


def claim_verdict(claim: Claim, judged: list[Judged]) -> tuple[str, str]:
    """Verdict of a claim from its atoms' verdicts, and the reason in words."""
    parts: dict[str, list[str]] = {}
    failed: list[str] = []
    for check in claim.checks:
        groups: dict[tuple[str, ...], list[str]] = {}
        for item in judged:
            if item.atom.index == check.index:
                key = tuple(repr(item.atom.setting[name]) for name in check.any_of)
                groups.setdefault(key, []).append(item.verdict)
        parts.setdefault(check.part, []).append(
            max((combine(group) for group in groups.values()), key=RANK.__getitem__)
        )
        floor = max(min(RANK[verdict] for verdict in group) for group in groups.values())
        if check.required and floor < RANK[check.required]:
            failed.append(check.label or f"{check.kind} {check.metric}")
    verdicts = [combine(part) for part in parts.values()]
    held = verdicts.count(REPRODUCED)
    counted = f"{held} of {len(verdicts)} parts reproduced"
    if failed:
        return NOT_REPRODUCED, f"{counted}; a required check failed: {', '.join(failed)}"
    if held == len(verdicts):
        return REPRODUCED, counted
    if claim.partly_needs is not None:
        verdict = PARTLY if held >= claim.partly_needs else NOT_REPRODUCED
        return verdict, f"{counted}; partly needs {claim.partly_needs}"
    return combine(verdicts), counted


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _atom(item: Judged) -> dict[str, Any]:
    """The record of an atom, with null for what does not exist."""
    from scripts.pipeline import kinds

    atom, found = item.atom, item.found
    record: dict[str, Any] = dict.fromkeys(ATOM_TYPES)
    record |= {
        "label": atom.label,
        "part": atom.part,
        "kind": atom.kind,
        "metric": atom.metric,
        "arm": atom.arm,
        "than": atom.than[0] if atom.than else None,
        "where": atom.where,
        "verdict": item.verdict,
        "statement": f"not measured: {item.missing}",
    }
    if found is None:
        return record
    return record | {
        "unit": found.unit,
        "effect": _number(found.effect),
        "effect_unit": found.effect_unit,
        "low": _number(found.interval.low),
        "high": _number(found.interval.high),
        "level": None if found.interval.low is None else LEVEL,
        "margin": _number(found.margin),
        "direction": found.direction,
        "p": _number(found.p),
        "p_holm": _number(item.p_holm),
        "test": found.test,
        "n": int(found.n),
        "seeds": int(found.seeds),
        "interval": found.interval.how,
        "mde": _number(found.mde),
        "horizon": _number(found.horizon),
        "statement": kinds.statement(atom, found, item.p_holm, item.verdict),
    }


# Files -------------------------------------------------------------------------------------------


def json_bytes(content: dict[str, Any]) -> bytes:
    """UTF-8 JSON of verdicts or metrics; refuses NaN."""
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def frame(verdicts: dict[str, Any]) -> pd.DataFrame:
    """One row per check atom; a claim without atoms keeps one row with empty check fields."""
    import pandas as pd

    head = {"paper": verdicts["paper"], "scale": verdicts["scale"]}
    rows = []
    for claim in verdicts["claims"]:
        shared = head | {
            "claim": claim["id"],
            "claim_hash": claim["hash"],
            "claim_verdict": claim["verdict"],
        }
        for atom in claim["checks"] or [dict.fromkeys(ATOM_TYPES)]:
            where = None if atom["where"] is None else json.dumps(atom["where"], sort_keys=True)
            rows.append(shared | atom | {"where": where})
    types = dict.fromkeys((*head, "claim", "claim_hash", "claim_verdict"), str) | ATOM_TYPES
    names = {str: "string", float: "Float64", int: "Int64"}
    return pd.DataFrame(rows, columns=list(types)).astype({k: names[v] for k, v in types.items()})


def parquet_bytes(verdicts: dict[str, Any]) -> bytes:
    """`frame` as parquet."""
    buffer = io.BytesIO()
    frame(verdicts).to_parquet(buffer, index=False)
    return buffer.getvalue()


def flat_numbers(verdicts: dict[str, Any]) -> dict[str, float]:
    """Numbers for `dvc metrics`: claims per verdict, then the effect of every atom."""
    counts = Counter(claim["verdict"] for claim in verdicts["claims"])
    numbers: dict[str, float] = {verdict: counts[verdict] for verdict in VERDICTS}
    for claim in verdicts["claims"]:
        for atom in claim["checks"]:
            name = key = f"{claim['id']} {atom['label']}"
            again = 2
            while key in numbers:  # two checks may share a label
                key, again = f"{name} ({again})", again + 1
            if atom["effect"] is not None:
                numbers[key] = atom["effect"]
    return numbers


def write(root: Path, verdicts: dict[str, Any]) -> list[Path]:
    """Write verdicts.json, verdicts.parquet and the flat metrics file; their paths."""
    results = root / "results" / verdicts["scale"]
    folder = results / verdicts["paper"]
    contents = {
        folder / "verdicts.parquet": parquet_bytes(verdicts),
        results / "metrics" / f"{verdicts['paper']}.json": json_bytes(flat_numbers(verdicts)),
    }
    beside = {
        os.path.relpath(path, folder): {
            "size": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        for path, content in contents.items()
    }
    # Last, because it carries the recipe, and the sizes, that say that all three are up to date.
    contents[folder / "verdicts.json"] = json_bytes({**verdicts, "files": beside})
    for path, content in contents.items():
        write_atomic(path, content)
    return list(contents)


def read(root: Path, scale: str, paper: str | None = None) -> list[dict[str, Any]]:
    """The verdicts of one paper or of all papers judged at a scale, sorted by paper."""
    folder, command = root / "results" / scale, f"snakemake --cores all --config scale={scale}"
    paths = sorted(folder.glob(f"{paper or '*'}/verdicts.json"))
    if not paths:
        raise PipelineError(f"{folder}: no verdicts of {paper or 'any paper'}; run: {command}")
    return [read_json(path, command) for path in paths]


# The table ---------------------------------------------------------------------------------------


def decisive(claim: dict[str, Any]) -> dict[str, Any] | None:
    """The atom that stands for a claim in one line: the first with the claim's own verdict."""
    atoms = claim["checks"]
    same = [atom for atom in atoms if atom["verdict"] == claim["verdict"]]
    return (same or atoms or [None])[0]


def render(verdicts: list[dict[str, Any]]) -> Table:
    """The ledger as a table: a line per claim with verdict, effect and interval."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    scales = listed(dict.fromkeys(item["scale"] for item in verdicts))
    table = Table(title=f"Claim ledger, scale {scales}", title_justify="left", box=box.SIMPLE)
    for name in ("paper", "claim", "verdict"):
        table.add_column(name, no_wrap=True)
    for name in ("effect", "95% interval", "what was judged"):
        table.add_column(name)
    for paper in verdicts:
        for claim in paper["claims"]:
            atom = decisive(claim) or dict.fromkeys(ATOM_TYPES)
            others = len(claim["checks"]) - 1
            effect = "" if atom["effect"] is None else f"{atom['effect']:.3g} {atom['effect_unit']}"
            interval = "" if atom["low"] is None else f"[{atom['low']:.3g}, {atom['high']:.3g}]"
            told = claim["reason"] if atom["label"] is None else atom["label"]
            more = f" (+{others} more)" if others > 0 else ""
            cells = (paper["paper"], claim["id"], claim["verdict"], effect, interval, told + more)
            style = STYLES[claim["verdict"]]
            texts = [Text(cell, style=style if i == 2 else "") for i, cell in enumerate(cells)]
            table.add_row(*texts)
    return table


# Command line ------------------------------------------------------------------------------------


def judge_paper(root: Path, scale: str, slug: str) -> None:
    """Judge a paper's metrics below `root` and write its verdicts."""
    from scripts.pipeline import metrics, params
    from scripts.pipeline.freshness import Freshness

    settings = params.load(root / "params.yaml")
    paper = settings.paper(slug)
    freshness = Freshness(settings, scale)
    product = freshness.judge(slug)
    freshness.require_inputs(product)
    claims = load(root / "scripts" / "papers" / slug / "claims.yaml", slug)
    table = metrics.load_paper(root, slug, scale)
    verdicts = judge(table, claims, scale, paper=slug, title=paper.title)
    write(root, {"recipe": product.recipe, **verdicts})


def show_ledger(root: Path, scale: str, paper: str | None) -> None:
    """Print the ledger; unlike on a screen, in a file its width is fixed."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else PRINTED_WIDTH)
    console.print(render(read(root, scale, paper)))


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.pipeline.ledger")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("judge", "write a paper's verdicts"), ("show", "print the ledger")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--scale", required=True, choices=SCALES)
        command.add_argument("--paper", required=name == "judge")
        command.add_argument("--root", type=Path, default=Path(), help="the project (default: .)")
        command.add_argument("--log", type=Path, help="a file that takes what is printed")
    options = parser.parse_args(arguments)
    if options.command == "show":
        return run(
            lambda _: show_ledger(options.root, options.scale, options.paper), "ledger", options.log
        )
    return run(
        lambda _: judge_paper(options.root, options.scale, options.paper),
        f"judge {options.paper} at scale {options.scale}",
        options.log,
    )


if __name__ == "__main__":
    sys.exit(main())
