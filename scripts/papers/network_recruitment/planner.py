"""The planner TAP: greedy within the round, the surrogate for what comes after.

In state (r, D_1..D_n) it plays the greedy allocation of the round budget s that maximises
v_s + γ sum_m P(N = m) U(r - s, m). Greedy allocations are nested, so that s -> s + 1 changes one of
the n factors of N's generating function. A balanced product tree holds the factors, evaluated at
roots of unity (a product of polynomials is then a product of numbers, and no division is needed);
the mean of U is a dot product with U's transform. Many states are decided at once.
"""

import numpy as np
from numpy.typing import NDArray

from scripts.papers.network_recruitment.pmf import (
    Array,
    checked_discount,
    checked_pmfs,
    survival,
    truncated,
)
from scripts.papers.network_recruitment.surrogate import transform_points

TIE = 1e-9  # scores this close are ties, which the smallest s wins, whatever the rounding
Ints = NDArray[np.int64]


class Planner:
    """Decisions for frontiers of known types.

    Args:
        pmfs: the types' distributions [T, K]; the planner sees nothing else of a person.
        table: U(r, n) of the surrogate [b + 1, b + 1]; zeros make the planner myopic.
        discount: γ.

    Raises:
        ValueError: no distributions, a table that is not square, or γ outside [0, 1).
    """

    def __init__(self, pmfs: Array, table: Array, discount: float) -> None:
        pmfs, discount = checked_pmfs(pmfs), checked_discount(discount)
        if table.ndim != 2 or table.shape[0] != table.shape[1] or not len(table):
            raise ValueError(f"table has the shape {table.shape}; allowed: [b + 1, b + 1]")
        budget = len(table) - 1
        length = max(1, min(budget, pmfs.shape[-1] - 1))
        nobody = np.zeros((1, pmfs.shape[-1]))
        nobody[0, 0] = 1.0
        self.types = len(pmfs)
        """Type `types` stands for nobody: it pads frontiers to one length."""
        padded = np.concatenate([pmfs, nobody])
        self.levels = survival(padded, length)
        # Equal chances have equal ranks; small integers are sorted in linear time.
        ranks = np.unique(-self.levels, return_inverse=True)[1]
        self._ranks = ranks.reshape(self.levels.shape).astype(np.uint16)
        points = transform_points(budget)
        self._factors = np.fft.rfft(truncated(padded, length), n=points, axis=-1)
        # By Parseval, sum_m P(m) U(m) is a weighted dot product of the two transforms.
        twice = np.full(points // 2 + 1, 2.0)
        twice[[0, -1]] = 1.0
        self._future = discount * np.conj(np.fft.rfft(table, n=points, axis=-1)) * twice / points

    def order(self, kinds: Ints, most: int) -> tuple[Ints, Array]:
        """Who gets the first, second, ... coupon under greedy, and the chance that it is used.

        Args:
            kinds: types [B, n], padded with `types`.
            most: at most so many coupons.

        Returns:
            persons [B, S], chances [B, S] with S <= most.
        """
        flat = self._ranks[kinds].reshape(len(kinds), -1)
        place = np.argsort(flat, axis=1, kind="stable")[:, :most]
        person, level = np.divmod(place, self.levels.shape[1])
        return person, self.levels[np.take_along_axis(kinds, person, axis=1), level]

    def scores(self, kinds: Ints, left: Ints) -> tuple[Ints, Array]:
        """Greedy's persons [B, S], and the score of every round budget, [B, S + 1].

        Scores of budgets beyond what is left are -inf.
        """
        batch = len(kinds)
        most = int(left.max(initial=0))
        persons, chances = self.order(kinds, most)
        steps = persons.shape[1]
        leaves = 1 << max(0, kinds.shape[1] - 1).bit_length()
        tree = np.ones((2 * leaves, batch, self._factors.shape[-1]), dtype=np.complex128)
        given = np.zeros(kinds.shape, dtype=np.int64)
        rows = np.arange(batch)
        scores = np.empty((batch, steps + 1))
        value = np.zeros(batch)
        for s in range(steps + 1):
            if s:
                person = persons[:, s - 1]
                given[rows, person] += 1
                value = value + chances[:, s - 1]
                kind = kinds[rows, person]
                node = leaves + person
                tree[node, rows] = self._factors[kind, given[rows, person]]
                while leaves > 1 and node[0] > 1:
                    node = node >> 1
                    tree[node, rows] = tree[2 * node, rows] * tree[2 * node + 1, rows]
            rest = np.maximum(left - s, 0)
            later = np.einsum("bf,bf->b", tree[1], self._future[rest]).real
            scores[:, s] = np.where(s <= left, value + later, -np.inf)
        return persons, scores

    def spend(self, kinds: Ints, left: Ints) -> tuple[Ints, Ints]:
        """The best round budget of each state [B], with greedy's persons [B, S]."""
        persons, scores = self.scores(kinds, left)
        good = scores >= scores.max(axis=1, keepdims=True) - TIE
        return good.argmax(axis=1), persons
