"""TAP beside other policies: hindsight, paired leads, what the ledger is told, curves by round."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from scripts.papers.network_recruitment import compare, evaluate, plot
from scripts.pipeline import params, stats

PLACE = {"network": "school", "mode": "model", "types": "earlier", "gamma": 0.5, "start": 3}


def runs(rewards, start: int = 3, mode: str = "model", seed: int = 0) -> pd.DataFrame:
    """A policy's rewards in one setting."""
    frame = pd.DataFrame({"replicate": range(len(rewards)), "reward": np.asarray(rewards, float)})
    return frame.assign(**{**PLACE, "start": start, "mode": mode, "seed": seed})


def test_the_best_in_hindsight_is_the_best_mean_of_each_setting() -> None:
    tables = {
        "a": pd.concat([runs([1, 9]), runs([1, 1], start=8)]),
        "b": pd.concat([runs([4, 5]), runs([2, 3], start=8)]),
        "c": pd.concat([runs([4, 4]), runs([9, 0], start=8)]),
    }
    best = compare.best_in_hindsight(tables)
    chosen = best.groupby("start")["policy"].unique().map(list).to_dict()
    assert chosen == {3: ["a"], 8: ["c"]}
    assert sorted(best.loc[best["start"] == 3, "reward"]) == [1, 9]
    assert len(best) == 4


def test_the_best_in_hindsight_looks_at_all_seeds_and_takes_the_first_of_equals() -> None:
    tables = {
        "late": pd.concat([runs([0]), runs([10], seed=1)]),
        "early": pd.concat([runs([9]), runs([0], seed=1)]),
        "equal": pd.concat([runs([5]), runs([5], seed=1)]),
    }
    best = compare.best_in_hindsight(tables)
    assert set(best["policy"]) == {"late"}


def test_leads_are_paired_means_with_their_interval() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(20, 10, 30)
    gains = rng.normal(1, 0.5, 30)
    found = compare.leads(runs(base + gains), runs(base)).iloc[0]
    expected = stats.mean_interval(gains)
    assert found["lead"] == pytest.approx(gains.mean())
    assert found[["low", "high"]].tolist() == pytest.approx([expected.low, expected.high])
    assert found["share"] == pytest.approx(gains.mean() / base.mean())
    assert found["detectable"] == pytest.approx(stats.smallest_detectable(gains))
    assert found["n"] == 30


def test_leads_are_matched_by_setting_seed_and_replicate() -> None:
    tap = pd.concat([runs([5, 6, 7]), runs([1, 2], start=8), runs([50], seed=1)])
    other = pd.concat([runs([9], seed=1), runs([2, 1], start=8), runs([4, 4])])
    found = compare.leads(tap, other.iloc[::-1]).set_index("start")
    assert found.loc[3, "n"] == 3 and found.loc[3, "lead"] == pytest.approx((1 + 2 + 41) / 3)
    assert found.loc[8, "lead"] == 0


def job(**tables) -> SimpleNamespace:
    """What evaluate needs of a job."""
    arms = params.load().paper("network_recruitment").at("laptop").parameters["arms"]
    stored = {"type_models": ["earlier", "insample"], "arms": arms}
    load = lambda stage, name, arm, seed: tables[arm][lambda t: t["seed"] == seed]  # noqa: E731
    return SimpleNamespace(params=stored, seeds=[0, 1], load_table=load)


def test_groups_of_fixed_rules() -> None:
    every, released = evaluate.rules(job(), "best_fixed"), evaluate.rules(job(), "best_released")
    assert len(every) == 15 and len(released) == 12
    assert set(every) - set(released) == {f"remainder_{share}_ceil" for share in (10, 20, 50)}
    fractions = evaluate.rules(job(), "best_fraction")
    assert len(fractions) == 7 and all(name.startswith("remainder") for name in fractions)
    assert "tap" not in every and "myopic" not in every


def test_runs_of_all_seeds_are_read() -> None:
    table = pd.concat([runs([1, 2]), runs([3], seed=1)])
    found = evaluate.load_runs(
        job(tap=table.drop(columns="seed").assign(seed=table["seed"])), "tap"
    )
    assert found[["seed", "reward"]].to_numpy().tolist() == [[0, 1], [0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [(0.1, 0.3, "clear_lead"), (-0.3, -0.1, "clear_loss"), (-0.1, 0.1, "near_tie")],
)
def test_a_setting_is_a_lead_a_loss_or_a_near_tie(low, high, told) -> None:
    lead = {**PLACE, "against": "best_fixed", "lead": 0.1, "low": low, "high": high}
    found = pd.DataFrame([{**lead, "detectable": 0.2, "share": 0.01, "n": 40}])
    rows = evaluate._lead_rows(job(), found)
    marks = {row["metric"]: row["value"] for row in rows if row["unit"] == "setting"}
    assert marks == {"clear_lead": 0, "clear_loss": 0, "near_tie": 0, told: 1}
    assert {row["metric"]: row["value"] for row in rows}["lead_detectable"] == 0.2


def test_only_judged_types_are_counted() -> None:
    lead = {**PLACE, "types": "insample", "against": "best_fixed", "lead": 1.0, "low": 0.5}
    found = pd.DataFrame([{**lead, "high": 1.5, "detectable": 0.2, "share": 0.01, "n": 40}])
    rows = evaluate._lead_rows(job(), found)
    assert not [row for row in rows if row["unit"] == "setting"]


def test_the_wrong_model_is_priced_on_judged_types() -> None:
    tap = pd.concat(
        [runs([10, 12]), runs([7, 8], mode="graph"),
         runs([1, 1], mode="graph").assign(types="insample")]
    )  # fmt: skip
    rows = []
    run = SimpleNamespace(metric=lambda name, value, **columns: rows.append((value, columns)))
    evaluate._model_against_graph(job(), run, tap)
    ((value, columns),) = rows
    assert value == pytest.approx(3.5) and columns["n"] == 2 and columns["start"] == 3


def test_curves_pool_seeds_and_stay_flat_once_nobody_recruits() -> None:
    paths = {0: np.array([[1.0, 2, 2], [3, 5, 6]]), 1: np.array([[2.0], [4]])}
    tables = []
    for seed, reached in paths.items():
        steps = range(1, reached.shape[1] + 1)
        part = {"sum": reached.sum(0), "squares": (reached**2).sum(0), "n": 2}
        tables.append(pd.DataFrame({"round": steps, **part}).assign(**PLACE, seed=seed))
    found = plot.curves(pd.concat(tables), 4).set_index("round")
    full = np.vstack(
        [np.pad(p, ((0, 0), (0, 4 - p.shape[1])), mode="edge") for p in paths.values()]
    )
    assert found["mean"].tolist() == pytest.approx(full.mean(axis=0))
    assert found["se"].tolist() == pytest.approx(full.std(axis=0, ddof=1) / 2)
    shorter = plot.curves(pd.concat(tables), 2)
    assert shorter["round"].tolist() == [1, 2]
    assert shorter["mean"].tolist() == pytest.approx(full.mean(axis=0)[:2])


def test_rules_are_named_as_in_the_paper() -> None:
    names = [plot.rule_name(job().params["arms"][name]) for name in
             ("const_3", "greedy_100", "remainder_20", "remainder_50_ceil")]  # fmt: skip
    assert names == ["Const(3)", "Greedy(1)", "GreedyRemainder(0.2)", "GreedyRemainder(0.5, ceil)"]
