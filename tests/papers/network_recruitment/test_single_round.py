"""Distributions and one round: greedy against every allocation, the robustness bound, bad input."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from scripts.papers.network_recruitment import pmf, single_round

FEW = settings(max_examples=60, deadline=None)


@st.composite
def distributions(draw, people: int = 4, support: int = 5) -> pmf.Array:
    """Rows of probabilities, zeros and repeated rows among them."""
    shape = (draw(st.integers(1, people)), draw(st.integers(1, support)))
    weights = draw(arrays(np.int64, shape, elements=st.integers(0, 6)))
    weights[:, 0] += weights.sum(axis=1) == 0
    return weights / weights.sum(axis=1, keepdims=True)


def value(pmfs: pmf.Array, coupons: tuple[int, ...]) -> float:
    """Expected recruits, from the definition: sum_i sum_x P(X_i = x) min(k_i, x)."""
    return sum(
        chance * min(k, x)
        for row, k in zip(pmfs, coupons, strict=True)
        for x, chance in enumerate(row)
    )


@FEW
@given(distributions(), st.integers(0, 6))
def test_greedy_is_the_best_of_all_compositions(pmfs, budget) -> None:
    coupons = single_round.greedy(pmf.survival(pmfs, max(budget, 1)), budget)
    every = [k for k in product(range(budget + 1), repeat=len(pmfs)) if sum(k) == budget]
    best = max(value(pmfs, k) for k in every)
    assert coupons.sum() == budget
    assert value(pmfs, tuple(coupons)) == pytest.approx(best, abs=1e-12)
    levels = pmf.survival(pmfs, max(budget, 1))
    assert single_round.round_value(levels, coupons) == pytest.approx(best, abs=1e-12)
    assert single_round.best_value(levels, budget) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("people", [1, 2, 3, 4])
@pytest.mark.parametrize("budget", [0, 1, 5])
def test_allocations_are_all_compositions(people, budget) -> None:
    found = {tuple(row) for row in single_round.allocations(people, budget).tolist()}
    every = {k for k in product(range(budget + 1), repeat=people) if sum(k) == budget}
    assert found == every
    assert len(single_round.allocations(people, budget)) == len(every)


def test_allocations_to_nobody() -> None:
    assert single_round.allocations(0, 0).shape == (1, 0)
    assert single_round.allocations(0, 2).shape == (0, 0)


def test_ties_go_to_the_lowest_index() -> None:
    levels = pmf.survival(np.tile([0.5, 0.25, 0.25], (3, 1)), 4)
    assert single_round.greedy(levels, 1).tolist() == [1, 0, 0]
    assert single_round.greedy(levels, 4).tolist() == [2, 1, 1]
    assert single_round.greedy(levels, 20).sum() == 20


@FEW
@given(distributions(), st.integers(1, 8))
def test_truncation_moves_the_tail_into_the_last_bucket(pmfs, levels) -> None:
    laws = pmf.truncated(pmfs, levels)
    assert laws.sum(axis=-1) == pytest.approx(1, abs=1e-12)
    for row, law in zip(pmfs, laws, strict=True):
        for k in range(levels + 1):
            expected = np.bincount(
                np.minimum(np.arange(len(row)), k), weights=row, minlength=levels + 1
            )
            assert law[k] == pytest.approx(expected, abs=1e-12)


@FEW
@given(distributions(), st.integers(0, 8))
def test_mean_of_the_capped_is_the_sum_of_survival(pmfs, coupons) -> None:
    levels = pmf.survival(pmfs, max(coupons, 1))
    assert (np.diff(levels, axis=-1) <= 0).all()
    expected = [value(row[None], (coupons,)) for row in pmfs]
    assert levels[:, :coupons].sum(axis=-1) == pytest.approx(expected, abs=1e-12)
    assert pmf.expected_capped(pmfs, coupons) == pytest.approx(expected, abs=1e-12)


@FEW
@given(distributions(people=3, support=5), st.integers(1, 4), st.integers(0, 10**6))
def test_loss_from_wrong_beliefs_stays_below_the_bound(pmfs, budget, seed) -> None:
    believed = np.random.default_rng(seed).dirichlet(np.ones(pmfs.shape[1]), len(pmfs))
    true, wrong = (pmf.survival(p, budget) for p in (pmfs, believed))
    loss, bound = single_round.misled_loss(true, wrong, budget)
    assert -1e-12 <= loss <= bound + 1e-12
    assert single_round.misled_loss(true, true, budget) == (0, 0)


@pytest.mark.parametrize("budget", range(1, 7))
def test_tie_construction_reaches_the_bound(budget) -> None:
    loss, bound = single_round.misled_loss(*single_round.tight_instance(budget), budget)
    assert loss == pytest.approx(0.3 * budget, abs=1e-12)
    assert bound == pytest.approx(0.3 * budget, abs=1e-12)


def test_mixtures() -> None:
    pmfs, weights = np.array([[1.0, 0, 0], [0, 0.5, 0.5]]), np.array([0.25, 0.75])
    exact = pmf.mixture(pmfs, weights)
    assert exact == pytest.approx([0.25, 0.375, 0.375])
    rng = np.random.default_rng(0)
    drawn = pmf.sampled_mixture(pmfs, weights, rng, 100_000)
    assert drawn.sum() == pytest.approx(1)
    assert drawn == pytest.approx(exact, abs=0.01)
    assert not np.array_equal(drawn, exact)


def test_the_recruiter_is_taken() -> None:
    shifted = pmf.without_recruiter(np.array([[0.2, 0.3, 0.1, 0.4]]))
    assert shifted == pytest.approx(np.array([[0.5, 0.1, 0.4, 0]]))
    assert pmf.total_variation(np.array([1.0, 0]), np.array([0.25, 0.75])) == 0.75


@pytest.mark.parametrize(
    ("pmfs", "words"),
    [
        ([0.5, 0.6], "law sums to 1.1"),
        ([[0.5, 0.5], [0.5, 0.4]], "law sums to 0.9"),
        ([1.5, -0.5], "law holds the probability -0.5"),
        ([np.nan, 1.0], "law holds the probability nan"),
        ([], "law has the shape"),
        (1.0, "law has the shape"),
    ],
)
def test_what_is_no_distribution_is_refused(pmfs, words) -> None:
    with pytest.raises(ValueError, match=words):
        pmf.checked_pmfs(pmfs, "law")


@pytest.mark.parametrize("budget", [-1, 2.5, True, float("nan"), float("inf")])
def test_what_is_no_budget_is_refused(budget) -> None:
    with pytest.raises(ValueError, match="budget is"):
        pmf.checked_budget(budget)
    with pytest.raises(ValueError, match="budget is"):
        single_round.greedy(np.ones((1, 2)), budget)


@pytest.mark.parametrize("discount", [-0.1, 1.0, 1.5, float("nan")])
def test_what_is_no_discount_is_refused(discount) -> None:
    with pytest.raises(ValueError, match="discount is"):
        pmf.checked_discount(discount)
