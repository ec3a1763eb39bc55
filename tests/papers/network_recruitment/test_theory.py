"""Rows of the theorems: right where the theorem holds, and able to fail where it would not."""

import numpy as np
import pytest

from scripts.papers.network_recruitment import robustness, single_round, surrogate, theory
from scripts.papers.network_recruitment.exact import Shape
from scripts.papers.network_recruitment.pmf import checked_pmfs, survival

SMALL = {"library": 3, "people": 2, "random": 5, "budget": 3}


def values(rows, metric: str, **where) -> list[float]:
    """Values of a metric in rows that have the given columns."""
    return [
        row["value"]
        for row in rows
        if row["metric"] == metric and all(row[name] == value for name, value in where.items())
    ]


def test_random_distributions_are_distributions() -> None:
    drawn = theory.random_pmfs(np.random.default_rng(0), 200, 3)
    assert drawn.shape == (200, 3, theory.SUPPORT)
    checked_pmfs(drawn)
    checked_pmfs(theory.library(6))
    assert len(np.unique(theory.library(6), axis=0)) == 6


@pytest.mark.parametrize("people", [1, 2, 5])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_even_split_differs_by_one_at_most(people, budget) -> None:
    coupons = theory.even_split(people, budget)
    assert coupons.sum() == budget and np.ptp(coupons) <= 1
    assert (np.diff(coupons) <= 0).all()


def test_greedy_rows_cover_every_multiset_and_find_no_gap() -> None:
    rows = theory.greedy_rows(np.random.default_rng(0), SMALL)
    assert len(values(rows, "greedy_gap", dataset="library")) == 3 + 6
    assert len(values(rows, "greedy_gap", dataset="random")) == 5
    assert max(values(rows, "greedy_gap")) < 1e-12
    assert max(values(rows, "survival_identity_error")) < 1e-12


def test_greedy_rows_see_a_worse_rule(monkeypatch) -> None:
    monkeypatch.setattr(
        single_round, "greedy", lambda levels, budget: theory.even_split(len(levels), budget)
    )
    rows = theory.greedy_rows(np.random.default_rng(0), SMALL)
    assert max(values(rows, "greedy_gap")) > 0.1


def test_single_round_rows() -> None:
    sizes = {"random": 60, "constructions": 4}
    rows, pairs = theory.single_round_bound(np.random.default_rng(0), sizes)
    assert len(pairs) == 60 and (pairs["loss"] <= pairs["bound"] + 1e-12).all()
    assert (pairs["loss"] > 0.01).any()
    assert values(rows, "round_loss") == pytest.approx([0.3 * s for s in range(1, 5)])
    assert values(rows, "round_slack") == pytest.approx([0] * 4, abs=1e-12)
    assert len(values(rows, "round_excess")) == 60


def test_single_round_rows_see_a_loss_above_the_bound(monkeypatch) -> None:
    monkeypatch.setattr(single_round, "misled_loss", lambda *_: (0.5, 0.2))
    rows, _ = theory.single_round_bound(np.random.default_rng(0), {"random": 2, "constructions": 1})
    assert values(rows, "round_excess") == pytest.approx([0.3, 0.3])


def test_recursion_rows_count_states_and_their_growth() -> None:
    rows = theory.recursion_rows({"types": 3, "budget": 4})
    counts = values(rows, "states", quantity="states")
    assert counts == [Shape(kinds, 4).reachable(1) for kinds in (1, 2, 3)]
    growth = values(rows, "growth", quantity="states")
    assert growth == pytest.approx([counts[1] / counts[0], counts[2] / counts[1]])
    assert values(rows, "growth_shortfall") == [0, 0, 0, 0]
    assert values(rows, "states", quantity="surrogate") == [25, 25, 25]


def test_recursion_rows_see_slow_growth() -> None:
    """With one coupon the states only grow by types: 7 to 8 is less than 1.4."""
    rows = theory.recursion_rows({"types": 8, "budget": 1})
    assert values(rows, "growth_shortfall", quantity="states", kinds=8)[0] > 0.1


