"""Sinkhorn divergences beside the libraries a user would pick, and the whole test, on one thread.

    python -m scripts.papers.sinkhorn_te.bench [--output rows.parquet]

Goal: at least twice the throughput of POT and geomloss on the batched sizes of the tests. Every
program gets the same pairs of clouds in 10 dimensions, the same eps in units of the median cost,
float64, and computes their divergences: three transports a pair. Each stops by its own rule at
1e-9; geomloss has none, its residual falls as one over the iterations, so that it gets a fixed
annealing and its error stands beside. `off_ours` is the largest relative difference of the values,
`residual` the mass by which the cross transport misses its marginals. Times are process seconds a
batch, medians of interleaved runs; the first run, which compiles or fills caches, is not counted.
geomloss.ot.solve_sample_batch is not implemented in geomloss 0.3.1.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from scripts.papers.sinkhorn_te.sinkhorn import (
    Array,
    Gibbs,
    half_costs,
    pair_potentials,
    sinkhorn_divergence,
)

if TYPE_CHECKING:
    import pandas as pd

DIM, MEDIAN_COST, TOLERANCE = 10, 10.0, 1e-9
# points, pairs a batch, eps in median costs, runs
CASES = (
    (250, 32, 1.0, 2),
    (250, 32, 0.25, 2),
    (600, 8, 1.0, 1),
    (1000, 2, 1.0, 1),
    (4000, 1, 1.0, 1),
)
TEST_SIZES = (250, 500, 1000)
LARGE = 4000  # here the libraries that store several costs or work in the log domain are left out

Batch = tuple[Array, Array, Array, float]


def bench() -> "pd.DataFrame":
    """Rows of seconds a batch and how much faster ours is, and rows of the whole test."""
    import pandas as pd
    import torch

    torch.set_num_threads(1)
    rows = [row for case in CASES for row in _divergences(*case)]
    return pd.DataFrame([*rows, *_whole_tests()])


def _divergences(points: int, pairs: int, eta: float, runs: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, pairs, points, DIM))
    batch = (x, y + 0.3, np.full((pairs, points), 1 / points), eta * MEDIAN_COST)
    programs: dict[str, Callable[[], Array]] = {
        "ours": lambda: _ours(batch),
        "POT sinkhorn": lambda: _pot(batch, "sinkhorn"),
        "geomloss SamplesLoss": lambda: _geomloss(batch),
    }
    if points < LARGE:
        programs |= {
            "POT sinkhorn_log": lambda: _pot(batch, "sinkhorn_log"),
            "POT solve_sample_batch": lambda: _pot_batch(batch),
            "OTT": _ott(batch),
        }
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    values = {}
    for _ in range(runs + (points < LARGE)):
        for name, program in programs.items():
            start = time.process_time()
            values[name] = program()
            seconds[name].append(time.process_time() - start)
    typical = {name: median(times[-runs:]) for name, times in seconds.items()}
    off = {name: np.abs(found / values["ours"] - 1).max() for name, found in values.items()}
    return [
        {
            "what": "divergence",
            "points": points,
            "pairs": pairs,
            "eps": batch[-1],
            "program": name,
            "seconds": typical[name],
            "ours_faster_by": typical[name] / typical["ours"],
            "off_ours": float(off[name]),
            "residual": _residual(batch) if name == "ours" else None,
        }
        for name in programs
    ]


def _ours(batch: Batch) -> Array:
    """The values; the first derivatives at all points come with them."""
    x, y, w, eps = batch
    return sinkhorn_divergence(x, w, y, w, eps, TOLERANCE)[0]


def _residual(batch: Batch) -> float:
    x, y, w, eps = batch
    gibbs, log_w = Gibbs(x, y, eps), np.log(w)
    found = pair_potentials(gibbs, log_w, log_w, np.zeros_like(w), TOLERANCE)
    plan = np.exp((found.f + log_w)[:, :, None] + (found.g + log_w)[:, None]) * gibbs.kernel
    missed = [np.abs(plan.sum(axis) - w).sum(-1) for axis in (1, 2)]
    return float(np.max(missed))


def _pot(batch: Batch, method: str) -> Array:
    """The three transports of each pair, one by one, and their values from the potentials."""
    import ot

    x, y, w, eps = batch

    def value(first: Array, second: Array, weights: Array) -> float:
        costs = half_costs(first, second)
        _, log = ot.sinkhorn(
            weights, weights, costs, eps,
            method=method, stopThr=TOLERANCE, numItermax=10_000, log=True,
        )  # fmt: skip
        in_logs = method == "sinkhorn_log"
        sides = [log[f"log_{name}"] if in_logs else np.log(log[name]) for name in ("u", "v")]
        return eps * sum(float(weights @ (side - np.log(weights))) for side in sides)

    pairs = zip(x, y, w, strict=True)
    return np.array([value(u, v, p) - 0.5 * (value(u, u, p) + value(v, v, p)) for u, v, p in pairs])


def _pot_batch(batch: Batch) -> Array:
    """POT's own batches, in torch and scaling form."""
    import ot
    import torch

    x, y, w, eps = batch
    weights = torch.from_numpy(w)
    first, second = (torch.from_numpy(points * 0.5**0.5) for points in (x, y))

    def value(a: torch.Tensor, b: torch.Tensor) -> Array:
        found = ot.solve_sample_batch(
            a, b, reg=eps, a=weights, b=weights, max_iter=10_000, tol=TOLERANCE,
            method="sinkhorn", reg_type="kl", grad="detach",
        )  # fmt: skip
        return found.value.numpy()

    return value(first, second) - 0.5 * (value(first, first) + value(second, second))


