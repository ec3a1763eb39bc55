"""Our value iteration beside general solvers of Markov decision processes, on the same grid.

    python -m scripts.papers.strategic_ladder.bench [--output rows.parquet]

quantecon's DiscreteDP (state-action pairs, sparse transitions) and pymdptoolbox get the problem
over (level, attribute) x (attribute after effort, new level), with the same linear interpolation.
Times are processor seconds to a sup change of 1e-9, building the problem included, compilation not
(ours and quantecon's are warmed up). pymdptoolbox stops by the span of a change, which is no bound
on values here, so that its Bellman operator is driven to the same sup change. Then, designs per
second of the credit ladder's CMA-ES, a population at once and one by one.
"""

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from scipy import sparse

    from scripts.papers.strategic_ladder.ladder import Array, Ladders

TOLERANCE = 1e-9
CASES = ((0.8, 4, 200), (0.95, 4, 200), (0.8, 4, 60))  # beta, levels, nodes
FORBIDDEN = -1e9


def bench() -> "pd.DataFrame":
    """One row per case and program: seconds, ratio to ours, largest difference of the values."""
    import pandas as pd

    return pd.DataFrame([row for case in CASES for row in _solvers(*case)] + _designs())


def _solvers(beta: float, levels: int, nodes: int) -> list[dict[str, object]]:
    from scripts.papers.strategic_ladder.designs import spaced
    from scripts.papers.strategic_ladder.ladder import ladders
    from scripts.papers.strategic_ladder.solver import solve

    batch = ladders(
        beta=beta, gamma=0.8, delta=0.1, honest_cost=1.0, gaming_cost=0.7, reward=0.4,
        thresholds=[spaced(0.5, levels)],
    )  # fmt: skip
    ours, seconds = _timed(lambda: solve(batch, nodes, tolerance=TOLERANCE), repeats=20)
    grid, keep = np.unique(ours.grids[0], return_index=True)
    mine = ours.values[0][:, keep].ravel()  # noqa: PD011
    programs: dict[str, Callable[[], Array]] = {
        "quantecon": lambda: _quantecon(batch, grid),
        "pymdptoolbox": lambda: _mdptoolbox(batch, grid),
    }
    place = {"beta": beta, "levels": levels, "nodes": nodes}
    rows = [{**place, "program": "ours", "seconds": seconds, "times_ours": 1.0, "difference": 0.0}]
    for name, program in programs.items():
        values, theirs = _timed(program, repeats=1)
        difference = float(np.abs(values - mine).max())
        rows.append(
            {**place, "program": name, "seconds": theirs, "times_ours": theirs / seconds,
             "difference": difference}
        )  # fmt: skip
    return rows


