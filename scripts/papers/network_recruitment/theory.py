"""Theorems on instances small enough to check completely: rows of metrics."""

from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pandas as pd

from scripts.papers.network_recruitment import (
    exact,
    loop_order,
    robustness,
    single_round,
    surrogate,
)
from scripts.papers.network_recruitment.exact import Problem, Shape
from scripts.papers.network_recruitment.pmf import (
    Array,
    expected_capped,
    mixture,
    survival,
)

CONCENTRATIONS = (0.2, 0.5, 1.0, 3.0)  # of the Dirichlet law of random pmfs on 0..4
SUPPORT = 5
DISCOUNTS = (0.3, 0.6, 0.9)
NOISES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
GROWTH = 1.4
RECRUITS, GAP = "recruits", "discounted recruits"
Rows = list[dict[str, Any]]


def row(metric: str, value: float, unit: str, n: int = 1, **columns: Any) -> dict[str, Any]:
    return {"metric": metric, "value": float(value), "unit": unit, "n": n, **columns}


def random_pmfs(rng: np.random.Generator, *shape: int) -> Array:
    """Dirichlet pmfs on 0..4, [*shape, 5], of mixed concentrations."""
    concentration = rng.choice(CONCENTRATIONS, shape)
    drawn = rng.standard_gamma(np.repeat(concentration[..., None], SUPPORT, axis=-1))
    drawn += 1e-300  # all zero at a small concentration
    return drawn / drawn.sum(axis=-1, keepdims=True)


def library(size: int) -> Array:
    """Distributions of many forms on 0..4: sure, never, fair, heavy, rising, falling."""
    rows = [
        [0, 1, 0, 0, 0],
        [1, 0, 0, 0, 0],
        [0.2, 0.2, 0.2, 0.2, 0.2],
        [0.7, 0, 0, 0, 0.3],
        [0.05, 0.1, 0.15, 0.3, 0.4],
        [0.4, 0.3, 0.15, 0.1, 0.05],
    ]
    return np.array(rows[:size], dtype=np.float64)


def greedy_rows(rng: np.random.Generator, sizes: dict[str, int]) -> Rows:
    """C1: greedy against every allocation, and the identity behind it."""
    pmfs = library(sizes["library"])
    chosen = [
        pmfs[list(people)]
        for count in range(1, sizes["people"] + 1)
        for people in combinations_with_replacement(range(len(pmfs)), count)
    ]
    drawn = rng.integers(1, sizes["people"] + 1, sizes["random"])
    frontiers = [*chosen, *(random_pmfs(rng, count) for count in drawn)]
    rows = []
    for case, frontier in enumerate(frontiers):
        levels = survival(frontier, sizes["budget"])
        budgets = range(sizes["budget"] + 1)
        gap = max(
            single_round.best_value(levels, budget)
            - single_round.round_value(levels, single_round.greedy(levels, budget))
            for budget in budgets
        )
        error = max(
            np.abs(expected_capped(frontier, k) - levels[:, :k].sum(axis=1)).max() for k in budgets
        )
        found = {"n": len(budgets), "case": case}
        found["dataset"] = "library" if case < len(chosen) else "random"
        rows += [
            row("greedy_gap", gap, RECRUITS, **found),
            row("survival_identity_error", error, RECRUITS, **found),
        ]
    return rows


def single_round_bound(
    rng: np.random.Generator, sizes: dict[str, int]
) -> tuple[Rows, pd.DataFrame]:
    """C5: the loss from wrong distributions against its bound; also every pair, for the figure."""
    found = []
    for _ in range(sizes["random"]):
        budget, people = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        true = random_pmfs(rng, people)
        noise = rng.uniform()
        believed = (1 - noise) * true + noise * random_pmfs(rng, people)
        found.append(
            single_round.misled_loss(survival(true, budget), survival(believed, budget), budget)
        )
    pairs = pd.DataFrame(found, columns=["loss", "bound"])
    rows = [
        row("round_excess", max(0.0, loss - bound), RECRUITS, case=case)
        for case, (loss, bound) in enumerate(found)
    ]
    for budget in range(1, sizes["constructions"] + 1):
        loss, bound = single_round.misled_loss(*single_round.tight_instance(budget), budget)
        rows.append(row("round_slack", bound - loss, RECRUITS, budget=budget))
        rows.append(row("round_loss", loss, RECRUITS, budget=budget))
    return rows, pairs


