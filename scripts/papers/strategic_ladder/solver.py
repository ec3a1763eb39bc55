"""Optimal values, policies and paths of agents on ladders, by structured value iteration.

A search over two actions is not needed: with y the attribute after effort and V the value,
    W_l(y) = max over allowed moves of R_l' - c- (need - y)^+ + beta V_l'(gamma y + delta (l' - 1)),
    V_l(x) = c+ x + max_{y >= x} (W_l(y) - c+ y),
so a sweep is an interpolation and a maximum that runs from the right. The grid is uniform with all
thresholds added; without them "improve exactly to a threshold" falls between two nodes, and agents
that improve seem to game a little.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scripts.papers.strategic_ladder.compiled import loops
from scripts.papers.strategic_ladder.ladder import Array, Ladders

HEADROOM = 1.3  # of the grid over the highest threshold and the highest steady attribute
MOST_SWEEPS = 100_000
CLAMP = 0.95  # a path beyond this share of the grid is too close to where values are clamped


@dataclass(frozen=True)
class Solution:
    """Values on the grid [B, L, K], and how they were found."""

    grids: Array
    """[B, K], ascending; thresholds among them."""
    values: Array
    sweeps: NDArray[np.int64]
    first_change: Array
    last_change: Array


@dataclass(frozen=True)
class Policy:
    """What is done at each node [B, L, K]."""

    target: NDArray[np.int32]
    """Node to which the attribute is raised."""
    move: NDArray[np.int8]
    gaming: Array
    surplus: Array
    """Value of the choice at its target y, less c+ y."""


@dataclass(frozen=True)
class Paths:
    """Optimal paths [B, S, T]: after-effort attribute, effort, gaming, new level (from 0)."""

    reached: Array
    effort: Array
    gaming: Array
    level: NDArray[np.int32]


def grid_top(batch: Ladders) -> Array:
    """Where the grid of each ladder ends by default [B]."""
    steady = batch.delta * (batch.levels - 1) / (1 - batch.gamma)
    return HEADROOM * np.maximum(np.maximum(batch.top, steady), 1e-3)


def make_grids(batch: Ladders, nodes: int, x_max: ArrayLike | None = None) -> Array:
    """Uniform nodes from 0 to x_max, every threshold and where it leads [B, nodes + 2 L].

    The attribute with which the next step starts after a threshold was met exactly is a node too:
    honest paths run over these, so that their values carry no interpolation error.

    Raises:
        ValueError: fewer than 3 nodes, or an x_max that does not reach above the last threshold
            and the highest steady attribute.
    """
    if nodes < 3:
        raise ValueError(f"nodes: found {nodes}, allowed: at least 3")
    least = grid_top(batch) / HEADROOM
    high = grid_top(batch) if x_max is None else np.broadcast_to(x_max, least.shape)
    if not (np.isfinite(high).all() and (high > least).all()):
        bad = int(np.argmin(high - least))
        raise ValueError(
            f"x_max: found {high[bad]:g} in ladder {bad}, allowed: above {least[bad]:g}, the "
            "larger of its last threshold and its highest steady attribute"
        )
    uniform = np.linspace(0.0, 1.0, nodes) * high[:, None]
    # Rows with fewer levels get the last threshold again; a cell of no width does no harm.
    thresholds = np.minimum(batch.thresholds, batch.top[:, None])
    steps = np.minimum(np.arange(thresholds.shape[1]), batch.levels[:, None] - 1)
    follows = batch.gamma[:, None] * thresholds + batch.delta[:, None] * steps
    return np.sort(np.concatenate([uniform, thresholds, follows], axis=1), axis=1)


def solve(
    batch: Ladders,
    nodes: int = 1001,
    x_max: ArrayLike | None = None,
    tolerance: float = 1e-10,
    start: Solution | None = None,
) -> Solution:
    """Value iteration until no value changes by `tolerance` (sup norm).

    Args:
        start: a solution of similar ladders, as warm start.

    Raises:
        ValueError: see `make_grids`; or it has not converged after 100000 sweeps (beta too high).
    """
    grids = make_grids(batch, nodes, x_max)
    shape = (*batch.thresholds.shape, grids.shape[1])
    values = np.zeros(shape)
    if start is not None:
        for b, level in np.ndindex(*shape[:2]):
            if level < start.values.shape[1]:
                values[b, level] = np.interp(grids[b], start.grids[b], start.values[b, level])
    sweeps, first, last = loops().iterate(
        values, grids, *_numbers(batch), float(tolerance), MOST_SWEEPS
    )
    if (last >= tolerance).any():
        raise ValueError(
            f"beta: values still change by {last.max():.3g} after {MOST_SWEEPS} sweeps at "
            f"beta={batch.beta[np.argmax(last)]:g}, allowed: less than {tolerance:g}"
        )
    return Solution(grids, values, sweeps, first, last)


def policy(batch: Ladders, solution: Solution) -> Policy:
    """The optimal choice at each node; ties go to less gaming, then to the higher level."""
    return Policy(*loops().decide(solution.values, solution.grids, *_numbers(batch)))


def follow(
    batch: Ladders,
    solution: Solution,
    chosen: Policy,
    steps: int,
    start_x: ArrayLike = 0.0,
    start_level: ArrayLike = 0,
) -> Paths:
    """Optimal paths by one-step lookahead on the values, from starts [B, S] (or one for all).

    Raises:
        ValueError: an attribute comes so near the end of the grid that values there are clamped.
    """
    x = np.asarray(start_x, dtype=np.float64)
    x = np.ascontiguousarray(np.broadcast_to(x, (len(batch), x.shape[-1] if x.ndim else 1)))
    level = np.ascontiguousarray(np.broadcast_to(np.asarray(start_level, dtype=np.int64), x.shape))
    paths = Paths(
        *loops().follow(
            solution.values, chosen.target, chosen.move, chosen.gaming, chosen.surplus,
            solution.grids, *_numbers(batch), level, x, steps,
        )
    )  # fmt: skip
    highest = paths.reached.max(axis=(1, 2)) / solution.grids[:, -1]
    if (highest > CLAMP).any():
        raise ValueError(
            f"x_max: a path comes to {highest.max():.3g} of the grid of ladder "
            f"{int(np.argmax(highest))}, allowed: {CLAMP:g} of it, as values are clamped there"
        )
    return paths


def honest(batch: Ladders, paths: Paths, settle: int = 20) -> NDArray[np.bool_]:
    """Whether a path is honest [B, S]: no gaming, and the top is reached, kept and deserved.

    Total gaming is at most 1e-6 of the last threshold, the last level is held over the last
    `settle` steps, and the attribute then is no less than the last threshold.
    """
    top = batch.top[:, None]
    clean = paths.gaming.sum(axis=2) <= 1e-6 * top
    kept = (paths.level[:, :, -settle:] == batch.levels[:, None, None] - 1).all(axis=2)
    return clean & kept & (paths.reached[:, :, -1] >= top * (1 - 1e-9))


def climb(
    batch: Ladders, nodes: int = 1001, tolerance: float = 1e-10, start: Solution | None = None
) -> tuple[Solution, Paths]:
    """Solve, then follow the agent that starts at the bottom with nothing, long enough to judge."""
    solution = solve(batch, nodes, tolerance=tolerance, start=start)
    steps = 2 * batch.thresholds.shape[1] + 40
    return solution, follow(batch, solution, policy(batch, solution), steps)


def _numbers(batch: Ladders) -> tuple[NDArray, ...]:
    """What the compiled loops take, in their order."""
    return (
        batch.thresholds, batch.rewards, batch.levels, batch.beta, batch.gamma, batch.delta,
        batch.honest_cost, batch.gaming_cost,
    )  # fmt: skip