def _timed(program: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """Result and median processor seconds; one run before is not counted."""
    program()
    found = []
    for _ in range(repeats):
        start = time.process_time()
        result = program()
        found.append(time.process_time() - start)
    return result, float(np.median(found))


def _pairs(
    batch: "Ladders", grid: "Array"
) -> tuple["Array", "Array", "Array", "sparse.csr_matrix"]:
    """State-action pairs: state, action (y, l'), reward, and sparse transitions [pairs, states]."""
    from scipy import sparse

    count, levels = len(grid), int(batch.levels[0])
    mu = batch.thresholds[0]
    states, actions, rewards, successors, weights = [], [], [], [], []
    x, y = (part.ravel() for part in np.meshgrid(np.arange(count), np.arange(count), indexing="ij"))
    x, y = x[y >= x], y[y >= x]
    for level in range(levels):
        own = mu[level]
        following = mu[level + 1] if level + 1 < levels else np.inf
        moves = (
            (1, np.full(len(y), level + 1 < levels), following),
            (0, grid[y] < following, own),
            (-1, grid[y] < own, 0.0),
        )
        for move, allowed, need in moves:
            if not allowed.any():
                continue
            a, b, new = x[allowed], y[allowed], level + move
            effort = batch.honest_cost[0] * (grid[b] - grid[a])
            gaming = batch.gaming_cost[0] * np.maximum(need - grid[b], 0.0)
            after = np.clip(batch.gamma[0] * grid[b] + batch.delta[0] * new, grid[0], grid[-1])
            i = np.clip(np.searchsorted(grid, after, side="right") - 1, 0, count - 2)
            states.append(level * count + a)
            actions.append(3 * b + move + 1)
            rewards.append(batch.rewards[0, new] - effort - gaming)
            successors.append(new * count + i)
            weights.append((after - grid[i]) / (grid[i + 1] - grid[i]))
    state, action, reward, low, weight = map(
        np.concatenate, (states, actions, rewards, successors, weights)
    )
    order = np.lexsort((action, state))
    state, action, reward, low, weight = (
        part[order] for part in (state, action, reward, low, weight)
    )
    pair = np.arange(len(state))
    transitions = sparse.csr_matrix(
        (
            np.concatenate([1 - weight, weight]),
            (np.concatenate([pair, pair]), np.concatenate([low, low + 1])),
        ),
        shape=(len(state), levels * count),
    )
    return state, action, reward, transitions


def _quantecon(batch: "Ladders", grid: "Array") -> "Array":
    from quantecon.markov import DiscreteDP

    state, action, reward, transitions = _pairs(batch, grid)
    problem = DiscreteDP(reward, transitions, batch.beta[0], state, action)
    beta = batch.beta[0]
    # its stopping rule: a change below epsilon (1 - beta) / (2 beta)
    found = problem.solve(
        method="value_iteration",
        v_init=np.zeros(problem.num_states),
        epsilon=TOLERANCE * 2 * beta / (1 - beta),
        max_iter=100_000,
    )
    return found.v


def _mdptoolbox(batch: "Ladders", grid: "Array") -> "Array":
    import mdptoolbox.mdp
    from scipy import sparse

    state, action, reward, transitions = _pairs(batch, grid)
    states = transitions.shape[1]
    by_action, gains = [], np.full((states, 3 * len(grid)), FORBIDDEN)
    gains[state, action] = reward
    rows = transitions.tocoo()
    for number in range(3 * len(grid)):
        chosen = np.flatnonzero(action == number)
        missing = np.setdiff1d(np.arange(states), state[chosen])
        mask = action[rows.row] == number
        matrix = sparse.csr_matrix(
            (
                np.concatenate([rows.data[mask], np.ones(len(missing))]),
                (
                    np.concatenate([state[rows.row[mask]], missing]),
                    np.concatenate([rows.col[mask], missing]),
                ),
            ),
            shape=(states, states),
        )
        by_action.append(matrix)
    problem = mdptoolbox.mdp.MDP(by_action, gains, batch.beta[0], None, 1)
    values = np.zeros(states)
    change = np.inf
    while change >= TOLERANCE:
        new = np.asarray(problem._bellmanOperator(values)[1]).ravel()
        change = float(np.abs(new - values).max())
        values = new
    return values


def _designs() -> list[dict[str, object]]:
    """Designs of the credit ladder per second."""
    from scripts.papers.strategic_ladder import credit

    start = np.linspace(0.0, 10.0, 198)
    scores = credit.Scores(start, np.full(198, 1 / 198), {}, 198)
    designs = np.random.default_rng(0).uniform(size=(8, 6))

    def batched() -> object:
        return credit.evaluate("I", designs, 6, scores, 200, 501)

    def singly() -> object:
        return [credit.evaluate("I", one[None], 6, scores, 200, 501) for one in designs]

    rows = []
    for name, program in (("ours, population", batched), ("ours, one by one", singly)):
        seconds = _timed(program, repeats=5)[1]
        rows.append(
            {"beta": 0.8, "levels": 6, "nodes": 501, "program": name, "seconds": seconds,
             "designs_per_second": len(designs) / seconds}
        )  # fmt: skip
    return rows


def main() -> None:
    """Print the table, and write it where `--output` says."""
    from pathlib import Path

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="where the rows go, as parquet")
    args = parser.parse_args()
    rows = bench()
    print(rows.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        rows.to_parquet(args.output, index=False)


if __name__ == "__main__":
    main()