def recursion_rows(sizes: dict[str, int]) -> Rows:
    """C2: reachable states and operations of the exact recursion by types, starting with one."""
    shapes = [Shape(kinds, sizes["budget"]) for kinds in range(1, sizes["types"] + 1)]
    rows = []
    for quantity, counts in (
        ("states", [shape.reachable(1) for shape in shapes]),
        ("operations", [shape.work() for shape in shapes]),
    ):
        for shape, before, count in zip(shapes, [None, *counts], counts, strict=False):
            where = {"quantity": quantity, "kinds": shape.types}
            rows.append(row(quantity, count, quantity, **where))
            if before:
                growth = count / before
                rows.append(row("growth", growth, "ratio", **where))
                rows.append(row("growth_shortfall", max(0.0, GROWTH - growth), "ratio", **where))
    table = (sizes["budget"] + 1) ** 2
    return rows + [
        row("states", table, "states", quantity="surrogate", kinds=shape.types) for shape in shapes
    ]


def surrogate_rows(rng: np.random.Generator, sizes: dict[str, int]) -> Rows:
    """C3: the surrogate's table against the Bellman optimum, and the even split's round value.

    Frontiers of unlike people, for which the even split is not claimed to be optimal, are reported
    apart (condition: mixed).
    """
    cases, budget = sizes["cases"], sizes["budget"]
    pmfs = random_pmfs(rng, cases, 1)
    discount = rng.choice([*DISCOUNTS, 0.99], cases)
    problem = Problem(Shape(1, budget), pmfs, np.ones((cases, 1)), discount)
    best = exact.solve(problem)[1]
    rows = []
    for case in range(cases):
        table = surrogate.solve(pmfs[case, 0], budget, float(discount[case])).value
        gap = np.abs(table - best[case]).max()
        rows.append(row("table_gap", gap, GAP, n=table.size, case=case, gamma=discount[case]))
        people = int(rng.integers(2, 5))
        mixed = random_pmfs(rng, people)
        for condition, frontier in (("identical", mixed[[0] * people]), ("mixed", mixed)):
            levels = survival(frontier, budget)
            gaps = [
                single_round.best_value(levels, s)
                - single_round.round_value(levels, even_split(people, s))
                for s in range(budget + 1)
            ]
            rows.append(
                row("even_gap", max(gaps), RECRUITS, n=len(gaps), case=case, condition=condition)
            )
    return rows


