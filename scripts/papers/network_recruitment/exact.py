"""The exact Bellman recursion, on populations of finitely many types.

The state is the remaining budget with the frontier's multiset of types. An action is a multiset of
(type, coupons) pairs, coupons >= 1: people without coupons neither cost nor recruit. Its value and
the law of N depend on nothing else, so that actions are enumerated once for all states, and the
best action of a frontier is the best one whose people are a part of it. Many problems of one shape
(I: same budget, same number of types) are solved together.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from math import lgamma

import numpy as np
from numpy.typing import NDArray

from scripts.papers.network_recruitment.pmf import (
    Array,
    checked_budget,
    checked_discount,
    checked_pmfs,
    survival,
    truncated,
)

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """Frontiers and actions of a budget and a number of types."""

    types: int
    budget: int

    @cached_property
    def frontiers(self) -> Ints:
        """People by type in every frontier of at most `budget` people, [M, T], by size."""
        rows = [
            np.bincount(np.array(people, dtype=np.int64), minlength=self.types)
            for size in range(self.budget + 1)
            for people in combinations_with_replacement(range(self.types), size)
        ]
        return np.array(rows, dtype=np.int64)

    @cached_property
    def sizes(self) -> Ints:
        return self.frontiers.sum(axis=1)

    @cached_property
    def _index(self) -> dict[tuple[int, ...], int]:
        return {tuple(row): number for number, row in enumerate(self.frontiers.tolist())}

    def index(self, frontier: Ints) -> int:
        """Number of a frontier given by people per type."""
        return self._index[tuple(int(count) for count in frontier)]

    @cached_property
    def smaller(self) -> Ints:
        """Per frontier and type, the frontier with one person less; itself if there is none."""
        out = np.tile(np.arange(len(self.frontiers))[:, None], (1, self.types))
        for number, row in enumerate(self.frontiers.tolist()):
            for kind in range(self.types):
                if row[kind]:
                    less = list(row)
                    less[kind] -= 1
                    out[number, kind] = self._index[tuple(less)]
        return out

    @cached_property
    def actions(self) -> list[tuple[tuple[int, int], ...]]:
        """Every multiset of (type, coupons) with at most `budget` coupons, the empty one first."""
        out: list[tuple[tuple[int, int], ...]] = []
        kinds = [(kind, k) for kind in range(self.types) for k in range(1, self.budget + 1)]

        def extend(chosen: tuple[tuple[int, int], ...], first: int, left: int) -> None:
            out.append(chosen)
            for number in range(first, len(kinds)):
                if kinds[number][1] <= left:
                    extend((*chosen, kinds[number]), number, left - kinds[number][1])

        extend((), 0, self.budget)
        return sorted(out, key=lambda action: (sum(k for _, k in action), action))

    @cached_property
    def spent(self) -> Ints:
        """Coupons of each action, [A]."""
        return np.array([sum(k for _, k in action) for action in self.actions], dtype=np.int64)

    @cached_property
    def users(self) -> Ints:
        """The frontier of the people whom an action gives coupons, [A]."""
        rows = [
            np.bincount(np.array([kind for kind, _ in action], dtype=int), minlength=self.types)
            for action in self.actions
        ]
        return np.array([self.index(row) for row in rows], dtype=np.int64)

    @cached_property
    def parents(self) -> tuple[Ints, Ints, Ints]:
        """Each action but the first as a smaller one and a person: (parent, type, coupons)."""
        numbers = {action: number for number, action in enumerate(self.actions)}
        rows = [(numbers[action[:-1]], *action[-1]) for action in self.actions[1:]]
        return tuple(np.array(rows, dtype=np.int64).reshape(-1, 3).T)

    def reachable(self, start: int) -> int:
        """States (r, frontier) met from a full budget with a frontier of `start` people."""
        first = sum(int(size == start) for size in self.sizes)
        later = sum(int((self.sizes <= spent).sum()) for spent in range(1, self.budget + 1))
        return first + later

    def work(self) -> int:
        """Action values and frontier maxima that one solution computes."""
        valued = sum(int((self.spent <= r).sum()) for r in range(1, self.budget + 1))
        return valued + self.budget * len(self.frontiers) * self.types


@dataclass(frozen=True)
class Problem:
    """Problems of one shape: the true types, their shares, the discount.

    Raises:
        ValueError: a negative budget, no distributions or shares, a γ outside [0, 1), or arrays
            that do not fit the shape.
    """

    shape: Shape
    pmfs: Array  # [I, T, K]
    weights: Array  # [I, T]
    discount: Array  # [I]

    def __post_init__(self) -> None:
        checked_budget(self.shape.budget)
        cases = (len(self.discount), self.shape.types)
        for name, shape in (("pmfs", self.pmfs.shape[:2]), ("weights", self.weights.shape)):
            if shape != cases:
                raise ValueError(f"{name} has the shape {shape}; allowed: {cases} (cases, types)")
        checked_pmfs(self.pmfs)
        checked_pmfs(self.weights, "weights")
        for discount in self.discount:
            checked_discount(float(discount))

    @cached_property
    def action_values(self) -> tuple[Array, Array]:
        """Expected recruits of each action [I, A] and the law of N [I, A, budget + 1]."""
        return action_values(self.shape, self.pmfs)

    @cached_property
    def composition(self) -> Array:
        """Chance of each frontier among those of its size, [I, M] (multinomial)."""
        counts = self.shape.frontiers
        log_ways = np.array(
            [lgamma(row.sum() + 1) - sum(lgamma(c + 1) for c in row) for row in counts]
        )
        chance = np.prod(self.weights[:, None, :] ** counts, axis=-1)
        return np.exp(log_ways) * chance

    def by_size(self, values: Array) -> Array:
        """Mean value of a fresh frontier of each size: [I, M] -> [I, budget + 1]."""
        sizes = self.shape.sizes[:, None] == np.arange(self.shape.budget + 1)
        return (values * self.composition) @ sizes.astype(np.float64)


def action_values(shape: Shape, pmfs: Array) -> tuple[Array, Array]:
    """Expected recruits [I, A] and law of N [I, A, budget + 1] of actions of types [I, T, K]."""
    budget = checked_budget(shape.budget)
    gains = np.cumsum(survival(pmfs, budget), axis=-1)
    laws = truncated(pmfs, budget)
    values = np.zeros((len(pmfs), len(shape.actions)))
    counts = np.zeros((len(pmfs), len(shape.actions), budget + 1))
    counts[:, 0, 0] = 1.0
    parent, kind, coupons = shape.parents
    people = np.array([len(action) for action in shape.actions])
    for size in range(1, budget + 1):  # actions of one person more, all at once
        new = np.flatnonzero(people == size)
        old, which, given = parent[new - 1], kind[new - 1], coupons[new - 1]
        values[:, new] = values[:, old] + gains[:, which, given - 1]
        for recruits in range(budget + 1):
            share = laws[:, which, given, recruits][..., None]
            counts[:, new, recruits:] += share * counts[:, old, : budget + 1 - recruits]
    return values, counts


def solve(problem: Problem) -> tuple[Array, Array]:
    """Optimal values over all allocations.

    Returns:
        V(r, frontier) [I, budget + 1, M], and its mean over fresh frontiers W(r, m)
        [I, budget + 1, budget + 1].
    """
    shape = problem.shape
    value, law = problem.action_values
    best = np.zeros((len(value), shape.budget + 1, len(shape.frontiers)))
    mean = np.zeros((len(value), shape.budget + 1, shape.budget + 1))
    for r in range(1, shape.budget + 1):
        count = int((shape.spent <= r).sum())  # actions are sorted by coupons
        scores = value[:, :count] + problem.discount[:, None] * _later(law, mean, shape, r, count)
        row = np.zeros((len(value), len(shape.frontiers)))
        np.maximum.at(row.T, shape.users[:count], scores.T)
        best[:, r] = _over_parts(shape, row)
        mean[:, r] = problem.by_size(best[:, r])
    return best, mean


def _later(law: Array, mean: Array, shape: Shape, r: int, count: int) -> Array:
    """E W(r - s, N) of the first `count` actions, [I, count]."""
    return np.einsum("iam,iam->ia", law[:, :count], mean[:, r - shape.spent[:count]])


def _over_parts(shape: Shape, row: Array) -> Array:
    """The largest entry over all parts of each frontier."""
    for size in range(1, shape.budget + 1):
        new = np.flatnonzero(shape.sizes == size)
        for kind in range(shape.types):
            row[:, new] = np.maximum(row[:, new], row[:, shape.smaller[new, kind]])
    return row


def evaluate(problem: Problem, policy: Ints) -> tuple[Array, Array]:
    """Values of a policy: the action of each (r, frontier), [I, budget + 1, M].

    Returns:
        as `solve`.
    """
    shape = problem.shape
    value, law = problem.action_values
    worth = np.zeros((len(value), shape.budget + 1, len(shape.frontiers)))
    mean = np.zeros((len(value), shape.budget + 1, shape.budget + 1))
    each = np.arange(len(value))[:, None]
    for r in range(1, shape.budget + 1):
        action = policy[:, r]
        future = mean[each, r - shape.spent[action]]
        later = (law[each, action] * future).sum(axis=-1)
        worth[:, r] = value[each, action] + problem.discount[:, None] * later
        mean[:, r] = problem.by_size(worth[:, r])
    return worth, mean
