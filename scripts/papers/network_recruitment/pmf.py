"""Recruitment distributions: checked pmfs, survival, mixture, truncation.

A person i given k coupons recruits min(k, X_i) people, X_i ~ D_i. A distribution is a row of
probabilities of 0, 1, 2, ... recruits; distributions of one set have rows of one length.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
SUM_TOLERANCE = 1e-9


def checked_pmfs(pmfs: ArrayLike, name: str = "pmfs") -> Array:
    """Distributions as an array [..., K] of probabilities.

    Raises:
        ValueError: not an array of numbers, a negative or missing probability, or a sum off 1.
    """
    p = np.asarray(pmfs, dtype=np.float64)
    if p.ndim == 0 or p.shape[-1] == 0:
        raise ValueError(f"{name} has the shape {p.shape}; allowed: rows of at least one number")
    if not np.isfinite(p).all() or (p < 0).any():
        worst = p[~np.isfinite(p)][0] if not np.isfinite(p).all() else p.min()
        raise ValueError(f"{name} holds the probability {worst}; allowed: 0 to 1")
    off = np.abs(p.sum(axis=-1) - 1)
    if off.size and off.max() > SUM_TOLERANCE:
        wrong = p.sum(axis=-1).ravel()[off.argmax()]
        raise ValueError(f"{name} sums to {wrong:.12g}; allowed: 1 to {SUM_TOLERANCE:g}")
    return p


def checked_budget(budget: int, name: str = "budget") -> int:
    """A number of coupons.

    Raises:
        ValueError: not a whole number of at least 0.
    """
    if isinstance(budget, bool) or not float(budget).is_integer() or budget < 0:
        raise ValueError(f"{name} is {budget!r}; allowed: a whole number of at least 0")
    return int(budget)


def checked_discount(discount: float, name: str = "discount") -> float:
    """A discount factor γ.

    Raises:
        ValueError: outside [0, 1).
    """
    if not 0 <= discount < 1:
        raise ValueError(f"{name} is {discount!r}; allowed: 0 <= {name} < 1")
    return float(discount)


def survival(pmfs: Array, levels: int) -> Array:
    """P(X >= l) for l = 1..levels, [..., levels]; zero beyond the support.

    Summed from the tail, so that rows never increase, not even by rounding.
    """
    tails = np.cumsum(pmfs[..., ::-1], axis=-1)[..., ::-1][..., 1:]
    out = np.zeros((*pmfs.shape[:-1], levels))
    kept = min(levels, tails.shape[-1])
    out[..., :kept] = tails[..., :kept]
    return out


def expected_capped(pmfs: Array, coupons: int) -> Array:
    """E min(k, X), from the definition (for checking against sums of survival)."""
    capped = np.minimum(np.arange(pmfs.shape[-1]), coupons)
    return pmfs @ capped


def truncated(pmfs: Array, levels: int) -> Array:
    """Laws of min(k, X) for k = 0..levels, [..., levels + 1, levels + 1].

    Row k is P(0), ..., P(k - 1), P(X >= k): the tail's mass moves into the last bucket.
    """
    padded = np.zeros((*pmfs.shape[:-1], levels + 1))
    kept = min(levels + 1, pmfs.shape[-1])
    padded[..., :kept] = pmfs[..., :kept]
    at_least = np.concatenate([np.ones((*pmfs.shape[:-1], 1)), survival(pmfs, levels)], axis=-1)
    outcome, cap = np.arange(levels + 1)[None, :], np.arange(levels + 1)[:, None]
    below = np.where(outcome < cap, padded[..., None, :], 0.0)
    return below + np.where(outcome == cap, at_least[..., None, :], 0.0)


def mixture(pmfs: Array, weights: Array) -> Array:
    """The population's law q(j) = E_D P_D(X = j), [..., K]: pmfs [..., T, K], weights [..., T]."""
    return np.einsum("...tk,...t->...k", pmfs, weights)


def sampled_mixture(
    pmfs: Array, weights: Array, rng: np.random.Generator, draws: int = 1000
) -> Array:
    """The mixture as the released code estimates it: the mean of `draws` sampled distributions."""
    return mixture(pmfs, rng.multinomial(draws, weights) / draws)


def without_recruiter(pmfs: Array) -> Array:
    """D shifted by one: of a recruited person's contacts, the recruiter is taken already."""
    shifted = np.zeros_like(pmfs)
    shifted[..., :-1] = pmfs[..., 1:]
    shifted[..., 0] += pmfs[..., 0]
    return shifted


def total_variation(p: Array, q: Array) -> Array:
    """Half the l1 distance along the last axis."""
    return 0.5 * np.abs(p - q).sum(axis=-1)
