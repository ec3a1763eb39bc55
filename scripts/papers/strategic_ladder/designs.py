"""Threshold sequences a principal may choose: steady, equally spaced, random, greedy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scripts.papers.strategic_ladder import closed_forms
from scripts.papers.strategic_ladder.ladder import Array, Ladders, ladders
from scripts.papers.strategic_ladder.solver import climb, honest

BISECTIONS = 14
SAFETY = 0.999  # of a greedy step, so that the agent is not left indifferent


def spaced(step: float, levels: int) -> Array:
    """Thresholds 0, step, 2 step, ... [levels].

    Raises:
        ValueError: no level, or a step that is not above 0.
    """
    if levels < 1:
        raise ValueError(f"levels: found {levels}, allowed: at least 1")
    if levels > 1 and not (np.isfinite(step) and step > 0):
        raise ValueError(f"step: found {step:g}, allowed: a finite number above 0")
    return step * np.arange(levels)


def random_thresholds(rng: np.random.Generator, highest: float, levels: int) -> Array:
    """0 and levels - 1 sorted uniform draws below `highest`, strictly rising."""
    inner = np.sort(rng.uniform(0.0, highest, levels - 1))
    return np.concatenate([[0.0], inner + 1e-6 * highest * np.arange(1, levels)])


def chained(first: float, gamma: float, delta: float, levels: int) -> Array:
    """Thresholds that the leg-up carries an agent over: 0, first, then gamma mu_l + delta (l - 1).

    Who meets the first threshold by effort meets every other without acting; who games it meets
    none of them in time. This answers a question of ours, it is no design of the paper.

    Raises:
        ValueError: a first threshold that is not between 0 and delta / (1 - gamma).
    """
    if not 0 < first < delta / (1 - gamma):
        raise ValueError(f"first: found {first:g}, allowed: 0 < first < {delta / (1 - gamma):g}")
    found = [0.0, first]
    for level in range(1, levels - 1):
        found.append(gamma * found[-1] + delta * level)
    return np.array(found[:levels])


@dataclass(frozen=True)
class Agents:
    """B agents with their reward per level, before a ladder is chosen; each field is [B]."""

    beta: Array
    gamma: Array
    delta: Array
    honest_cost: Array
    gaming_cost: Array
    reward: Array

    def __len__(self) -> int:
        return len(self.beta)

    def pick(self, rows: NDArray) -> "Agents":
        return Agents(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def on(self, thresholds: list[Array]) -> Ladders:
        """These agents, each on its ladder."""
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return ladders(thresholds=thresholds, **columns)

    @property
    def step(self) -> Array:
        return closed_forms.steady_step(self.gamma, self.delta)


def greedy(agents: Agents, levels: int, nodes: int) -> list[Array]:
    """The greedy ladder of each agent: the next threshold is the highest still climbed honestly.

    A bisection (14 halvings) of all agents at once, level by level, then 0.999 of the step, but
    never less than the steady step, which is the limit. A ladder ends early where no honest step
    of at least 1e-4 of the first can be added.

    Args:
        levels: most levels of a ladder.
        nodes: uniform nodes of the solver's grid.

    Source: Theorem 5.1 as described; the paper's algorithm was not available.
    """
    if levels < 1:
        raise ValueError(f"levels: found {levels}, allowed: at least 1")
    found = [np.zeros(1) for _ in range(len(agents))]
    first = closed_forms.first_honest_threshold(
        agents.beta, agents.gamma, agents.delta, agents.honest_cost, agents.reward
    )
    # An increment beyond the first's closed form would be more than one promotion can pay for.
    most = np.maximum(1.2 * first, 1.2 * agents.step) + 1e-9
    going = np.arange(len(agents))
    for _ in range(levels - 1):
        going = going[[_extend(found, agents, most, going, nodes)][0]]
        if not len(going):
            break
    return found


def _extend(
    found: list[Array], agents: Agents, most: Array, going: NDArray, nodes: int
) -> NDArray[np.bool_]:
    """Append a threshold to the ladders `going`, in place; returns which could be extended."""
    some = agents.pick(going)

    def fine(steps: Array) -> NDArray[np.bool_]:
        tried = [
            np.append(found[at], found[at][-1] + step)
            for at, step in zip(going, steps, strict=True)
        ]
        batch = some.on(tried)
        return honest(batch, climb(batch, nodes, tolerance=1e-9)[1])[:, 0]

    low, high = np.zeros(len(going)), most[going]
    steady = some.step
    base = np.where(steady > 0, steady, 1e-4 * high)
    works = fine(base)
    low = np.where(works, base, 0.0)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        good = fine(middle)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    steps = np.maximum(SAFETY * low, np.where(works, base, 0.0))
    kept = steps >= 1e-4 * most[going]
    for at, step, keep in zip(going, steps, kept, strict=True):
        if keep:
            found[at] = np.append(found[at], found[at][-1] + step)
    return kept
