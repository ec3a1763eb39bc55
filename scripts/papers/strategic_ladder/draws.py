"""Random agents, and agents whose retention comes from a real ladder."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scripts.papers.strategic_ladder import closed_forms
from scripts.papers.strategic_ladder.designs import Agents
from scripts.papers.strategic_ladder.ladder import Array

DRAWN = "draws"
RANGE = (0.3, 0.95)  # of beta and gamma
LEG_UP = (0.02, 0.3)  # of delta
REWARD = (0.05, 3.0)  # of r, log-uniform
CALIBRATED = 5  # one calibrated agent for so many drawn ones, of each real ladder


@dataclass(frozen=True)
class Draws:
    """Agents without costs or rewards (c+ = 1), each with the name of its source."""

    beta: Array
    gamma: Array
    delta: Array
    dataset: list[str]

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def reward_bound(self) -> Array:
        return closed_forms.reward_bound(self.beta, self.gamma, self.delta, 1.0)

    @property
    def incentive_bound(self) -> Array:
        return closed_forms.incentive_bound(self.beta, self.gamma, 1.0)

    @property
    def gaming_cost_bound(self) -> Array:
        return closed_forms.gaming_cost_bound(self.beta, self.gamma, 1.0)

    def agents(self, gaming_cost: Array, reward: Array, honest_cost: float = 1.0) -> Agents:
        full = np.full(len(self), honest_cost)
        return Agents(self.beta, self.gamma, self.delta, full, gaming_cost, reward)

    def columns(self, at: int) -> dict[str, object]:
        """What names an agent in the metrics."""
        return {
            "instance": at,
            "dataset": self.dataset[at],
            "beta": self.beta[at],
            "gamma": self.gamma[at],
            "delta": self.delta[at],
        }


def draw(rng: np.random.Generator, count: int, retention: Mapping[str, float]) -> Draws:
    """`count` random agents, and one in five more with each retention of a real ladder."""
    each = -(-count // CALIBRATED)
    total = count + each * len(retention)
    beta, gamma = rng.uniform(*RANGE, (2, total))
    delta = rng.uniform(*LEG_UP, total)
    names = [DRAWN] * count
    for name, value in retention.items():
        gamma[len(names) : len(names) + each] = value
        names += [name] * each
    return Draws(beta, gamma, delta, names)


def rewards(rng: np.random.Generator, count: int) -> Array:
    """Log-uniform rewards per level."""
    low, high = REWARD
    return np.exp(rng.uniform(np.log(low), np.log(high), count))
