"""Search for thresholds that are climbed honestly where the theory says there are none (C4b).

The search finds some. They are of one kind, whose thresholds the leg-up itself carries the agent
over (`designs.chained`); `chained_rows` measures it in pure form. Designs whose last threshold is
no lower than the steady ladder's are counted apart: the argument for the reward bound, that a
promotion between steady attributes costs c+ delta/(1 - gamma), holds for those.
"""

from dataclasses import dataclass

import numpy as np

from scripts.papers.strategic_ladder.designs import Agents, chained
from scripts.papers.strategic_ladder.draws import Draws
from scripts.papers.strategic_ladder.ladder import Array
from scripts.papers.strategic_ladder.rows import Row, row
from scripts.papers.strategic_ladder.solver import climb, honest

MOST_LEVELS = 6
POPULATION = 8
CHAIN_RATIOS, CHAIN_LEVELS, CHAIN_FIRST = (0.1, 0.5, 0.9), 10, 0.02  # the last over the steady step
_LOW, _HIGH = np.log(0.05), np.log(6.0)  # of an increment over the steady step


@dataclass(frozen=True)
class Found:
    """What the search for one agent found."""

    tried: int
    honest: int
    """Designs still honest when solved again on a grid four times as fine."""
    tried_high: int
    """Designs whose last threshold is no lower than that of the steady ladder."""
    honest_high: int
    violation: float
    """Least, over designs: gaming over mu_L, plus levels missed, plus attribute missed."""
    thresholds: Array


def violations(agents: Agents, tried: list[Array], nodes: int) -> tuple[Array, Array]:
    """How far each agent's path is from honest (0: honest), and whether it is."""
    batch = agents.on(tried)
    _, paths = climb(batch, nodes, tolerance=1e-9)
    top = batch.top
    gamed = paths.gaming.sum(axis=2)[:, 0] / top
    missed = 1 - paths.level[:, 0, -1] / (batch.levels - 1)
    short = np.maximum(0.0, 1 - paths.reached[:, 0, -1] / top)
    return gamed + missed + short, honest(batch, paths)[:, 0]


def search(
    agents: Agents, rng: np.random.Generator, random: int, evolved: int, nodes: int
) -> list[Found]:
    """Random designs of 2 to 6 levels, then CMA-ES from the best of them, for each agent.

    Args:
        random: random designs per agent; increments log-uniform between 0.05 and 6 steady steps.
        evolved: further designs per agent, by CMA-ES on the logarithms of the increments.
    """
    return [
        _search(agents.pick(np.array([at])), rng, random, evolved, nodes)
        for at in range(len(agents))
    ]


def _search(
    agent: Agents, rng: np.random.Generator, random: int, evolved: int, nodes: int
) -> Found:
    import cma

    step = float(agent.step[0])
    best: tuple[float, Array] = (np.inf, np.zeros(1))
    suspects: list[Array] = []
    tried = tried_high = 0

    def high(design: Array) -> bool:
        return bool(design[-1] >= step * (len(design) - 1))

    def losses(logs: list[Array]) -> Array:
        nonlocal best, tried, tried_high
        designs = [np.concatenate([[0.0], np.cumsum(step * np.exp(row))]) for row in logs]
        many = agent.pick(np.zeros(len(designs), dtype=int))
        loss, good = violations(many, designs, nodes)
        suspects.extend(design for design, fine in zip(designs, good, strict=True) if fine)
        tried += len(designs)
        tried_high += sum(map(high, designs))
        at = int(np.argmin(loss))
        if loss[at] < best[0]:
            best = float(loss[at]), designs[at]
        return loss

    logs = [rng.uniform(_LOW, _HIGH, rng.integers(1, MOST_LEVELS)) for _ in range(random)]
    loss = losses(logs)
    start = logs[int(np.argmin(loss))]
    for generation in range(max(1, evolved // (2 * POPULATION))):  # two restarts share the budget
        if generation == 0:
            starts = [start, rng.uniform(_LOW, _HIGH, MOST_LEVELS - 1)]
            runs = [_strategy(cma, first, rng) for first in starts]
        for run in runs:
            asked = run.ask()
            run.tell(asked, list(losses([np.clip(row, _LOW, _HIGH) for row in asked])))
    sure: list[Array] = []
    if suspects:
        many = agent.pick(np.zeros(len(suspects), dtype=int))
        good = violations(many, suspects, 4 * nodes)[1]
        sure = [design for design, fine in zip(suspects, good, strict=True) if fine]
    return Found(tried, len(sure), tried_high, sum(map(high, sure)), *best)


def _strategy(cma: object, start: Array, rng: np.random.Generator) -> object:
    """CMA-ES with a seed of its own."""
    options = {
        "popsize": POPULATION, "seed": int(rng.integers(1, 2**31)), "verbose": -9,
        "bounds": [_LOW, _HIGH],
    }  # fmt: skip
    return cma.CMAEvolutionStrategy(start, 0.3 * (_HIGH - _LOW), options)


def chained_rows(drawn: Draws, cost: Array, nodes: int) -> list[Row]:
    """Whether chained ladders of ten levels are honest far below the reward bound."""
    rows = []
    for ratio in CHAIN_RATIOS:
        agents = drawn.agents(cost, ratio * drawn.reward_bound)
        ladders = [
            chained(CHAIN_FIRST * step, gamma, delta, CHAIN_LEVELS)
            for step, gamma, delta in zip(agents.step, agents.gamma, agents.delta, strict=True)
        ]
        batch = agents.on(ladders)
        _, paths = climb(batch, nodes)
        good = honest(batch, paths)[:, 0]
        rows += [
            row("honest", good[at], paths.reached.shape[2], **drawn.columns(at), design="chained",
                profile="linear", levels=CHAIN_LEVELS, gaming_cost=cost[at], reward_ratio=ratio,
                cost_condition="met", reward_condition="unmet")
            for at in range(len(batch))
        ]  # fmt: skip
    return rows
