"""Entropic optimal transport with the cost |x - y|^2 / 2, batched, in float64.

    OT(mu, nu) = min_pi <c, pi> + eps KL(pi | mu x nu) = mu phi1 + nu phi0,
    d pi / d(mu x nu) = exp((phi1 + phi0 - c) / eps),
    S(mu, nu) = OT(mu, nu) - OT(mu, mu) / 2 - OT(nu, nu) / 2.

Potentials are kept as log scalings f = phi / eps. A half-step maps h = log weights + g to
f_i = -log sum_j exp(h_j - c_ij / eps): in scaling form, a matrix product with exp(-c / eps) that
all problems on the same points share; in the log domain, without a stored cost
(`kernels.sinkhorn_halfstep`), where costs are too large for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SCALING_FORM_BELOW = 500.0  # largest cost / eps; exp(-700) is float64's end, scalings need the rest
CHUNK = 2**18  # kernel entries of the problems that run together: 2 MiB, which caches hold
TOLERANCE = 1e-9  # largest change of a log scaling in a step
MAX_ITERATIONS = 3000
STEPS = 3  # of the symmetric iteration, over which its rate is measured
NEWTON_AFTER = 120  # sweeps of a pair
NEWTON_STEPS = 50
LONGEST_STEP = 2.0  # of a log scaling
SWEEPS = 6  # of a pair, over which its rate is measured before it is relaxed anew


class Potentials(NamedTuple):
    """Log scalings of both marginals ([..., n], [..., m]) and the iterations they took."""

    f: Array
    g: Array
    iterations: int


class NoConvergence(ArithmeticError):
    """Sinkhorn's iteration did not reach its tolerance."""


def half_costs(x: Array, y: Array, scale: float = 1.0) -> Array:
    """scale |x_i - y_j|^2 / 2 of points x [..., n, d] and y [..., m, d], as [..., n, m].

    One matrix product of extended coordinates, so that n x m numbers are written once.
    """
    centre = y.mean(axis=-2, keepdims=True)
    x, y = x - centre, y - centre
    left = np.concatenate([-x, 0.5 * np.square(x).sum(-1, keepdims=True), _ones(x)], axis=-1)
    right = np.concatenate([y, _ones(y), 0.5 * np.square(y).sum(-1, keepdims=True)], axis=-1)
    return (scale * left) @ np.swapaxes(right, -1, -2)


def _ones(points: Array) -> Array:
    return np.ones_like(points[..., :1])


@dataclass(frozen=True)
class Gibbs:
    """The half-steps between points x [R, n, d] and y [R, m, d] at one eps."""

    x: Array
    y: Array
    eps: float

    def __post_init__(self) -> None:
        check_eps(self.eps)

    @cached_property
    def in_scaling_form(self) -> bool:
        """Whether no cost is too large for exp(-c / eps): judged by the points' bounding box."""
        points = np.concatenate([self.x, self.y], axis=-2)
        sides = np.ptp(points, axis=-2)
        return float(0.5 * np.square(sides).sum(-1).max()) / self.eps < SCALING_FORM_BELOW

    @cached_property
    def kernel(self) -> Array:
        """exp(-c / eps), [R, n, m]."""
        costs = half_costs(self.x, self.y, -1 / self.eps)
        return np.exp(costs, out=costs)

    def rows(self, h: Array) -> Array:
        """f at x of h [R, k, m], as [R, k, n]."""
        if self.in_scaling_form:
            return -np.log(np.exp(h) @ np.swapaxes(self.kernel, -1, -2))
        return _log_domain(self.x, self.y, h, self.eps)

    def columns(self, h: Array) -> Array:
        """g at y of h [R, k, n], as [R, k, m]."""
        if self.in_scaling_form:
            return -np.log(np.exp(h) @ self.kernel)
        return _log_domain(self.y, self.x, h, self.eps)