def test_surrogate_rows() -> None:
    rows = theory.surrogate_rows(np.random.default_rng(0), {"cases": 8, "budget": 4})
    assert max(values(rows, "table_gap")) < 1e-10
    assert max(values(rows, "even_gap", condition="identical")) < 1e-12
    assert max(values(rows, "even_gap", condition="mixed")) > 0.01


def test_surrogate_rows_see_a_wrong_table(monkeypatch) -> None:
    solve = surrogate.solve

    def off(q, budget, discount):
        found = solve(q, budget, discount)
        return surrogate.Surrogate(found.value + 1e-6, found.spend, found.work)

    monkeypatch.setattr(surrogate, "solve", off)
    rows = theory.surrogate_rows(np.random.default_rng(0), {"cases": 2, "budget": 3})
    assert min(values(rows, "table_gap")) > 9e-7


def test_rollouts_of_a_sure_law_have_no_error() -> None:
    found = theory.rollout_row(np.random.default_rng(0), np.array([0.0, 1.0]), 5, 0.9, 2, 10)
    assert found["value"] == 0 and found["n"] == 10


@pytest.mark.parametrize("start", [1, 4])
def test_rollouts_reach_the_table_and_not_another(start) -> None:
    q, count = np.array([0.3, 0.3, 0.2, 0.2]), 20_000
    rng = np.random.default_rng(1)
    assert theory.rollout_row(rng, q, 12, 0.8, start, count)["value"] < 4


def test_rollouts_see_a_wrong_table(monkeypatch) -> None:
    solve = surrogate.solve

    def off(q, budget, discount):
        found = solve(q, budget, discount)
        return surrogate.Surrogate(1.05 * found.value, found.spend, found.work)

    monkeypatch.setattr(surrogate, "solve", off)
    q = np.array([0.3, 0.3, 0.2, 0.2])
    assert theory.rollout_row(np.random.default_rng(1), q, 12, 0.8, 3, 20_000)["value"] > 4


def test_cost_rows() -> None:
    rows = theory.cost_rows({"released_order": [4, 6], "hoisted": [5]})
    assert [row["budget"] for row in rows] == [4, 6, 5, 5]
    assert values(rows, "table_entries") == [36]
    assert values(rows, "multiplications", quantity="released_order")[0] > 100


def test_planning_rows_of_each_source() -> None:
    sizes = {"cases": 12, "types": 2, "budget": 4}
    rows, table, relative = theory.planning_losses(np.random.default_rng(3), sizes)
    assert len(table) == 4 * len(theory.NOISES) * 12
    assert (table["loss"] <= table["bound"] + 1e-9).all() and (table["loss"] > -1e-9).all()
    clean = table[table["noise"] == 0].set_index("source")["loss"]
    assert clean.drop("population").abs().max() < 1e-9
    assert max(values(rows, "clean_bound")) < 1e-9
    assert len(values(rows, "clean_bound")) == 3 * 12
    assert values(rows, "noise_level", source="joint", noise=0.5) == [0.5] * 12
    assert len(relative) == 12 and all(-1e-9 < row["value"] < 1 for row in relative)


def test_population_beliefs_change_the_bound_and_frontier_beliefs_do_too() -> None:
    sizes = {"cases": 6, "types": 2, "budget": 3}
    table = theory.planning_losses(np.random.default_rng(4), sizes)[1]
    for source in ("frontier", "population", "heterogeneity", "joint"):
        wide = table[table["source"] == source].pivot_table(
            index="case", columns="noise", values="bound"
        )
        assert (np.diff(wide.to_numpy(), axis=1) > -1e-9).all(), source
        assert wide[0.5].max() > wide[0.0].max(), source


def test_planning_rows_see_a_loss_above_the_bound(monkeypatch) -> None:
    monkeypatch.setattr(robustness, "bound", lambda problem, *_: -np.ones(len(problem.discount)))
    rows = theory.planning_losses(np.random.default_rng(3), {"cases": 2, "types": 2, "budget": 3})[
        0
    ]
    assert min(values(rows, "bound_excess")) > 0.9


def test_levels_of_the_library_never_increase() -> None:
    assert (np.diff(survival(theory.library(6), 6), axis=1) <= 0).all()
