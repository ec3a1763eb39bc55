"""A credit ladder on real scores: the principal's objective and its search (C9).

Scores of 0 to 100 become attributes x0 of 0 to 10. Borrowers start at level 1. A design is the
reward of a level and the increments of the thresholds; its objective is ours, as the paper's was
not available:
    J = E over x0 of sum over t < T of alpha^t (attribute after effort - lambda gaming)
        - xi reward (L - 1).
"""

from dataclasses import dataclass

import numpy as np

from scripts.papers.strategic_ladder.ladder import Array, Ladders, ladders
from scripts.papers.strategic_ladder.solver import (
    HEADROOM,
    Paths,
    follow,
    grid_top,
    policy,
    solve,
)

CASES = {"I": (0.8, 0.7), "II": (1.5, 1.2), "III": (0.8, 0.4), "IV": (1.5, 0.4)}
"""Costs of improvement and of gaming: cheap or dear, hard or easy."""
BETA, GAMMA, DELTA = 0.8, 0.8, 0.01
ALPHA, XI, LAMBDA = 0.95, 0.01, 5.0
MOST_REWARD, MOST_TOP = 6.0, 12.0
POPULATION = 8
_LEAST = 1e-3  # least increment of a threshold


@dataclass(frozen=True)
class Scores:
    """Starting attributes with the weight of each (adding to 1), in all and by group."""

    x: Array
    weight: Array
    groups: dict[str, Array]
    people: int


@dataclass(frozen=True)
class Outcome:
    """What borrowers do under each design [B]."""

    objective: Array
    gaming_share: Array
    """Of all effort and gaming, summed over steps and borrowers; 1 where nobody improves."""


def unpack(designs: Array, levels: int) -> tuple[Array, list[Array]]:
    """Rewards [B] and thresholds of designs [B, L] in the unit box: reward, then increments."""
    box = np.clip(np.atleast_2d(designs), 0.0, 1.0)
    if box.shape[1] != levels:
        raise ValueError(f"designs: found {box.shape[1]} numbers, allowed: levels, {levels}")
    widest = 2 * MOST_TOP / (levels - 1)
    steps = _LEAST + box[:, 1:] * widest
    rising = np.concatenate([np.zeros((len(box), 1)), np.cumsum(steps, axis=1)], axis=1)
    return MOST_REWARD * box[:, 0], list(rising)


def borrowers(case: str, reward: Array, thresholds: list[Array]) -> Ladders:
    """Ladders of a cost case."""
    if case not in CASES:
        raise ValueError(f"case: found {case!r}, allowed: {', '.join(CASES)}")
    honest_cost, gaming_cost = CASES[case]
    return ladders(
        beta=BETA, gamma=GAMMA, delta=DELTA, honest_cost=honest_cost, gaming_cost=gaming_cost,
        thresholds=thresholds, reward=reward,
    )  # fmt: skip


def paths_of(batch: Ladders, start: Array, steps: int, nodes: int) -> Paths:
    """Paths of borrowers that start at level 1 with the attributes `start` [S]."""
    high = np.maximum(grid_top(batch), HEADROOM * start.max())
    solution = solve(batch, nodes, x_max=high, tolerance=1e-8)
    starts = np.broadcast_to(start, (len(batch), len(start)))
    return follow(batch, solution, policy(batch, solution), steps, starts)


def evaluate(
    case: str, designs: Array, levels: int, scores: Scores, steps: int, nodes: int
) -> Outcome:
    """Objective and gaming share of designs [B, L], all at once."""
    reward, thresholds = unpack(designs, levels)
    paths = paths_of(borrowers(case, reward, thresholds), scores.x, steps, nodes)
    discount = ALPHA ** np.arange(steps)
    gain = (paths.reached - LAMBDA * paths.gaming) @ discount @ scores.weight
    effort, gaming = (found.sum(axis=2) @ scores.weight for found in (paths.effort, paths.gaming))
    total = effort + gaming
    share = np.where(effort > 1e-9, gaming / np.maximum(total, 1e-300), 1.0)
    return Outcome(gain - XI * reward * (levels - 1), share)


@dataclass(frozen=True)
class Designed:
    """The designs tried for a case and a number of levels."""

    designs: Array
    objective: Array
    gaming_share: Array


def design(
    case: str, levels: int, scores: Scores, evaluations: int, seed: int, steps: int, nodes: int
) -> Designed:
    """CMA-ES over reward and increments, from the middle of the box, a population at a time."""
    import cma

    options = {"popsize": POPULATION, "seed": seed, "verbose": -9, "bounds": [0.0, 1.0]}
    strategy = cma.CMAEvolutionStrategy(np.full(levels, 0.4), 0.3, options)
    tried, objective, shares = [], [], []
    for _ in range(max(1, evaluations // POPULATION)):
        asked = strategy.ask()
        found = evaluate(case, np.array(asked), levels, scores, steps, nodes)
        strategy.tell(asked, list(-found.objective))
        tried += asked
        objective += found.objective.tolist()
        shares += found.gaming_share.tolist()
    return Designed(np.array(tried), np.array(objective), np.array(shares))


def polish(
    case: str, start: Array, scores: Scores, evaluations: int, steps: int, nodes: int
) -> tuple[Array, float]:
    """Nelder-Mead from a design, as a second optimiser; returns design and objective."""
    from scipy.optimize import minimize

    def loss(point: Array) -> float:
        return -float(evaluate(case, point[None], len(start), scores, steps, nodes).objective[0])

    bounds = [(0.0, 1.0)] * len(start)
    options = {"maxfev": evaluations, "xatol": 1e-4, "fatol": 1e-4}
    found = minimize(loss, start, method="Nelder-Mead", bounds=bounds, options=options)
    return found.x, -float(found.fun)
