"""Recruiting in rounds: in the model, where the planner is right, and on a graph, where it is not.

All replicates run side by side. What a replicate draws depends on the replicate alone, not on the
policy: policies are compared on common random numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scripts.papers.network_recruitment.network import Network
from scripts.papers.network_recruitment.people import Types
from scripts.papers.network_recruitment.pmf import Array, checked_budget
from scripts.papers.network_recruitment.policies import Policy

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Outcome:
    """What each replicate recruited."""

    recruits: Ints  # by round, [R, rounds]; the seeds are not counted
    left: Ints  # coupons never given, [R]

    def discounted(self, discount: float) -> Array:
        """sum_t γ^(t-1) N_t, [R]."""
        return self.recruits @ discount ** np.arange(self.recruits.shape[1])


@dataclass(frozen=True)
class ModelDraws:
    """Uniform numbers by replicate, round and slot of the frontier, [R, rounds, slots] each."""

    kinds: Array
    recruits: Array
    policy: Array  # [R, rounds, budget]

    @classmethod
    def draw(
        cls, rng: np.random.Generator, replicates: int, budget: int, start: int
    ) -> "ModelDraws":
        shape = (replicates, budget, max(budget, start))
        return cls(rng.random(shape), rng.random(shape), rng.random((replicates, budget, budget)))

    def first(self, count: int) -> "ModelDraws":
        """Those of the first replicates."""
        return ModelDraws(*(value[:count] for value in vars(self).values()))


@dataclass(frozen=True)
class GraphDraws:
    """Uniform numbers by replicate and node."""

    seeds: Array  # who starts, [R, nodes]
    order: Array  # in which order a frontier is visited, [R, nodes]
    preference: Array  # whom a person would recruit first, [R, nodes, largest degree]
    policy: Array  # [R, rounds, budget]

    @classmethod
    def draw(
        cls, rng: np.random.Generator, replicates: int, budget: int, network: Network
    ) -> "GraphDraws":
        nodes, width = network.neighbours.shape
        return cls(
            rng.random((replicates, nodes)),
            rng.random((replicates, nodes)),
            rng.random((replicates, nodes, width), dtype=np.float32),
            rng.random((replicates, budget, budget)),
        )

    def first(self, count: int) -> "GraphDraws":
        """Those of the first replicates."""
        return GraphDraws(*(value[:count] for value in vars(self).values()))


def sampled(pmfs: Array, kinds: Ints, uniform: Array) -> Ints:
    """X by the inverse of the distribution function of each person's type."""
    cumulative = np.minimum(np.cumsum(pmfs, axis=-1)[..., :-1], 1.0)
    return (uniform[..., None] >= cumulative[kinds]).sum(axis=-1)


def in_model(policy: Policy, types: Types, budget: int, start: int, draws: ModelDraws) -> Outcome:
    """Recruit where everybody is a fresh draw of the population and X follows the type.

    Raises:
        ValueError: a negative budget, or `start` below 1.
    """
    budget = checked_budget(budget)
    if start < 1:
        raise ValueError(f"start is {start}; allowed: at least 1 person")
    replicates = len(draws.kinds)

    def uniform(rows: Ints, turn: int, width: int) -> tuple[Array, Array, Array]:
        frontier = draws.kinds[rows, turn, :width], draws.recruits[rows, turn, :width]
        return *frontier, draws.policy[rows, turn]

    size, left = np.full(replicates, start), np.full(replicates, budget)
    return model_rounds(policy, types, size, left, uniform)


