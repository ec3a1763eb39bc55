"""Numbers as text, dot-and-whisker plots, and where on them a claim holds."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scripts.pipeline import claims, ledger, report
from scripts.pipeline.page import Check, Claim
from scripts.pipeline.whiskers import EDGE, Claimed, axis, duration, number, p_value, whisker
from tests.pipeline.made_up_results import every_verdict

finite = st.floats(-1e12, 1e12, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-12)


@given(st.lists(finite, min_size=1, max_size=8))
def test_an_axis_holds_its_values_in_order_between_distinct_ticks(values: list[float]) -> None:
    drawn = axis([*values, None])
    places = [drawn.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert EDGE - 0.02 <= places[0] <= places[-1] <= 100 - EDGE + 0.02
    ticks = [at for at, _ in drawn.ticks]
    assert 2 <= len(ticks) <= 8
    assert ticks == sorted(set(ticks))
    assert (ticks[0], ticks[-1]) == (EDGE, 100 - EDGE)
    if max(values) - min(values) > 1e-6 * max(map(abs, values)):
        assert len({text for _, text in drawn.ticks}) == len(ticks)


def test_known_axis() -> None:
    drawn = axis([-0.07, 0.11])
    assert [text for _, text in drawn.ticks] == ["−0.10", "−0.05", "0", "0.05", "0.10", "0.15"]
    assert drawn.at(0) == pytest.approx(EDGE + 0.4 * (100 - 2 * EDGE))


def test_known_whisker() -> None:
    drawn = whisker(axis([0, 10]), 5, 2.5, None, Claimed(None, 4))
    assert (drawn.effect, drawn.low, drawn.high) == (50, 28, 94)
    assert (drawn.low_open, drawn.high_open) == (False, True)
    assert drawn.bounds == (41.2,)
    assert drawn.holds == (6, 35.2)
    assert drawn.label == "claimed ≤ 4"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"), (0, "0"), (0.0, "0"), (-0.0, "0"), (1, "1"), (12345, "12,345"), (-7, "−7"),
        (0.0123, "0.0123"), (-0.012345, "−0.01235"), (33.54, "33.54"), (1234.56, "1,235"),
        (100.0, "100"), (99999.96, "100,000"), (1.2e-7, "1.2×10⁻⁷"), (-2.5e8, "−2.5×10⁸"),
    ],
)  # fmt: skip
def test_known_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@given(finite)
def test_a_number_reads_back_to_four_digits(value: float) -> None:
    text = number(value).replace("−", "-").replace(",", "").replace("×10", "e")
    text = text.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    assert float(text) == pytest.approx(value, rel=6e-4)


def test_known_p_values_and_durations() -> None:
    assert [p_value(p) for p in (None, 0.0, 0.00012, 0.0499, 1)] == [
        "—", "< 0.0001", "0.00012", "0.05", "1",
    ]  # fmt: skip
    assert [duration(s) for s in (0, 4.24, 59.99, 60, 185.2, 3600, 7500)] == [
        "0 s", "4.2 s", "1 min", "1 min", "3 min 5 s", "1 h", "2 h 5 min",
    ]  # fmt: skip


def test_checks_of_one_kind_and_unit_share_an_axis() -> None:
    record = every_verdict()[1]
    claim = Claim(**record | {"checks": [Check(**check) for check in record["checks"]]})
    axes = {drawn.axis for _, drawn in report.draw(claim)}
    assert len(axes) == 1
    other = dataclasses.replace(claim.checks[0], effect_unit="nat/token")
    mixed = dataclasses.replace(claim, checks=[*claim.checks, other])
    assert len({drawn.axis for _, drawn in report.draw(mixed)}) == 2


def _check(kind: str, metric: str, arm: str = "gsrq", **rest: Any) -> dict[str, Any]:
    pair = {} if kind == "exact" else {"pair": ["seed"]}
    return {"kind": kind, "metric": metric, "arm": arm, **pair, **rest}


CHECKS = [
    _check("greater", "cosine", than="kmeans", better="higher", margin=0.1),
    _check("greater", "loss", than="kmeans", better="lower"),
    _check("not_worse", "cosine", "kmeans", than="gsrq", better="higher", margin=0.5),
    _check("at_least", "cosine", value=0.6),
    _check("at_most", "loss", value=0.5),
    _check("ratio", "loss", than="kmeans", at_most=0.9),
    _check("ratio", "loss", "kmeans", than="gsrq", at_least=1.1),
    _check("share", "cosine", than="kmeans", better="higher", at_least=0.5),
    _check("rate", "error", factor="size", within=[-0.6, -0.4]),
    _check("exact", "stored", value=8.0, tolerance=0.001),
    _check("same_value", "cosine", value=0.8, tolerance=0.5),
    _check("correlates", "cosine", **{"with": "loss"}, direction="negative", at_least=0.1),
    _check("trend", "error", factor="size", direction="falling", at_least=0.5),
]


def test_the_claimed_stretch_agrees_with_the_judge(tmp_path: Path) -> None:
    """What the judge calls reproduced lies on the claimed stretch, for every kind of check."""
    noise = np.random.default_rng(0).normal(0, 0.01, (24, 2))
    rows = []
    for seed, (a, b) in enumerate(noise):
        for arm, level in (("gsrq", 0.8), ("kmeans", 0.5)):
            rows.append(("cosine", arm, seed, level + a + b / 4, "cosine", None))
            rows.append(("loss", arm, seed, 1.1 - level - a, "nat/token", None))
            rows.append(("stored", arm, seed, 8.0 + b / 1e5, "bit", None))
            rows += [
                ("error", arm, seed, (1 + b) * size**-0.5, "squared error", size)
                for size in (64, 256, 1024, 4096)
            ]
    table = pd.DataFrame(rows, columns=["metric", "arm", "seed", "value", "unit", "size"])
    table = table.assign(paper="alpha", scale="laptop", stage="evaluate", dataset="pydoc", n=100)
    claim = {"id": "C1", "claim": "Every kind of check.", "judged_at": ["laptop"], "checks": CHECKS}
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump([claim]), encoding="utf-8")
    stated = claims.load(tmp_path / "claims.yaml", "alpha")
    verdicts = ledger.judge(table, stated, "laptop", paper="alpha")
    records = verdicts["claims"][0]["checks"]
    names = [field.name for field in dataclasses.fields(Check)]
    checks = [Check(**{name: record[name] for name in names}) for record in records]
    assert len({check.kind for check in checks}) == 11
    for check in checks:
        assert check.verdict == "reproduced", check.statement
        stretch = report.claimed(check)
        assert stretch is not None, check.kind
        if check.kind == "same_value":
            assert check.low <= stretch.low == stretch.high == 0.8 <= check.high
            continue
        low = -np.inf if stretch.low is None else stretch.low
        high = np.inf if stretch.high is None else stretch.high
        ends = [end for end in (check.effect, check.low, check.high) if end is not None]
        assert low <= min(ends) <= max(ends) <= high, check.statement
