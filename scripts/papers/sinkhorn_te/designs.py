"""Designs that draw (X, A, Y): simulated ones of the paper, a confounded one, and on real data.

Every design is a function (pool, theta, replicates, rows, rng) -> (x, a, y), with `replicates`
data sets of `rows` rows; the null holds at the theta given in its docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from scripts.papers.sinkhorn_te.gaussian_truth import shifted_covariance
from scripts.papers.sinkhorn_te.nuisance import Half, expit
from scripts.papers.sinkhorn_te.sinkhorn import Array

Pool = Mapping[str, Array]
Rows = tuple[Array, Array, Array]

SIGMA = np.array([[3.0, 1.0], [1.0, 1.0]])  # inferred: the paper does not print it
CPS_ASSIGNMENT = np.array([-0.6, -0.2, -0.3, 0.2, 0.1, 0.2])
NHEFS_COVARIATES = ["age", "sex", "race", "school", "smokeintensity", "smokeyrs", "wt71"]
NHEFS_OUTCOMES = ["wt82_71", "sbp"]
CPS_COVARIATES = ["age", "educ", "marr", "black", "hisp", "nodegree"]


def _bernoulli(rng: np.random.Generator, p: Array) -> Array:
    return (rng.random(p.shape) < p).astype(np.float64)


def gauss_mean(pool: Pool, theta: float, count: int, rows: int, rng: np.random.Generator) -> Rows:
    """The paper's mean shift: Y | A ~ N(theta A 1, Sigma), so that X does not confound. Null: 0."""
    x = rng.standard_normal((count, rows, 3))
    a = _bernoulli(rng, expit(x.sum(-1)))
    noise = rng.standard_normal((count, rows, 2)) @ np.linalg.cholesky(SIGMA).T
    return x, a, noise + theta * a[..., None]


def gauss_cov(pool: Pool, theta: float, count: int, rows: int, rng: np.random.Generator) -> Rows:
    """The paper's covariance shift: Y | A = 1 ~ N(0, Sigma + theta (uv' + vu')). Null: 0."""
    x = rng.standard_normal((count, rows, 3))
    a = _bernoulli(rng, expit(x.sum(-1)))
    noise = rng.standard_normal((count, rows, 2))
    shifted = np.linalg.cholesky(shifted_covariance(SIGMA, theta)).T
    y = np.where(a[..., None] == 1, noise @ shifted, noise @ np.linalg.cholesky(SIGMA).T)
    return x, a, y


def confounded(pool: Pool, theta: float, count: int, rows: int, rng: np.random.Generator) -> Rows:
    """Y = 0.7 (x1, x2) + N(0, I2) + theta 1 A; S = theta^2 at every eps. Null: 0."""
    x = rng.standard_normal((count, rows, 3))
    a = _bernoulli(rng, expit(0.5 * x.sum(-1)))
    y = 0.7 * x[..., :2] + rng.standard_normal((count, rows, 2)) + theta * a[..., None]
    return x, a, y


def cps(pool: Pool, theta: float, count: int, rows: int, rng: np.random.Generator) -> Rows:
    """Real men of the CPS, (earnings of 1975 and 1978) / 10^4, given a confounded pseudo-treatment
    that adds theta to both. Null: 0."""
    if rows > len(pool["x"]):
        raise ValueError(f"rows: {rows}; at most {len(pool['x'])} are in the pool")
    chosen = np.stack([rng.choice(len(pool["x"]), rows, replace=False) for _ in range(count)])
    x = pool["x"][chosen]
    a = _bernoulli(rng, expit(x @ CPS_ASSIGNMENT))
    return x, a, pool["y"][chosen] + theta * a[..., None]


def nuclei(pool: Pool, theta: float, count: int, rows: int, rng: np.random.Generator) -> Rows:
    """Features of real nuclei images: a sick row (S = 1) shows malignant nuclei unless treatment
    cures it, with probability expit(theta + 0.01 1'x). Null: theta = -20."""
    x = rng.standard_normal((count, rows, 3))
    sick = _bernoulli(rng, expit(0.5 * x.sum(-1)))
    a = _bernoulli(rng, expit(0.3 * x.sum(-1)))
    cured = a * _bernoulli(rng, expit(theta + 0.01 * x.sum(-1)))
    from_malignant = (sick * (1 - cured))[..., None]
    malignant, benign = (
        pool[name][rng.integers(0, len(pool[name]), (count, rows)).ravel()].reshape(count, rows, -1)
        for name in ("malignant", "benign")
    )
    return x, a, np.where(from_malignant == 1, malignant, benign)


def observed(pool: Pool, theta: float, count: int, rows: int, rng: np.random.Generator) -> Rows:
    """Rows of a real study as they are, split at random; theta is not used."""
    if rows > len(pool["x"]):
        raise ValueError(f"rows: {rows}; at most {len(pool['x'])} are in the pool")
    chosen = np.stack([rng.permutation(len(pool["x"]))[:rows] for _ in range(count)])
    return pool["x"][chosen], pool["a"][chosen], pool["y"][chosen]


