"""Statistics against known values, direct library calls, brute force and what must always hold."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from scripts.pipeline import stats
from tests.pipeline.claim_tables import quick_holm  # noqa: F401 (a fixture)

numbers = st.floats(-100, 100).map(lambda x: round(x, 3))


def sample(n: int, centre: float = 0.3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(centre, 1.0, n)


# Intervals of a mean -----------------------------------------------------------------------------


def test_student_interval_of_a_textbook_sample() -> None:
    # mean 3, s = sqrt(2.5), t(0.975, 4) = 2.776445
    low, high, how = stats.mean_interval([1, 2, 3, 4, 5])
    half = 2.7764451 * math.sqrt(2.5 / 5)
    assert (low, high) == pytest.approx((3 - half, 3 + half))
    assert how == "95% Student t over 5 units"


def test_bootstrap_from_ten_units_is_scipys() -> None:
    x = np.sort(sample(25))
    low, high, how = stats.mean_interval(x)
    expected = scipy_stats.bootstrap(
        (x,), np.mean, n_resamples=stats.RESAMPLES, rng=np.random.default_rng(stats.SEED)
    ).confidence_interval
    assert (low, high) == (expected.low, expected.high)
    assert how == "95% BCa bootstrap over 25 units"
    assert stats.RESAMPLES >= 2000


def test_bootstrap_of_many_units_is_near_the_normal_interval() -> None:
    x = sample(3000)
    low, high, how = stats.mean_interval(x)
    half = 1.96 * np.std(x, ddof=1) / math.sqrt(len(x))
    assert how.startswith("95% percentile bootstrap")
    assert (low, high) == pytest.approx((np.mean(x) - half, np.mean(x) + half), abs=0.1 * half)


@pytest.mark.parametrize("n", [2, 9, 10, 40])
@pytest.mark.parametrize("value", [0.0, 0.1, -3.0])
def test_constant_values_have_a_point_interval(n: int, value: float) -> None:
    low, high, _ = stats.mean_interval([value] * n)
    assert low == high == pytest.approx(value)


def test_a_single_unit_has_no_interval() -> None:
    assert stats.mean_interval([2.0]) == (None, None, "none: one unit")


def test_coverage_is_near_nominal_on_both_sides_of_the_switch() -> None:
    for n in (6, 12, 30):
        hits = 0
        for seed in range(120):
            low, high, _ = stats.mean_interval(sample(n, 0.0, seed))
            hits += low <= 0 <= high
        assert 0.86 <= hits / 120 <= 1.0, n


@settings(max_examples=25, deadline=None)
@given(st.lists(numbers, min_size=2, max_size=25), st.randoms())
def test_order_does_not_matter(values: list[float], random) -> None:
    shuffled = random.sample(values, len(values))
    assert stats.mean_interval(values) == stats.mean_interval(shuffled)
    assert stats.mean(values) == stats.mean(shuffled)
    assert stats.mean_above(values, 0.5) == stats.mean_above(shuffled, 0.5)
    assert stats.smallest_detectable(values) == stats.smallest_detectable(shuffled)


@settings(max_examples=25, deadline=None)
@given(st.lists(numbers, min_size=2, max_size=25), st.integers(-4, 4))
def test_units_of_measurement_scale_the_interval(values: list[float], power: int) -> None:
    factor = 2.0**power
    low, high, _ = stats.mean_interval(values)
    scaled = stats.mean_interval([factor * value for value in values])
    assert scaled[:2] == pytest.approx((factor * low, factor * high), rel=1e-9, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.lists(numbers, min_size=2, max_size=25))
def test_interval_holds_the_mean_and_mirrors(values: list[float]) -> None:
    low, high, _ = stats.mean_interval(values)
    assert low <= high
    if len(values) < stats.BOOTSTRAP_FROM:
        mirrored = stats.mean_interval([-value for value in values])
        assert mirrored[:2] == pytest.approx((-high, -low), abs=1e-9)
        assert low - 1e-9 <= stats.mean(values) <= high + 1e-9


# Tests of a mean ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "name"),
    [(2, "Student t"), (5, "Student t"), (6, "Wilcoxon signed rank"), (30, "Wilcoxon signed rank")],
)
def test_default_test_by_number_of_units(n: int, name: str) -> None:
    assert stats.mean_above(sample(n), 0.0)[1] == name


def test_p_values_are_scipys() -> None:
    x = sample(20)
    assert stats.mean_above(x, 0.1, "t")[0] == pytest.approx(
        scipy_stats.ttest_1samp(x, 0.1, alternative="greater").pvalue
    )
    assert stats.mean_above(x, 0.1, "wilcoxon")[0] == pytest.approx(
        scipy_stats.wilcoxon(x - 0.1, alternative="greater").pvalue
    )


@pytest.mark.parametrize("test", ["sign_flip", "wilcoxon"])
@pytest.mark.parametrize(
    "values", [[1.0, 2.0, -0.5, 3.0, 2.5, 0.25], [1.0, 1.0, -1.0, 2.0, 2.0, 0.0]]
)
def test_exact_p_values_by_enumeration(test: str, values: list[float]) -> None:
    x = np.array(values)
    ranks = scipy_stats.rankdata(np.abs(x[x != 0])) if test == "wilcoxon" else np.abs(x)
    signs = np.sign(x[x != 0]) if test == "wilcoxon" else np.sign(x)
    seen = (signs * ranks).sum()
    flips = itertools.product([-1, 1], repeat=len(ranks))
    sums = np.array([(np.array(flip) * ranks).sum() for flip in flips])
    expected = np.mean(sums >= seen - 1e-9)
    assert stats.mean_above(x, 0.0, test)[0] == pytest.approx(expected)


def test_constant_differences_do_not_prove_more_than_their_signs() -> None:
    assert stats.mean_above([0.2] * 3, 0.0)[0] == 0.125
    assert stats.mean_above([0.2] * 3, 0.3)[0] == 1.0
    assert stats.mean_above([0.2] * 8, 0.0)[0] == pytest.approx(1 / 256)
    assert stats.mean_above([0.0] * 8, 0.0)[0] == 1.0
    assert stats.mean_above([0.0] * 4, 0.0)[0] == 1.0


@settings(max_examples=30, deadline=None)
@given(
    st.lists(numbers, min_size=2, max_size=20),
    st.sampled_from(["t", "wilcoxon", "sign_flip"]),
    st.floats(0, 5),
)
def test_a_higher_margin_never_helps(values: list[float], test: str, step: float) -> None:
    easy, hard = (stats.mean_above(values, margin, test)[0] for margin in (0.0, step))
    if test != "wilcoxon":  # dropping zeros makes the signed-rank test locally non-monotone
        assert hard >= easy - 1e-9
    assert 0 <= hard <= 1


def test_false_alarms_stay_at_the_nominal_level() -> None:
    for n in (4, 8, 15):
        alarms = np.mean([stats.mean_above(sample(n, 0.0, s), 0.0)[0] < 0.05 for s in range(400)])
        assert alarms <= 0.08, n


# Holm, power, shares -----------------------------------------------------------------------------


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_statsmodels_and_monotone(p: list[float]) -> None:
    adjusted = stats.holm(p)
    assert np.array_equal(adjusted, multipletests(p, method="holm")[1])
    assert np.all(adjusted >= np.array(p) - 1e-12)
    assert np.all(np.diff(adjusted[np.argsort(p, kind="stable")]) >= -1e-12)
    assert np.all(stats.holm([*p, 0.5])[:-1] >= adjusted - 1e-12)  # one more test never helps


def test_holm_by_hand() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert len(stats.holm([])) == 0


@pytest.mark.parametrize("n", [2, 3, 9, 40])
def test_smallest_detectable_effect_has_80_percent_power(n: int) -> None:
    x = sample(n)
    seen = stats.smallest_detectable(x)
    power = TTestPower().power(seen / np.std(x, ddof=1), n, 0.05, alternative="larger")
    assert power == pytest.approx(0.8, abs=1e-4)


@pytest.mark.parametrize(("n", "share"), [(60, 0.05), (300, 0.05), (200, 0.5), (80, 0.95)])
def test_smallest_detectable_share_has_80_percent_power(n: int, share: float) -> None:
    true = share + stats.smallest_detectable_share(n, share)
    hits = np.arange(n + 1)
    rejected = np.array([stats.share_above(int(k), n, share) <= 0.05 for k in hits])
    assert scipy_stats.binom.pmf(hits[rejected], n, true).sum() == pytest.approx(0.8, abs=1e-9)


def test_smallest_detectable_share_where_nothing_is_seen() -> None:
    assert stats.smallest_detectable_share(3, 0.5) == 0.5  # even 3 of 3 have p = 1/8


def test_smallest_detectable_effect_shrinks_with_units_and_needs_two() -> None:
    wide = stats.smallest_detectable([1.0, 2.0, 3.0, 4.0])
    assert stats.smallest_detectable([1.0, 2.0, 3.0, 4.0] * 5) < wide
    assert stats.smallest_detectable([1.0]) is None
    assert stats.smallest_detectable([1.0] * 4) == 0.0


def test_share_interval_is_clopper_pearson() -> None:
    low, high, _ = stats.share_interval(36, 36)
    assert (low, high) == pytest.approx((0.025 ** (1 / 36), 1.0))
    beta = scipy_stats.beta
    assert stats.share_interval(7, 20)[:2] == pytest.approx(
        (beta.ppf(0.025, 7, 14), beta.ppf(0.975, 8, 13))
    )
    assert stats.share_above(20, 20, 0.9) == pytest.approx(0.9**20)


def test_prediction_interval_by_hand() -> None:
    # runs 9, 10, 11: s = 1, t(0.975, 2) = 4.302653
    low, high, _ = stats.prediction_interval([9, 10, 11])
    half = 4.302653 * math.sqrt(4 / 3)
    assert (low, high) == pytest.approx((10 - half, 10 + half))


def test_prediction_interval_holds_the_next_run_95_percent_of_the_time() -> None:
    inside = 0
    for seed in range(1000):
        runs = sample(5, 0.0, seed)
        low, high, _ = stats.prediction_interval(runs[:4])
        inside += low <= runs[4] <= high
    assert 0.93 <= inside / 1000 <= 0.97


# Slopes, correlations, trends --------------------------------------------------------------------


def test_slopes_recover_a_power_law_and_are_linregress() -> None:
    x = np.array([8, 16, 32, 64.0])
    y = np.exp(np.random.default_rng(0).normal(0, 0.1, (5, 4))) * x**-0.5
    slopes = stats.slopes_per_unit(x, y)
    expected = [scipy_stats.linregress(np.log(x), np.log(row)).slope for row in y]
    assert slopes == pytest.approx(expected)
    exact, interval = stats.slope_over_units(x, [7 * x**-1.5])
    assert exact == pytest.approx(-1.5)
    assert interval.low is None


def test_pooled_slope_has_linregress_interval() -> None:
    x = np.array([1, 2, 4, 8.0])
    y = np.exp(np.random.default_rng(1).normal(0, 0.2, (3, 4))) * x**2
    slope, (low, high, _) = stats.slope_pooled(x, y)
    fit = scipy_stats.linregress(np.log(np.tile(x, 3)), np.log(y.ravel()))
    half = scipy_stats.t.ppf(0.975, 10) * fit.stderr
    assert (slope, low, high) == pytest.approx((fit.slope, fit.slope - half, fit.slope + half))
    assert stats.slope_pooled(x, y[::-1]) == (slope, (low, high, _))


@pytest.mark.parametrize("method", ["spearman", "pearson"])
@pytest.mark.parametrize("n", [5, 8, 30])
def test_correlation_is_scipys(method: str, n: int) -> None:
    x, noise = sample(n), sample(n, 0.0, 9)
    y = x + 0.7 * noise
    r, interval, p, name = stats.correlation(x, y, method)
    library = scipy_stats.spearmanr if method == "spearman" else scipy_stats.pearsonr
    expected = library(x, y, alternative="greater")
    assert r == pytest.approx(expected.statistic)
    assert p == pytest.approx(expected.pvalue, abs=0.05)  # permutation against approximation
    assert interval.low <= r <= interval.high
    assert name == f"{method} permutation"
    shuffled = np.random.default_rng(2).permutation(n)
    assert stats.correlation(x[shuffled], y[shuffled], method) == (r, interval, p, name)


def test_correlation_p_value_by_enumeration() -> None:
    x, y = np.array([1.0, 2, 3, 4, 5]), np.array([1.0, 3, 2, 5, 4])
    seen = np.corrcoef(x, y)[0, 1]
    sums = [np.corrcoef(x, order)[0, 1] for order in itertools.permutations(y)]
    expected = np.mean(np.array(sums) >= seen - 1e-9)
    assert stats.correlation(x, y, "spearman")[2] == pytest.approx(expected)


def test_small_correlations_have_fishers_interval_and_constants_none() -> None:
    x, y = sample(7), sample(7) + 0.5 * sample(7, 0, 3)
    _, interval, *_ = stats.correlation(x, y, "pearson")
    expected = scipy_stats.pearsonr(x, y).confidence_interval()
    assert interval[:2] == pytest.approx((expected.low, expected.high))
    assert stats.correlation([1, 1, 1, 1], [1, 2, 3, 4], "spearman")[0] is None
    assert stats.correlation([1, 2], [1, 2], "spearman")[0] is None


@pytest.mark.parametrize(
    ("series", "direction", "tolerance", "complies"),
    [
        ([1, 2, 3], "rising", None, True),
        ([1, 2, 2], "rising", None, False),
        ([1, 2, 2], "rising", 0.0, True),
        ([3, 2.05, 2.06], "falling", 0.02, True),
        ([3, 2.05, 2.06], "falling", 0.005, False),
        ([3, 2, 1], "rising", 0.5, False),
    ],
)
def test_monotone(
    series: list[float], direction: str, tolerance: float | None, complies: bool
) -> None:
    assert stats.monotone([series], direction, tolerance).tolist() == [complies]


def test_a_mean_of_values_that_cancel_is_zero():
    assert stats.mean([0.1, 0.2, -0.3]) == 0.0
    assert stats.mean([1e-20, 3e-20]) == pytest.approx(2e-20)
