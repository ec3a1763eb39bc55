"""Differential entropy of samples by the distance to the k-th nearest neighbour.

    H = digamma(N) - digamma(k) + log V_d + d/N sum_i log r_{i,k}

(Kozachenko and Leonenko 1987), V_d the volume of the unit ball and r the Euclidean distance.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.special import digamma, gammaln

Array = NDArray[np.float64]


def kozachenko_leonenko(
    points: Array,
    neighbours: int = 3,
    jitter: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Array:
    """Entropies in nat, [...], of samples [..., N, d].

    Args:
        points: N samples in d dimensions, of one or more distributions.
        neighbours: k; small is less biased, large less noisy.
        jitter: half width of uniform noise that parts equal points (clipped actions), whose
            distance 0 has no logarithm.
        rng: draws the jitter.

    Raises:
        ValueError: too few points, or k-th neighbours that coincide without jitter.
    """
    points = np.asarray(points, dtype=np.float64)
    count, dimension = points.shape[-2:]
    if not 1 <= neighbours < count:
        raise ValueError(f"neighbours is {neighbours}; allowed: 1 to {count - 1}, below the points")
    if jitter > 0:
        if rng is None:
            raise ValueError(f"jitter is {jitter:g} but rng is None; allowed: a generator")
        points = points + rng.uniform(-jitter, jitter, points.shape)
    samples = points.reshape(-1, count, dimension)
    logs = np.array([_mean_log_distance(sample, neighbours) for sample in samples])
    ball = dimension / 2 * math.log(math.pi) - gammaln(dimension / 2 + 1)
    entropy = digamma(count) - digamma(neighbours) + ball + dimension * logs
    return entropy.reshape(points.shape[:-2])


def _mean_log_distance(sample: Array, neighbours: int) -> float:
    distance = cKDTree(sample).query(sample, k=[neighbours + 1])[0]  # itself comes first
    if not (distance > 0).all():
        raise ValueError(
            f"{neighbours + 1} points coincide, so that their distance 0 has no logarithm; "
            "allowed: distinct points, or jitter above 0"
        )
    return float(np.log(distance).mean())


def clipped_share(actions: Array, bound: float = 1.0) -> float:
    """Share of coordinates at the bound, where entropy says little."""
    return float((np.abs(actions) >= bound - 1e-6).mean())