def _log_domain(x: Array, y: Array, h: Array, eps: float) -> Array:
    import torch

    from kernels.sinkhorn_halfstep import sinkhorn_halfstep

    tensors = (torch.from_numpy(np.ascontiguousarray(part)) for part in (x, y))
    points, others = tensors
    epsilon = torch.full((len(x),), eps, dtype=torch.float64)
    steps = [
        sinkhorn_halfstep(points, others, torch.from_numpy(h[:, k].copy()), epsilon).numpy() / eps
        for k in range(h.shape[1])
    ]
    return np.stack(steps, axis=1)


def symmetric_potentials(gibbs: Gibbs, log_p: Array, tolerance: float = TOLERANCE) -> Potentials:
    """Log scalings of the self-transport of weights on x (= y), [R, k, n] for k laws at once.

    f <- f - w (f - T f) with T the half-step. Its error modes are multiplied by 1 - w (1 + l),
    where l in [0, l2] are the eigenvalues of the transport (positive, since the kernel is) without
    the constant mode, l = 1, which is removed exactly. The rate shows l2; w = 2 / (2 + l2) is best.
    """
    p = np.exp(log_p)
    f = gibbs.rows(log_p) * 0.5
    omega, before, largest = 1.0, np.inf, 0.0
    for iteration in range(1, MAX_ITERATIONS + 1):
        gap = f - gibbs.rows(log_p + f)
        level = np.einsum("rkn,rkn->rk", p, gap)[..., None]
        f -= 0.5 * level
        gap -= level
        f -= omega * gap
        change = float(np.abs(gap).max())
        if max(change, float(np.abs(level).max())) < tolerance:
            return Potentials(f, f, iteration)
        if iteration % STEPS == 1:
            rate = (change / before) ** (1 / STEPS)
            largest = min(max(largest, (1.0 + rate) / omega - 1.0), 1.0)
            omega = 2.0 / (2.0 + largest)
            before = change
    raise NoConvergence(_slow(change, gibbs.eps))


def pair_potentials(
    gibbs: Gibbs, log_a: Array, log_b: Array, start: Array, tolerance: float = TOLERANCE
) -> Potentials:
    """Log scalings of the transport from weights a on x to b on y; start: a guess of g [R, m].

    Sinkhorn's alternating half-steps, over-relaxed by what their rate asks for (Thibault et al.
    2021, Lehmann et al. 2022), then Newton's steps where clusters hardly exchange mass. f is
    exactly the half-step of g, also where a is 0.
    """
    log_a, log_b, g = log_a[:, None], log_b[:, None], start[:, None]
    f = gibbs.rows(log_b + g)
    omega, before, change = 1.0, np.inf, np.inf
    for iteration in range(1, MAX_ITERATIONS + 1):
        if iteration > NEWTON_AFTER and gibbs.in_scaling_form:
            return _newton(gibbs, log_a, log_b, g, tolerance)
        gap = gibbs.columns(log_a + f) - g
        change = float(np.abs(gap).max())
        g = g + omega * gap
        new = gibbs.rows(log_b + g)
        if change < tolerance:
            return Potentials(new[:, 0], g[:, 0], iteration)
        f = f + omega * (new - f)
        if iteration % SWEEPS == 0:
            omega = _relaxation(omega, (change / before) ** (1 / SWEEPS))
            before = change
    raise NoConvergence(_slow(change, gibbs.eps))


def _newton(gibbs: Gibbs, log_a: Array, log_b: Array, g: Array, tolerance: float) -> Potentials:
    """Newton's method for g = columns(log a + rows(log b + g)), constants held fixed.

    The derivative of the right side is the product of the two transports, each with rows of mass 1.
    """
    weights = np.exp(log_b)
    for number in range(NEWTON_STEPS):
        f = gibbs.rows(log_b + g)
        gap = gibbs.columns(log_a + f) - g
        change = float(np.abs(gap).max())
        if change < tolerance:
            return Potentials(f[:, 0], g[:, 0], NEWTON_AFTER + number)
        there = np.exp(np.swapaxes(f, 1, 2) + log_b + g) * gibbs.kernel
        back = np.swapaxes(gibbs.kernel, 1, 2) * np.exp(np.swapaxes(g + gap, 1, 2) + log_a + f)
        system = np.eye(g.shape[-1]) - back @ there + weights
        step = np.swapaxes(np.linalg.solve(system, np.swapaxes(gap, 1, 2)), 1, 2)
        g = g + step / max(1.0, np.abs(step).max() / LONGEST_STEP)
    raise NoConvergence(_slow(change, gibbs.eps))


