"""The surrogate's table beside the released order of loops and two solvers of MDPs, one thread.

    python -m scripts.papers.network_recruitment.bench [--output rows.parquet]

Goals: at least 50 times faster than the released order (written anew in `loop_order`) at a budget
of 40, and 5 times faster than quantecon's DiscreteDP and pymdptoolbox by value iteration on the
same MDP, whose states are (r, n) and whose actions are s; tables equal to 1e-10. A library is
charged for the laws of N, for its sparse matrices (both in `build_seconds`) and for solving. The
laws come from our transforms, which favours the library, or, as a user without them would find
them, from powers by convolution, once for every (n, s). Both libraries iterate to 1e-12; r falls
with every coupon, so that b + 2 sweeps are exact. Times are process seconds, medians of interleaved
runs; the first run, which compiles or fills caches, is not counted.
pymdptoolbox bounds its iterations first, column by column (all of its `build_seconds`, nearly), and
is left out beyond a budget of 30. The last rows are decisions per second of the planner with 60
coupons left and 30 people, one by one and many states at once.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from scripts.papers.network_recruitment import loop_order, surrogate
from scripts.papers.network_recruitment.planner import Planner
from scripts.papers.network_recruitment.pmf import Array, mixture, truncated

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_matrix

BUDGETS = (20, 30, 40, 50, 60)
MOST_TOOLBOX = 30
DISCOUNT, RUNS, LONG = 0.9, 7, 1.0  # a run of more than LONG seconds is not repeated
PRECISION = 1e-12
LEFT, PEOPLE, TYPES, STATES = 60, 30, 8, 2000


@dataclass(frozen=True)
class Transitions:
    """The (r, n, s) MDP, a row per state and feasible action; state (r, n) is r (b + 1) + n."""

    state: np.ndarray
    action: np.ndarray
    reward: Array
    next_state: "csr_matrix"  # [rows, states]


def transitions(budget: int, laws: Array) -> Transitions:
    """The surrogate's MDP from its laws; stopping (s = 0, or nobody there) leads to (r, 0)."""
    from scipy.sparse import csr_matrix

    values = laws @ np.arange(budget + 1)
    values, laws = np.append(values, 0.0), np.vstack([laws, np.eye(1, budget + 1)])
    r, n, s = (x.ravel() for x in np.indices((budget + 1,) * 3))
    feasible = (s <= r) & ((n > 0) | (s == 0))
    r, n, s = r[feasible], n[feasible], s[feasible]
    pair = np.where(s > 0, s * (s - 1) // 2 + np.minimum(n, s) - 1, len(values) - 1)
    counts = s + 1  # N = 0..s
    start = counts.cumsum() - counts
    row = np.repeat(np.arange(len(s)), counts)
    new = np.arange(len(row)) - start[row]
    target = (r - s)[row] * (budget + 1) + new
    chance = np.maximum(laws[pair[row], new], 0.0)  # the transform may leave -1e-17
    matrix = csr_matrix(
        (chance, target, np.append(start, len(row))), shape=(len(s), (budget + 1) ** 2)
    )
    return Transitions(r * (budget + 1) + n, s, values[pair], matrix)


def own_laws(q: Array, budget: int) -> Array:
    """Laws of N as the surrogate finds them, a row per (n, s); see `surrogate.round_laws`."""
    return surrogate.round_laws(q, budget)[1]


def convolved_laws(q: Array, budget: int) -> Array:
    """The same laws by repeated squaring of truncated polynomials."""
    capped = truncated(q, budget + 1)
    laws = np.zeros((budget * (budget + 1) // 2, budget + 1))
    pairs = ((n, s) for s in range(1, budget + 1) for n in range(1, s + 1))
    for row, (n, s) in enumerate(pairs):
        each, more = divmod(s, n)
        few = loop_order.power(capped[each, : each + 1], n - more, s)
        many = loop_order.power(capped[each + 1, : each + 2], more, s)
        law = loop_order.product(few, many, s)
        laws[row, : len(law)] = law
    return laws


def quantecon_table(
    laws: Array, discount: float, clock: Callable[[], None] = lambda: None
) -> Array:
    """U by quantecon's value iteration from laws of N; `clock` is called when the MDP is built."""
    from quantecon.markov import DiscreteDP

    budget = laws.shape[1] - 1
    mdp = transitions(budget, laws)
    program = DiscreteDP(mdp.reward, mdp.next_state, discount, mdp.state, mdp.action)
    clock()
    found = program.solve(
        method="value_iteration", v_init=np.zeros(program.num_states), epsilon=PRECISION,
        max_iter=budget + 2,
    )  # fmt: skip
    return found.v.reshape(budget + 1, budget + 1)


def pymdptoolbox_table(
    laws: Array, discount: float, clock: Callable[[], None] = lambda: None
) -> Array:
    """U by pymdptoolbox's value iteration; it knows no infeasible actions, they cost b + 1."""
    from mdptoolbox.mdp import ValueIteration
    from scipy.sparse import csr_matrix, identity

    budget = laws.shape[1] - 1
    mdp = transitions(budget, laws)
    states = (budget + 1) ** 2
    rewards = np.full((states, budget + 1), -(budget + 1.0))
    rewards[mdp.state, mdp.action] = mdp.reward
    matrices = []
    for s in range(budget + 1):
        rows = np.flatnonzero(mdp.action == s)
        ones = np.ones(len(rows))
        place = csr_matrix((ones, (mdp.state[rows], np.arange(len(rows)))), (states, len(rows)))
        idle = csr_matrix(identity(states)) - csr_matrix(
            (ones, (mdp.state[rows], mdp.state[rows])), (states, states)
        )
        matrices.append(csr_matrix(place @ mdp.next_state[rows] + idle))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its checks compare sparse matrices inefficiently
        program = ValueIteration(matrices, rewards, discount, epsilon=PRECISION)
    program.max_iter = max(program.max_iter, budget + 2)
    clock()
    program.run()
    return np.array(program.V).reshape(budget + 1, budget + 1)


def bench() -> "pd.DataFrame":
    """Rows of seconds a table and how much faster ours is, and rows of the planner's decisions."""
    import pandas as pd
    import torch

    torch.set_num_threads(1)
    rows = [row for budget in BUDGETS for row in _tables(budget)]
    return pd.DataFrame([*rows, *_decisions()])


def _population(rng: np.random.Generator, types: int = TYPES) -> tuple[Array, Array]:
    """Types of people with 0 to 20 contacts, and their shares."""
    return rng.dirichlet(np.full(21, 0.5), types), rng.dirichlet(np.ones(types))


def _tables(budget: int) -> list[dict[str, object]]:
    q = mixture(*_population(np.random.default_rng(0)))
    built = 0.0

    def clock() -> None:
        nonlocal built
        built = time.process_time()

    programs: dict[str, Callable[[], Array]] = {
        "ours": lambda: surrogate.solve(q, budget, DISCOUNT).value,
        "released order": lambda: loop_order.solve(q, budget, DISCOUNT),
        "quantecon, our laws": lambda: quantecon_table(own_laws(q, budget), DISCOUNT, clock),
        "quantecon, convolved laws": lambda: quantecon_table(
            convolved_laws(q, budget), DISCOUNT, clock
        ),
    }
    if budget <= MOST_TOOLBOX:
        programs["pymdptoolbox, our laws"] = lambda: pymdptoolbox_table(
            own_laws(q, budget), DISCOUNT, clock
        )
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    builds: dict[str, list[float]] = {name: [] for name in programs}
    tables: dict[str, Array] = {}
    for _ in range(RUNS + 1):
        for name, program in programs.items():
            if max(seconds[name][1:], default=0.0) > LONG:
                continue
            start = built = time.process_time()
            tables[name] = program()
            seconds[name].append(time.process_time() - start)
            builds[name].append(built - start)
    typical = {name: median(times[1:]) for name, times in seconds.items()}
    return [
        {
            "what": "table",
            "budget": budget,
            "program": name,
            "seconds": typical[name],
            "build_seconds": median(builds[name][1:]),
            "ours_faster_by": typical[name] / typical["ours"],
            "off_ours": float(np.abs(tables[name] - tables["ours"]).max()),
        }
        for name in programs
    ]


def _decisions() -> list[dict[str, object]]:
    rng = np.random.default_rng(1)
    pmfs, weights = _population(rng)
    table = surrogate.solve(mixture(pmfs, weights), LEFT, DISCOUNT).value
    planner = Planner(pmfs, table, DISCOUNT)
    kinds = rng.choice(TYPES, size=(STATES, PEOPLE), p=weights)
    rows = []
    for batch in (1, 200, STATES):
        count = 100 if batch == 1 else STATES
        times = []
        for _ in range(RUNS):
            start = time.process_time()
            for first in range(0, count, batch):
                part = kinds[first : first + batch]
                planner.spend(part, np.full(len(part), LEFT))
            times.append(time.process_time() - start)
        rows.append(
            {
                "what": "decisions",
                "budget": LEFT,
                "people": PEOPLE,
                "program": f"planner, {batch} at once",
                "seconds": median(times) / count,
                "per_second": count / median(times),
            }
        )
    return rows


def main() -> None:
    """Print the table, and write it where `--output` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="where the rows go, as parquet")
    args = parser.parse_args()
    rows = bench()
    print(rows.to_string(index=False, float_format=lambda value: f"{value:.3g}"))
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        rows.to_parquet(args.output, index=False)


if __name__ == "__main__":
    main()
