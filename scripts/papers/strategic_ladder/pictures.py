"""What the figures show of single agents: a policy map of two levels, climbs, borrowers' paths."""

import numpy as np
import pandas as pd

from scripts.papers.strategic_ladder import closed_forms, credit, two_levels
from scripts.papers.strategic_ladder.designs import Agents, spaced
from scripts.papers.strategic_ladder.ladder import Array
from scripts.papers.strategic_ladder.solver import climb, policy, solve

BETA, GAMMA, LEG_UP = 0.8, 0.8, 0.1
MAP_COST, MAP_REWARD, MAP_LEG_UPS, MAP_TOP = 0.6, 1.0, (0.0, 0.2), 7.0
MAP_THRESHOLDS, MAP_ATTRIBUTES = 140, 280
CLIMB = {  # label: reward over its bound, c-/c+
    "r = 1.05 x bound": (1.05, 0.7),
    "r = 0.95 x bound": (0.95, 0.7),
    "gaming too cheap": (1.05, 0.9 * (1 - BETA * GAMMA)),
}
CLIMB_LEVELS, CLIMB_STEPS = 9, 15
QUARTILES = (0.25, 0.5, 0.75)
BORROWER_STEPS = 30


def policy_map(nodes: int) -> pd.DataFrame:
    """Label of two_levels at attribute x under threshold mu, for two leg-ups."""
    tops = np.linspace(0.05, MAP_TOP, MAP_THRESHOLDS)
    x = np.linspace(0.0, MAP_TOP, MAP_ATTRIBUTES)
    full = np.ones(len(tops))
    frames = []
    for delta in MAP_LEG_UPS:
        agents = Agents(
            BETA * full, GAMMA * full, delta * full, full, MAP_COST * full, MAP_REWARD * full
        )
        batch = two_levels.two_level(agents, tops)
        solution = solve(batch, nodes)
        found = two_levels.labels(solution, policy(batch, solution))
        for mu, grid, kinds in zip(tops, solution.grids, found, strict=True):
            seen = kinds[np.clip(np.searchsorted(grid, x), 0, len(grid) - 1)]
            seen = np.where(x >= mu, two_levels.NONE, seen)
            frames.append(pd.DataFrame({"delta": delta, "mu": mu, "x": x, "label": seen}))
    return pd.concat(frames, ignore_index=True)


def climbs(nodes: int) -> pd.DataFrame:
    """Level and attribute over steps on a steady ladder, for the agents of CLIMB."""
    full = np.ones(len(CLIMB))
    ratio, cost = np.array(list(CLIMB.values())).T
    bound = closed_forms.reward_bound(BETA, GAMMA, LEG_UP, 1.0)
    agents = Agents(BETA * full, GAMMA * full, LEG_UP * full, full, cost, ratio * bound)
    batch = agents.on([spaced(step, CLIMB_LEVELS) for step in agents.step])
    _, paths = climb(batch, nodes)
    steps = np.arange(CLIMB_STEPS)
    frames = [
        pd.DataFrame(
            {
                "agent": name, "step": steps + 1, "level": paths.level[at, 0, steps] + 1,
                "attribute": paths.reached[at, 0, steps],
            }
        )
        for at, name in enumerate(CLIMB)
    ]  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def borrowers(
    case: str, reward: Array, thresholds: list[Array], scores: credit.Scores, nodes: int
) -> pd.DataFrame:
    """Attributes over steps of the borrowers at the quartiles of the scores, under one design."""
    below = np.cumsum(scores.weight)
    start = np.array([scores.x[np.searchsorted(below, share)] for share in QUARTILES])
    batch = credit.borrowers(case, reward, thresholds)
    reached = credit.paths_of(batch, start, BORROWER_STEPS, nodes).reached[0]
    frames = [
        pd.DataFrame(
            {
                "case": case, "share": share, "step": np.arange(BORROWER_STEPS + 1),
                "attribute": [first, *path],
            }
        )
        for share, first, path in zip(QUARTILES, start, reached, strict=True)
    ]  # fmt: skip
    return pd.concat(frames, ignore_index=True)
