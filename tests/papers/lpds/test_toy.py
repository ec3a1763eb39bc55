"""The four-mode toy: its closed form against brute force, and a trained flow beside it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from scripts.papers.lpds import toy
from scripts.papers.lpds.cloning import Cloning


@pytest.mark.parametrize("shift", [0.0, 0.4, 1.265, 3.0])
def test_the_closed_form_is_the_integral(shift: float) -> None:
    def density(u: float) -> float:
        return stats.norm.pdf(u) * (stats.norm.cdf(u + shift) - stats.norm.cdf(-u - shift))

    expected = integrate.quad(density, -shift, 12)[0]
    assert float(toy.closed_form(shift)[0]) == pytest.approx(expected, abs=1e-8)


@settings(max_examples=20, deadline=None)
@given(shift=st.floats(0, 6))
def test_probabilities_sum_to_one_and_favour_x(shift: float) -> None:
    found = toy.closed_form(shift)
    assert float(found.sum()) == pytest.approx(1)
    assert found[0] >= found[2] >= found[1]
    assert found[2] == found[3]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("delta", [0.01, 0.05, 0.1])
def test_the_ideal_decoder_has_the_closed_form(delta: float, reduction: str) -> None:
    count = 40_000
    noise = torch.randn(count, toy.LATENT, generator=torch.Generator().manual_seed(0))
    shift = toy.shift_of(delta, reduction)
    chunks = toy.ideal_decode(noise + toy.offset_along_x(shift))
    shares = toy.occupancy(toy.mode_of(chunks)[None])[0]
    expected = toy.closed_form(shift)
    error = (expected * (1 - expected) / count).sqrt()
    assert bool(((shares - expected).abs() <= 3 * error).all())


def test_the_values_of_the_specification() -> None:
    found = {
        reduction: [
            round(float(toy.closed_form(toy.shift_of(delta, reduction))[0]), 3)
            for delta in (0.01, 0.05, 0.1)
        ]
        for reduction in ("sum", "mean")
    }
    assert found == {"sum": [0.279, 0.317, 0.346], "mean": [0.374, 0.542, 0.663]}


@pytest.mark.parametrize(("delta", "reduction"), [(0.35, "mean"), (0.35, "sum"), (0.0, "sum")])
def test_the_offset_spends_the_budget(delta: float, reduction: str) -> None:
    squares = toy.offset_along_x(toy.shift_of(delta, reduction)).square()
    spent = squares.mean() if reduction == "mean" else squares.sum()
    assert float(spent) == pytest.approx(delta, rel=1e-5, abs=1e-12)


def test_entropy_of_modes_at_its_extremes() -> None:
    shares = torch.tensor([[0.25, 0.25, 0.25, 0.25], [1, 0, 0, 0], [0.5, 0.5, 0, 0]]).double()
    expected = torch.tensor([math.log(4), 0, math.log(2)]).double()
    torch.testing.assert_close(toy.mode_entropy(shares), expected)


def test_occupancy_counts_each_seed_alone() -> None:
    modes = torch.tensor([[0, 0, 1, 3], [2, 2, 2, 2]])
    expected = torch.tensor([[0.5, 0.25, 0, 0.25], [0, 0, 1, 0]]).double()
    assert torch.equal(toy.occupancy(modes), expected)


def test_a_trained_flow_comes_close() -> None:
    generators = [torch.Generator().manual_seed(seed) for seed in range(2)]
    settings_ = Cloning(width=32, steps=500, batch=128, rate=(3e-3, 1e-4), decay=1e-6, average=0.99)
    flow = toy.train_flow(settings_, 5, generators)
    noise = torch.stack([torch.randn(4000, toy.LATENT, generator=one) for one in generators])
    for shift in (0.0, 1.265):
        shares = toy.occupancy(toy.mode_of(toy.decode(flow, noise + toy.offset_along_x(shift))))
        assert float((shares - toy.closed_form(shift)).abs().max()) < 0.08


@pytest.mark.parametrize(
    ("delta", "reduction", "message"),
    [(0.1, "median", "reduction is 'median'; allowed: mean, sum"), (-0.1, "mean", "delta is -0.1")],
)
def test_impossible_budgets_are_refused(delta: float, reduction: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        toy.shift_of(delta, reduction)
