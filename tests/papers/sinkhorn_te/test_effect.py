"""Estimates and the second-order statistic: algebra, invariances, laws and bad input."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from scripts.papers.sinkhorn_te import chaos, designs, effect, nuisance, operations
from scripts.papers.sinkhorn_te.gaussian_truth import gaussian_sinkhorn, shifted_covariance
from scripts.papers.sinkhorn_te.replicate import Cell, Settings, run_cell
from scripts.papers.sinkhorn_te.sinkhorn import sinkhorn_divergence

EPS = 2.0


@pytest.fixture(scope="module")
def halves() -> tuple[nuisance.Half, nuisance.Half]:
    return designs.draw("confounded", {}, 0.5, 3, 60, np.random.default_rng(1))


def study(rows: nuisance.Half, train: nuisance.Half, dense: bool = False, eps: float = EPS):
    fitted = nuisance.adjusted(train, rows.x, 1.0)
    geometry = effect.Geometry(rows, train.y, eps)
    laws = effect.transports(geometry, fitted)
    factor = None if dense else effect.second_order_factor(geometry, laws)
    signed = effect.signed_rows(rows, fitted)
    ste = effect.sinkhorn_effect(geometry, fitted, signed, laws, factor)
    mte = effect.kernel_effect(geometry, fitted, signed, laws, factor)
    return fitted, laws, signed, ste, mte


def test_dense_and_low_rank_paths_agree(halves) -> None:
    for low, high in zip(study(*halves)[3:], study(*halves, dense=True)[3:], strict=True):
        assert low.statistic == pytest.approx(high.statistic, rel=1e-6)
        matrix = low.root @ np.swapaxes(low.root, 1, 2)
        expected = high.root @ np.swapaxes(high.root, 1, 2)
        assert np.abs(matrix - expected).max() < 1e-6 * np.abs(expected).max()


def test_plug_in_is_the_divergence_of_the_estimated_laws(halves) -> None:
    rows, train = halves
    _, laws, _, ste, mte = study(rows, train)
    value = sinkhorn_divergence(train.y, laws.p1, train.y, laws.p0, EPS)[0]
    assert ste.plug_in == pytest.approx(value, abs=1e-8)
    assert (mte.plug_in > 0).all()


def test_signed_rows_have_no_mass_and_match_their_definition(halves) -> None:
    rows, train = halves
    fitted, laws, signed, _, _ = study(rows, train)
    matrix = signed.matrix()
    assert np.abs(matrix.sum(-1)).max() < 1e-12
    i, a = 7, rows.a[0, 7]
    e = fitted.propensity[0, i]
    w1 = fitted.weights[0, i] * train.a[0]
    w0 = fitted.weights[0, i] * (1 - train.a[0])
    omega = a / e - (1 - a) / (1 - e)
    support = -omega * (w1 if a else w0) + w1 - w0 - (laws.p1 - laws.p0)[0]
    assert matrix[0, i, 60:] == pytest.approx(support, abs=1e-12)
    assert matrix[0, i, i] == pytest.approx(omega)
    assert signed @ np.ones((3, 120, 1)) == pytest.approx(0, abs=1e-12)


def test_statistic_is_the_one_step_value_and_a_u_statistic(halves) -> None:
    """n S = n mean(phi) + sum over i < j of I2_ij / (n - 1) [paper: eq. 12]."""
    n = 60
    for found in study(*halves)[3:]:
        for k in range(3):
            pairs = (found.root[k] @ found.root[k].T)[np.triu_indices(n, 1)].sum()
            expected = n * found.one_step[k] + pairs / (n - 1)
            assert found.statistic[k] == pytest.approx(expected, rel=1e-8)


def test_permuting_rows_permutes_the_root(halves) -> None:
    rows, train = halves
    order = np.random.default_rng(2).permutation(60)
    shuffled = nuisance.Half(rows.x[:, order], rows.a[:, order], rows.y[:, order])
    before, after = study(rows, train)[3], study(shuffled, train)[3]
    assert after.statistic == pytest.approx(before.statistic, rel=1e-6)
    gram = before.root @ np.swapaxes(before.root, 1, 2)
    assert after.root @ np.swapaxes(after.root, 1, 2) == pytest.approx(
        gram[:, order][:, :, order], abs=1e-6 * np.abs(gram).max()
    )


def test_moving_all_outcomes_changes_nothing(halves) -> None:
    moved = [dataclasses.replace(half, y=half.y + 50.0) for half in halves]
    for before, after in zip(study(*halves)[3:], study(*moved)[3:], strict=True):
        assert after.statistic == pytest.approx(before.statistic, rel=1e-5)


def test_scores_with_exact_nuisances_are_unbiased() -> None:
    """With the true propensity and the true laws' derivatives the one-step mean is the truth."""
    rng = np.random.default_rng(5)
    n, theta, eps = 4000, 0.8, 2.269
    shifted = shifted_covariance(designs.SIGMA, theta)
    truth = gaussian_sinkhorn(np.zeros(2), shifted, np.zeros(2), designs.SIGMA, eps)
    x, a, y = designs.gauss_cov({}, theta, 1, n, rng)
    # Outcomes do not depend on covariates: equal weights of a large independent sample are exact
    # up to its own error, which the one-step estimate removes.
    m = 1500
    sample = rng.standard_normal((1, m, 2))
    arm = (np.arange(m) % 2)[None].astype(float)
    roots = [np.linalg.cholesky(cov).T for cov in (designs.SIGMA, shifted)]
    support = np.where(arm[..., None] == 1, sample @ roots[1], sample @ roots[0])
    weights = np.full((1, 1, m), 2 / m)
    exact = nuisance.Nuisance(np.clip(nuisance.expit(x.sum(-1)), 0.02, 0.98), weights, arm)
    rows = nuisance.Half(x, a, y)
    geometry = effect.Geometry(rows, support, eps)
    laws = effect.transports(geometry, exact)
    scores = effect.scores_of(rows, exact, laws.first1, laws.first0)
    error = scores.std() / np.sqrt(n)
    assert abs(scores.mean() - truth) < 3 * error


