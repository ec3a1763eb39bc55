"""Statistics of the claim ledger, on plain arrays of one number per unit.

Every function sorts its input first: a result depends on the values, never on their order. Random
resampling uses one fixed seed. Units are assumed independent; dependent ones are averaged before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95  # of every interval, two-sided
RESAMPLES = 4000
SEED = 20260701
BOOTSTRAP_FROM = 10  # units; below, a bootstrap interval is too narrow and Student's t is used
WILCOXON_FROM = 6  # units; with 4 or fewer the signed-rank p-value cannot fall below 0.05


class Interval(NamedTuple):
    """A two-sided interval; `how` says by which method. Both ends None: no interval exists."""

    low: float | None
    high: float | None
    how: str


class Slope(NamedTuple):
    """A log-log slope with its interval."""

    slope: float
    interval: Interval


def _sorted(values: ArrayLike) -> NDArray[np.float64]:
    return np.sort(np.asarray(values, dtype=np.float64).ravel())


def is_constant(values: ArrayLike) -> bool:
    """Whether all values are equal up to rounding."""
    x = np.asarray(values, dtype=np.float64)
    return bool(np.ptp(x) <= 1e-12 * np.max(np.abs(x)))


def mean(values: ArrayLike) -> float:
    """Arithmetic mean, independent of the order of the values.

    A mean that is nothing but rounding error of values that cancel is zero, not 1e-17.
    """
    x = _sorted(values)
    centre = float(np.mean(x))
    return 0.0 if abs(centre) < 1e-14 * float(np.max(np.abs(x))) else centre


def mean_interval(values: ArrayLike) -> Interval:
    """95% interval of the mean: bootstrap from 10 units on, Student's t below, none for one.

    BCa (Efron 1987); its acceleration needs a jackknife, so above 1000 units, where it no longer
    matters, the percentile method is used. Constant values have the interval [mean, mean].
    """
    from scipy import stats

    x = _sorted(values)
    if len(x) < 2:
        return Interval(None, None, "none: one unit")
    centre = float(np.mean(x))
    if is_constant(x):
        return Interval(centre, centre, f"none needed: {len(x)} equal units")
    if len(x) < BOOTSTRAP_FROM:
        error = float(stats.sem(x))
        low, high = stats.t.interval(LEVEL, len(x) - 1, loc=centre, scale=error)
        return Interval(float(low), float(high), f"95% Student t over {len(x)} units")
    method = "BCa" if len(x) <= 1000 else "percentile"
    result = stats.bootstrap(
        (x,),
        np.mean,
        confidence_level=LEVEL,
        n_resamples=RESAMPLES,
        batch=max(1, 2_000_000 // len(x)),
        method=method,
        vectorized=True,
        rng=np.random.default_rng(SEED),
    )
    low, high = result.confidence_interval
    return Interval(float(low), float(high), f"95% {method} bootstrap over {len(x)} units")


def mean_above(values: ArrayLike, margin: float, test: str | None = None) -> tuple[float, str]:
    """One-sided p-value of "the centre is at most margin", and the name of the test.

    Args:
        values: one number per unit (shape [n], n >= 2), such as a paired difference.
        margin: the value to exceed, in the unit of the values.
        test: "wilcoxon", "t" or "sign_flip"; by default t below 6 units, else Wilcoxon.
    """
    from scipy import stats

    x = _sorted(values) - margin
    n = len(x)
    test = test or ("t" if n < WILCOXON_FROM else "wilcoxon")
    if test == "t" and is_constant(x):
        # No spread to estimate: what is left is that all n signs agree.
        return (0.5**n if x[0] > 0 else 1.0), "sign flip (constant differences)"
    if test == "t":
        return float(stats.ttest_1samp(x, 0.0, alternative="greater").pvalue), "Student t"
    if test == "sign_flip":
        return _sign_flip(x), "sign flip"
    nonzero = x[x != 0]
    if len(nonzero) <= 13 and len(np.unique(np.abs(nonzero))) < n:
        # With ties or zeros scipy falls back to a normal approximation, poor for so few units: the
        # signed-rank test is the sign-flip test of the signed ranks.
        ranks = stats.rankdata(np.abs(nonzero)) * np.sign(nonzero)
        return _sign_flip(ranks), "Wilcoxon signed rank"
    result = stats.wilcoxon(nonzero, alternative="greater")
    return float(result.pvalue), "Wilcoxon signed rank"


def _sign_flip(x: NDArray[np.float64]) -> float:
    """One-sided p-value of the mean when every sign is a coin flip; exact up to 13 units."""
    from scipy import stats

    if not np.any(x):
        return 1.0
    if len(x) == 1:
        return 0.5 if x[0] > 0 else 1.0
    result = stats.permutation_test(
        (x,),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        alternative="greater",
        n_resamples=9999,
        batch=max(1, 2_000_000 // len(x)),
        rng=np.random.default_rng(SEED),
    )
    return float(result.pvalue)


def holm(pvalues: ArrayLike) -> NDArray[np.float64]:
    """Holm-adjusted p-values, in the given order (empty in, empty out)."""
    from statsmodels.stats.multitest import multipletests

    p = np.asarray(pvalues, dtype=np.float64)
    return multipletests(p, method="holm")[1] if len(p) else p


def smallest_detectable(values: ArrayLike) -> float | None:
    """Mean excess over the margin that a one-sided t-test at 5% sees with 80% power, given the
    units' number and spread; in the unit of the values. None for one unit."""
    from statsmodels.stats.power import TTestPower

    x = _sorted(values)
    if len(x) < 2:
        return None
    spread = 0.0 if is_constant(x) else float(np.std(x, ddof=1))
    size = TTestPower().solve_power(nobs=len(x), power=0.8, alpha=0.05, alternative="larger")
    return float(np.squeeze(size)) * spread


