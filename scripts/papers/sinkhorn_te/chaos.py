"""The null law of the second-order statistics: a Gaussian chaos, drawn by multipliers.

T = n S tends to sum_j lambda_j / 2 (N_j^2 - 1), lambda the eigenvalues of I2 / n [paper: Thm 4.1].
With g ~ N(0, I_n), W = (g^T I2 g - tr I2) / (2 n) has that law for the I2 of the sample, and the
same g for several statistics gives their joint law.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scripts.papers.sinkhorn_te.sinkhorn import Array


class Test(NamedTuple):
    """A test's statistic, critical value and p-value, each [R]."""

    statistic: Array
    critical: Array
    p: Array

    @property
    def rejects(self) -> Array:
        """1.0 where the null is rejected, else 0.0."""
        return (self.statistic > self.critical).astype(np.float64)


def chaos_draws(root: Array, multipliers: Array) -> Array:
    """W [R, B] of I2 = Q Q^T, Q [R, n, r], under multipliers [B, n] that all replicates share.

    In the multipliers' type; float32's rounding is far below the Monte-Carlo error of B draws.
    """
    n = root.shape[1]
    drawn = np.square(multipliers @ root.astype(multipliers.dtype)).sum(-1)
    return (drawn - np.square(root).sum((1, 2))[:, None]) / (2 * n)


def chaos_test(statistic: Array, draws: Array, alpha: float) -> Test:
    """Reject where the statistic [R] exceeds the (1 - alpha) quantile of its draws [R, B]."""
    above = (draws >= statistic[:, None]).sum(axis=1)
    return Test(
        statistic, np.quantile(draws, 1 - alpha, axis=1), (1 + above) / (1 + draws.shape[1])
    )


def aggregated_test(statistics: Array, draws: Array, alpha: float) -> Test:
    """STEAgg: the largest of several statistics in units of their own critical values.

    Args:
        statistics: [E, R] at E regularisations.
        draws: [E, R, B] under the same multipliers.
    """
    own = np.quantile(draws, 1 - alpha, axis=-1)
    if (own <= 0).any():
        raise ValueError(f"alpha: {alpha}; a level with a positive critical value is needed")
    return chaos_test((statistics / own).max(axis=0), (draws / own[..., None]).max(axis=0), alpha)
