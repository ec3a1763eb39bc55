"""A batch of ladders with their agents: thresholds, rewards, costs, discount, retention, leg-up.

An agent at level l with attribute x raises it honestly to y = x + a+ (unit cost c+), shows
z = y + a- (unit cost c-), is promoted when z >= mu_{l+1}, stays when mu_l <= z < mu_{l+1} and is
relegated when z < mu_l. It earns the reward of its new level l', starts the next step with
gamma y + delta (l' - 1), and discounts by beta.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Ladders:
    """B ladders of at most L levels; rows with fewer levels are padded (levels says where).

    Build it with `ladders`, which checks its arguments.
    """

    beta: Array
    gamma: Array
    delta: Array
    honest_cost: Array
    gaming_cost: Array
    thresholds: Array
    """[B, L]; mu_1 = 0 first, then rising; +inf beyond the last level."""
    rewards: Array
    """[B, L]; of being at a level after a step; 0 beyond the last level."""
    levels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.beta)

    @property
    def top(self) -> Array:
        """Threshold of each ladder's last level [B]."""
        return self.thresholds[np.arange(len(self)), self.levels - 1]

    def pick(self, rows: ArrayLike) -> "Ladders":
        """The ladders of some rows (indices or a mask)."""
        return Ladders(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def where(self, **columns: ArrayLike) -> "Ladders":
        """The same ladders with some of their numbers replaced, checked again."""
        return replace(self, **{name: np.asarray(value) for name, value in columns.items()})


def ladders(
    *,
    beta: ArrayLike,
    gamma: ArrayLike,
    delta: ArrayLike,
    honest_cost: ArrayLike,
    gaming_cost: ArrayLike,
    thresholds: Any,
    reward: ArrayLike | None = None,
    rewards: Any = None,
) -> Ladders:
    """A batch of ladders, numbers broadcast over it.

    Args:
        beta: discount factor, in [0, 1).
        gamma: retention of the attribute, in [0, 1).
        delta: leg-up per level above the first, at least 0.
        honest_cost: c+, cost of a unit of improvement, above 0.
        gaming_cost: c-, cost of a unit of gaming, above 0.
        thresholds: a row per ladder (rows may differ in length), each 0 first and then rising.
        reward: r >= 0; being at level l earns r (l - 1).
        rewards: instead of `reward`, a row per ladder with the reward of each level (0 first,
            never falling).

    Raises:
        ValueError: names the argument, what was found and what is allowed.
    """
    mu, levels = _rows(thresholds, "thresholds", np.inf)
    count = len(levels)
    numbers = {
        name: _number(name, value, count, low, below)
        for name, value, low, below in (
            ("beta", beta, 0.0, 1.0),
            ("gamma", gamma, 0.0, 1.0),
            ("delta", delta, 0.0, np.inf),
            ("honest_cost", honest_cost, None, np.inf),
            ("gaming_cost", gaming_cost, None, np.inf),
        )
    }
    if (reward is None) == (rewards is None):
        raise ValueError("reward: give exactly one of reward and rewards")
    if reward is not None:
        steps = np.arange(mu.shape[1])
        each = _number("reward", reward, count, 0.0, np.inf)
        pay = np.where(steps < levels[:, None], each[:, None] * steps, 0.0)
    else:
        pay, lengths = _rows(rewards, "rewards", 0.0)
        if len(lengths) != count or (lengths != levels).any():
            raise ValueError(
                f"rewards: found rows of {lengths.tolist()} levels, allowed: those of thresholds, "
                f"{levels.tolist()}"
            )
    return Ladders(thresholds=mu, rewards=pay, levels=levels, **numbers)


def needs_cheaper_gaming(honest_cost: ArrayLike, gaming_cost: ArrayLike) -> None:
    """Refuse agents for whom gaming costs as much as effort, where a theorem needs c- < c+."""
    honest, gaming = np.broadcast_arrays(honest_cost, gaming_cost)
    wrong = ~(gaming < honest)
    if wrong.any():
        raise ValueError(
            f"gaming_cost: found {gaming[wrong][0]:g} with honest_cost {honest[wrong][0]:g}, "
            "allowed: less than honest_cost"
        )


def _number(name: str, value: ArrayLike, count: int, low: float | None, below: float) -> Array:
    """One finite number per ladder, in [low, below) (above 0 without `low`)."""
    found = np.asarray(value, dtype=np.float64)
    if found.ndim > 1 or (found.ndim == 1 and len(found) != count):
        raise ValueError(
            f"{name}: found shape {found.shape}, allowed: a number or one for each of "
            f"{count} ladders"
        )
    good = np.isfinite(found) & (found < below) & (found > 0 if low is None else found >= low)
    if not good.all():
        allowed = "a finite number above 0" if low is None else f"at least {low:g}"
        if np.isfinite(below):
            allowed = f"{low:g} <= {name} < {below:g}"
        raise ValueError(
            f"{name}: found {np.atleast_1d(found)[~np.atleast_1d(good)][0]:g}, allowed: {allowed}"
        )
    return np.array(np.broadcast_to(found, (count,)))


def _rows(value: Any, name: str, padding: float) -> tuple[Array, NDArray[np.int64]]:
    """Rows that start with 0 and rise (thresholds strictly), padded to equal length."""
    rows = [np.asarray(row, dtype=np.float64).ravel() for row in value]
    if not rows:
        raise ValueError(f"{name}: found no ladder, allowed: at least one")
    strict = name == "thresholds"
    rule = "0, then strictly rising" if strict else "0 first and never falling"
    for number, row in enumerate(rows):
        if not len(row):
            raise ValueError(f"{name}: ladder {number} is empty, allowed: at least one level")
        steps = np.diff(row)
        if not (
            np.isfinite(row).all() and row[0] == 0.0 and (steps > 0 if strict else steps >= 0).all()
        ):
            raise ValueError(f"{name}: found {row.tolist()} in ladder {number}, allowed: {rule}")
    levels = np.array([len(row) for row in rows], dtype=np.int64)
    padded = np.full((len(rows), levels.max()), padding)
    for at, row in enumerate(rows):
        padded[at, : len(row)] = row
    return padded, levels
