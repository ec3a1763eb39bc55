"""Closed forms, designs and studies against value iteration and known numbers."""

import numpy as np
import pytest

from scripts.papers.strategic_ladder import closed_forms, incentives, two_levels
from scripts.papers.strategic_ladder.designs import (
    Agents,
    chained,
    greedy,
    random_thresholds,
    spaced,
)
from scripts.papers.strategic_ladder.ladder import needs_cheaper_gaming
from scripts.papers.strategic_ladder.search import search, violations
from scripts.papers.strategic_ladder.solver import climb, honest


def agents(**columns: list[float] | float) -> Agents:
    base = {
        "beta": 0.8, "gamma": 0.8, "delta": 0.1, "honest_cost": 1.0, "gaming_cost": 0.7,
        "reward": 0.4, **columns,
    }  # fmt: skip
    count = max(np.size(value) for value in base.values())
    return Agents(**{name: np.full(count, value, dtype=float) for name, value in base.items()})


@pytest.mark.parametrize(
    ("beta", "gamma", "lower", "upper"),
    [(0.8, 0.8, 4.167, 4.525), (0.8, 0.9, 8.333, 9.091), (0.99, 0.8, 4.966, 4.980)],
)
def test_cutoffs_are_the_known_ones(beta: float, gamma: float, lower: float, upper: float) -> None:
    assert closed_forms.lower_cutoff(beta, gamma, 1, 0.6, 1) == pytest.approx(lower, abs=5e-4)
    assert closed_forms.upper_cutoff(beta, gamma, 1, 0.6, 1) == pytest.approx(upper, abs=5e-4)
    assert closed_forms.cutoff_limit(0.8, 1, 1) == pytest.approx(5)


@pytest.mark.parametrize("delta", [0.0, 0.2])
def test_cutoffs_are_those_of_value_iteration(delta: float) -> None:
    some = agents(
        beta=[0.8, 0.6], gamma=[0.7, 0.9], gaming_cost=[0.6, 0.75], reward=1.0, delta=delta
    )
    forms = (closed_forms.lower_cutoff, closed_forms.upper_cutoff)
    for form, test in zip(forms, (two_levels.nobody_games, two_levels.sustained), strict=True):
        expected = form(some.beta, some.gamma, 1.0, some.gaming_cost, some.reward)
        found = two_levels.bisect(some, test, 14, 601)
        np.testing.assert_allclose(found, expected, rtol=5e-3)


def test_regimes_of_two_levels_come_in_the_theorems_order() -> None:
    some = agents(gaming_cost=0.6, reward=1.0)
    upper = closed_forms.upper_cutoff(0.8, 0.8, 1.0, 0.6, 1.0)[None]
    order = two_levels._regimes(some, upper, 12, 601)[0]
    assert two_levels._in_order(order)
    assert order[-1] == (two_levels.NONE, two_levels.GAME)
    assert not two_levels._in_order(order[::-1])


def test_labels_are_read_as_runs() -> None:
    none, improve, game = two_levels.NONE, two_levels.IMPROVE, two_levels.GAME
    found = np.array([none] * 5 + [improve] + [game] * 4 + [improve] * 3, dtype=np.int8)
    assert two_levels.runs(found) == (none, game, improve)


def test_first_honest_threshold_is_that_of_value_iteration() -> None:
    some = agents(reward=[0.15, 0.4])
    form = closed_forms.first_honest_threshold(0.8, 0.8, 0.1, 1.0, some.reward)
    found = two_levels.best_single(some, 14, 601)
    np.testing.assert_allclose(found, form, rtol=2e-3)


def test_greedy_ladders_are_the_known_ones() -> None:
    """Steps 1.332 x 7, then down to the steady 0.5; without leg-up they end below both bounds."""
    with_, without = greedy(agents(delta=[0.1, 0.0]), 12, 601)
    steps = np.diff(with_)
    np.testing.assert_allclose(steps[:7], 1.332, atol=2e-3)
    np.testing.assert_allclose(steps[-1], 0.5, atol=5e-3)
    np.testing.assert_allclose(without[1:5], [1.109, 2.218, 3.328, 4.437], atol=5e-3)
    assert without[-1] == pytest.approx(5.56, abs=0.03)
    assert without[-1] < closed_forms.bounded_attribute_tight(0.8, 0.8, 1, 0.4) == pytest.approx(10)
    assert closed_forms.bounded_attribute(0.8, 0.8, 1, 0.4) == pytest.approx(50)