DESIGNS: dict[str, Callable[[Pool, float, int, int, np.random.Generator], Rows]] = {
    "gauss_mean": gauss_mean,
    "gauss_cov": gauss_cov,
    "confounded": confounded,
    "cps": cps,
    "nuclei": nuclei,
    "nsw_before": observed,
    "nsw_after": observed,
    "nhefs": observed,
}
NUCLEI_THETAS = (-2.0, -1.0, 0.0, 20.0)


def draw(
    design: str, pool: Pool, theta: float, count: int, n: int, rng: np.random.Generator
) -> tuple[Half, Half]:
    """`count` data sets of 2 n disjoint rows: (evaluation half, nuisance half)."""
    x, a, y = DESIGNS[design](pool, theta, count, 2 * n, rng)
    return Half(x[:, :n], a[:, :n], y[:, :n]), Half(x[:, n:], a[:, n:], y[:, n:])


# Pools ------------------------------------------------------------------------------------------


def cps_pool(folder: Path) -> dict[str, Array]:
    """x [15992, 6], standardised covariates, and y [15992, 2] of the CPS men."""
    import pandas as pd

    table = pd.read_stata(folder / "cps_mixtape.dta")
    x = table[CPS_COVARIATES].to_numpy(dtype=np.float64)
    y = table[["re75", "re78"]].to_numpy(dtype=np.float64) / 1e4
    return {"x": standardised(x), "y": y}


def nuclei_pool(folder: Path, components: int) -> dict[str, Array]:
    """Principal components of 30 features of nuclei, Yeo-Johnson transformed: malignant [212, 10],
    benign [357, 10]. Heavy tails would break the expansion that the test rests on."""
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import PowerTransformer

    # The first line of sklearn's file holds counts, the last column 0 for malignant.
    table = np.loadtxt(folder / "breast_cancer.csv", delimiter=",", skiprows=1)
    features = PowerTransformer().fit_transform(table[:, :-1])
    scores = PCA(components, svd_solver="full").fit_transform(features)
    return {"malignant": scores[table[:, -1] == 0], "benign": scores[table[:, -1] == 1]}


def observed_pools(nsw: Path, nhefs: Path) -> dict[str, dict[str, Array]]:
    """Studies that are shown, not judged: x, a, y of each.

    nsw_before: a randomised programme and the earnings before it (a true null); nsw_after: the
    earnings after it; nhefs: quitting smoking, weight change and blood pressure.
    """
    import pandas as pd

    randomised = pd.read_stata(nsw / "nsw_mixtape.dta")
    x = standardised(randomised[CPS_COVARIATES].to_numpy(dtype=np.float64))
    a = randomised["treat"].to_numpy(dtype=np.float64)
    # In log(1 + thousands of dollars): a few large earnings would lie off the others' support.
    earnings = np.log1p(randomised[["re74", "re75", "re78"]].to_numpy(np.float64) / 1e3)
    smokers = pd.read_stata(nhefs / "nhefs_complete.dta")[
        ["qsmk", *NHEFS_COVARIATES, *NHEFS_OUTCOMES]
    ]
    # Yes-or-no columns come as categories of Stata's value labels.
    smokers = smokers.apply(
        lambda column: column.cat.codes if column.dtype == "category" else column
    )
    smokers = smokers.astype(np.float64).dropna()
    return {
        "nsw_before": {"x": x, "a": a, "y": earnings[:, :2]},
        "nsw_after": {"x": x, "a": a, "y": earnings[:, 2:]},
        "nhefs": {
            "x": standardised(smokers[NHEFS_COVARIATES].to_numpy()),
            "a": smokers["qsmk"].to_numpy(),
            "y": standardised(smokers[NHEFS_OUTCOMES].to_numpy()),
        },
    }


def cure_probability(theta: float) -> float:
    """P(cured | treated, sick) of the nuclei design, up to the 1e-4 that the covariates add."""
    return float(expit(np.float64(theta)))


def standardised(x: Array) -> Array:
    """Columns with mean 0 and standard deviation 1."""
    return (x - x.mean(axis=0)) / x.std(axis=0)


def median_cost(y: Array, rng: np.random.Generator, pairs: int = 200_000) -> float:
    """Median of |y - y'|^2 / 2 over random pairs of rows of y [N, d]."""
    first, second = rng.integers(0, len(y), (2, pairs))
    return float(np.median(0.5 * np.square(y[first] - y[second]).sum(-1)))


def nuclei_laws(pool: Pool, cure: float) -> tuple[Array, Array, Array]:
    """(points [569, d], weights of P1, weights of P0) with half the rows sick, a share cured."""
    malignant, benign = pool["malignant"], pool["benign"]

    def law(sick: float) -> Array:
        parts = (np.full(len(malignant), sick / len(malignant)), (1 - sick) / len(benign))
        return np.concatenate([parts[0], np.full(len(benign), parts[1])])

    return np.concatenate([malignant, benign]), law(0.5 * (1 - cure)), law(0.5)
