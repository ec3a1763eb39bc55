"""Made-up metrics tables and claims for the tests of the ledger: gold, impossible and random."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from scripts.pipeline.claims import Claim, load
from scripts.pipeline.ledger import judge

CLEAR = [0.5, 0.6, 0.7, 0.55, 0.65, 0.58, 0.62, 0.71]
"""Differences that clear zero with every test."""

FACTORS = ("bits", "stages", "layer", "prompt", "segment")


def table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows in the columns of metrics.parquet, with the factors of the made-up paper."""
    fixed = {"paper": "made_up", "scale": "laptop", "stage": "evaluate", "dataset": "d", "n": 8}
    columns = [*fixed, "unit", "arm", "seed", "metric", "value"]
    frame = pd.DataFrame([fixed | {"unit": "point"} | row for row in rows])
    frame = frame.reindex(columns=[*columns, *(name for name in FACTORS if name in frame)])
    for name in FACTORS:
        kind = "str" if name == "segment" else "float64"
        frame[name] = (frame[name] if name in frame else pd.Series(index=frame.index)).astype(kind)
    return frame


def claims(folder: Path, *entries: dict[str, Any]) -> list[Claim]:
    """Claims as loaded from a file with these entries (id, claim and judged_at are filled in)."""
    path = folder / "claims.yaml"
    path.write_text(yaml.safe_dump([claim(**entry) for entry in entries]))
    return load(path, "made_up")


def claim(**keys: Any) -> dict[str, Any]:
    """A claim with what every claim needs."""
    filled = {"id": "C1", "claim": "Ours is better than theirs.", "judged_at": ["laptop", "paper"]}
    return filled | keys


def greater(**keys: Any) -> dict[str, Any]:
    """The simplest check: ours is greater than theirs in score, paired by seed."""
    return {
        "kind": "greater",
        "metric": "score",
        "arm": "ours",
        "than": "theirs",
        "pair": ["seed"],
    } | keys


def scores(ours: list[float], theirs: list[float] | float = 0.0, **keys: Any) -> pd.DataFrame:
    """Both arms' score, one seed per value."""
    other = [theirs] * len(ours) if isinstance(theirs, float) else theirs
    return table(
        [
            {"arm": arm, "seed": seed, "metric": "score", "value": value} | keys
            for arm, values in (("ours", ours), ("theirs", other))
            for seed, value in enumerate(values)
        ]
    )


KINDS: dict[str, dict[str, Any]] = {
    "greater": greater(margin=0.1),
    "not_worse": greater(kind="not_worse", margin=0.2, better="lower", metric="loss"),
    "at_least": {
        "kind": "at_least",
        "metric": "score",
        "arm": "ours",
        "value": 0.8,
        "pair": ["seed"],
    },
    "at_most": {
        "kind": "at_most",
        "metric": "loss",
        "arm": "ours",
        "value": 0.6,
        "pair": ["seed"],
    },
    "ratio": greater(kind="ratio", metric="loss", at_most=0.9),
    "share": greater(kind="share", at_least=0.6),
    "rate": {
        "kind": "rate",
        "metric": "error",
        "arm": "ours",
        "factor": "stages",
        "within": [-0.6, -0.4],
        "pair": ["seed"],
    },
    "exact": {
        "kind": "exact",
        "metric": "bytes",
        "arm": "ours",
        "than": "theirs",
        "pair": ["seed"],
    },
    "same_value": {
        "kind": "same_value",
        "metric": "score",
        "arm": "ours",
        "value": 1.0,
        "pair": ["seed"],
    },
    "correlates": {
        "kind": "correlates",
        "metric": "score",
        "with": "loss",
        "arm": "ours",
        "direction": "negative",
        "pair": ["seed"],
    },
    "trend": {
        "kind": "trend",
        "metric": "error",
        "arm": "ours",
        "factor": "stages",
        "direction": "falling",
        "pair": ["seed"],
    },
}
"""A check of each kind that `gold` fulfils and `impossible` does not."""


def _world(good: bool, seeds: int = 20) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    rows = []
    for seed in range(seeds):
        skill = rng.normal(0, 0.05)
        ours, theirs = (1.0, 0.5) if good else (0.5, 1.0)
        for arm, level in (("ours", ours), ("theirs", theirs)):
            values = {
                "score": level + skill + rng.normal(0, 0.01),
                "loss": 1.5 - level + (-skill if good else skill) + rng.normal(0, 0.01),
                "bytes": 64.0 if good else 64.0 + level,
            }
            rows += [
                {"arm": arm, "seed": seed, "metric": metric, "value": value}
                for metric, value in values.items()
            ]
            rows += [
                {
                    "arm": arm,
                    "seed": seed,
                    "metric": "error",
                    "stages": size,
                    "value": size ** (-0.5 if good else 0.5) * np.exp(rng.normal(0, 0.01)),
                }
                for size in (1, 2, 4, 8)
            ]
    return table(rows)


def gold() -> pd.DataFrame:
    """A table in which every check of `KINDS` is reproduced."""
    return _world(True)


def impossible() -> pd.DataFrame:
    """A table in which no check of `KINDS` is reproduced, nor partly."""
    return _world(False)


def verdicts(
    folder: Path, frame: pd.DataFrame, *entries: dict[str, Any], scale: str = "laptop"
) -> dict[str, Any]:
    """The verdicts of claims with these entries."""
    return judge(frame, claims(folder, *entries), scale, paper="made_up", title="Made up")


def judged(
    folder: Path, frame: pd.DataFrame, check: Any = None, scale: str = "laptop", **keys: Any
) -> dict[str, Any]:
    """The record of the one claim with this check (or these checks)."""
    check = check or greater()
    named = {"checks": check} if isinstance(check, list) else {"check": check}
    return verdicts(folder, frame, named | keys, scale=scale)["claims"][0]


def atom(folder: Path, frame: pd.DataFrame, check: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """The record of the one atom of a check."""
    (only,) = judged(folder, frame, check, **keys)["checks"]
    return only


@pytest.fixture(autouse=True)
def quick_holm(monkeypatch: pytest.MonkeyPatch) -> None:
    """statsmodels collects garbage at each call of Holm's method, which takes 0.1 s."""
    monkeypatch.setattr("gc.collect", lambda *_: 0)