def even_split(people: int, budget: int) -> np.ndarray:
    """Coupons that differ by at most one, the first people getting more."""
    return np.array([budget // people + (person < budget % people) for person in range(people)])


def rollout_row(
    rng: np.random.Generator, q: Array, budget: int, discount: float, start: int, runs: int
) -> dict[str, Any]:
    """C3: mean reward of the surrogate's even policy by simulation, in standard errors from U."""
    plan = surrogate.solve(q, budget, discount)
    capped = np.minimum(np.arange(len(q)), np.arange(budget + 2)[:, None])  # min(k, j)
    left, size = np.full(runs, budget), np.full(runs, start)
    reward = np.zeros(runs)
    for turn in range(budget):
        spend = plan.spend[left, np.minimum(size, budget)]
        each, more = np.divmod(spend, np.maximum(size, 1))
        fewer = (rng.multinomial(size - more, q) * capped[each]).sum(axis=1)
        size = fewer + (rng.multinomial(more, q) * capped[each + 1]).sum(axis=1)
        reward += discount**turn * size
        left = left - spend
        size = np.where(spend > 0, size, 0)
        if not size.any():
            break
    se = reward.std(ddof=1) / np.sqrt(runs)
    error = abs(reward.mean() - plan.value[budget, start]) / se if se > 0 else 0.0
    return row("rollout_error", error, "standard errors", n=runs, gamma=discount, start=start)


def cost_rows(sweep: dict[str, list[int]]) -> Rows:
    """C4: multiplications of both orders and entries of the table, by budget.

    Neither order's count depends on the distribution.
    """
    q = np.full(SUPPORT, 1 / SUPPORT)
    rows = [
        row("multiplications", loop_order.multiplications(b), "multiplications", budget=b,
            quantity="released_order")
        for b in sweep["released_order"]
    ]  # fmt: skip
    for b in sweep["hoisted"]:
        plan = surrogate.solve(q, b, 0.9)
        rows += [
            row("multiplications", plan.work, "multiplications", budget=b, quantity="hoisted"),
            row("table_entries", plan.value.size, "entries", budget=b),
        ]
    return rows


def planning_losses(
    rng: np.random.Generator, sizes: dict[str, int]
) -> tuple[Rows, pd.DataFrame, Rows]:
    """C6 and C10 on exact small problems.

    Frontier errors are studied where all types are alike, the population's where they differ
    halfway, heterogeneity without wrong beliefs, and all three jointly.

    Returns:
        rows of C6, a table of every loss with its bound, rows of C10.
    """
    cases, budget = sizes["cases"], sizes["budget"]
    shape = Shape(sizes["types"], budget)
    types, shares = random_pmfs(rng, cases, shape.types), rng.dirichlet(np.ones(shape.types), cases)
    discount = rng.choice(DISCOUNTS, cases)
    people = rng.integers(1, budget - 1, cases)
    frontier = [shape.index(rng.multinomial(n, w)) for n, w in zip(people, shares, strict=True)]
    start = robustness.Start(rng.integers(budget // 2, budget + 1, cases), np.array(frontier))
    wrong_types, wrong_shares = (
        random_pmfs(rng, cases, shape.types),
        rng.dirichlet(np.ones(shape.types), cases),
    )
    common = mixture(types, shares)[:, None, :]

    def losses(spread: float, types_off: float, shares_off: float) -> tuple[Array, Array, Array]:
        true = (1 - spread) * common + spread * types
        problem = Problem(shape, true, shares, discount)
        believed = (1 - types_off) * true + types_off * wrong_types
        weights = (1 - shares_off) * shares + shares_off * wrong_shares
        best, loss = robustness.losses(problem, start, believed, weights)
        return best, loss, robustness.bound(problem, start, believed, weights)

    rows: Rows = []
    tables = []
    for source, noise, mix in (
        (source, noise, mix)
        for source, mix in (
            ("frontier", (0, 1, 0)), ("population", (None, 0, 1)), ("heterogeneity", (1, 0, 0)),
            ("joint", (1, 1, 1)),
        )
        for noise in NOISES
    ):  # fmt: skip
        spread = 0.5 if mix[0] is None else noise * mix[0]
        _, loss, bound = losses(spread, noise * mix[1], noise * mix[2])
        where = [{"case": case, "source": source, "noise": noise} for case in range(cases)]
        for at, lost, limit in zip(where, loss, bound, strict=True):
            rows.append(row("planning_loss", lost, GAP, **at))
            rows.append(row("bound_excess", max(0.0, lost - limit), GAP, **at))
            rows.append(row("noise_level", noise, "share of noise", **at))
            if source != "population" and noise == 0:
                rows.append(row("clean_bound", limit, GAP, **at))
        lossy = loss > 1e-9
        if lossy.any():
            ratio = float(np.median(bound[lossy] / loss[lossy]))
            count = int(lossy.sum())
            rows.append(row("bound_over_loss", ratio, "ratio", n=count, source=source, noise=noise))
        tables.append(pd.DataFrame(where).assign(loss=loss, bound=bound))
    best, loss, _ = losses(1.0, 0.0, 0.0)
    share = np.where(best > 1e-9, loss / np.maximum(best, 1e-9), 0.0)
    relative = [
        row("relative_loss", lost, "share of the optimum", case=case)
        for case, lost in enumerate(share)
    ]
    return rows, pd.concat(tables, ignore_index=True), relative
