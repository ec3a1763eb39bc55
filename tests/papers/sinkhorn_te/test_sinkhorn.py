"""Entropic transport: closed forms, invariances, other libraries, both derivatives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.papers.sinkhorn_te import anchors, mixture, sinkhorn
from scripts.papers.sinkhorn_te.designs import SIGMA
from scripts.papers.sinkhorn_te.gaussian_truth import (
    gaussian_half_mmd,
    gaussian_sinkhorn,
    shifted_covariance,
)
from scripts.papers.sinkhorn_te.sinkhorn import Gibbs, half_costs, sinkhorn_divergence

FEW = settings(max_examples=15, deadline=None)


def laws(seed: int, n: int = 30, m: int = 20, d: int = 2, batch: int = 1):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((batch, n, d)), 0.5 + rng.standard_normal((batch, m, d))
    a, b = rng.random((batch, n)), rng.random((batch, m))
    return x, a / a.sum(-1, keepdims=True), y, b / b.sum(-1, keepdims=True)


def test_two_points() -> None:
    """S(delta_0, delta_a) = a^2 / 2 at every eps."""
    one = np.ones((1, 1))
    for eps in (0.1, 1.0, 30.0):
        value = sinkhorn_divergence(np.zeros((1, 1, 1)), one, np.full((1, 1, 1), 3.0), one, eps)[0]
        assert value[0] == pytest.approx(4.5, rel=1e-12)


@FEW
@given(seed=st.integers(0, 10**6), eps=st.floats(0.2, 5), shift=st.floats(-2, 2))
def test_translation(seed: int, eps: float, shift: float) -> None:
    """S(mu, mu + m) = |m|^2 / 2 for every mu and eps."""
    x, a, _, _ = laws(seed)
    m = np.array([shift, 1.0])
    value = sinkhorn_divergence(x, a, x + m, a, eps)[0]
    assert value[0] == pytest.approx(0.5 * m @ m, rel=1e-7)


@FEW
@given(seed=st.integers(0, 10**6), eps=st.floats(0.2, 5))
def test_symmetric_zero_on_equals_and_not_negative(seed: int, eps: float) -> None:
    x, a, y, b = laws(seed)
    value, first, second = sinkhorn_divergence(x, a, y, b, eps)
    swapped, second_too, first_too = sinkhorn_divergence(y, b, x, a, eps)
    assert value[0] == pytest.approx(swapped[0], abs=1e-9)
    # Potentials are defined up to a constant that moves from one to the other.
    gap = first - first_too
    assert np.ptp(gap) < 1e-7 and np.ptp(second - second_too) < 1e-7
    assert value[0] >= -1e-10
    assert abs(sinkhorn_divergence(x, a, x, a, eps)[0][0]) < 1e-10


def test_zero_weights_change_nothing() -> None:
    x, a, y, b = laws(3)
    far = np.concatenate([y, 9 + y[:, :5]], axis=1)
    padded = np.concatenate([b, np.zeros((1, 5))], axis=1)
    plain = sinkhorn_divergence(x, a, y, b, 0.7)[0]
    assert sinkhorn_divergence(x, a, far, padded, 0.7)[0] == pytest.approx(plain, abs=1e-10)


def test_batches_equal_single_problems() -> None:
    x, a, y, b = laws(4, batch=5)
    together = sinkhorn_divergence(x, a, y, b, 1.3)[0]
    for k in range(5):
        one = slice(k, k + 1)
        alone = sinkhorn_divergence(x[one], a[one], y[one], b[one], 1.3)[0][0]
        assert together[k] == pytest.approx(alone, abs=1e-9)


def test_against_pot_and_geomloss() -> None:
    import ot
    import torch
    from geomloss import SamplesLoss

    x, a, y, b = laws(5, n=40, m=50)
    eps = 0.9

    def pot(p, q, u, v) -> float:
        cost = half_costs(p, q)
        plan = ot.sinkhorn(u, v, cost, eps, method="sinkhorn_log", numItermax=10_000, stopThr=1e-12)
        relative = np.where(plan > 0, plan / np.outer(u, v), 1.0)
        return float((plan * cost).sum() + eps * (plan * np.log(relative)).sum())

    expected = pot(x[0], y[0], a[0], b[0])
    expected -= 0.5 * (pot(x[0], x[0], a[0], a[0]) + pot(y[0], y[0], b[0], b[0]))
    value = sinkhorn_divergence(x, a, y, b, eps)[0][0]
    assert value == pytest.approx(expected, abs=1e-7)
    loss = SamplesLoss("sinkhorn", p=2, blur=eps**0.5, scaling=0.99, debias=True)
    tensors = (torch.from_numpy(v[0]) for v in (a, x, b, y))
    assert value == pytest.approx(float(loss(*tensors)), abs=1e-5)


def test_log_domain_agrees_and_takes_over() -> None:
    x, _, y, b = laws(6, n=25, m=25)
    scaling = Gibbs(x, y, 0.5)
    assert scaling.in_scaling_form
    h = np.log(b)[:, None]
    direct = sinkhorn._log_domain(x, y, h, 0.5)
    assert np.abs(scaling.rows(h) - direct).max() < 1e-12
    line = np.linspace(0.0, 10.0, 30)[None, :, None]
    equal = np.full((1, 30), 1 / 30)
    assert not Gibbs(line, line, 0.09).in_scaling_form
    value = sinkhorn_divergence(line, equal, line + 1.0, equal, 0.09, 1e-7)[0]
    assert value[0] == pytest.approx(0.5, rel=1e-5)


def test_gaussian_closed_form_gives_the_published_values() -> None:
    """Six numbers of the paper (in 1e-3), which the inferred Sigma reproduces within 2.5%."""
    zero = np.zeros(2)
    for theta, mmd, ste in ((0.2, 0.26, 4.12), (0.4, 1.04, 16.42), (0.8, 4.60, 68.43)):
        args = (zero, shifted_covariance(SIGMA, theta), zero, SIGMA, 2.269)
        assert 1e3 * gaussian_sinkhorn(*args) == pytest.approx(ste, rel=0.025)
        assert 1e3 * gaussian_half_mmd(*args) == pytest.approx(mmd, rel=0.025)


def test_gaussian_closed_form_against_quadrature() -> None:
    z = np.linspace(-14, 14, 901)
    p = np.exp(-0.5 * (z - 1) ** 2 / 2.25)
    q = np.exp(-0.5 * z**2)
    p, q = p / p.sum(), q / q.sum()
    line = z[None, :, None]
    value = sinkhorn_divergence(line, p[None], line, q[None], 0.8)[0][0]
    expected = gaussian_sinkhorn(np.ones(1), np.full((1, 1), 2.25), np.zeros(1), np.eye(1), 0.8)
    assert value == pytest.approx(expected, rel=1e-6)


def test_saturation_curve_is_near_the_exact_one() -> None:
    sample = mixture.saturation_curve([0.0, 2.0, 6.0], 300, np.random.default_rng(0))
    exact = mixture.exact_curve([0.0, 2.0, 6.0], nodes=601)
    for (_, ste, mmd), (_, true_ste, true_mmd) in zip(sample, exact, strict=True):
        assert ste == pytest.approx(true_ste, rel=0.15, abs=0.02)
        assert mmd == pytest.approx(true_mmd, rel=0.15, abs=0.005)
    assert exact[0][1] == pytest.approx(0.0, abs=1e-9)


@FEW
@given(seed=st.integers(0, 10**6), eta=st.sampled_from([0.25, 1.0, 4.0]))
def test_derivatives(seed: int, eta: float) -> None:
    """The anchor of both influence functions; without eps the second is off by that factor."""
    rng = np.random.default_rng(seed)
    y, mu, nu = anchors.random_law(12, 2, rng)
    gamma = np.stack([anchors.mass_zero(12, rng) for _ in range(2)])
    eps = 1.39 * eta
    assert anchors.first_order_error(y, mu, nu, gamma, eps) < 1e-5
    found = anchors.second_order_check(y, mu, gamma[0], eps)
    assert found.error < 1e-4
    assert found.error_printed == pytest.approx(abs(1 / eps - 1), rel=1e-3)
    assert found.largest_first < 1e-9
    assert found.below_zero < 1e-9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, a, y, b: (x, a * 0.9, y, b, 1.0), "a: sums to 0.9; weights"),
        (lambda x, a, y, b: (x, a, y, b + 0.1, 1.0), "b: sums to 3"),
        (lambda x, a, y, b: (x, -a, y, b, 1.0), "a: smallest weight"),
        (lambda x, a, y, b: (x, a * np.nan, y, b, 1.0), "a: has values that are not finite"),
        (lambda x, a, y, b: (x, a, y, b, 0.0), "eps: 0.0; a finite number > 0"),
        (lambda x, a, y, b: (x, a, y, b, -1.0), "eps: -1.0"),
        (lambda x, a, y, b: (x, a, y, b, np.inf), "eps: inf"),
        (lambda x, a, y, b: (x * np.inf, a, y, b, 1.0), "x: has values that are not finite"),
        (lambda x, a, y, b: (x, a, y * np.nan, b, 1.0), "y: has values that are not finite"),
    ],
)
def test_bad_input_names_the_argument(change, message: str) -> None:
    with np.errstate(invalid="ignore"), pytest.raises(ValueError, match=message):
        sinkhorn_divergence(*change(*laws(0)))


def test_no_convergence_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinkhorn, "MAX_ITERATIONS", 3)
    with pytest.raises(sinkhorn.NoConvergence, match=r"eps=0\.2 still changes"):
        sinkhorn_divergence(*laws(1), 0.2)