def _relaxation(omega: float, rate: float) -> float:
    """The best relaxation, by Young's relation of the rate under omega to that of plain sweeps."""
    if rate == 0.0 or rate <= omega - 1.0:
        return omega
    if rate >= 1.0:
        return 1.0  # too bold so far from the solution
    plain = (rate + omega - 1.0) ** 2 / (rate * omega**2)
    return 2.0 / (1.0 + np.sqrt(max(1.0 - plain, 1e-6)))


def _slow(change: float, eps: float) -> str:
    return (
        f"Sinkhorn at eps={eps:g} still changes by {change:.2g} after its last iteration; "
        "take a larger eps"
    )


def log_weights(weights: Array) -> Array:
    """log of weights, -inf for 0."""
    with np.errstate(divide="ignore"):
        return np.log(weights)


def sinkhorn_divergence(
    x: Array, a: Array, y: Array, b: Array, eps: float, tolerance: float = TOLERANCE
) -> tuple[Array, Array, Array]:
    """S between laws with weights a [R, n] on x [R, n, d] and b [R, m] on y [R, m, d].

    Returns:
        (values [R], first derivative at x [R, n], at y [R, m]): S = a v1 + b v0.

    Raises:
        ValueError: weights that are negative or do not sum to 1, points not finite, eps <= 0.
        NoConvergence: the tolerance was not reached.
    """
    for name, points in (("x", x), ("y", y)):
        if not np.isfinite(points).all():
            raise ValueError(f"{name}: has values that are not finite; finite ones are allowed")
    check_weights("a", a)
    check_weights("b", b)
    chunk = max(1, CHUNK // (x.shape[1] * y.shape[1]))
    parts = [
        _divergence(*(part[start : start + chunk] for part in (x, a, y, b)), eps, tolerance)
        for start in range(0, len(x), chunk)
    ]
    values, first, second = (np.concatenate(part) for part in zip(*parts, strict=True))
    return values, first, second


def _divergence(
    x: Array, a: Array, y: Array, b: Array, eps: float, tolerance: float
) -> tuple[Array, Array, Array]:
    log_a, log_b = log_weights(a), log_weights(b)
    f_own = symmetric_potentials(Gibbs(x, x, eps), log_a[:, None], tolerance).f[:, 0]
    g_own = symmetric_potentials(Gibbs(y, y, eps), log_b[:, None], tolerance).f[:, 0]
    both = pair_potentials(Gibbs(x, y, eps), log_a, log_b, g_own, tolerance)
    first, second = eps * (both.f - f_own), eps * (both.g - g_own)
    return (a * first).sum(-1) + (b * second).sum(-1), first, second


def check_eps(eps: float) -> None:
    """Refuse a regularisation that is not a positive number."""
    if not (np.isfinite(eps) and eps > 0):
        raise ValueError(f"eps: {eps}; a finite number > 0 is allowed")


def check_weights(name: str, weights: Array) -> None:
    """Refuse weights [..., n] that are not finite, negative, or do not sum to 1."""
    if not np.isfinite(weights).all():
        raise ValueError(f"{name}: has values that are not finite; weights >= 0 are allowed")
    if weights.min() < 0:
        raise ValueError(f"{name}: smallest weight {weights.min():g}; weights >= 0 are allowed")
    totals = weights.sum(-1)
    worst = totals.flat[np.abs(totals - 1).argmax()]
    if abs(worst - 1) > 1e-8:
        raise ValueError(f"{name}: sums to {worst:.10g}; weights that sum to 1 are allowed")