@pytest.mark.parametrize(("beta", "gamma"), [(0.5, 0.6), (0.93, 0.94)])
def test_steady_ladders_are_honest_exactly_above_the_reward_bound(
    beta: float, gamma: float
) -> None:
    """On both branches of the bound on the cost of gaming."""
    cost = 1.001 * float(closed_forms.gaming_cost_bound(beta, gamma, 1.0))
    bound = float(closed_forms.reward_bound(beta, gamma, 0.1, 1.0))
    some = agents(beta=beta, gamma=gamma, gaming_cost=cost, reward=[0.98 * bound, 1.001 * bound])
    batch = some.on([spaced(step, 5) for step in some.step])
    assert honest(batch, climb(batch, 601)[1])[:, 0].tolist() == [False, True]


def test_levels_needed_counts_the_first_level_too() -> None:
    assert closed_forms.levels_for(2.0, 0.8, 0.1) == 5
    assert closed_forms.levels_for(2.01, 0.8, 0.1) == 6


def test_nobody_improves_below_the_bound_and_somebody_does_above() -> None:
    for share, expected in ((0.98, False), (1.05, True)):
        cost = share * float(closed_forms.incentive_bound(0.8, 0.8, 1.0))
        some = agents(gaming_cost=cost, reward=5.0)
        batch = some.on([np.array([0.0, 1.0])])
        effort, _ = incentives.largest_effort(batch, 401)
        assert (effort[0] > 1e-4) == expected


def test_search_finds_honest_designs_where_they_exist() -> None:
    """The search behind the claim that none exist must find them above the reward bound."""
    bound = float(closed_forms.reward_bound(0.8, 0.8, 0.1, 1.0))
    cost = 1.001 * float(closed_forms.gaming_cost_bound(0.8, 0.8, 1.0))
    some = agents(gaming_cost=cost, reward=[0.9 * bound, 1.5 * bound])
    below, above = search(some, np.random.default_rng(0), 40, 32, 201)
    assert below.honest_high == 0 and below.tried_high > 0
    assert above.honest_high > 0
    assert below.tried == above.tried == 72
    steady = [spaced(step, 4) for step in some.step]
    loss, good = violations(some, steady, 201)
    assert good.tolist() == [False, True]
    assert loss[1] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("nodes", [301, 5001])
def test_chained_ladders_are_honest_far_below_the_reward_bound(nodes: int) -> None:
    """A counterexample to "no thresholds work below the reward bound", the same on any grid.

    By hand: meeting the first threshold m by effort costs c+ m; gaming it instead costs at least
    c- m and one step's delay of every later reward, as the leg-up then comes too late.
    """
    beta, gamma, delta = 0.5, 0.4, 0.1
    cost = 1.001 * float(closed_forms.gaming_cost_bound(beta, gamma, 1.0))
    bound = float(closed_forms.reward_bound(beta, gamma, delta, 1.0))
    some = agents(beta=beta, gamma=gamma, delta=delta, gaming_cost=cost, reward=0.1 * bound)
    first = 0.02 * float(some.step[0])
    batch = some.on([chained(first, gamma, delta, 4)])
    _, paths = climb(batch, nodes)
    assert honest(batch, paths).all()
    assert paths.effort.sum() == pytest.approx(first)
    assert paths.level[0, 0, :3].tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="first: found 1"):
        chained(1.0, gamma, delta, 4)


def test_random_thresholds_rise_strictly() -> None:
    rng = np.random.default_rng(0)
    for levels in (1, 2, 6):
        found = random_thresholds(rng, 2.0, levels)
        assert len(found) == levels and found[0] == 0 and (np.diff(found) > 0).all()


def test_theorems_that_need_cheaper_gaming_refuse_dear_gaming() -> None:
    with pytest.raises(ValueError, match=r"gaming_cost: found 1.2 with honest_cost 1"):
        needs_cheaper_gaming(1.0, [0.5, 1.2])
    needs_cheaper_gaming(1.0, [0.5, 0.9])


def test_bad_designs_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="levels: found 0"):
        spaced(0.5, 0)
    with pytest.raises(ValueError, match="step: found 0"):
        spaced(0.0, 3)
    with pytest.raises(ValueError, match="levels: found 0"):
        greedy(agents(), 0, 201)
