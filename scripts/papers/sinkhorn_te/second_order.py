"""The second-order influence kernel of the Sinkhorn divergence where both laws are equal.

With xi(y, y') = exp((phi(y) + phi(y') - c(y, y')) / eps), the density of the transport of the law
mu to itself, and T f = integral of xi f d mu [paper: Thm 3.2],

    K = eps (I - T^2)^{-1} (xi - 1).

The second difference of S equals gamma^T K gamma, so that the factor eps is needed; the paper's
printed Algorithm 2 leaves it out. Constants are the null space of I - T^2: K is used on signed
measures of total mass 0, where adding a constant to it changes nothing, and the null space is
removed by a term of rank one.
"""

from __future__ import annotations

import numpy as np

from scripts.papers.sinkhorn_te.sinkhorn import Array, half_costs

MAX_CONDITION = 1e12


def centred_kernel(z: Array, potential: Array, n: int, p: Array, eps: float) -> Array:
    """K on all points z [R, N, d], the dense path.

    Args:
        potential: log scalings of the self-transport of the reference law at z [R, N].
        n: the support of the reference law is z[:, n:].
        p: its weights [R, N - n].
        eps: regularisation.
    """
    xi = np.exp(potential[..., :, None] + potential[..., None, :] - half_costs(z, z, 1 / eps))
    transport = xi[:, n:, n:] * p[:, None]
    system = np.eye(p.shape[1]) - transport @ transport + p[:, None]
    _check_condition(np.linalg.cond(system, 1), eps)
    solved = np.linalg.solve(system, xi[:, n:] - 1)
    return eps * (xi - 1 + (xi[:, :, n:] * p[:, None]) @ (transport @ solved))


def low_rank_root(b_factor: Array, inner: Array, p: Array) -> Array:
    """Q [R, n, r] with B K B^T = eps Q Q^T, from B L and the rows of L [R, m, r] in the support.

    With S = L^T diag(p) L the push-through identity gives K = eps L (I - S^2)^{-1} L^T up to
    constants, the null direction w = L^T p being one of unit length.
    """
    gram = np.swapaxes(inner, 1, 2) @ (p[..., None] * inner)
    null = np.swapaxes(inner, 1, 2) @ p[..., None]
    system = np.eye(gram.shape[-1]) - gram @ gram + null @ np.swapaxes(null, 1, 2)
    inverse = np.linalg.inv(np.linalg.cholesky(system))
    _check_condition(np.square(inverse).sum((1, 2)) * np.square(system).sum((1, 2)) ** 0.5, None)
    return b_factor @ np.swapaxes(inverse, 1, 2)


def _check_condition(condition: Array, eps: float | None) -> None:
    if not (condition < MAX_CONDITION).all():
        raise ValueError(
            f"eps: {'' if eps is None else f'{eps:g} '}is so small that I - T^2 has the condition "
            f"number {np.max(condition):.2g}; a larger one is needed"
        )


def pivoted_cholesky(
    z: Array, potential: Array, eps: float, tolerance: float, max_rank: int
) -> Array | None:
    """L [R, N, r] with exp(potential + potential' - c / eps) = L L^T, by the largest pivots.

    All replicates get the rank that the worst one needs to miss at most `tolerance` of its trace;
    None when that is more than max_rank.
    """
    replicates, size, _ = z.shape
    every = np.arange(replicates)
    left = np.exp(2 * potential)
    trace = left.sum(axis=1)
    z = z - z.mean(axis=1, keepdims=True)
    bias = potential - 0.5 * np.square(z).sum(-1) / eps
    factor = np.empty((replicates, min(max_rank, size), size))
    for rank in range(factor.shape[1]):
        active = left.sum(axis=1) > tolerance * trace
        if not active.any():
            return np.swapaxes(factor[:, :rank], 1, 2)
        pivot = left.argmax(axis=1)
        # xi(z, pivot), less what the columns so far explain.
        column = (z @ (z[every, pivot] / eps)[..., None])[..., 0]
        column += bias + bias[every, pivot][:, None]
        np.exp(column, out=column)
        done = factor[:, :rank]
        column -= (done[every, :, pivot][:, None] @ done)[:, 0]
        column *= (active / np.sqrt(np.where(active, left[every, pivot], 1.0)))[:, None]
        factor[:, rank] = column
        left -= np.square(column)
        left[every, pivot] = 0.0
        np.maximum(left, 0.0, out=left)
    return None if max_rank < size else np.swapaxes(factor, 1, 2)
