"""How value iteration errs on a grid, and how many sweeps it takes (C8)."""

import numpy as np

from scripts.papers.strategic_ladder.designs import Agents, random_thresholds
from scripts.papers.strategic_ladder.ladder import Ladders
from scripts.papers.strategic_ladder.rows import Row, row
from scripts.papers.strategic_ladder.solver import Solution, grid_top, solve

LEVELS = 3
TOLERANCE = 1e-12


def grid_errors(
    rng: np.random.Generator, count: int, exponents: list[int], reference: int
) -> list[Row]:
    """Largest value error over all states, and sweeps, for steps 2^-e of the uniform nodes.

    value_error is the largest over the agents: some have values whose kinks all lie on nodes, and
    then no error at any step.
    """
    beta, gamma = rng.uniform(0.5, 0.9, (2, count))
    delta = rng.uniform(0.05, 0.3, count)
    cost = rng.uniform(0.6, 0.95, count)
    agents = Agents(beta, gamma, delta, np.ones(count), cost, rng.uniform(0.3, 1.0, count))
    batch = agents.on([random_thresholds(rng, 2.0, LEVELS) for _ in range(count)])
    # A power-of-two length, so that every step divides it.
    high = 2.0 ** np.ceil(np.log2(grid_top(batch).max()))

    def at(exponent: int) -> Solution:
        nodes = int(high * 2**exponent) + 1
        return solve(batch, nodes, x_max=high, tolerance=TOLERANCE)

    exact = at(reference)
    rows = []
    for exponent in exponents:
        found, step = at(exponent), 2.0**-exponent
        theory = np.log(found.first_change / TOLERANCE) / -np.log(beta)
        errors = [_distance(batch, found, exact, number) for number in range(count)]
        states = LEVELS * exact.grids.shape[1]
        # Values are known to the tolerance only, so that no error can be seen below it.
        largest = max(*errors, TOLERANCE / (1 - beta.max()))
        rows.append(row("value_error", largest, states * count, grid_step=step))
        for number, error in enumerate(errors):
            bound = agents.honest_cost[number] * step / (2 * (1 - beta[number]))
            place = {
                "instance": number, "grid_step": step, "beta": beta[number],
                "gamma": gamma[number], "delta": delta[number], "gaming_cost": cost[number],
            }  # fmt: skip
            sweeps = found.sweeps[number]
            rows += [
                row("error_within_bound", error <= bound, states, **place),
                row("sweeps_over_theory", sweeps / theory[number], sweeps, **place),
            ]
    return rows


def _distance(batch: Ladders, found: Solution, exact: Solution, at: int) -> float:
    """Sup norm between a solution and a finer one, at the nodes of the finer one."""
    return max(
        float(np.abs(
            np.interp(exact.grids[at], found.grids[at], found.values[at, level])
            - exact.values[at, level]
        ).max())
        for level in range(batch.levels[at])
    )  # fmt: skip
