"""Two levels: who improves, games, mixes or gives up at which attribute (C3a, C3b, C3c, C10)."""

from collections.abc import Callable, Mapping
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from scripts.papers.strategic_ladder import closed_forms, draws
from scripts.papers.strategic_ladder.designs import Agents
from scripts.papers.strategic_ladder.draws import Draws
from scripts.papers.strategic_ladder.ladder import Array, Ladders
from scripts.papers.strategic_ladder.rows import Row, met, row
from scripts.papers.strategic_ladder.solver import (
    HEADROOM,
    Policy,
    Solution,
    climb,
    follow,
    honest,
    policy,
    solve,
)

NONE, IMPROVE, GAME, MIX = range(4)
NAMES = ("none", "improve", "game", "mix")
ACTS = 1e-9  # effort or gaming that counts
SMEAR = 3  # nodes: shorter runs at a border are where the border falls between two nodes
REGIMES = (
    (IMPROVE,),
    (NONE, IMPROVE),
    (NONE, GAME, IMPROVE),
    (NONE, GAME),
)
"""Theorem 3.2, from x = 0 up to the threshold, in the order of rising thresholds."""


def labels(solution: Solution, chosen: Policy) -> NDArray[np.int8]:
    """What an agent on the first level does at each node [B, K]."""
    target = np.take_along_axis(solution.grids, chosen.target[:, 0], axis=1)
    effort = target - solution.grids > ACTS
    gaming = chosen.gaming[:, 0] > ACTS
    return (effort * IMPROVE + gaming * GAME).astype(np.int8)


def runs(found: NDArray[np.int8], shortest: int = SMEAR) -> tuple[int, ...]:
    """Labels in order, each once a run; runs shorter than `shortest` nodes are left out."""
    long = [kind for kind, run in groupby(found.tolist()) if len(list(run)) >= shortest]
    return tuple(kind for kind, _ in groupby(long))


def two_level(agents: Agents, thresholds: Array) -> Ladders:
    """The agents, each with one threshold."""
    return agents.on([np.array([0.0, at]) for at in thresholds])


def low_thresholds(
    rng: np.random.Generator, retention: Mapping[str, float], count: int, nodes: int
) -> list[Row]:
    """C3a: thresholds below delta / (1 - gamma), with rewards inside and outside the theorem's."""
    drawn = draws.draw(rng, count, retention)
    cost = _costs(rng, drawn)
    fraction = rng.uniform(0.2, 0.9, len(drawn))
    rows = []
    for low, high in ((1.05, 4.0), (0.3, 0.95)):
        ratio = rng.uniform(low, high, len(drawn))
        agents = drawn.agents(cost, ratio * drawn.reward_bound)
        batch = two_level(agents, fraction * agents.step)
        solution = solve(batch, nodes)
        found = labels(solution, policy(batch, solution))
        for at in range(len(drawn)):
            seen = runs(found[at][solution.grids[at] < batch.top[at]])
            rows.append(
                row("low_threshold_form", seen in ((MIX, GAME), (GAME,)), nodes,
                    **drawn.columns(at), gaming_cost=cost[at], reward_ratio=ratio[at],
                    cost_condition="met", reward_condition=met(ratio[at] >= 1))
            )  # fmt: skip
    return rows


def high_thresholds(
    rng: np.random.Generator,
    retention: Mapping[str, float],
    count: int,
    deltas: list[float],
    heights: int,
    halvings: int,
    nodes: int,
) -> list[Row]:
    """C3b: regimes in order as m = mu - s rises; both cut-offs for several leg-ups."""
    drawn = draws.draw(rng, count, retention)
    cost = _costs(rng, drawn)
    reward = rng.uniform(0.2, 1.0, len(drawn))
    forms = [
        form(drawn.beta, drawn.gamma, 1.0, cost, reward)
        for form in (closed_forms.lower_cutoff, closed_forms.upper_cutoff)
    ]
    rows, cutoffs = [], []
    for delta in deltas:
        some = Draws(drawn.beta, drawn.gamma, np.full(len(drawn), delta), drawn.dataset)
        agents = some.agents(cost, reward)
        orders = _regimes(agents, forms[1], heights, nodes)
        found = [bisect(agents, test, halvings, nodes) for test in (nobody_games, sustained)]
        cutoffs.append(found)
        for at in range(len(drawn)):
            step = HEADROOM * (forms[1][at] + agents.step[at]) / (nodes - 1)
            place = {
                **some.columns(at), "gaming_cost": cost[at], "cost_condition": "met",
            }  # fmt: skip
            rows.append(row("regimes_in_order", _in_order(orders[at]), heights, **place))
            for name, form, value in zip(("lower", "upper"), forms, found, strict=True):
                rows.append(
                    row(f"{name}_cutoff_error", (value[at] - form[at]) / step, halvings, **place)
                )
    values = np.array(cutoffs)  # [delta, cut-off, agent]
    for at in range(len(drawn)):
        highest = forms[1][at] + max(deltas) / (1 - drawn.gamma[at])
        step = HEADROOM * highest / (nodes - 1)
        place = {**drawn.columns(at), "gaming_cost": cost[at], "cost_condition": "met"}
        del place["delta"]
        for number, name in enumerate(("lower", "upper")):
            spread = np.ptp(values[:, number, at]) / step
            rows.append(row(f"{name}_cutoff_spread", spread, len(deltas), **place))
    return rows