def test_multipliers_have_the_law_of_the_eigenvalues(halves) -> None:
    root = study(*halves)[3].root[:1]
    rng = np.random.default_rng(0)
    n, draws = 60, 100_000
    drawn = chaos.chaos_draws(root, rng.standard_normal((draws, n), dtype=np.float32))[0]
    eigenvalues = np.linalg.eigvalsh(root[0].T @ root[0] / n)
    normal = rng.standard_normal((draws, len(eigenvalues)))
    expected = 0.5 * (np.square(normal) - 1) @ eigenvalues
    spread = expected.std()
    assert drawn.mean() == pytest.approx(0, abs=0.02 * spread)
    assert drawn.std() == pytest.approx(np.sqrt(0.5 * np.square(eigenvalues).sum()), rel=0.03)
    # Probabilities of every quantile agree to 1%: 0.9% is exceeded by chance once in 600.
    assert stats.ks_2samp(drawn, expected).statistic < 0.01


def test_aggregated_test_of_one_regularisation_is_that_test() -> None:
    rng = np.random.default_rng(0)
    statistic, draws = rng.standard_normal(50) + 1, rng.standard_normal((50, 400))
    single = chaos.chaos_test(statistic, draws, 0.05)
    merged = chaos.aggregated_test(statistic[None], draws[None], 0.05)
    assert np.array_equal(single.rejects, merged.rejects)
    assert single.p == pytest.approx(merged.p)
    twice = chaos.aggregated_test(np.stack([statistic] * 2), np.stack([draws] * 2), 0.05)
    assert np.array_equal(single.rejects, twice.rejects)