def share_interval(hits: int, n: int) -> Interval:
    """Clopper-Pearson 95% interval of a share."""
    from scipy import stats

    interval = stats.binomtest(hits, n).proportion_ci(LEVEL, method="exact")
    how = f"95% Clopper-Pearson over {n} units"
    return Interval(float(interval.low), float(interval.high), how)


def share_above(hits: int, n: int, share: float) -> float:
    """One-sided exact binomial p-value of "the true share is at most `share`"."""
    from scipy import stats

    return float(stats.binomtest(hits, n, share, alternative="greater").pvalue)


def smallest_detectable_share(n: int, share: float) -> float:
    """Excess of the true share over `share` that the exact binomial test at 5% sees with 80% power.

    The excess that is left when even a share of 1 would be missed: 1 - share.
    """
    from scipy import optimize, stats

    # The fewest hits that the test rejects: P(X >= k | share) <= 0.05.
    rejected_from = int(stats.binom.isf(0.05, n, share)) + 1

    def power(true: float) -> float:
        return float(stats.binom.sf(rejected_from - 1, n, true))

    if rejected_from > n:
        return 1 - share
    return float(optimize.brentq(lambda true: power(true) - 0.8, share, 1.0)) - share


def prediction_interval(values: ArrayLike) -> Interval:
    """mean +- t s sqrt(1 + 1/n): where one more run would fall with 95% (shape [n], n >= 2)."""
    from scipy import stats

    x = _sorted(values)
    n = len(x)
    spread = 0.0 if is_constant(x) else float(np.std(x, ddof=1))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1)) * spread * np.sqrt(1 + 1 / n)
    centre = float(np.mean(x))
    return Interval(centre - half, centre + half, f"95% prediction interval of {n} runs")


def slopes_per_unit(x: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
    """Least-squares slopes of log y on log x; x shape [s], y shape [units, s], all positive."""
    lx = np.log(np.asarray(x, dtype=np.float64))
    ly = np.log(np.asarray(y, dtype=np.float64))
    centred = lx - lx.mean()
    return (ly @ centred) / (centred @ centred)


def slope_over_units(x: ArrayLike, y: ArrayLike) -> Slope:
    """Mean of the units' log-log slopes, and its interval over units."""
    slopes = slopes_per_unit(x, y)
    return Slope(mean(slopes), mean_interval(slopes))


def slope_pooled(x: ArrayLike, y: ArrayLike) -> Slope:
    """One log-log regression over all points, x shape [s], y shape [units, s]; t interval."""
    from scipy import stats

    ys = np.sort(np.asarray(y, dtype=np.float64), axis=0)  # units carry no order
    xs = np.broadcast_to(np.asarray(x, dtype=np.float64), ys.shape)
    fit = stats.linregress(np.log(xs.ravel()), np.log(ys.ravel()))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, ys.size - 2)) * float(fit.stderr)
    slope = float(fit.slope)
    how = f"95% Student t of one regression over {ys.size} points"
    return Slope(slope, Interval(slope - half, slope + half, how))