def model_rounds(
    policy: Policy,
    types: Types,
    size: Ints,
    left: Ints,
    uniform: Callable[[Ints, int, int], tuple[Array, Array, Array]],
) -> Outcome:
    """Rounds in the model from fresh frontiers of given sizes [R] with given coupons left [R].

    `uniform(rows, turn, width)` gives the uniform numbers of a round: for types and for recruits
    [rows, width] each, and for the policy [rows, any].
    """
    nobody = len(types.weights)
    padded = np.concatenate([types.pmfs, np.eye(1, types.pmfs.shape[1])])
    bounds = np.minimum(np.cumsum(types.weights)[:-1], 1.0)
    size, left = size.copy(), left.copy()
    recruits = np.zeros((len(size), int(left.max(initial=0))), dtype=np.int64)
    rows = np.flatnonzero((size > 0) & (left > 0))
    for turn in range(recruits.shape[1]):
        if not len(rows):
            break
        width = int(size[rows].max())
        for_kinds, for_recruits, for_policy = uniform(rows, turn, width)
        kinds = np.searchsorted(bounds, for_kinds, side="right")
        kinds = np.where(np.arange(width) < size[rows, None], kinds, nobody)
        coupons = policy(kinds, left[rows], for_policy)
        new = np.minimum(coupons, sampled(padded, kinds, for_recruits)).sum(axis=1)
        spent = coupons.sum(axis=1)
        recruits[rows, turn], size[rows] = new, new
        left[rows] -= spent
        rows = rows[(spent > 0) & (new > 0) & (left[rows] > 0)]
    return Outcome(recruits, left)


def on_graph(
    policy: Policy, network: Network, types: Types, budget: int, start: int, draws: GraphDraws
) -> Outcome:
    """Recruit neighbours who are not yet in, each at most once; given coupons are spent.

    A recruited person's type is number T + t: D of type t without the recruiter, who is taken.

    Raises:
        ValueError: a negative budget, or a `start` below 1 or above the number of people.
    """
    budget = checked_budget(budget)
    if not 1 <= start <= network.nodes:
        raise ValueError(f"start is {start}; allowed: 1 to {network.nodes} people")
    replicates = len(draws.seeds)
    base, nobody = len(types.weights), 2 * len(types.weights)
    seeds = np.argsort(draws.seeds, axis=1, kind="stable")[:, :start]
    frontier = _visited(seeds, draws.order)
    inside = np.zeros((replicates, network.nodes + 1), dtype=bool)  # the last column: padding
    inside[:, -1] = True
    np.put_along_axis(inside, seeds, True, axis=1)
    recruits = np.zeros((replicates, budget), dtype=np.int64)
    left = np.full(replicates, budget)
    rows = np.arange(replicates)
    for turn in range(budget):
        kinds = np.where(frontier < 0, nobody, types.kinds[frontier] + (base if turn else 0))
        coupons = policy(kinds, left[rows], draws.policy[rows, turn])
        new = _recruit(network, frontier, coupons, inside, rows, draws.preference)
        spent, found = coupons.sum(axis=1), (new >= 0).sum(axis=1)
        recruits[rows, turn] = found
        left[rows] -= spent
        going = (spent > 0) & (found > 0) & (left[rows] > 0)
        rows = rows[going]
        if not len(rows):
            break
        frontier = _visited(new[going], draws.order[rows])
    return Outcome(recruits, left)


def _visited(people: Ints, order: Array) -> Ints:
    """People [B, n] (padded with -1) in the order in which they are visited, padding cut off."""
    keys = np.where(people < 0, np.inf, np.take_along_axis(order, np.maximum(people, 0), axis=1))
    rank = np.argsort(keys, axis=1, kind="stable")
    width = int((people >= 0).sum(axis=1).max(initial=0))
    return np.take_along_axis(people, rank, axis=1)[:, :width]


def _recruit(
    network: Network, frontier: Ints, coupons: Ints, inside: NDArray, rows: Ints, preference: Array
) -> Ints:
    """Who comes in, [B, any], padded with -1; marks them in `inside`."""
    found = []
    for place in range(frontier.shape[1]):
        active = np.flatnonzero((frontier[:, place] >= 0) & (coupons[:, place] > 0))
        person, row = frontier[active, place], rows[active]
        near = network.neighbours[person]
        free = ~inside[row[:, None], near]  # -1 is the column of padding
        keys = np.where(free, preference[row, person], np.inf)
        rank = np.argsort(keys, axis=1, kind="stable")
        wanted = np.minimum(coupons[active, place], free.sum(axis=1))
        taken = np.arange(near.shape[1]) < wanted[:, None]
        chosen = np.where(taken, np.take_along_axis(near, rank, axis=1), -1)
        width = int(wanted.max(initial=0))
        column = np.full((len(frontier), width), -1, dtype=np.int64)
        column[active] = chosen[:, :width]
        inside[np.repeat(row, wanted), chosen[taken]] = True
        found.append(column)
    return np.concatenate(found, axis=1)
