"""Nuisances from the first half of the rows: the propensity, and outcome laws given covariates.

All arrays carry replicates in front: R independent data sets of the same size at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scripts.papers.sinkhorn_te.sinkhorn import Array, half_costs

CLIP = 0.02  # estimated propensities lie in [0.02, 0.98]
NEWTON_STEPS = 12
RIDGE = 1.0  # of the coefficients but the intercept, as in sklearn's LogisticRegression(C=1)


@dataclass(frozen=True)
class Half:
    """n rows a replicate: covariates [R, n, k], treatments 0 or 1 [R, n], outcomes [R, n, d]."""

    x: Array
    a: Array
    y: Array

    def __post_init__(self) -> None:
        for name, values in (("x", self.x), ("y", self.y)):
            if not np.isfinite(values).all():
                raise ValueError(f"{name}: has values that are not finite; finite ones are allowed")
        if not np.isin(self.a, (0.0, 1.0)).all():
            raise ValueError(f"a: found {np.unique(self.a)[:5]}; treatments 0 and 1 are allowed")
        share = self.a.mean(axis=1)
        if (share == 0).any() or (share == 1).any():
            arm = "treated" if (share == 0).any() else "control"
            raise ValueError(f"a: no {arm} rows in a replicate; at least one of each arm is needed")
        if (np.ptp(self.y, axis=1).max(axis=-1) == 0).any():
            raise ValueError("y: all outcomes of a replicate are equal; at least two must differ")


@dataclass(frozen=True)
class Nuisance:
    """What the nuisance half says about the evaluation rows.

    propensity: [R, n], of the evaluation rows.
    weights: [R, n, m] (or [R, 1, m], equal for all rows); the weights of the nuisance rows in the
        outcome law of their own arm given a row's covariates, so that each row sums to 1 in each
        arm.
    treated: [R, m], 0 or 1, the arm of the nuisance rows.
    """

    propensity: Array
    weights: Array
    treated: Array

    def marginals(self) -> tuple[Array, Array]:
        """Weights [R, m] of both counterfactual laws: averages over the evaluation covariates."""
        mean = self.weights.mean(axis=1)
        return mean * self.treated, mean * (1 - self.treated)

    def conditional_means(self, v1: Array, v0: Array) -> tuple[Array, Array]:
        """Mean of v1 under the treated law and of v0 under the control law of each row.

        v1, v0: [R, m], functions at the nuisance outcomes; the results are [R, n or 1].
        """
        values = np.stack([self.treated * v1, (1 - self.treated) * v0], axis=1)
        means = values @ np.swapaxes(self.weights, 1, 2)
        return means[:, 0], means[:, 1]


def adjusted(train: Half, x: Array, bandwidth: float) -> Nuisance:
    """Logistic propensity and Nadaraya-Watson outcome laws of the rows x [R, n, k]."""
    return Nuisance(
        np.clip(logistic_propensity(train.x, train.a, x), CLIP, 1 - CLIP),
        nadaraya_watson(x, train.x, train.a, bandwidth),
        train.a,
    )


def unadjusted(train: Half, rows: int) -> Nuisance:
    """No use of covariates: the share of treated rows, and equal weights within the arms."""
    share = train.a.mean(axis=1, keepdims=True)
    equal = np.where(train.a == 1, 1 / share, 1 / (1 - share)) / train.a.shape[1]
    return Nuisance(np.repeat(share, rows, axis=1), equal[:, None], train.a)


def nadaraya_watson(x: Array, at: Array, treated: Array, bandwidth: float) -> Array:
    """Gaussian kernel weights of rows `at` [R, m, k] for rows x [R, n, k], normalised in each arm.

    Raises:
        ValueError: a bandwidth that is not > 0.
    """
    if not bandwidth > 0:
        raise ValueError(f"bandwidth: {bandwidth}; a number > 0 is allowed")
    costs = half_costs(x, at, -1 / bandwidth**2)
    weights = np.exp(costs, out=costs)
    arms = np.stack([1 - treated, treated], axis=-1)
    sums = weights @ arms
    if sums.min() < 1e-250:
        raise ValueError(
            f"bandwidth: {bandwidth:g} leaves a row without neighbours in an arm; take a larger one"
        )
    control = (treated == 0)[:, None, :]
    return np.divide(weights, np.where(control, sums[..., :1], sums[..., 1:]), out=weights)


def logistic_propensity(x: Array, a: Array, at: Array) -> Array:
    """P(A = 1) at rows `at` by logistic regression of a [R, n] on x [R, n, k], all R by Newton."""
    design = np.concatenate([np.ones_like(x[..., :1]), x], axis=-1)
    penalty = np.full(design.shape[-1], RIDGE)
    penalty[0] = 0.0
    beta = np.zeros((len(x), design.shape[-1], 1))
    for _ in range(NEWTON_STEPS):
        p = expit(design @ beta)
        gradient = np.swapaxes(design, 1, 2) @ (a[..., None] - p) - penalty[:, None] * beta
        hessian = np.swapaxes(design * (p * (1 - p)), 1, 2) @ design + np.diag(penalty)
        beta = beta + np.linalg.solve(hessian, gradient)
    return expit(np.concatenate([np.ones_like(at[..., :1]), at], axis=-1) @ beta)[..., 0]


def expit(t: Array) -> Array:
    """1 / (1 + exp(-t))."""
    from scipy.special import expit as logistic

    return logistic(t)