def _geomloss(batch: Batch) -> Array:
    """The divergence as geomloss documents it, annealed by 0.9 a step."""
    import torch
    from geomloss import SamplesLoss

    x, y, w, eps = batch
    loss = SamplesLoss("sinkhorn", p=2, blur=eps**0.5, scaling=0.9, backend="tensorized")
    return loss(*(torch.from_numpy(part) for part in (w, x, w, y))).numpy()


def _ott(batch: Batch) -> Callable[[], Array]:
    """OTT's divergence, compiled over the batch; its cost |x - y|^2 is halved by scaling points."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from ott.geometry.pointcloud import PointCloud
    from ott.tools.sinkhorn_divergence import sinkhorn_divergence as divergence

    x, y, w, eps = batch

    def one(a: jax.Array, b: jax.Array, weights: jax.Array) -> jax.Array:
        return divergence(
            PointCloud, a, b, epsilon=eps, a=weights, b=weights,
            solve_kwargs={"threshold": TOLERANCE},
        )[0]  # fmt: skip

    compiled = jax.jit(jax.vmap(one))
    return lambda: np.asarray(compiled(x * 0.5**0.5, y * 0.5**0.5, w))


def _whole_tests() -> list[dict[str, object]]:
    """Seconds of the Sinkhorn test of one replicate by its dense and its low-rank path."""
    from scripts.papers.sinkhorn_te import designs, effect, nuisance

    def test(halves: tuple[nuisance.Half, nuisance.Half], dense: bool) -> float:
        rows, train = halves
        fitted = nuisance.adjusted(train, rows.x, 1.0)
        geometry = effect.Geometry(rows, train.y, 2.269)
        laws = effect.transports(geometry, fitted)
        factor = None if dense else effect.second_order_factor(geometry, laws)
        signed = effect.signed_rows(rows, fitted)
        return float(effect.sinkhorn_effect(geometry, fitted, signed, laws, factor).statistic[0])

    rows = []
    for size in TEST_SIZES:
        halves = designs.draw("gauss_mean", {}, 0.4, 1, size, np.random.default_rng(size))
        seconds, found = {}, {}
        for dense in (True, False):
            times = []
            for _ in range(3):
                start = time.process_time()
                found[dense] = test(halves, dense)
                times.append(time.process_time() - start)
            seconds[dense] = median(times)
        rows += [
            {
                "what": "whole test",
                "points": size,
                "pairs": 1,
                "eps": 2.269,
                "program": "dense" if dense else "low rank",
                "seconds": seconds[dense],
                "ours_faster_by": seconds[dense] / seconds[False],
                "off_ours": abs(found[dense] / found[False] - 1),
            }
            for dense in (True, False)
        ]
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
