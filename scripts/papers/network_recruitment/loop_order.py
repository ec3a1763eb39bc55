"""The surrogate in the order of the released code: powers inside the loop over (r, n, s).

Written anew, as the reference that `surrogate` is checked and timed against: for every triple the
law of N is raised by repeated squaring of truncated polynomials, as Theorem 6.2 counts it,
O(b^5 log b).
"""

import numpy as np

from scripts.papers.network_recruitment.pmf import Array, survival, truncated


def product(p: Array, q: Array, degree: int) -> Array:
    """Product of two polynomials, truncated to a degree."""
    return np.convolve(p, q)[: degree + 1]


def power(p: Array, exponent: int, degree: int) -> Array:
    """A polynomial to a power by repeated squaring, truncated to a degree."""
    out = np.ones(1)
    while exponent:
        if exponent & 1:
            out = product(out, p, degree)
        exponent >>= 1
        if exponent:
            p = product(p, p, degree)
    return out


def solve(q: Array, budget: int, discount: float) -> Array:
    """U(r, n), [b + 1, b + 1], by the loops over r, n and s."""
    levels = survival(q, budget + 1)
    laws = truncated(q, budget + 1)
    table = np.zeros((budget + 1, budget + 1))
    for r in range(1, budget + 1):
        for n in range(1, budget + 1):
            best = 0.0
            for s in range(1, r + 1):
                each, more = divmod(s, n)
                value = n * levels[:each].sum() + more * levels[each]
                few = power(laws[each, : each + 1], n - more, s)
                many = power(laws[each + 1, : each + 2], more, s)
                law = product(few, many, s)
                best = max(best, value + discount * law @ table[r - s, : len(law)])
            table[r, n] = best
    return table


def multiplications(budget: int) -> int:
    """Multiplications that `solve` makes: the same loops on the lengths of the polynomials."""
    total = 0
    for n in range(1, budget + 1):
        for s in range(1, budget + 1):
            each, more = divmod(s, n)
            few, first = _power_work(each + 1, n - more, s)
            many, second = _power_work(each + 2, more, s)
            law = min(few + many - 1, s + 1)
            work = first + second + few * many + law + 2
            total += work * (budget + 1 - s)  # once for every r >= s
    return total


def _power_work(length: int, exponent: int, degree: int) -> tuple[int, int]:
    """Length of `power`'s result and the multiplications it makes."""
    out, work = 1, 0
    while exponent:
        if exponent & 1:
            work += out * length
            out = min(out + length - 1, degree + 1)
        exponent >>= 1
        if exponent:
            work += length * length
            length = min(2 * length - 1, degree + 1)
    return out, work
