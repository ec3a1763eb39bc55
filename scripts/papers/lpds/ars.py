"""Augmented random search (ARS-V2) of a linear policy: the HalfCheetah expert.

Mania, Guy and Recht, "Simple random search of static linear policies is competitive for
reinforcement learning" (2018): antithetic Gaussian directions, the best of them weighted by their
returns over the returns' standard deviation, states normalised by their running mean and deviation.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scripts.papers.lpds.tasks import Simulator


@dataclass(frozen=True)
class Search:
    """`directions` tried an iteration, `best` of them used; step size, noise, steps a roll-out."""

    directions: int = 8
    best: int = 8
    step: float = 0.03
    noise: float = 0.05
    horizon: int = 150


@dataclass(frozen=True)
class LinearPolicy:
    """action = clip(weights (observation - mean) / deviation), weights [A, O]."""

    weights: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    def act(self, observation: np.ndarray) -> np.ndarray:
        """An action [A]."""
        return (self.weights @ ((observation - self.mean) / self.deviation)).clip(-1, 1)


class _Moments:
    """Running mean and deviation of observations (Welford)."""

    def __init__(self, width: int) -> None:
        self.count, self.mean, self._squares = 0, np.zeros(width), np.zeros(width)

    def add(self, rows: np.ndarray) -> None:
        count, mean = len(rows), rows.mean(axis=0)
        total, shift = self.count + count, mean - self.mean
        self._squares += ((rows - mean) ** 2).sum(axis=0)
        self._squares += shift**2 * self.count * count / total
        self.mean = self.mean + shift * count / total
        self.count = total

    @property
    def deviation(self) -> np.ndarray:
        if self.count < 2:
            return np.ones_like(self.mean)
        return np.maximum(np.sqrt(self._squares / self.count), 1e-6)


def search(
    simulator: Simulator,
    settings: Search,
    iterations: int,
    rng: np.random.Generator,
    first_seed: int,
) -> Iterator[LinearPolicy]:
    """The policy after each iteration.

    Args:
        simulator: of the task.
        settings: of the search.
        iterations: how many; each takes 2 * directions roll-outs.
        rng: of the directions.
        first_seed: iteration i starts all its episodes from first_seed + i.
    """
    spec = simulator.spec
    weights, moments = np.zeros((spec.action, spec.observation)), _Moments(spec.observation)
    for iteration in range(iterations):
        mean, deviation = moments.mean.copy(), moments.deviation
        directions = rng.standard_normal((settings.directions, *weights.shape))
        returns = np.zeros((settings.directions, 2))
        for index, direction in enumerate(directions):
            for side, sign in enumerate((1, -1)):
                policy = LinearPolicy(weights + sign * settings.noise * direction, mean, deviation)
                returns[index, side], seen = _roll(
                    simulator, policy, settings.horizon, first_seed + iteration
                )
                moments.add(seen)
        chosen = np.argsort(-returns.max(axis=1), kind="stable")[: settings.best]
        used = returns[chosen]
        gain = np.tensordot(used[:, 0] - used[:, 1], directions[chosen], axes=1)
        weights = weights + settings.step / (settings.best * used.std() + 1e-8) * gain
        yield LinearPolicy(weights, moments.mean.copy(), moments.deviation)


def _roll(
    simulator: Simulator, policy: LinearPolicy, horizon: int, seed: int
) -> tuple[float, np.ndarray]:
    """Return of an episode and the observations seen."""
    observation, total, seen = simulator.reset(seed), 0.0, []
    for _ in range(horizon):
        seen.append(observation)
        step = simulator.step(policy.act(observation))
        observation, total = step.observation, total + step.reward
        if step.terminated or step.truncated:
            break
    return total, np.array(seen, dtype=float)
