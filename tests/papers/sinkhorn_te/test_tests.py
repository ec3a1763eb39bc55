"""Nuisances, baselines and designs."""

import numpy as np
import pytest
from scipy import stats

from scripts.papers.sinkhorn_te import baselines, designs, effect, nuisance
from scripts.papers.sinkhorn_te.replicate import Cell, Settings, run_cell
from scripts.papers.sinkhorn_te.sinkhorn import Gibbs, sinkhorn_divergence

SETTINGS = Settings(0.05, 199, 99, 1.0, (0.5, 1.0, 2.0))


def test_propensity_is_that_of_sklearn() -> None:
    from sklearn.linear_model import LogisticRegression

    rows, train = designs.draw("confounded", {}, 0.0, 2, 200, np.random.default_rng(0))
    found = nuisance.logistic_propensity(train.x, train.a, rows.x)
    for k in range(2):
        model = LogisticRegression(tol=1e-10, max_iter=500).fit(train.x[k], train.a[k])
        assert found[k] == pytest.approx(model.predict_proba(rows.x[k])[:, 1], abs=1e-5)


def test_outcome_weights() -> None:
    rows, train = designs.draw("confounded", {}, 0.0, 2, 50, np.random.default_rng(0))
    weights = nuisance.nadaraya_watson(rows.x, train.x, train.a, 0.8)
    for arm in (train.a, 1 - train.a):
        assert (weights @ arm[..., None]) == pytest.approx(1.0, abs=1e-12)
    kernel = np.exp(-0.5 * np.square((rows.x[1, 3] - train.x[1]) / 0.8).sum(-1)) * train.a[1]
    assert weights[1, 3] * train.a[1] == pytest.approx(kernel / kernel.sum())


def test_unadjusted_weights_are_equal_within_arms() -> None:
    _, train = designs.draw("confounded", {}, 0.0, 2, 50, np.random.default_rng(0))
    plain = nuisance.unadjusted(train, 30)
    p1, p0 = plain.marginals()
    assert p1.sum(-1) == pytest.approx(1) and p0.sum(-1) == pytest.approx(1)
    assert len(np.unique(p1[0].round(12))) == 2
    assert plain.propensity.shape == (2, 30)


def test_halves_are_disjoint() -> None:
    pool = {
        "x": np.linspace(-1, 1, 100)[:, None] * np.ones(6),
        "y": np.arange(200.0).reshape(100, 2),
    }
    rows, train = designs.draw("cps", pool, 0.0, 3, 40, np.random.default_rng(0))
    for k in range(3):
        assert not set(rows.y[k, :, 0]) & set(train.y[k, :, 0])
    with pytest.raises(ValueError, match="rows: 120; at most 100"):
        designs.draw("cps", pool, 0.0, 1, 60, np.random.default_rng(0))


def test_wald_test_of_means_against_hotelling() -> None:
    scores = np.random.default_rng(0).standard_normal((1, 80, 2)) + 0.1
    test = baselines.aipw_mean_test(scores, 0.05)
    mean, cov = scores[0].mean(0), np.cov(scores[0].T)
    assert test.statistic[0] == pytest.approx(80 * mean @ np.linalg.solve(cov, mean))
    assert test.p[0] == pytest.approx(stats.chi2.sf(test.statistic[0], 2))


def test_cross_test_is_normal_under_the_null() -> None:
    rows = np.random.default_rng(0).standard_normal((2000, 60, 5))
    test = baselines.cross_kernel_test(rows, 0.05)
    assert stats.kstest(test.p, "uniform").pvalue > 0.001
    shifted = baselines.cross_kernel_test(rows + 0.5, 0.05)
    assert shifted.rejects.mean() > 0.9


