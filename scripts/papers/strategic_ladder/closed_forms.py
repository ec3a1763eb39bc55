"""Closed forms of the theory: bounds on costs and rewards, cut-offs of two levels, values.

All take numbers or arrays that broadcast. s = delta / (1 - gamma) is the steady step: what the
leg-up of one level keeps up by itself. Sources: theorems of the paper where
named, else derived for this repository and tested against value iteration.
"""

import numpy as np
from numpy.typing import ArrayLike

from scripts.papers.strategic_ladder.ladder import Array


def incentive_bound(beta: ArrayLike, gamma: ArrayLike, honest_cost: ArrayLike) -> Array:
    """(1 - beta gamma) c+: at a gaming cost below it nobody ever improves (Proposition 2.1)."""
    return (1 - np.multiply(beta, gamma)) * honest_cost


def steady_step(gamma: ArrayLike, delta: ArrayLike) -> Array:
    """delta / (1 - gamma)."""
    return np.divide(delta, 1 - np.asarray(gamma))


def reward_bound(
    beta: ArrayLike, gamma: ArrayLike, delta: ArrayLike, honest_cost: ArrayLike
) -> Array:
    """(1 - beta) c+ s: least reward a level for which steady thresholds work (Thm 4.2)."""
    return (1 - np.asarray(beta)) * honest_cost * steady_step(gamma, delta)


def gaming_cost_bound(beta: ArrayLike, gamma: ArrayLike, honest_cost: ArrayLike) -> Array:
    """max{(1 + bg/2)(1 - bg), bg (1 - b bg)} c+ with bg = beta gamma (Theorem 4.2)."""
    both = np.multiply(beta, gamma)
    first, second = (1 + both / 2) * (1 - both), both * (1 - np.multiply(beta, both))
    return np.maximum(first, second) * honest_cost


def lower_cutoff(
    beta: ArrayLike, gamma: ArrayLike, honest_cost: ArrayLike, gaming_cost: ArrayLike,
    reward: ArrayLike,
) -> Array:  # fmt: skip
    """Smallest m = mu - s of two levels at which somebody games (the lower cut-off of Thm 3.2)."""
    beta = np.asarray(beta)
    saved = 1 - (1 - beta) / beta * (np.divide(honest_cost, gaming_cost) - 1)
    return np.divide(reward, (1 - np.asarray(gamma)) * honest_cost) * saved


def upper_cutoff(
    beta: ArrayLike, gamma: ArrayLike, honest_cost: ArrayLike, gaming_cost: ArrayLike,
    reward: ArrayLike,
) -> Array:  # fmt: skip
    """Largest m = mu - s of two levels with sustained improvement (the upper cut-off of Thm 3.2).

    Root in m of (r - c+ (1 - gamma) m) / (1 - beta)
        = max over k >= 1 of sum over i < k of beta^i [r - c- (1 - gamma^(i+1)) m]:
    keeping the level by effort is worth as much as gaming for k steps and then giving up.
    """
    parts = np.broadcast_arrays(beta, gamma, honest_cost, gaming_cost, reward)
    b, g, c, cheap, r = (np.asarray(part, dtype=np.float64)[..., None] for part in parts)
    steps = np.arange(max(2, int(np.ceil(np.log(1e-14) / np.log(max(b.max(), 1e-9))))))

    def gain(m: Array) -> Array:
        gamed = np.cumsum(b**steps * (r - cheap * (1 - g ** (steps + 1)) * m), axis=-1)
        kept = (r - c * (1 - g) * m) / (1 - b)
        return (kept - gamed.max(axis=-1, keepdims=True))[..., 0]

    low = np.zeros_like(b)
    high = r / ((1 - g) * c)  # where keeping the level by effort is worth nothing
    for _ in range(60):
        middle = (low + high) / 2
        good = gain(middle)[..., None] >= 0
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    return low[..., 0]


def cutoff_limit(gamma: ArrayLike, honest_cost: ArrayLike, reward: ArrayLike) -> Array:
    """r / ((1 - gamma) c+): what both cut-offs tend to as beta tends to 1."""
    return np.divide(reward, (1 - np.asarray(gamma)) * honest_cost)


def first_honest_threshold(
    beta: ArrayLike, gamma: ArrayLike, delta: ArrayLike, honest_cost: ArrayLike, reward: ArrayLike
) -> Array:
    """Highest threshold of two levels that an agent climbs honestly from nothing."""
    step = steady_step(gamma, delta)
    left = np.asarray(reward) - (1 - np.asarray(beta)) * honest_cost * step
    return step + left / incentive_bound(beta, gamma, honest_cost)


def steady_value(
    beta: float, gamma: float, delta: float, honest_cost: float, reward: float, levels: int
) -> float:
    """Value of climbing a steady ladder honestly from its bottom with nothing.

    Each of the L - 1 promotions costs c+ s once: the leg-up keeps up what was reached.
    """
    t = np.arange(levels - 1)
    cost = honest_cost * float(steady_step(gamma, delta))
    climb = np.sum(beta**t * (reward * (t + 1) - cost))
    return float(climb + beta ** (levels - 1) * reward * (levels - 1) / (1 - beta))


def bounded_attribute(
    beta: ArrayLike, gamma: ArrayLike, honest_cost: ArrayLike, reward: ArrayLike
) -> Array:
    """r / ((1 - beta)(1 - gamma)^2 c+): not to be kept honestly without a leg-up (Theorem 4.1)."""
    return bounded_attribute_tight(beta, gamma, honest_cost, reward) / (1 - np.asarray(gamma))


def bounded_attribute_tight(
    beta: ArrayLike, gamma: ArrayLike, honest_cost: ArrayLike, reward: ArrayLike
) -> Array:
    """r / ((1 - beta)(1 - gamma) c+), derived: giving up loses at most r / (1 - beta)^2."""
    slack = (1 - np.asarray(beta)) * (1 - np.asarray(gamma))
    return np.divide(reward, slack * honest_cost)


def levels_for(target: ArrayLike, gamma: ArrayLike, delta: ArrayLike) -> Array:
    """Levels of the steady ladder that reaches an attribute: ceil((1 - gamma) M / delta) + 1."""
    promotions = np.ceil(np.divide(target, steady_step(gamma, delta)) - 1e-9)
    return promotions.astype(int) + 1