def test_the_reference_law_hardly_matters_on_the_null() -> None:
    rows, train = designs.draw("gauss_mean", {}, 0.0, 4, 150, np.random.default_rng(8))
    fitted = nuisance.adjusted(train, rows.x, 1.0)
    geometry = effect.Geometry(rows, train.y, EPS)
    statistics = []
    for reference in ("pooled", "treated"):
        laws = effect.transports(geometry, fitted, reference)
        factor = effect.second_order_factor(geometry, laws)
        signed = effect.signed_rows(rows, fitted)
        found = effect.sinkhorn_effect(geometry, fitted, signed, laws, factor)
        statistics.append(found.statistic)
    assert np.corrcoef(*statistics)[0, 1] > 0.5


def test_operations_count_what_is_executed() -> None:
    counted = np.ones((2, 3, 4)).view(operations.Counted)
    operations.Counted.total = 0.0
    product = counted @ np.ones((2, 4, 5))
    assert operations.Counted.total == 2 * 2 * 3 * 5 * 4
    np.exp(product, out=product)
    assert operations.Counted.total == 240 + 30
    np.linalg.solve(np.broadcast_to(np.eye(3), (2, 3, 3)).view(operations.Counted), product)
    assert operations.Counted.total == pytest.approx(270 + 2 * (18 + 2 * 9 * 5))
    halves = designs.draw("gauss_mean", {}, 0.0, 1, 40, np.random.default_rng(0))
    total, statistic = operations.count_operations(*halves, EPS, 1.0, dense=False)
    assert total > 40**2 and statistic == pytest.approx(study(*halves)[3].statistic)


# Bad input --------------------------------------------------------------------------------------


def half(**changes) -> nuisance.Half:
    rng = np.random.default_rng(0)
    a = np.tile([0.0, 1.0], 10)[None]
    parts = {"x": rng.standard_normal((1, 20, 2)), "a": a, "y": rng.standard_normal((1, 20, 1))}
    return nuisance.Half(**{**parts, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": np.zeros((1, 20))}, "a: no treated rows"),
        ({"a": np.ones((1, 20))}, "a: no control rows"),
        ({"a": np.full((1, 20), 0.5)}, "a: found"),
        ({"y": np.ones((1, 20, 1))}, "y: all outcomes of a replicate are equal"),
        ({"y": np.full((1, 20, 1), np.nan)}, "y: has values that are not finite"),
        ({"x": np.full((1, 20, 2), np.inf)}, "x: has values that are not finite"),
    ],
)
def test_bad_rows(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        half(**changes)


def test_bad_bandwidth_and_eps() -> None:
    rows = half()
    with pytest.raises(ValueError, match="bandwidth: 0"):
        nuisance.adjusted(rows, rows.x, 0.0)
    with pytest.raises(ValueError, match=r"bandwidth: 0\.001 leaves a row without neighbours"):
        nuisance.adjusted(rows, rows.x + 9.0, 0.001)
    with pytest.raises(ValueError, match="eps: -1"):
        study(rows, rows, eps=-1.0)


def test_outcomes_far_from_all_others_are_refused() -> None:
    rows = half(y=np.concatenate([np.zeros((1, 19, 1)), np.full((1, 1, 1), 15.0)], axis=1))
    with pytest.raises(ValueError, match="y: an outcome is so far"):
        study(rows, half())


def test_bad_cells() -> None:
    settings = Settings(0.05, 99, 99, 1.0, (1.0,))
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="replicates: 0"):
        run_cell(Cell("gauss_mean", 0.0, 40, 0, EPS), settings, {}, rng)
    dense = Cell("gauss_mean", 0.0, 40, 1, EPS, dense=True, tests=("baselines",))
    with pytest.raises(ValueError, match="tests: found baselines in a dense cell"):
        run_cell(dense, settings, {}, rng)
    with pytest.raises(ValueError, match=r"theta: 2\.0; the shifted covariance"):
        shifted_covariance(designs.SIGMA, 2.0)
