"""Who can be made to improve at all: one-shot agents, the cost bound, its map (C1, C2)."""

from collections.abc import Mapping

import numpy as np

from scripts.papers.strategic_ladder import closed_forms, draws
from scripts.papers.strategic_ladder.designs import Agents, random_thresholds, spaced
from scripts.papers.strategic_ladder.draws import Draws
from scripts.papers.strategic_ladder.ladder import Array, Ladders, needs_cheaper_gaming
from scripts.papers.strategic_ladder.rows import Row, row
from scripts.papers.strategic_ladder.solver import climb, honest, policy, solve

MOST_LEVELS = 5
IMPROVES = 1e-4  # total effort that counts as improvement


def largest_effort(batch: Ladders, nodes: int) -> tuple[Array, int]:
    """Largest effort of the optimal policy at any state of each ladder [B]; states looked at."""
    solution = solve(batch, nodes)
    chosen = policy(batch, solution)
    grids = solution.grids
    effort = np.zeros(len(batch))
    for level in range(chosen.target.shape[1]):
        raised = np.take_along_axis(grids, chosen.target[:, level], axis=1) - grids
        effort = np.maximum(effort, np.where(level < batch.levels, raised.max(axis=1), 0.0))
    return effort, grids.shape[1]


def one_shot(rng: np.random.Generator, count: int, nodes: int) -> list[Row]:
    """C1: agents with beta = 0 and c- < c+."""
    drawn = draws.draw(rng, count, {})
    cost = rng.uniform(0.05, 0.999, count)
    needs_cheaper_gaming(1.0, cost)
    agents = drawn.agents(cost, draws.rewards(rng, count))
    agents = Agents(
        np.zeros(count), agents.gamma, agents.delta, agents.honest_cost, cost, agents.reward
    )
    tops = rng.uniform(0.2, 4.0, count)
    batch = agents.on([random_thresholds(rng, top, _levels(rng)) for top in tops])
    effort, states = largest_effort(batch, nodes)
    return [
        row("largest_effort", effort[at], states * batch.levels[at],
            **{**drawn.columns(at), "beta": 0.0}, gaming_cost=cost[at])
        for at in range(count)
    ]  # fmt: skip


def below_bound(
    rng: np.random.Generator, retention: Mapping[str, float], count: int, design: str, nodes: int
) -> list[Row]:
    """C2: c- at 0.98 of (1 - beta gamma) c+, random or steady ladders, large rewards too."""
    drawn = draws.draw(rng, count, retention)
    cost = 0.98 * drawn.incentive_bound
    agents = drawn.agents(cost, draws.rewards(rng, len(drawn)))
    levels = [_levels(rng) for _ in range(len(drawn))]
    highest = rng.uniform(0.5, 3.0, len(drawn)) * agents.step * np.array(levels)
    ladders = [
        spaced(step, size) if design == "steady" else random_thresholds(rng, top, size)
        for step, top, size in zip(agents.step, highest, levels, strict=True)
    ]
    batch = agents.on(ladders)
    effort, states = largest_effort(batch, nodes)
    return [
        row("largest_effort", effort[at], states * batch.levels[at], **drawn.columns(at),
            cost_ratio=0.98, cost_condition="met", gaming_cost=cost[at])
        for at in range(len(drawn))
    ]  # fmt: skip


def above_bound(
    rng: np.random.Generator,
    retention: Mapping[str, float],
    count: int,
    designs: int,
    nodes: int,
) -> list[Row]:
    """C2: c- at 1.02 of the bound; does a search over designs make the agent improve?"""
    drawn = draws.draw(rng, count, retention)
    cost = np.minimum(1.02 * drawn.incentive_bound, 0.999)
    found = improving(rng, drawn, cost, designs, nodes)[0]
    return [
        row("improvement_found", found[at].any(), designs, **drawn.columns(at),
            cost_ratio=1.02, cost_condition="unmet", gaming_cost=cost[at])
        for at in range(len(drawn))
    ]  # fmt: skip


def improving(
    rng: np.random.Generator, drawn: Draws, cost: Array, designs: int, nodes: int
) -> tuple[Array, Array]:
    """Which of the designs tried make each agent improve, and honest [B, designs].

    A third of the designs are aimed: two levels, whose threshold lies where the closed form of the
    lower cut-off puts honest regimes; the others are random in levels, thresholds and reward.
    """
    moved, clean = np.zeros((2, len(drawn), designs), dtype=bool)
    for number in range(designs):
        reward = draws.rewards(rng, len(drawn))
        agents = drawn.agents(cost, reward)
        if number % 3 == 0:
            cut = closed_forms.lower_cutoff(
                drawn.beta, drawn.gamma, 1.0, np.maximum(cost, drawn.incentive_bound), reward
            )
            above = rng.uniform(0.02, 0.9, len(drawn)) * cut
            tried = [np.array([0.0, at]) for at in agents.step + above]
        else:
            heights = np.exp(rng.uniform(np.log(0.2), np.log(6.0), len(drawn)))
            tried = [
                random_thresholds(rng, height * step, int(rng.integers(2, 4)))
                for height, step in zip(heights, agents.step, strict=True)
            ]
        batch = agents.on(tried)
        _, paths = climb(batch, nodes, tolerance=1e-8)
        moved[:, number] = paths.effort.sum(axis=2)[:, 0] > IMPROVES
        clean[:, number] = honest(batch, paths)[:, 0]
    return moved, clean


def cost_map(rng: np.random.Generator, cells: int, designs: int, nodes: int) -> list[Row]:
    """C2: share of designs that make an agent improve, over beta gamma and c-/c+.

    beta = gamma = sqrt(beta gamma) in a cell's centre. The boundary of a column is the lower edge
    of its lowest cell from which up every cell has an improving design.
    """
    centres = (np.arange(cells) + 0.5) / cells
    both, cost = (axis.ravel() for axis in np.meshgrid(centres, centres, indexing="ij"))
    drawn = Draws(np.sqrt(both), np.sqrt(both), np.full(len(both), 0.1), ["map"] * len(both))
    moved, clean = improving(rng, drawn, cost, designs, nodes)
    rows = []
    for at in range(len(both)):
        place = {
            "dataset": "map", "instance": at, "beta": drawn.beta[at], "gamma": drawn.gamma[at],
            "gaming_cost": cost[at],
        }  # fmt: skip
        rows.append(row("improving_share", moved[at].mean(), designs, **place))
        rows.append(row("honest_share", clean[at].mean(), designs, **place))
    some = moved.any(axis=1).reshape(cells, cells)
    for at, column in enumerate(some):
        lowest = cells - int(np.argmin(np.append(column[::-1], False)))
        line = (1 - centres[at]) * cells
        rows.append(
            row("boundary_offset", lowest - line, cells * designs, dataset="map", instance=at)
        )
    return rows


def _levels(rng: np.random.Generator) -> int:
    return int(rng.integers(2, MOST_LEVELS + 1))
