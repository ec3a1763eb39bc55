"""The kinds of check: their rules, and the units they are judged on."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from scripts.pipeline.errors import PipelineError
from scripts.pipeline.ledger import NOT_REPRODUCED, PARTLY, REPRODUCED
from tests.pipeline.claim_tables import (
    CLEAR,
    KINDS,
    atom,
    greater,
    judged,
    quick_holm,  # noqa: F401 (a fixture)
    scores,
    table,
)

# The rules of one atom ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("differences", "check", "expected"),
    [
        (CLEAR, greater(), REPRODUCED),
        (CLEAR, greater(margin=0.6), PARTLY),  # interval includes the margin
        (CLEAR, greater(margin=0.9), NOT_REPRODUCED),  # interval lies below the margin
        (CLEAR, greater(better="lower"), NOT_REPRODUCED),
        ([-x for x in CLEAR], greater(better="lower"), REPRODUCED),
        ([0.5] * 19 + [-6.0], greater(), PARTLY),  # clear by ranks, not in the mean
        ([0.5], greater(), PARTLY),  # one unit proves nothing
        ([-0.5], greater(), NOT_REPRODUCED),
        ([0.1, -0.3, 0.4], greater(), PARTLY),
        ([0.2, 0.2, 0.2], greater(), PARTLY),  # three equal signs: p = 1/8
        ([0.2] * 6, greater(), REPRODUCED),
        ([0.0] * 12, greater(), NOT_REPRODUCED),
        ([0.0] * 12, greater(kind="not_worse", margin=0.1), REPRODUCED),
        ([-0.05 - x / 100 for x in CLEAR], greater(kind="not_worse", margin=0.1), REPRODUCED),
        ([-0.2] * 12, greater(kind="not_worse", margin=0.1), NOT_REPRODUCED),
        ([0.3, 0.1, 0.2, 0.3, 0.2, 0.1], greater(by="estimate", margin=0.25), PARTLY),
        ([0.3, 0.1, 0.2, 0.3, 0.2, 0.1], greater(by="estimate", margin=0.15), REPRODUCED),
        ([0.3, -0.1, -0.3], greater(by="not_contradicted", required="partly"), REPRODUCED),
        ([-x for x in CLEAR], greater(by="not_contradicted", required="partly"), NOT_REPRODUCED),
        ([1.0] * 9 + [-1.0], greater(kind="share", at_least=0.8), PARTLY),
        ([1.0] * 9 + [-1.0], greater(kind="share", at_least=0.8, by="estimate"), REPRODUCED),
        ([1.0] * 4 + [-1.0] * 6, greater(kind="share", at_least=0.8), NOT_REPRODUCED),
        ([1.0] * 20, greater(kind="share", at_least=0.8), REPRODUCED),
        ([0.05] * 20, greater(kind="share", at_least=0.8, margin=0.1), NOT_REPRODUCED),
    ],
)  # fmt: skip
def test_verdict_of_a_paired_check(
    tmp_path: Path, differences: list[float], check: dict[str, Any], expected: str
) -> None:
    assert judged(tmp_path, scores(differences), check)["verdict"] == expected


def test_better_lower_names_the_sides_in_the_order_of_the_subtraction(tmp_path: Path) -> None:
    check = atom(tmp_path, scores([1.0] * 6, 3.0), greater(better="lower"))
    assert check["effect"] == 2.0
    assert check["statement"].startswith("theirs minus ours in score = +2 point [2, 2]")
    assert "lower is better" in check["statement"]


def test_ratio_is_a_geometric_mean(tmp_path: Path) -> None:
    frame = scores([1.0, 8.0, 2.0, 4.0], [2.0, 2.0, 2.0, 2.0])
    check = atom(tmp_path, frame, greater(kind="ratio", at_most=2))
    assert check["effect"] == pytest.approx((0.5 * 4 * 1 * 2) ** 0.25)
    assert check["effect_unit"] == "ratio"
    assert (check["margin"], check["direction"]) == (2, "at most")
    with pytest.raises(PipelineError, match="not positive, so it has no ratio"):
        judged(tmp_path, scores([1.0, -1.0], 1.0), greater(kind="ratio", at_most=1))


def test_exact_counts_cases_and_averages_nothing(tmp_path: Path) -> None:
    check = {"kind": "exact", "metric": "score", "arm": "ours", "value": 1, "tolerance": 0.01}
    fine = atom(tmp_path, scores([1.0, 1.005, 0.995]), check)
    assert (fine["verdict"], fine["n"]) == (REPRODUCED, 3)
    off = atom(tmp_path, scores([1.02, 0.98, 1.0]), check)  # right on average only
    assert off["verdict"] == NOT_REPRODUCED
    assert off["effect"] == pytest.approx(0.02)
    assert "equals 1 in 1 of 3 cases" in off["statement"]
    doubled = pd.concat([scores([1.0, 2.0], 1.0)] * 2)
    paired = {"kind": "exact", "metric": "score", "arm": "ours", "than": "theirs", "pair": ["seed"]}
    with pytest.raises(PipelineError, match="averaging could hide a difference"):
        judged(tmp_path, doubled, paired)


@pytest.mark.parametrize(
    ("value", "tolerance", "expected"),
    [
        (10.5, None, REPRODUCED),
        (20, None, NOT_REPRODUCED),
        (10.5, 1.0, PARTLY),
        (10.5, 6, REPRODUCED),
    ],
)
def test_same_value(tmp_path: Path, value: float, tolerance: float | None, expected: str) -> None:
    check = KINDS["same_value"] | {"value": value}
    if tolerance:
        check["tolerance"] = tolerance
    found = atom(tmp_path, scores([9.0, 10.0, 11.0]), check)
    assert found["verdict"] == expected
    assert (found["low"], found["high"]) == pytest.approx((10 - 4.968276, 10 + 4.968276))


def rejections(hits: int, n: int) -> pd.DataFrame:
    return scores([1.0] * hits + [0.0] * (n - hits))


@pytest.mark.parametrize(
    ("hits", "n", "keys", "expected"),
    [
        (4, 300, {}, REPRODUCED),  # [0.4%, 3.4%]
        (0, 60, {}, PARTLY),  # 3/60 may still hide: not the [0, 0] of a bootstrap
        (0, 80, {}, REPRODUCED),
        (12, 300, {}, PARTLY),
        (40, 300, {}, NOT_REPRODUCED),
        (20, 300, {"by": "not_contradicted", "tolerance": 0.03}, REPRODUCED),  # 6.7% [4.1, 10.1]
        (3, 40, {"by": "not_contradicted", "tolerance": 0.03}, PARTLY),  # cannot tell
        (30, 300, {"by": "not_contradicted", "tolerance": 0.03}, NOT_REPRODUCED),
    ],
)
def test_yes_no_units_are_judged_by_the_exact_binomial(
    tmp_path: Path, hits: int, n: int, keys: dict[str, Any], expected: str
) -> None:
    size = KINDS["at_least"] | {"kind": "at_most", "value": 0.05} | keys
    found = atom(tmp_path, rejections(hits, n), size)
    assert found["verdict"] == expected
    exact = binomtest(hits, n).proportion_ci(method="exact")
    assert (found["low"], found["high"]) == pytest.approx((exact.low, exact.high))
    assert "Clopper-Pearson" in found["interval"]
    assert found["mde"] > 0
    assert ("too noisy to tell" in found["statement"]) == (n == 40)
    # The mirror image: coverage of at least 95%.
    cover = KINDS["at_least"] | {"value": 0.95} | keys
    mirrored = atom(tmp_path, rejections(n - hits, n), cover)
    assert mirrored["verdict"] == expected
    assert mirrored["p"] == (None if keys else pytest.approx(found["p"]))


def powers(slope: float, sizes: tuple[float, ...] = (8, 16, 32), seeds: int = 4) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return table(
        [
            {"arm": "ours", "seed": seed, "metric": "error", "stages": size,
             "value": size**slope * np.exp(rng.normal(0, 0.02))}
            for seed in range(seeds)
            for size in sizes
        ]
    )  # fmt: skip


@pytest.mark.parametrize("fit", ["per_unit", "pooled"])
@pytest.mark.parametrize(
    ("slope", "expected"), [(-0.5, REPRODUCED), (-0.41, PARTLY), (-0.1, NOT_REPRODUCED)]
)
def test_rate(tmp_path: Path, fit: str, slope: float, expected: str) -> None:
    check = atom(tmp_path, powers(slope), KINDS["rate"] | {"fit": fit})
    assert check["effect"] == pytest.approx(slope, abs=0.05)
    assert (check["horizon"], check["effect_unit"]) == (32, "log-log slope")
    assert "seen up to stages=32" in check["statement"]
    assert check["direction"] == "within [-0.6, -0.4]"
    if expected != PARTLY:
        assert check["verdict"] == expected


def test_rate_near_its_bound_and_of_one_unit_is_partly(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    frame = powers(-0.45)
    frame["value"] *= np.exp(rng.normal(0, 0.2, len(frame)))
    assert atom(tmp_path, frame, KINDS["rate"] | {"within": [-0.7, -0.2]})["verdict"] == PARTLY
    one = atom(tmp_path, powers(-0.5, seeds=1), KINDS["rate"])
    assert (one["verdict"], one["low"], one["interval"]) == (PARTLY, None, "none: one unit")


def test_rate_needs_three_sizes_and_all_of_them(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"at least 3 sizes of stages, found 8\|16"):
        judged(tmp_path, powers(-0.5, sizes=(8, 16)), KINDS["rate"])
    with pytest.raises(PipelineError, match="unit seed=3 lacks stages=32"):
        judged(tmp_path, powers(-0.5).iloc[:-1], KINDS["rate"])


def test_trend_counts_the_units_that_comply(tmp_path: Path) -> None:
    frame = powers(-0.5)
    turned = frame.copy()
    turned.loc[(turned["seed"] == 0) & (turned["stages"] == 32), "value"] = 1.0
    strict, lenient = KINDS["trend"], KINDS["trend"] | {"at_least": 0.7}
    assert atom(tmp_path, frame, strict)["verdict"] == REPRODUCED
    found = atom(tmp_path, turned, strict)
    assert (found["verdict"], found["effect"]) == (PARTLY, 0.75)
    assert atom(tmp_path, turned, lenient)["verdict"] == REPRODUCED
    assert atom(tmp_path, turned, strict | {"tolerance": 0.9})["verdict"] == REPRODUCED
    rising = strict | {"direction": "rising"}
    assert atom(tmp_path, frame, rising)["verdict"] == NOT_REPRODUCED


def test_correlation_of_a_constant_is_undefined_not_an_error(tmp_path: Path) -> None:
    flat = [
        {"arm": "ours", "seed": seed, "metric": "loss", "value": 1.0, "unit": "nat"}
        for seed in range(6)
    ]
    frame = pd.concat([scores(CLEAR[:6]), table(flat)], ignore_index=True)
    check = atom(tmp_path, frame, KINDS["correlates"])
    assert (check["verdict"], check["effect"], check["p"]) == (NOT_REPRODUCED, None, None)
    assert "= undefined" in check["statement"]


# Units: filters, pairs, clusters -----------------------------------------------------------------


def grid_rows(**arms: float) -> list[dict[str, Any]]:
    return [
        {"arm": arm, "seed": seed, "layer": layer, "bits": bits, "metric": "score",
         "value": level + 0.01 * seed + 0.1 * layer + bits}
        for arm, level in arms.items()
        for seed in range(3)
        for layer in range(2)
        for bits in (0.5, 1.0)
    ]  # fmt: skip


def test_each_where_and_clusters(tmp_path: Path) -> None:
    frame = table(grid_rows(ours=1.0, theirs=0.4))
    check = greater(pair=["seed", "layer"], cluster=["seed"], each={"bits": [0.5, 1]})
    half, one = judged(tmp_path, frame, check)["checks"]
    assert (half["where"], one["where"]) == ({"bits": 0.5}, {"bits": 1})
    assert half["effect"] == pytest.approx(0.6)
    assert half["n"] == 3
    assert "at bits=0.5 (n=3 clusters of 6 pairs, 3 seeds)" in half["statement"]


def test_rows_of_one_unit_are_averaged_and_said_so(tmp_path: Path) -> None:
    check = atom(tmp_path, table(grid_rows(ours=1.0, theirs=0.4)), greater())
    assert check["n"] == 3
    assert "(n=3 pairs, means of 12 rows, 3 seeds)" in check["statement"]


def test_clustering_never_counts_copies_of_a_unit_twice(tmp_path: Path) -> None:
    few = scores([0.1, -0.05, 0.12, 0.08], layer=0)
    many = pd.concat([few.assign(layer=float(layer)) for layer in range(30)])
    clustered = greater(pair=["seed", "layer"], cluster=["seed"])
    one = atom(tmp_path, few, clustered)["p"]
    assert atom(tmp_path, many, clustered)["p"] == pytest.approx(one)
    naive = greater(pair=["seed", "layer"])
    assert atom(tmp_path, many, naive)["p"] < atom(tmp_path, many, clustered)["p"]


def test_the_same_arm_at_two_levels_of_a_factor(tmp_path: Path) -> None:
    frame = powers(-0.5)
    check = greater(metric="error", than="ours", where={"stages": 8}, than_where={"stages": 32})
    found = atom(tmp_path, frame, check)
    assert found["verdict"] == REPRODUCED
    assert found["statement"].startswith("ours minus ours (stages=32) in error = +0.17")


def test_null_selects_rows_without_the_factor(tmp_path: Path) -> None:
    rows = [row for row in grid_rows(ours=1.0) if row["bits"] == 1.0]
    fp = [row | {"arm": "fp", "bits": None} for row in rows]
    check = greater(than="fp", pair=["seed", "layer"], where={"bits": 1}, than_where={"bits": None})
    assert atom(tmp_path, table(rows + fp), check)["effect"] == pytest.approx(0.0)


def test_the_mean_of_arms_is_a_main_effect(tmp_path: Path) -> None:
    frame = table(grid_rows(gs=1.0, gs_w=2.0, km=0.5, km_w=1.9))
    check = greater(arm="gs + gs_w", than="km + km_w", pair=["seed", "layer"], where={"bits": 1})
    assert atom(tmp_path, frame, check)["effect"] == pytest.approx((0.5 + 0.1) / 2)
    lacking = frame[(frame["arm"] != "gs_w") | (frame["seed"] != 2)]
    with pytest.raises(PipelineError, match=r"arm 'gs_w' of 'gs \+ gs_w' lacks the unit seed=2"):
        judged(tmp_path, lacking, check)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (greater(metric="scor"), "no metric 'scor'; measured: score .did you mean 'score'"),
        (
            greater(arm="our"),
            "no arm 'our' with metric 'score'; arms with it: .*did you mean 'ours'",
        ),
        (greater(than="thiers"), "no arm 'thiers'.*did you mean 'theirs'"),
        (
            greater(where={"bits": 0.7}),
            "no rows with bits=0.7; existing values of bits: 0.5, 1; near",
        ),
        (greater(where={"bits": [0.5, 2]}), "no rows with bits=2"),
        (greater(where={"bit": 1}), "no column 'bit'.*did you mean 'bits'"),
        (greater(where={"dataset": "e"}), "existing values of dataset: 'd'"),
        (greater(where={"prompt": 1}), "prompt is empty for these rows"),
        (greater(pair=["seed", "prompt"]), "column 'prompt' is empty in 12 rows"),
        (greater(pair=["seed", "layr"]), "no column 'layr'.*did you mean 'layer'"),
    ],
)
def test_a_check_that_selects_nothing_is_an_error(
    tmp_path: Path, check: dict[str, Any], words: str
) -> None:
    frame = table(grid_rows(ours=1.0, theirs=0.4))
    with pytest.raises(PipelineError, match=words) as caught:
        judged(tmp_path, frame, check)
    assert str(caught.value).startswith("made_up, claim C1, check 1 (")


def test_a_pair_on_one_side_only_is_named(tmp_path: Path) -> None:
    frame = table(grid_rows(ours=1.0, theirs=0.4))
    less = frame[(frame["arm"] == "ours") | (frame["seed"] != 1)]
    check = greater(pair=["seed", "layer"])
    with pytest.raises(
        PipelineError, match="2 of 6 pairs of ours have no match in theirs, first see"
    ):
        judged(tmp_path, less, check)


def test_only_equal_units_and_equal_mixes_are_compared(tmp_path: Path) -> None:
    frame = scores(CLEAR)
    mixed = frame.copy()
    mixed.loc[mixed["arm"] == "theirs", "unit"] = "percent"
    with pytest.raises(PipelineError, match="in point for ours and in percent for theirs"):
        judged(tmp_path, mixed)
    both = table(grid_rows(ours=1.0, theirs=0.4))
    half = both[(both["arm"] == "ours") | (both["bits"] == 1.0)]
    with pytest.raises(PipelineError, match=r"ours averages over bits=0\.5\|1, theirs over 1; fix"):
        judged(tmp_path, half, greater(pair=["seed", "layer"]))
    broken = frame.copy()
    broken.loc[0, "value"] = np.inf
    with pytest.raises(PipelineError, match="not finite"):
        judged(tmp_path, broken)
