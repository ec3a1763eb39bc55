"""Search for thresholds that are climbed honestly where the theory says there are none (C4b)."""

from dataclasses import dataclass

import numpy as np

from scripts.papers.strategic_ladder.designs import Agents
from scripts.papers.strategic_ladder.ladder import Array
from scripts.papers.strategic_ladder.solver import climb, honest

MOST_LEVELS = 6
NEAR = 0.02  # a violation below this is a near miss
POPULATION = 8
_LOW, _HIGH = np.log(0.05), np.log(6.0)  # of an increment over the steady step


@dataclass(frozen=True)
class Found:
    """What the search for one agent found."""

    tried: int
    honest: int
    """Designs still honest when solved again on a grid four times as fine."""
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
    tried = 0

    def losses(logs: list[Array]) -> Array:
        nonlocal best, tried
        designs = [np.concatenate([[0.0], np.cumsum(step * np.exp(row))]) for row in logs]
        many = agent.pick(np.zeros(len(designs), dtype=int))
        loss, good = violations(many, designs, nodes)
        suspects.extend(design for design, fine in zip(designs, good, strict=True) if fine)
        tried += len(designs)
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
    again = 0
    if suspects:
        many = agent.pick(np.zeros(len(suspects), dtype=int))
        again = int(violations(many, suspects, 4 * nodes)[1].sum())
    return Found(tried, again, *best)


def _strategy(cma: object, start: Array, rng: np.random.Generator) -> object:
    """CMA-ES with its own seed; in one dimension a constant second coordinate is not needed."""
    options = {
        "popsize": POPULATION, "seed": int(rng.integers(1, 2**31)), "verbose": -9,
        "bounds": [_LOW, _HIGH],
    }  # fmt: skip
    return cma.CMAEvolutionStrategy(start, 0.3 * (_HIGH - _LOW), options)
