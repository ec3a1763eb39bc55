"""Policies: how many coupons each person of a frontier gets. Many frontiers at once.

A policy is called with the types of the frontiers [B, n] (padded with `nobody`), the coupons left
[B] and uniform numbers [B, budget] for its own randomness, and returns coupons [B, n].
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from scripts.papers.network_recruitment.planner import Planner
from scripts.papers.network_recruitment.pmf import Array

Ints = NDArray[np.int64]
Policy = Callable[[Ints, Ints, Array], Ints]
SPLITS = ("greedy", "even", "random")


@dataclass(frozen=True)
class Known:
    """What every policy is given: types' pmfs and the whole budget."""

    planner: Planner
    budget: int

    @property
    def nobody(self) -> int:
        return self.planner.types


def const(known: Known, each: int) -> Policy:
    """Const(k): each person in order gets min(k, what is left).

    Raises:
        ValueError: `each` below 1.
    """
    if each < 1:
        raise ValueError(f"each is {each}; allowed: at least 1 coupon")

    def decide(kinds: Ints, left: Ints, _: Array) -> Ints:
        place = np.cumsum(kinds != known.nobody, axis=1) - 1
        coupons = np.clip(left[:, None] - each * place, 0, each)
        return np.where(kinds != known.nobody, coupons, 0)

    return decide


def greedy_share(known: Known, share: float) -> Policy:
    """Greedy(α): a round budget of floor(α b), split greedily.

    Raises:
        ValueError: a share outside (0, 1].
    """
    round_budget = floor(_checked_share(share) * known.budget + 1e-9)
    return _greedy(known, lambda left: np.minimum(left, round_budget))


def greedy_remainder(known: Known, share: float, rounding: str = "floor") -> Policy:
    """GreedyRemainder(α): the share α of what is left, split greedily.

    Rounded down, as released, it never spends the last 1/α - 1 coupons; `ceil` spends them.

    Raises:
        ValueError: an unknown rounding, or a share outside (0, 1].
    """
    if rounding not in ("floor", "ceil"):
        raise ValueError(f"rounding is {rounding!r}; allowed: floor, ceil")
    share = _checked_share(share)
    step = {"floor": floor, "ceil": ceil}[rounding]
    slack = 1e-9 if rounding == "floor" else -1e-9  # 0.1 * 30 is not quite 3
    table = np.array([step(share * left + slack) for left in range(known.budget + 1)])
    return _greedy(known, lambda left: table[left])


def _checked_share(share: float) -> float:
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; allowed: 0 < share <= 1")
    return share


def _greedy(known: Known, round_budget: Callable[[Ints], Ints]) -> Policy:
    def decide(kinds: Ints, left: Ints, _: Array) -> Ints:
        spend = round_budget(left)
        persons, _ = known.planner.order(kinds, int(spend.max(initial=0)))
        return counted(persons, spend, kinds.shape)

    return decide


def planned(known: Known, split: str = "greedy") -> Policy:
    """The planner's round budget, split greedily (TAP), evenly or at random (ablations).

    Raises:
        ValueError: an unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; allowed: {', '.join(SPLITS)}")

    def decide(kinds: Ints, left: Ints, uniform: Array) -> Ints:
        spend, persons = known.planner.spend(kinds, left)
        people = (kinds != known.nobody).sum(axis=1)
        if split == "even":
            persons = np.arange(int(spend.max(initial=0))) % np.maximum(people, 1)[:, None]
        elif split == "random":
            persons = (uniform * people[:, None]).astype(np.int64)
        return counted(persons, spend, kinds.shape)

    return decide


def counted(persons: Ints, spend: Ints, shape: tuple[int, int]) -> Ints:
    """Coupons by person from a list of persons of which the first `spend` get one each.

    Coupons beyond the list cannot be used by anybody; they go to the first person.
    """
    rows, places = np.nonzero(np.arange(persons.shape[1]) < spend[:, None])
    cells = np.bincount(rows * shape[1] + persons[rows, places], minlength=shape[0] * shape[1])
    coupons = cells.reshape(shape)
    coupons[:, 0] += spend - coupons.sum(axis=1)
    return coupons
