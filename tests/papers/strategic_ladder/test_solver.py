"""Value iteration against brute force, known values and the properties a value must have."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.papers.strategic_ladder import closed_forms
from scripts.papers.strategic_ladder.designs import spaced
from scripts.papers.strategic_ladder.ladder import Ladders, ladders
from scripts.papers.strategic_ladder.solver import (
    climb,
    follow,
    honest,
    make_grids,
    policy,
    solve,
)

BASE = {"beta": 0.8, "gamma": 0.8, "delta": 0.1, "honest_cost": 1.0, "gaming_cost": 0.7}


def one(thresholds: list[float], reward: float = 0.4, **changed: float) -> Ladders:
    return ladders(**{**BASE, **changed}, thresholds=[thresholds], reward=reward)


def brute_force(batch: Ladders, grid: np.ndarray, sweeps: int) -> np.ndarray:
    """Values by search over both actions: every node above for effort, every amount of gaming.

    The amounts are a fine lattice together with the exact needs of both thresholds.
    """
    size = int(batch.levels[0])
    beta, gamma, delta = batch.beta[0], batch.gamma[0], batch.delta[0]
    mu = batch.thresholds[0]
    values = np.zeros((size, len(grid)))
    amounts = np.linspace(0.0, 2.0, 21)
    for _ in range(sweeps):
        new = np.full_like(values, -np.inf)
        for level in range(size):
            for at, x in enumerate(grid):
                for y in grid[at:]:
                    needs = [t - y for t in mu if t > y]
                    for gamed in (*amounts, *needs):
                        shown = y + gamed
                        # a need is met exactly, whatever rounding says
                        passed = [bool(shown >= t or np.isclose(shown, t)) for t in mu]
                        if level + 1 < size and passed[level + 1]:
                            to = level + 1
                        elif level == 0 or passed[level]:
                            to = level
                        else:
                            to = level - 1
                        after = np.interp(gamma * y + delta * to, grid, values[to])
                        cost = batch.honest_cost[0] * (y - x) + batch.gaming_cost[0] * gamed
                        gain = batch.rewards[0, to] - cost + beta * after
                        new[level, at] = max(new[level, at], gain)
        values = new
    return values


@pytest.mark.parametrize("gaming_cost", [0.2, 0.7, 1.3])
def test_values_are_those_of_a_search_over_both_actions(gaming_cost: float) -> None:
    batch = one([0.0, 0.6, 1.0], beta=0.5, gaming_cost=gaming_cost)
    found = solve(batch, nodes=7, tolerance=1e-4)
    sweeps = int(found.sweeps[0])
    expected = brute_force(batch, np.unique(found.grids[0]), sweeps)
    where = np.searchsorted(np.unique(found.grids[0]), found.grids[0])
    np.testing.assert_allclose(found.values[0], expected[:, where], atol=1e-9)


@pytest.mark.parametrize(("thresholds", "reward"), [([0.0], 1.0), ([0.0, 1.0, 2.0], 0.0)])
def test_nothing_to_gain_means_no_action(thresholds: list[float], reward: float) -> None:
    batch = one(thresholds, reward)
    found, paths = climb(batch, 101)
    assert not found.values.any()
    assert not paths.effort.any() and not paths.gaming.any()


def test_an_agent_that_does_not_look_ahead_games_to_the_threshold() -> None:
    """V_1(x) = max(0, r - c- (mu - x)^+) for two levels."""
    batch = one([0.0, 2.0], reward=1.0, beta=0.0)
    found = solve(batch, 201)
    expected = np.maximum(0.0, 1.0 - 0.7 * np.maximum(2.0 - found.grids[0], 0.0))
    np.testing.assert_allclose(found.values[0, 0], expected, atol=1e-12)


@pytest.mark.parametrize(("beta", "gamma", "levels"), [(0.8, 0.8, 6), (0.9, 0.6, 4), (0.5, 0.9, 9)])
def test_honest_climbs_have_their_closed_form(beta: float, gamma: float, levels: int) -> None:
    step = float(closed_forms.steady_step(gamma, 0.1))
    reward = 1.5 * float(closed_forms.reward_bound(beta, gamma, 0.1, 1.0))
    cost = float(closed_forms.gaming_cost_bound(beta, gamma, 1.0))
    batch = one(
        spaced(step, levels).tolist(), reward, beta=beta, gamma=gamma, gaming_cost=1.001 * cost
    )
    found, paths = climb(batch, 501)
    assert honest(batch, paths).all()
    expected = closed_forms.steady_value(beta, gamma, 0.1, 1.0, reward, levels)
    assert found.values[0, 0, 0] == pytest.approx(expected, abs=1e-8)
    assert (np.diff(paths.level[0, 0, : levels - 1]) == 1).all()
    np.testing.assert_allclose(paths.reached[0, 0, : levels - 1], spaced(step, levels)[1:])


agent = {
    "beta": st.floats(0.0, 0.9),
    "gamma": st.floats(0.0, 0.9),
    "delta": st.floats(0.0, 0.3),
    "gaming_cost": st.floats(0.1, 1.5),
}


@settings(max_examples=25, deadline=None)
@given(reward=st.floats(0.0, 2.0), **agent)
def test_values_rise_with_attribute_level_and_reward(reward: float, **numbers: float) -> None:
    mu = [0.0, 0.7, 1.2]
    found = solve(one(mu, reward, **numbers), 151)
    values, grid = found.values[0], found.grids[0]
    assert (np.diff(values, axis=1) >= -1e-8).all()
    assert (np.diff(values, axis=0) >= -1e-8).all()
    # Effort is always possible, so that no attribute is worth more than it costs.
    assert (np.diff(values, axis=1) <= np.diff(grid) * 1.0 + 1e-8).all()
    richer = solve(one(mu, reward + 0.1, **numbers), 151)
    assert (richer.values[0] >= values - 1e-8).all()
    dearer = {**numbers, "gaming_cost": numbers["gaming_cost"] + 0.1}
    assert (solve(one(mu, reward, **dearer), 151).values[0] <= values + 1e-8).all()
    costly = solve(one(mu, reward, **numbers, honest_cost=1.2), 151)
    assert (costly.values[0] <= values + 1e-8).all()


@settings(max_examples=15, deadline=None)
@given(scale=st.floats(0.1, 10.0), **agent)
def test_a_change_of_the_attributes_unit_changes_nothing(scale: float, **numbers: float) -> None:
    """Thresholds, leg-up and rewards times a number: values times that number."""
    mu = np.array([0.0, 0.7, 1.2])
    here = solve(one(mu.tolist(), 0.5, **numbers), 101)
    other = {**numbers, "delta": scale * numbers["delta"]}
    there = solve(one((scale * mu).tolist(), scale * 0.5, **other), 101)
    np.testing.assert_allclose(there.values, scale * here.values, atol=1e-7 * max(1, scale))


def test_a_batch_is_its_ladders_one_by_one() -> None:
    rows = [[0.0, 0.5, 1.0], [0.0, 0.8], [0.0]]
    batch = ladders(**BASE, thresholds=rows, reward=[0.4, 0.2, 0.1])
    together = solve(batch, 101)
    for at, (row, reward) in enumerate(zip(rows, (0.4, 0.2, 0.1), strict=True)):
        alone = solve(one(row, reward), 101)
        x = alone.grids[0]
        for level in range(len(row)):
            mine = np.interp(x, together.grids[at], together.values[at, level])
            np.testing.assert_allclose(mine, alone.values[0, level], atol=1e-12)


def test_a_warm_start_ends_where_a_cold_one_does_in_fewer_sweeps() -> None:
    first = solve(one([0.0, 0.5, 1.0]), 101)
    near = one([0.0, 0.5, 1.001])
    cold, warm = solve(near, 101), solve(near, 101, start=first)
    np.testing.assert_allclose(warm.values, cold.values, atol=1e-8)
    assert warm.sweeps[0] < cold.sweeps[0]


def test_grid_holds_every_threshold_and_where_it_leads() -> None:
    batch = one([0.0, 0.123456, 0.7])
    grid = make_grids(batch, 51)[0]
    for level, threshold in enumerate([0.0, 0.123456, 0.7]):
        assert threshold in grid
        assert 0.8 * threshold + 0.1 * level in grid


def test_a_strong_agent_is_promoted_without_acting_and_gaming_is_forgotten() -> None:
    batch = one([0.0, 0.5, 1.0])
    found = solve(batch, 101, x_max=4.0)
    paths = follow(batch, found, policy(batch, found), 3, start_x=2.0)
    assert paths.level[0, 0, :2].tolist() == [1, 2]
    assert not paths.effort[0, 0, :2].any() and not paths.gaming[0, 0, :2].any()
    cheap = one([0.0, 2.0], reward=1.0, gaming_cost=0.2)
    _, paths = climb(cheap, 201)
    assert paths.gaming[0, 0, 0] == pytest.approx(2.0)
    assert paths.gaming[0, 0, 1] == pytest.approx(2.0 - 0.1)  # only the leg-up is left of it


def test_relegation_is_by_one_level() -> None:
    """With rewards that do not pay for the top, an agent put there comes down step by step."""
    batch = one([0.0, 5.0, 10.0, 15.0], reward=0.01)
    found = solve(batch, 201)
    paths = follow(batch, found, policy(batch, found), 5, start_level=3)
    assert paths.level[0, 0].tolist() == [2, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"thresholds": [[0.0, 2.0, 1.0]]}, "thresholds: found .* strictly rising"),
        ({"thresholds": [[0.5, 1.0]]}, "thresholds"),
        ({"thresholds": [[]]}, "thresholds: ladder 0 is empty"),
        ({"thresholds": []}, "thresholds: found no ladder"),
        ({"thresholds": [[0.0, np.nan]]}, "thresholds"),
        ({"beta": 1.0}, "beta: found 1, allowed: 0 <= beta < 1"),
        ({"beta": -0.1}, "beta"),
        ({"gamma": 1.2}, "gamma: found 1.2, allowed: 0 <= gamma < 1"),
        ({"gamma": float("nan")}, "gamma"),
        ({"delta": -0.1}, "delta"),
        ({"honest_cost": -1.0}, "honest_cost: found -1"),
        ({"gaming_cost": 0.0}, "gaming_cost"),
        ({"reward": -1.0}, "reward"),
        ({"reward": [1.0, 2.0]}, "reward: found shape"),
        ({"rewards": [[0.0, 1.0]]}, "exactly one of reward and rewards"),
        ({"reward": None}, "exactly one of reward and rewards"),
        ({"reward": None, "rewards": [[0.0, 1.0, 0.5]]}, "rewards"),
        ({"reward": None, "rewards": [[0.0, 1.0, 2.0]]}, "rewards: found rows of"),
    ],
)
def test_bad_ladders_are_refused_by_name(changed: dict, message: str) -> None:
    arguments = {**BASE, "thresholds": [[0.0, 1.0]], "reward": 1.0, **changed}
    with pytest.raises(ValueError, match=message):
        ladders(**arguments)


def test_a_grid_that_is_too_short_is_refused() -> None:
    batch = one([0.0, 1.0])
    for x_max in (0.9, 1.0, float("nan")):
        with pytest.raises(ValueError, match="x_max: found"):
            solve(batch, 101, x_max=x_max)
    with pytest.raises(ValueError, match="nodes: found 2"):
        solve(batch, 2)
    found = solve(batch, 101)
    with pytest.raises(ValueError, match="x_max: a path comes to"):
        follow(batch, found, policy(batch, found), 2, start_x=1.29)
