"""One pass over the replicates of a cell: data, nuisances, all estimates and all tests.

Replicates run in batches, and the arms share what they can: kernels, transports, the low-rank
factor and the multipliers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scripts.papers.sinkhorn_te import baselines, effect, nuisance
from scripts.papers.sinkhorn_te.chaos import Test, aggregated_test, chaos_draws, chaos_test
from scripts.papers.sinkhorn_te.designs import draw
from scripts.papers.sinkhorn_te.sinkhorn import Array

if TYPE_CHECKING:
    import pandas as pd

BATCH_ENTRIES = 2**20  # n x n entries of a batch: 8 MiB, so that its kernels stay in cache
WALD = 1.959963984540054


@dataclass(frozen=True)
class Cell:
    """A design at one effect and size, and what is computed on its replicates.

    tests: beside STE and MTE, of "treated" (the other reference law), "unadjusted", "baselines" and
        "grid" (all regularisations and the aggregated tests).
    truth: the true effect, where estimates are recorded too.
    """

    design: str
    theta: float
    size: int
    replicates: int
    eps: float
    dense: bool = False
    tests: tuple[str, ...] = ()
    truth: float | None = None


@dataclass(frozen=True)
class Settings:
    """Common to all cells: level, multiplier draws, permutations, bandwidth, grid of eps ratios."""

    alpha: float
    draws: int
    permutations: int
    bandwidth: float
    etas: tuple[float, ...]


def run_cell(
    cell: Cell, settings: Settings, pool: Mapping[str, Array], rng: np.random.Generator
) -> pd.DataFrame:
    """Rows (replicate, arm, eta, metric, value) of all replicates of a cell.

    Metrics: reject, statistic, critical and p of every test; with a truth also error and covered.
    """
    import pandas as pd

    if cell.replicates < 1:
        raise ValueError(f"replicates: {cell.replicates}; at least 1 is needed")
    batch = max(1, min(64, BATCH_ENTRIES // cell.size**2))
    starts = range(0, cell.replicates, batch)
    counts = [min(batch, cell.replicates - start) for start in starts]
    parts = [_run_batch(cell, settings, pool, count, rng) for count in counts]
    columns = ("arm", "eta", "metric")
    frames = [
        pd.DataFrame({"value": np.concatenate([part[key] for part in parts])}).assign(
            **dict(zip(columns, key, strict=True)), replicate=np.arange(cell.replicates)
        )
        for key in parts[0]
    ]
    return pd.concat(frames, ignore_index=True)


Found = dict[tuple[str, float, str], Array]
NO_ETA = float("nan")


def _run_batch(
    cell: Cell, settings: Settings, pool: Mapping[str, Array], count: int, rng: np.random.Generator
) -> Found:
    rows, train = draw(cell.design, pool, cell.theta, count, cell.size, rng)
    adjusted = nuisance.adjusted(train, rows.x, settings.bandwidth)
    signed = effect.signed_rows(rows, adjusted)
    multipliers = rng.standard_normal((settings.draws, cell.size), dtype=np.float32)
    batch = _Batch(cell, settings, rows, train, adjusted.propensity, rng, multipliers)
    if "grid" in cell.tests:
        batch.grid(adjusted, signed)
    else:
        batch.both_effects(adjusted, signed, 1.0)
    if "treated" in cell.tests:
        batch.sinkhorn("ste_treated", adjusted, reference="treated")
    if "unadjusted" in cell.tests:
        batch.sinkhorn("unadjusted", nuisance.unadjusted(train, cell.size))
    return batch.found


@dataclass(frozen=True)
class _Batch:
    """Replicates of a cell that run together, and what was found on them so far."""

    cell: Cell
    settings: Settings
    rows: nuisance.Half
    train: nuisance.Half
    propensity: Array
    rng: np.random.Generator
    multipliers: NDArray[np.float32]
    found: Found = field(default_factory=dict)

    @cached_property
    def base(self) -> effect.Geometry:
        return self.geometry(1.0)

    def geometry(self, eta: float) -> effect.Geometry:
        return effect.Geometry(self.rows, self.train.y, eta * self.cell.eps)

    def grid(self, adjusted: nuisance.Nuisance, signed: effect.SignedRows) -> None:
        """Both effects at every regularisation, and the tests that aggregate them."""
        studies = [self.both_effects(adjusted, signed, eta) for eta in self.settings.etas]
        for number, arm in enumerate(("steagg", "mteagg")):
            chosen = [study[number] for study in studies]
            statistics = np.stack([one.statistic for one, _ in chosen])
            draws = np.stack([drawn for _, drawn in chosen])
            self.record(arm, NO_ETA, aggregated_test(statistics, draws, self.settings.alpha))

    def both_effects(
        self, adjusted: nuisance.Nuisance, signed: effect.SignedRows, eta: float
    ) -> list[tuple[effect.Effect, Array]]:
        """STE and MTE at one regularisation, each with the draws of its null law."""
        geometry = self.base if eta == 1.0 else self.geometry(eta)
        laws = effect.transports(geometry, adjusted)
        factor = None if self.cell.dense else effect.second_order_factor(geometry, laws)
        ste = effect.sinkhorn_effect(geometry, adjusted, signed, laws, factor)
        mte = effect.kernel_effect(geometry, adjusted, signed, laws, factor)
        found = [("ste", ste, self.test("ste", ste, eta)), ("mte", mte, self.test("mte", mte, eta))]
        if eta == 1.0:
            self.extras(signed, ste, laws, factor)
        return [(one, draws) for _, one, draws in found]

    def extras(
        self,
        signed: effect.SignedRows,
        ste: effect.Effect,
        laws: effect.Laws,
        factor: Array | None,
    ) -> None:
        """What is recorded once: the doubled threshold, estimates and other tests."""
        # The text of section 4.3 leaves out the 1/2 of the chaos, which doubles the threshold.
        critical = 2 * self.found["ste", 1.0, "critical"]
        self.found["ste_conservative", 1.0, "reject"] = (ste.statistic > critical).astype(float)
        if self.cell.truth is not None:
            _record_estimates(self.found, ste, self.cell.truth)
        if "baselines" in self.cell.tests:
            if factor is None:
                raise ValueError("tests: found baselines in a dense cell; they need the low rank")
            self.baselines(signed, laws, effect.kernel_features(laws, factor))

    def baselines(self, signed: effect.SignedRows, laws: effect.Laws, features: Array) -> None:
        """The tests that a user would otherwise take; features [R, n + m, r] of the MMD kernel."""
        size, alpha = self.cell.size, self.settings.alpha
        plug_in = (laws.p1 - laws.p0)[:, None]  # AIPW rows are not centred at it
        embedded = signed @ features + plug_in @ features[:, size:]
        outcomes = np.concatenate([self.rows.y, self.train.y], axis=1)
        scores = signed @ outcomes + plug_in @ self.train.y
        shuffles = baselines.stratified_shuffles(size, self.settings.permutations, self.rng)
        weighted = baselines.weighted_kernel_test(
            self.rows, self.propensity, features[:, :size], shuffles, alpha
        )
        self.record("kte", NO_ETA, weighted)
        self.record("dr_xkte", NO_ETA, baselines.cross_kernel_test(embedded, alpha))
        self.record("aipw", NO_ETA, baselines.aipw_mean_test(scores, alpha))

    def sinkhorn(self, arm: str, chosen: nuisance.Nuisance, reference: str = "pooled") -> None:
        """The Sinkhorn test with other nuisances or another reference law."""
        laws = effect.transports(self.base, chosen, reference)
        factor = effect.second_order_factor(self.base, laws)
        signed = effect.signed_rows(self.rows, chosen)
        self.test(arm, effect.sinkhorn_effect(self.base, chosen, signed, laws, factor), 1.0)

    def test(self, arm: str, estimate: effect.Effect, eta: float) -> Array:
        """Record the chaos test of an effect; returns the draws of its null law."""
        draws = chaos_draws(estimate.root, self.multipliers)
        self.record(arm, eta, chaos_test(estimate.statistic, draws, self.settings.alpha))
        return draws

    def record(self, arm: str, eta: float, test: Test) -> None:
        values = {"reject": test.rejects, **test._asdict()}
        self.found.update({(arm, eta, metric): value for metric, value in values.items()})


def _record_estimates(found: Found, estimate: effect.Effect, truth: float) -> None:
    found["plugin", 1.0, "error"] = estimate.plug_in - truth
    found["ste", 1.0, "error"] = estimate.one_step - truth
    half = WALD * estimate.standard_error
    found["ste", 1.0, "covered"] = (np.abs(estimate.one_step - truth) <= half).astype(np.float64)
