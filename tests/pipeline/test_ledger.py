"""The judge: gold and impossible tables, rules of claims, what must never change a verdict."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts.pipeline.errors import PipelineError
from scripts.pipeline.ledger import (
    NOT_REPRODUCED,
    NOT_TESTABLE,
    PARTLY,
    RANK,
    REPRODUCED,
    WIRING_ONLY,
)
from tests.pipeline.claim_tables import (
    CLEAR,
    KINDS,
    atom,
    gold,
    greater,
    impossible,
    judged,
    quick_holm,  # noqa: F401 (a fixture)
    scores,
    table,
    verdicts,
)

some = settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


# Gold and impossible -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "expected"), [(gold, REPRODUCED), (impossible, NOT_REPRODUCED)], ids=["gold", "never"]
)
def test_every_kind_on_the_gold_and_the_impossible_table(
    tmp_path: Path, world: Any, expected: str
) -> None:
    entries = [{"id": f"C{at}", "check": check} for at, check in enumerate(KINDS.values(), 1)]
    result = verdicts(tmp_path, world(), *entries)
    found = {claim["checks"][0]["kind"]: claim["verdict"] for claim in result["claims"]}
    assert found == dict.fromkeys(KINDS, expected)
    for record in result["claims"]:
        (check,) = record["checks"]
        assert check["statement"].count("\n") == 0
        assert "(n=" in check["statement"]
        assert check["low"] is None or check["low"] <= check["high"]
        shows_power = check["kind"] in ("greater", "not_worse", "at_least", "at_most", "ratio")
        assert (check["mde"] is not None) == shows_power
        if expected == NOT_REPRODUCED:
            assert ("smallest detectable effect" in check["statement"]) == shows_power


def test_the_record_has_every_promised_field(tmp_path: Path) -> None:
    result = verdicts(tmp_path, scores(CLEAR), {"check": greater(margin=0.1), "span": "phrase"})
    assert list(result) == ["paper", "title", "scale", "claims"]
    (claim,) = result["claims"]
    assert list(claim) == [
        "id", "claim", "span", "reported", "verdict", "reason", "hash", "judged_at", "checks",
    ]  # fmt: skip
    (check,) = claim["checks"]
    expected = {
        "arm": "ours", "than": "theirs", "unit": "point", "effect_unit": "point", "margin": 0.1,
        "direction": "higher", "level": 0.95, "n": 8, "seeds": 8, "test": "Wilcoxon signed rank",
        "interval": "95% Student t over 8 units", "verdict": REPRODUCED, "where": {},
    }  # fmt: skip
    assert {key: check[key] for key in expected} == expected
    assert check["effect"] == pytest.approx(np.mean(CLEAR))
    assert check["statement"].startswith("ours minus theirs in score = +0.614 point [0.5")
    assert "(n=8 pairs, 8 seeds)" in check["statement"]


# The rules of a claim ----------------------------------------------------------------------------


def arms(**levels: float) -> pd.DataFrame:
    """Eight seeds of arms around a level; 0 is a draw with theirs."""
    rows = [
        {"arm": arm, "seed": seed, "metric": "score", "bits": bits, "value": level * sign + noise}
        for arm, level in levels.items()
        for bits, sign in ((1, 1), (2, -1))
        for seed, noise in enumerate(np.array(CLEAR) - np.mean(CLEAR))
    ]
    return table(rows)


GOOD = greater(arm="good", than="even", where={"bits": 1})
BAD = greater(arm="bad", than="even", where={"bits": 1})


@pytest.mark.parametrize(
    ("checks", "keys", "expected"),
    [
        ([GOOD], {}, REPRODUCED),
        ([BAD], {}, NOT_REPRODUCED),
        ([GOOD, BAD], {}, PARTLY),
        ([GOOD, BAD | {"required": "reproduced"}], {}, NOT_REPRODUCED),
        ([GOOD | {"required": "reproduced"}, BAD], {}, PARTLY),
        ([GOOD, BAD, BAD], {"partly_needs": 2}, NOT_REPRODUCED),
        ([GOOD, GOOD, BAD], {"partly_needs": 2}, PARTLY),
        ([GOOD | {"part": "a"}, BAD | {"part": "a"}, BAD], {"partly_needs": 1}, NOT_REPRODUCED),
        ([GOOD | {"part": "a"}, GOOD | {"part": "a"}, BAD], {"partly_needs": 1}, PARTLY),
        ([greater(arm="good", than=["even", "bad"], where={"bits": 1})], {}, REPRODUCED),
        ([greater(arm="even", than=["good", "bad"], where={"bits": 1})], {}, PARTLY),
        ([greater(arm="good", than="even", each={"bits": [1, 2]})], {}, PARTLY),
        (
            [greater(arm="good", than="even", each={"bits": [1, 2]}, any_of=["bits"])],
            {},
            REPRODUCED,
        ),
        (
            [greater(arm="good", than="even", each={"bits": [1, 2]}, required="partly")],
            {},
            NOT_REPRODUCED,
        ),
        (
            [greater(arm="good", than=["even", "best"], each={"bits": [1, 2]}, any_of=["bits"])],
            {},
            PARTLY,
        ),
        (
            [greater(arm="even", than=["good", "bad"], where={"bits": 1}, any_of=["than"])],
            {},
            REPRODUCED,
        ),
    ],
)
def test_verdict_of_a_claim(
    tmp_path: Path, checks: list[dict[str, Any]], keys: dict[str, Any], expected: str
) -> None:
    frame = arms(good=1.0, even=0.0, bad=-1.0, best=2.0)
    found = judged(tmp_path, frame, checks, **keys)
    assert found["verdict"] == expected
    assert f"of {len({c.get('part', i) for i, c in enumerate(checks)})} parts" in found["reason"]


def near_even(level: float, spread: float = 1.0) -> list[float]:
    """Eight values around a level; for a small level their interval includes zero."""
    return [level + spread * x for x in (-0.4, -0.3, -0.2, -0.1, 0.1, 0.2, 0.3, 0.4)]


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        (near_even(1), near_even(1), REPRODUCED),
        (near_even(1), near_even(-0.1), PARTLY),  # best at one rate, a draw at the other
        (near_even(0.1), near_even(-0.1), PARTLY),
        (near_even(1), near_even(-1), NOT_REPRODUCED),  # clearly worse at the other rate
        (near_even(-0.1), near_even(-0.1), NOT_REPRODUCED),  # best nowhere
    ],
)
def test_best_somewhere_and_worse_nowhere(
    tmp_path: Path, one: list[float], two: list[float], expected: str
) -> None:
    """The rule "wins at every rate / best at one and significantly worse at none / else"."""
    frame = pd.concat([scores(one, bits=1), scores(two, bits=2)], ignore_index=True)
    wins = greater(each={"bits": [1, 2]})
    gate = wins | {"by": "not_contradicted", "required": "reproduced"}
    best = wins | {"by": "estimate", "any_of": ["bits"], "required": "reproduced"}
    assert judged(tmp_path, frame, [wins, gate, best])["verdict"] == expected


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        (near_even(-0.3, 0.1), near_even(0, 0.001), REPRODUCED),
        (near_even(0, 0.001), near_even(0, 0.001), PARTLY),
        (near_even(-0.3, 0.1), near_even(0.5, 0.1), NOT_REPRODUCED),
    ],
)
def test_matches_overall_and_wins_in_some_regime(
    tmp_path: Path, one: list[float], two: list[float], expected: str
) -> None:
    """The rule "no worse than 1% overall and below 1 in one regime / only the first / else"."""
    frame = pd.concat(
        [
            scores([float(np.exp(x)) for x in logs], 1.0, bits=bits)
            for bits, logs in ((1, one), (2, two))
        ],
        ignore_index=True,
    )
    ratio = greater(kind="ratio", pair=["seed", "bits"])
    overall = ratio | {"at_most": 1.01, "required": "reproduced"}
    regime = ratio | {"at_most": 1, "each": {"bits": [1, 2]}, "any_of": ["bits"], "pair": ["seed"]}
    assert judged(tmp_path, frame, [overall, regime])["verdict"] == expected


def test_holm_runs_over_all_claims_of_the_paper(tmp_path: Path) -> None:
    frame = scores([0.9, 0.4, 0.6, 0.3, 0.8, 0.05, 0.7])  # p = 1/128
    alone = verdicts(tmp_path, frame, {"check": greater()})
    entries = [{"id": f"C{at}", "check": greater()} for at in range(1, 9)]
    crowd = verdicts(tmp_path, frame, *entries)
    assert alone["claims"][0]["verdict"] == REPRODUCED
    assert {claim["verdict"] for claim in crowd["claims"]} == {PARTLY}
    assert crowd["claims"][0]["checks"][0]["p_holm"] == pytest.approx(8 / 128)
    elsewhere = [entry | {"judged_at": ["paper"]} for entry in entries[1:]]
    assert verdicts(tmp_path, frame, entries[0], *elsewhere)["claims"][0]["verdict"] == REPRODUCED


# Scales ------------------------------------------------------------------------------------------


def test_smoke_is_always_wiring_only_with_its_numbers(tmp_path: Path) -> None:
    for frame in (gold(), impossible()):
        found = judged(tmp_path, frame, KINDS["greater"], scale="smoke")
        assert found["verdict"] == found["checks"][0]["verdict"] == WIRING_ONLY
        assert found["checks"][0]["effect"] is not None


def test_smoke_may_lack_levels_but_not_metrics(tmp_path: Path) -> None:
    frame = scores([0.5], bits=1.0)
    found = atom(tmp_path, frame, greater(where={"bits": 2}), scale="smoke")
    assert (found["verdict"], found["effect"]) == (WIRING_ONLY, None)
    assert found["statement"].startswith("not measured: made_up, claim C1")
    with pytest.raises(PipelineError, match="no metric 'other'"):
        judged(tmp_path, frame, greater(metric="other"), scale="smoke")
    later = judged(tmp_path, frame, greater(metric="other"), scale="smoke", judged_at=["paper"])
    assert later["verdict"] == WIRING_ONLY


def test_other_scales_are_not_testable_with_a_reason(tmp_path: Path) -> None:
    empty = table([])
    check = greater(metric="longbench")
    found = judged(tmp_path, empty, check, judged_at=["paper"])
    assert (found["verdict"], found["reason"]) == (NOT_TESTABLE, "judged at paper only")
    told = judged(tmp_path, empty, check, judged_at=["paper"], not_testable={"laptop": "needs 8B"})
    assert (told["verdict"], told["reason"], told["checks"]) == (NOT_TESTABLE, "needs 8B", [])
    with pytest.raises(PipelineError, match="no metric 'longbench'; measured: nothing"):
        judged(tmp_path, empty, check, scale="paper", judged_at=["paper"])


# What must never change a verdict ----------------------------------------------------------------

values = st.lists(st.floats(-2, 2).map(lambda x: round(x, 2)), min_size=3, max_size=14)


@some
@given(values, st.randoms(use_true_random=False))
def test_order_of_rows_and_names_of_seeds_do_not_matter(
    tmp_path: Path, differences: list[float], random: Any
) -> None:
    layers = [  # several rows per unit: their sum must not depend on their order either
        scores([x * part for x in differences], [x / 3 for x in differences], layer=layer)
        for layer, part in enumerate((1.0, 0.7, 1.1))
    ]
    frame = pd.concat(layers, ignore_index=True)
    order = random.sample(range(len(frame)), len(frame))
    names = random.sample(range(100), len(differences))
    changed = frame.iloc[order].assign(seed=lambda rows: rows["seed"].map(dict(enumerate(names))))
    checks = [greater(), greater(kind="share", at_least=0.5), KINDS["at_least"]]
    assert judged(tmp_path, frame, checks) == judged(tmp_path, changed, checks)


@some
@given(values, st.sampled_from([0.0, 0.5]))
def test_swapping_the_sides_flips_the_verdict(
    tmp_path: Path, differences: list[float], shift: float
) -> None:
    moved = [x + np.sign(sum(differences) or 1) * 6 * shift for x in differences]
    ours = judged(tmp_path, scores(moved))["verdict"]
    theirs = judged(tmp_path, scores([-x for x in moved]))["verdict"]
    swapped = judged(tmp_path, scores(moved), greater(better="lower"))["verdict"]
    assert theirs == swapped
    if REPRODUCED in (ours, theirs):
        assert {ours, theirs} == {REPRODUCED, NOT_REPRODUCED}
    else:
        assert {ours, theirs} <= {PARTLY, NOT_REPRODUCED}
        assert NOT_REPRODUCED in (ours, theirs)


@some
@given(values, st.floats(3, 20))
def test_noise_pairs_never_strengthen_a_verdict(
    tmp_path: Path, differences: list[float], factor: float
) -> None:
    """Add two units that say nothing on balance: one as far above the margin as one below it,
    both further out than any real one.

    Smaller pairs of noise are no counterexample and not covered: they can shrink the spread that
    the old units had. The same interval and test are used before and after: pinned by the number
    of units.
    """
    differences = (differences * 4)[:12]  # at least 10, before and after
    size = factor * (max(map(abs, differences)) or 1.0)
    before = judged(tmp_path, scores(differences))["verdict"]
    after = judged(tmp_path, scores([*differences, size, -size]))["verdict"]
    assert RANK[after] <= RANK[before]


def test_pure_noise_is_hardly_ever_reproduced(tmp_path: Path) -> None:
    """Under the null the interval and the test together err in at most about 5% of the runs."""
    alarms = 0
    for seed in range(60):
        noise = np.random.default_rng(seed).normal(0, 1, 4 + seed % 12)
        alarms += judged(tmp_path, scores(list(noise)))["verdict"] == REPRODUCED
    assert alarms <= 4


@some
@given(values, st.integers(-3, 6), st.sampled_from([0.0, 0.25, -0.25]))
def test_the_unit_of_measurement_does_not_matter(
    tmp_path: Path, differences: list[float], power: int, margin: float
) -> None:
    factor = 2.0**power
    plain = atom(tmp_path, scores(differences), greater(margin=margin))
    scaled = atom(
        tmp_path, scores([factor * x for x in differences]), greater(margin=factor * margin)
    )
    assert plain["verdict"] == scaled["verdict"]
    assert plain["p"] == pytest.approx(scaled["p"])
    for key in ("effect", "low", "high", "mde"):
        assert scaled[key] == pytest.approx(factor * plain[key], rel=1e-6, abs=1e-9)


@some
@given(values, st.floats(0, 1))
def test_a_larger_margin_never_helps(tmp_path: Path, differences: list[float], step: float) -> None:
    check = greater(test="t")  # dropping zeros makes Wilcoxon's test locally non-monotone
    low = judged(tmp_path, scores(differences), check | {"margin": 0.1})["verdict"]
    high = judged(tmp_path, scores(differences), check | {"margin": 0.1 + step})["verdict"]
    assert RANK[high] <= RANK[low]
