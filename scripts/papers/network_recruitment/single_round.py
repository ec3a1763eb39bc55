"""One round: greedy on survival probabilities, its exhaustive check, and its robustness bound."""

from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from scripts.papers.network_recruitment.pmf import Array, checked_budget, survival

Coupons = NDArray[np.int64]


def greedy(levels: Array, budget: int) -> Coupons:
    """Coupons of each person when each goes where the next recruit is likeliest (Theorem 4.2).

    The s largest entries of p_i(l), since rows never increase; ties go to the lowest index.

    Args:
        levels: p_i(l) = P(X_i >= l), l = 1.., [..., n, L].
        budget: coupons of the round; those beyond n L are spent on person 0, who cannot use them.

    Returns:
        Coupons k [..., n], summing to the budget (all zero when there is nobody).

    Raises:
        ValueError: a negative budget.
    """
    budget = checked_budget(budget)
    people, length = levels.shape[-2:]
    flat = levels.reshape(*levels.shape[:-2], people * length)
    chosen = np.argsort(-flat, axis=-1, kind="stable")[..., :budget] // length
    coupons = (chosen[..., None, :] == np.arange(people)[:, None]).sum(axis=-1)
    if people:
        coupons[..., 0] += budget - chosen.shape[-1]
    return coupons


def round_value(levels: Array, coupons: Coupons) -> Array:
    """Expected recruits of a round, sum_i sum_{l <= k_i} p_i(l): [..., n, L], [..., n] -> [...]."""
    steps = np.concatenate([np.zeros((*levels.shape[:-1], 1)), levels.cumsum(axis=-1)], axis=-1)
    capped = np.minimum(coupons, levels.shape[-1])
    return np.take_along_axis(steps, capped[..., None], axis=-1)[..., 0].sum(axis=-1)


@cache
def allocations(people: int, budget: int) -> Coupons:
    """Every way to give exactly `budget` coupons to `people`, [A, people]."""
    if people == 0:
        return np.zeros((1 if budget == 0 else 0, 0), dtype=np.int64)
    bars = np.array(list(combinations(range(budget + people - 1), people - 1)), dtype=np.int64)
    edges = np.pad(bars, ((0, 0), (1, 1)), constant_values=-1)
    edges[:, -1] = budget + people - 1
    return np.diff(edges, axis=1) - 1


def best_value(levels: Array, budget: int) -> Array:
    """The largest round value over all allocations, by enumeration: [..., n, L] -> [...]."""
    every = allocations(levels.shape[-2], budget)
    return round_value(levels[..., None, :, :], every).max(axis=-1)


def misled_loss(true: Array, believed: Array, budget: int) -> tuple[Array, Array]:
    """Loss of greedy on believed survival, and its bound sum_i sum_{l<=s} |p - p^| (Prop. 7.1).

    The loss equals what greedy forgoes: where it differs from the best allocation it prefers
    entries that it believes larger, so each exchange loses at most the two errors.

    Args:
        true, believed: survival probabilities [..., n, L], L >= budget.
        budget: coupons of the round.
    """
    kept = round_value(true, greedy(believed, budget))
    best = round_value(true, greedy(true, budget))
    bound = np.abs(true - believed)[..., :budget].sum(axis=(-2, -1))
    return best - kept, bound


def tight_instance(budget: int) -> tuple[Array, Array]:
    """Two people of whom X is 0 or s: .5 and .8, both believed .65; loss = bound = .3 s."""
    pmfs = np.zeros((3, budget + 1))
    pmfs[:, budget] = (0.5, 0.8, 0.65)
    pmfs[:, 0] = 1 - pmfs[:, budget]
    levels = survival(pmfs, budget)
    return levels[:2], levels[[2, 2]]