def _ranked(x: NDArray[np.float64], method: str) -> NDArray[np.float64]:
    from scipy import stats

    return stats.rankdata(x, axis=-1) if method == "spearman" else x


def _pearson(x: NDArray[np.float64], y: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    x = x - x.mean(axis=axis, keepdims=True)
    y = y - y.mean(axis=axis, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        r = (x * y).sum(axis=axis) / np.sqrt((x**2).sum(axis=axis) * (y**2).sum(axis=axis))
    return np.clip(r, -1.0, 1.0)


def correlation(
    x: ArrayLike, y: ArrayLike, method: str
) -> tuple[float | None, Interval, float | None, str]:
    """Correlation of two metrics over units, interval, one-sided p of "at most 0", test name.

    Interval: percentile bootstrap over units from 10 on, Fisher's z from 4 on (variance of
    Fieller et al. 1957 for Spearman). p: permutation of the pairing, exact up to 7 units.
    A constant metric has no correlation: all parts are None.
    """
    from scipy import stats

    order = np.lexsort((np.asarray(y), np.asarray(x)))
    a, b = np.asarray(x, dtype=np.float64)[order], np.asarray(y, dtype=np.float64)[order]
    n = len(a)
    if n < 3 or is_constant(a) or is_constant(b):
        return None, Interval(None, None, "none: a constant metric or too few units"), None, ""
    ra, rb = _ranked(a, method), _ranked(b, method)
    r = float(_pearson(ra, rb))
    test = stats.permutation_test(
        (ra - ra.mean(),),  # the other metric stays: n! pairings, not n! squared
        lambda u, axis: (u * (rb - rb.mean())).sum(axis=axis),
        permutation_type="pairings",
        vectorized=True,
        alternative="greater",
        n_resamples=9999,
        batch=max(1, 1_000_000 // n),
        rng=np.random.default_rng(SEED),
    )
    return r, _correlation_interval(a, b, r, method), float(test.pvalue), f"{method} permutation"


def _correlation_interval(
    a: NDArray[np.float64], b: NDArray[np.float64], r: float, method: str
) -> Interval:
    from scipy import stats

    n = len(a)
    if n < 4:
        return Interval(None, None, "none: fewer than 4 units")
    if n >= BOOTSTRAP_FROM:
        draws = np.random.default_rng(SEED).integers(0, n, (RESAMPLES, n))
        resampled = _pearson(_ranked(a[draws], method), _ranked(b[draws], method))
        low, high = np.nanquantile(resampled, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
        return Interval(float(low), float(high), f"95% percentile bootstrap over {n} units")
    error = np.sqrt((1.06 if method == "spearman" else 1.0) / (n - 3))
    half = float(stats.norm.ppf(0.5 + LEVEL / 2)) * error
    z = np.arctanh(np.clip(r, -1 + 1e-9, 1 - 1e-9))
    how = f"95% Fisher z over {n} units"
    return Interval(float(np.tanh(z - half)), float(np.tanh(z + half)), how)


def monotone(series: ArrayLike, direction: str, tolerance: float | None) -> NDArray[np.bool_]:
    """Which rows of `series` (shape [units, levels], ordered by level) are "rising" or "falling".

    Strict without a tolerance; with one, a step may go against the direction by that much.
    """
    steps = np.diff(np.asarray(series, dtype=np.float64), axis=-1)
    steps = steps if direction == "rising" else -steps
    fine = steps > 0 if tolerance is None else steps >= -tolerance
    return np.all(fine, axis=-1)
