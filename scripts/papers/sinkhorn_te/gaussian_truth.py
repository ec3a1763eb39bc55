"""Closed forms for Gaussian laws: the Sinkhorn divergence and half the squared MMD."""

from __future__ import annotations

import numpy as np

from scripts.papers.sinkhorn_te.sinkhorn import Array, check_eps


def gaussian_sinkhorn(mean1: Array, cov1: Array, mean0: Array, cov0: Array, eps: float) -> float:
    """S between N(mean1, cov1) and N(mean0, cov0), cost |x - y|^2 / 2.

    Janati et al. 2020 (Theorem 1, Proposition 1) with their cost |x - y|^2 and 2 sigma^2 = 2 eps,
    halved. The entropy is relative to the product of the marginals, as here.
    """
    check_eps(eps)
    shift = np.asarray(mean1) - np.asarray(mean0)
    cross = _bures_term(cov1, cov0, eps)
    own = _bures_term(cov1, cov1, eps) + _bures_term(cov0, cov0, eps)
    return float(0.5 * shift @ shift + 0.5 * (cross - 0.5 * own))


def _bures_term(a: Array, b: Array, eps: float) -> float:
    """The part of 2 OT(N(0, a), N(0, b)) that its debiasing does not cancel."""
    identity = np.eye(len(a))
    root = _root(a)
    d = _root(4 * root @ b @ root + eps**2 * identity)
    # 2 OT = tr a + tr b - tr d + eps log det(d / eps + 1) + const: the traces of a and b cancel.
    sign, logdet = np.linalg.slogdet(d / eps + identity)
    return float(-np.trace(d) + eps * sign * logdet)


def _root(a: Array) -> Array:
    values, vectors = np.linalg.eigh(a)
    return (vectors * np.sqrt(values)) @ vectors.T


def gaussian_half_mmd(mean1: Array, cov1: Array, mean0: Array, cov0: Array, eps: float) -> float:
    """Half the squared MMD under the kernel exp(-|x - y|^2 / (2 eps))."""
    check_eps(eps)
    mean1, mean0 = np.asarray(mean1), np.asarray(mean0)

    def inner(ma: Array, ca: Array, mb: Array, cb: Array) -> float:
        total = ca + cb + eps * np.eye(len(ca))
        gap = ma - mb
        scale = np.sqrt(eps ** len(ca) / np.linalg.det(total))
        return float(scale * np.exp(-0.5 * gap @ np.linalg.solve(total, gap)))

    return 0.5 * (
        inner(mean1, cov1, mean1, cov1)
        + inner(mean0, cov0, mean0, cov0)
        - 2 * inner(mean1, cov1, mean0, cov0)
    )


def shifted_covariance(cov: Array, theta: float) -> Array:
    """cov + theta (u v^T + v u^T) with the unit eigenvectors u, v of a 2 x 2 cov.

    Raises:
        ValueError: a theta that leaves no covariance.
    """
    _, vectors = np.linalg.eigh(cov)
    u, v = vectors.T
    shifted = cov + theta * (np.outer(u, v) + np.outer(v, u))
    if np.linalg.eigvalsh(shifted).min() <= 0:
        raise ValueError(f"theta: {theta}; the shifted covariance is not positive definite")
    return shifted