def _regimes(agents: Agents, upper: Array, heights: int, nodes: int) -> list[list[tuple]]:
    """Run pattern below the threshold of each agent, by rising m."""
    orders: list[list[tuple]] = [[] for _ in range(len(agents))]
    for share in np.linspace(0.05, 1.6, heights):
        batch = two_level(agents, agents.step + share * upper)
        solution = solve(batch, nodes)
        found = labels(solution, policy(batch, solution))
        for at, order in enumerate(orders):
            order.append(runs(found[at][solution.grids[at] < batch.top[at]]))
    return orders


def _in_order(order: list[tuple]) -> bool:
    """Whether all patterns are regimes of the theorem, in its order."""
    if not all(pattern in REGIMES for pattern in order):
        return False
    places = [REGIMES.index(pattern) for pattern in order]
    return places == sorted(places)


def nobody_games(batch: Ladders, nodes: int) -> NDArray[np.bool_]:
    """Whether no attribute below the threshold makes the agent game [B]."""
    solution = solve(batch, nodes)
    gaming = policy(batch, solution).gaming[:, 0] > ACTS
    return ~(gaming & (solution.grids < batch.top[:, None])).any(axis=1)


def sustained(batch: Ladders, nodes: int) -> NDArray[np.bool_]:
    """Whether an agent that has met the threshold keeps meeting it by effort for ever [B]."""
    solution = solve(batch, nodes)
    after = batch.gamma * batch.top + batch.delta
    paths = follow(batch, solution, policy(batch, solution), 30, after[:, None], 1)
    return honest(batch, paths)[:, 0]


def bisect(
    agents: Agents, test: Callable[[Ladders, int], NDArray[np.bool_]], halvings: int, nodes: int
) -> Array:
    """Largest m = mu - s of two levels up to which `test` holds [B], all agents at once."""
    high = 1.2 * closed_forms.cutoff_limit(agents.gamma, agents.honest_cost, agents.reward)
    low = np.zeros(len(agents))
    for _ in range(halvings):
        middle = (low + high) / 2
        good = test(two_level(agents, agents.step + middle), nodes)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    return (low + high) / 2


def cutoff_sweep(
    rng: np.random.Generator, values: list[float], near_one: float, halvings: int, nodes: int
) -> list[Row]:
    """C3c: cut-offs by value iteration over beta and gamma, r = c+ = 1, delta = 0.1."""
    cost = float(rng.uniform(0.78, 0.95))  # above (1 - beta gamma) c+ in the whole sweep

    def cutoffs(beta: Array, gamma: Array) -> tuple[Array, Array]:
        count = len(beta)
        full = np.ones(count)
        agents = Agents(beta, gamma, 0.1 * full, full, cost * full, full)
        return tuple(bisect(agents, test, halvings, nodes) for test in (nobody_games, sustained))

    beta, gamma = (axis.ravel() for axis in np.meshgrid(values, values, indexing="ij"))
    lower, upper = cutoffs(beta, gamma)
    rows = []
    for at in range(len(beta)):
        place = {"beta": beta[at], "gamma": gamma[at], "delta": 0.1, "gaming_cost": cost}
        rows.append(row("lower_cutoff", lower[at], halvings, **place))
        rows.append(row("upper_cutoff", upper[at], halvings, **place))
    table = {(b, g): m for b, g, m in zip(beta, gamma, lower, strict=True)}
    by_gamma = table[0.8, 0.95] / table[0.8, 0.8]
    by_beta = table[0.95, 0.8] / table[0.8, 0.8]
    rows.append(
        row("retention_over_farsightedness", by_gamma / by_beta, halvings, gaming_cost=cost)
    )
    some = np.array(values)
    limit = closed_forms.cutoff_limit(some, 1.0, 1.0)
    near = cutoffs(np.full(len(some), near_one), some)[0]
    for at in range(len(some)):
        rows.append(
            row("cutoff_over_limit", near[at] / limit[at], halvings, beta=near_one, gamma=some[at],
                gaming_cost=cost)
        )  # fmt: skip
    return rows


def best_single(agents: Agents, halvings: int, nodes: int) -> Array:
    """Highest threshold of two levels that is climbed honestly from nothing [B], by bisection."""

    def climbed(batch: Ladders, size: int) -> NDArray[np.bool_]:
        return honest(batch, climb(batch, size)[1])[:, 0]

    return agents.step + bisect(agents, climbed, halvings, nodes)


def _costs(rng: np.random.Generator, drawn: Draws) -> Array:
    """c-/c+ between 1.02 (1 - beta gamma) and 0.98."""
    low = 1.02 * drawn.incentive_bound
    return low + rng.uniform(0.0, 1.0, len(drawn)) * (0.98 - low)