def test_shuffles_stay_in_their_strata() -> None:
    shuffles = baselines.stratified_shuffles(50, 20, np.random.default_rng(0))
    assert (np.sort(shuffles, axis=1) == np.arange(50)).all()
    assert (shuffles // 10 == np.arange(50) // 10).all()
    assert (shuffles != np.arange(50)).any()


def test_weighted_kernel_statistic_is_an_mmd() -> None:
    rng = np.random.default_rng(0)
    a, y = (np.arange(40) % 2)[None].astype(float), rng.standard_normal((1, 40, 2))
    rows = nuisance.Half(rng.standard_normal((1, 40, 1)), a, y)
    e = rng.uniform(0.2, 0.8, (1, 40))
    shuffles = baselines.stratified_shuffles(40, 99, rng)
    test = baselines.weighted_kernel_test(rows, e, y, shuffles, 0.05)
    treated, control = a[0] / e[0], (1 - a[0]) / (1 - e[0])
    gap = treated @ y[0] / treated.sum() - control @ y[0] / control.sum()
    assert test.statistic[0] == pytest.approx(gap @ gap)
    assert 0 < test.p[0] <= 1


def test_runs_are_reproducible_and_do_not_depend_on_other_tests() -> None:
    cell = Cell("confounded", 0.0, 40, 3, 2.0, tests=("grid",))
    plain = Cell("confounded", 0.0, 40, 3, 2.0)
    one, two, other = (
        run_cell(c, SETTINGS, {}, np.random.default_rng(4)) for c in (cell, cell, plain)
    )
    assert one.equals(two)
    key = ["arm", "eta", "metric", "replicate"]
    merged = one.merge(other, on=key)
    ste = merged[(merged["arm"] == "ste") & (merged["metric"] == "statistic")]
    assert len(ste) == 3 and ste["value_x"].to_numpy() == pytest.approx(ste["value_y"].to_numpy())


def test_the_unadjusted_test_fails_where_covariates_confound() -> None:
    cell = Cell("confounded", 0.0, 150, 24, 2.06, tests=("unadjusted",))
    found = run_cell(cell, SETTINGS, {}, np.random.default_rng(0))
    rejects = found[found["metric"] == "reject"].groupby("arm")["value"].mean()
    assert rejects["ste"] <= 0.21  # 5 of 24 at a true size of 5% has probability 0.6%
    assert rejects["unadjusted"] > rejects["ste"]


def test_nuclei_truths(asset) -> None:
    pool = designs.nuclei_pool(asset("breast-cancer"), 10)
    for cure, ste, mmd in (
        (0.1, 0.0542, 5.872e-4),
        (0.25, 0.3400, 3.670e-3),
        (0.5, 1.3757, 1.4679e-2),
        (1.0, 5.8981, 5.8716e-2),
    ):
        points, p1, p0 = designs.nuclei_laws(pool, cure)
        cloud = points[None]
        value = sinkhorn_divergence(cloud, p1[None], cloud, p0[None], 24.856)[0][0]
        assert value == pytest.approx(ste, abs=6e-5)
        gram = Gibbs(cloud, cloud, 24.856).kernel[0]
        assert 0.5 * (p1 - p0) @ gram @ (p1 - p0) == pytest.approx(mmd, rel=2e-4)


def test_real_pools(asset) -> None:
    cps = designs.cps_pool(asset("cps-mixtape"))
    assert cps["x"].shape == (15_992, 6) and cps["y"].shape == (15_992, 2)
    studies = designs.observed_pools(asset("nsw-mixtape"), asset("nhefs-complete"))
    assert len(studies["nsw_after"]["x"]) == 445 and studies["nsw_after"]["a"].sum() == 185
    assert set(np.unique(studies["nhefs"]["a"])) == {0.0, 1.0}
    rows, train = designs.draw("nhefs", studies["nhefs"], 0.0, 1, 200, np.random.default_rng(0))
    geometry = effect.Geometry(rows, train.y, 1.0)
    fitted = nuisance.adjusted(train, rows.x, 1.0)
    assert np.isfinite(effect.transports(geometry, fitted).first1).all()
