"""A Bellman recursion written from the problem's statement alone, for tiny instances."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product

Frontier = tuple[int, ...]


def optimum(
    pmfs: Sequence[Sequence[float]], weights: Sequence[float], discount: float
) -> Callable[[int, Frontier], float]:
    """Value of (coupons left, types of the frontier's people) over all allocations."""

    def round_law(frontier: Frontier, coupons: tuple[int, ...]) -> dict[int, float]:
        law = {0: 1.0}
        for kind, k in zip(frontier, coupons, strict=True):
            after: dict[int, float] = {}
            for count, chance in law.items():
                for x, likely in enumerate(pmfs[kind]):
                    new = count + min(k, x)
                    after[new] = after.get(new, 0.0) + chance * likely
            law = after
        return law

    @cache
    def best(left: int, frontier: Frontier) -> float:
        if left == 0 or not frontier:
            return 0.0
        values = [0.0]
        for coupons in product(range(left + 1), repeat=len(frontier)):
            spent = sum(coupons)
            if 0 < spent <= left:
                law = round_law(frontier, coupons)
                values.append(
                    sum(p * (n + discount * fresh(left - spent, n)) for n, p in law.items() if p)
                )
        return max(values)

    @cache
    def fresh(left: int, size: int) -> float:
        """Mean over frontiers of the given size drawn from the population."""
        if left == 0:
            return 0.0
        total = 0.0
        for kinds in product(range(len(pmfs)), repeat=size):
            chance = 1.0
            for kind in kinds:
                chance *= weights[kind]
            total += chance * best(left, tuple(sorted(kinds)))
        return total

    return best
