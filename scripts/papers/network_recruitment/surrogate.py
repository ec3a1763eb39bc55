"""The population surrogate: a dynamic program over remaining budget and frontier size.

    U(r, n) = max_{0 <= s <= r} F(n, s) + γ sum_m P(N = m | n, s) U(r - s, m)

All n people have the population's law q; s coupons are split evenly (Proposition 6.1): with
a = floor(s / n), c = s - n a, c people get a + 1 coupons. N has the generating function
H_a^(n-c) H_(a+1)^c, H_a that of min(a, X). The released code raises H to its powers inside the
loop over (r, n, s); N depends on (n, s) only, so that here it is computed once, and for n > s it is
that of n = s. The powers are taken at roots of unity, where a product of polynomials is a product
of numbers; since N <= b < points, the inverse transform is exact up to rounding.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import next_fast_len

from scripts.papers.network_recruitment.pmf import (
    Array,
    checked_budget,
    checked_discount,
    checked_pmfs,
    survival,
    truncated,
)

TIE = 1e-12  # scores this close are ties, which the smallest round budget wins


@dataclass(frozen=True)
class Surrogate:
    """The table U and its policy."""

    value: Array
    """U(r, n), [b + 1, b + 1]."""
    spend: NDArray[np.int64]
    """The smallest best round budget s(r, n), [b + 1, b + 1]; 0 means stop."""
    work: int
    """Multiplications that the program made (complex ones count 4)."""


def transform_points(degree: int) -> int:
    """Points at which a pmf is evaluated: the next even number above the degree whose factors are
    small, so that the transform is fast without the padding of powers of two."""
    return 2 * next_fast_len(degree // 2 + 1)


def round_laws(q: Array, budget: int) -> tuple[Array, Array, int]:
    """Value and law of N for every frontier n <= s and round budget s under the even split.

    Returns:
        values F(n, s) [pairs]; laws [pairs, budget + 1]; multiplications made. The pair (n, s),
        1 <= n <= s <= budget, is row s (s - 1) / 2 + n - 1.
    """
    q_survival = survival(q, budget + 1)
    spent = np.repeat(np.arange(1, budget + 1), np.arange(1, budget + 1))
    people = np.arange(len(spent)) - spent * (spent - 1) // 2 + 1
    each, more = np.divmod(spent, people)
    mean = np.concatenate([[0.0], q_survival.cumsum()])
    values = people * mean[each] + more * q_survival[each]

    points = transform_points(budget)
    factors = np.fft.rfft(truncated(q, budget + 1), n=points, axis=-1)
    # powers[start[k] + j] = H_k^j, for the j <= budget / k that can occur
    counts = np.array([budget // max(1, k) for k in range(budget + 2)]) + 1
    start = np.concatenate([[0], counts.cumsum()[:-1]])
    powers = np.ones((counts.sum(), factors.shape[1]), dtype=np.complex128)
    for j in range(1, budget + 1):
        live = np.flatnonzero(counts > j)
        powers[start[live] + j] = powers[start[live] + j - 1] * factors[live]
    laws = np.fft.irfft(
        powers[start[each] + people - more] * powers[start[each + 1] + more], n=points, axis=-1
    )[:, : budget + 1]
    transforms = (len(laws) + len(factors)) * points * points.bit_length()
    work = 4 * factors.shape[1] * (len(powers) + len(laws)) + 2 * transforms
    return values, np.ascontiguousarray(laws), int(work)


def solve(q: Array, budget: int, discount: float) -> Surrogate:
    """The surrogate's table for a population law.

    O(b^4) multiplications, all in matrix-vector products, and O(b^3) memory for the laws.

    Args:
        q: the population's pmf [K].
        budget: b, coupons in all.
        discount: γ in [0, 1).

    Raises:
        ValueError: q is no pmf, a negative budget or γ outside [0, 1).
    """
    q = checked_pmfs(q, "q")
    budget, discount = checked_budget(budget), checked_discount(discount)
    values, laws, work = round_laws(q, budget)
    first = np.arange(budget + 1) * (np.arange(budget + 1) - 1) // 2  # row of (n = 1, s)
    table = np.zeros((budget + 1, budget + 1))
    spend = np.zeros((budget + 1, budget + 1), dtype=np.int64)
    # later[r] collects gamma E U(r, N) of all pairs as soon as row r is known
    later = np.zeros((budget + 1, len(values)))
    frontier = np.arange(1, budget + 1)
    for r in range(1, budget + 1):
        s = np.arange(1, r + 1)
        pair = first[s][:, None] + np.minimum(frontier, s[:, None]) - 1  # [s, n]; n > s as n = s
        scores = values[pair] + later[r - s[:, None], pair]
        best = np.maximum(scores.max(axis=0), 0.0)  # 0: stop
        good = scores >= best - TIE
        table[r, 1:] = best
        spend[r, 1:] = np.where(best <= TIE, 0, good.argmax(axis=0) + 1)
        used = first[budget - r] + budget - r  # pairs with s <= b - r
        later[r, :used] = discount * (laws[:used, : budget + 1] @ table[r])
        work += used * (budget + 2)
    return Surrogate(table, spend, work)
