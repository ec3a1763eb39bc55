"""Tests that a user would otherwise take, on the same halves and nuisances."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scripts.papers.sinkhorn_te.chaos import Test
from scripts.papers.sinkhorn_te.nuisance import Half
from scripts.papers.sinkhorn_te.sinkhorn import Array

STRATA = 5


def aipw_mean_test(scores: Array, alpha: float) -> Test:
    """Wald test that the AIPW average effect, the mean of the scores [R, n, d], is 0."""
    from scipy.stats import chi2

    _, n, d = scores.shape
    mean = scores.mean(axis=1)
    centred = scores - mean[:, None]
    covariance = np.swapaxes(centred, 1, 2) @ centred / (n - 1)
    wald = n * (mean * np.linalg.solve(covariance, mean[..., None])[..., 0]).sum(-1)
    return Test(wald, np.full(len(wald), chi2.ppf(1 - alpha, d)), chi2.sf(wald, d))


def cross_kernel_test(embedded: Array, alpha: float) -> Test:
    """DR-xKTE (Martinez-Taboada et al. 2023): a cross U-statistic of doubly robust embeddings.

    Rows of the first and second half of the evaluation rows are crossed; under the null the
    studentised mean is normal. embedded [R, n, r]: the AIPW rows in a feature space of the kernel.
    """
    from scipy.stats import norm

    n = embedded.shape[1]
    first, second = embedded[:, : n // 2], embedded[:, n // 2 :]
    crossed = (first @ second.mean(axis=1)[..., None])[..., 0]
    t = np.sqrt(crossed.shape[1]) * crossed.mean(axis=1) / crossed.std(axis=1, ddof=1)
    return Test(t, np.full(len(t), norm.ppf(1 - alpha)), norm.sf(t))


def weighted_kernel_test(
    rows: Half, propensity: Array, features: Array, shuffles: NDArray[np.intp], alpha: float
) -> Test:
    """KTE (Muandet et al. 2021): the MMD between inverse-propensity-weighted arms.

    Treatments are permuted within strata of the propensity, which shuffles [P, n] do when rows are
    ordered by it (`stratified_shuffles`). features [R, n, r]: a factor of the kernel at y.
    """
    order = np.argsort(propensity, axis=1, kind="stable")
    a, e = (np.take_along_axis(v, order, axis=1) for v in (rows.a, propensity))
    ordered = np.take_along_axis(features, order[..., None], axis=1)
    labels = np.concatenate([a[:, None], a[:, shuffles]], axis=1)  # [R, 1 + P, n]
    treated, control = labels / e[:, None], (1 - labels) / (1 - e[:, None])
    signed = treated / treated.sum(-1, keepdims=True) - control / control.sum(-1, keepdims=True)
    mmd = np.square(signed @ ordered).sum(-1)
    above = (mmd[:, 1:] >= mmd[:, :1]).sum(axis=1)
    critical = np.quantile(mmd[:, 1:], 1 - alpha, axis=1)
    return Test(mmd[:, 0], critical, (1 + above) / mmd.shape[1])


def stratified_shuffles(n: int, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Permutations [count, n] of 0..n-1 within STRATA consecutive blocks."""
    block = np.arange(n) * STRATA // n
    return np.argsort(rng.random((count, n)) + block, axis=1)
