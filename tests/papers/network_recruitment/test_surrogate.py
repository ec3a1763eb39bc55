"""The surrogate's table: known values, order, the released loops, and two solvers of MDPs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.papers.network_recruitment import bench, loop_order, surrogate
from scripts.papers.network_recruitment.pmf import survival
from tests.papers.network_recruitment.bellman import optimum

FEW = settings(max_examples=20, deadline=None)


def law(seed: int, size: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(size, 0.7))


def point(at: int) -> np.ndarray:
    return np.eye(1, at + 1, at)[0]


def test_everybody_recruits_one() -> None:
    budget, discount = 12, 0.9
    found = surrogate.solve(point(1), budget, discount)
    for r in range(1, budget + 1):
        for n in range(1, budget + 1):
            rounds, rest = divmod(r, n)
            expected = n * (1 - discount**rounds) / (1 - discount) + rest * discount**rounds
            assert found.value[r, n] == pytest.approx(expected, abs=1e-12)
            assert found.spend[r, n] == min(r, n)


def test_nobody_recruits() -> None:
    found = surrogate.solve(point(0), 7, 0.9)
    assert np.abs(found.value).max() <= 1e-12
    assert not found.spend.any()


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.99])
def test_everybody_recruits_without_end(discount) -> None:
    budget = 9
    found = surrogate.solve(point(budget + 1), budget, discount)
    r, n = np.mgrid[: budget + 1, : budget + 1]
    assert found.value == pytest.approx(np.where(n > 0, r, 0), abs=1e-12)
    assert (found.spend == np.where(n > 0, r, 0)).all()


@FEW
@given(st.integers(0, 10**6), st.integers(1, 9))
def test_without_a_future_the_best_round_counts(seed, budget) -> None:
    q = law(seed)
    gain = np.concatenate([[0.0], survival(q, budget + 1).cumsum()])
    found = surrogate.solve(q, budget, 0.0).value
    for r in range(1, budget + 1):
        for n in range(1, budget + 1):
            rounds = [
                n * gain[s // n] + s % n * (gain[s // n + 1] - gain[s // n]) for s in range(r + 1)
            ]
            assert found[r, n] == pytest.approx(max(rounds), abs=1e-12)


@FEW
@given(
    st.integers(0, 10**6),
    st.integers(1, 14),
    st.sampled_from([0.0, 0.3, 0.9, 0.99]),
    st.integers(1, 20),
)
def test_order_of_the_table(seed, budget, discount, size) -> None:
    value = surrogate.solve(law(seed, size), budget, discount).value
    r, n = np.mgrid[: budget + 1, : budget + 1]
    assert (np.diff(value, axis=0) >= -1e-12).all()
    assert (np.diff(value, axis=1) >= -1e-12).all()
    assert (value <= r + 1e-12).all()
    assert not value[0].any() and not value[:, 0].any()
    assert value[n >= r] == pytest.approx(value[r, r][n >= r], abs=1e-12)


@FEW
@given(
    st.integers(0, 10**6), st.integers(1, 12), st.sampled_from([0.0, 0.5, 0.95]), st.integers(1, 18)
)
def test_released_order_of_the_loops_gives_the_same_table(seed, budget, discount, size) -> None:
    q = law(seed, size)
    found = surrogate.solve(q, budget, discount).value
    assert np.abs(found - loop_order.solve(q, budget, discount)).max() <= 1e-10


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("discount", [0.3, 0.99])
def test_bellman_optimum_of_identical_people(seed, discount) -> None:
    """Over all allocations, even or not (Proposition 6.1)."""
    budget, q = 4, law(seed, 4)
    found = surrogate.solve(q, budget, discount).value
    best = optimum([list(q)], [1.0], discount)
    for r in range(budget + 1):
        for n in range(budget + 1):
            assert found[r, n] == pytest.approx(best(r, (0,) * n), abs=1e-10)


@pytest.mark.parametrize("budget", [0, 1, 7, 8])
def test_laws_of_a_round(budget) -> None:
    """Each against the product of its people's own laws, also where b + 1 is a power of two."""
    q = law(3, 6)
    values, laws, _ = surrogate.round_laws(q, budget)
    assert laws.shape == (budget * (budget + 1) // 2, budget + 1)
    for s in range(1, budget + 1):
        for n in range(1, s + 1):
            row = s * (s - 1) // 2 + n - 1
            each, more = divmod(s, n)
            law_of = np.ones(1)
            for k in [each] * (n - more) + [each + 1] * more:
                capped = np.minimum(np.arange(len(q)), k)
                law_of = np.convolve(law_of, np.bincount(capped, weights=q))
            assert laws[row, : len(law_of)] == pytest.approx(law_of, abs=1e-13)
            assert np.abs(laws[row, len(law_of) :]).max(initial=0) < 1e-13
            assert values[row] == pytest.approx(law_of @ np.arange(len(law_of)), abs=1e-12)


@pytest.mark.parametrize("discount", [0.5, 0.9])
def test_quantecon_finds_the_same_values(discount) -> None:
    q, budget = law(11, 6), 9
    found = surrogate.solve(q, budget, discount).value
    for laws in (bench.own_laws(q, budget), bench.convolved_laws(q, budget)):
        assert np.abs(bench.quantecon_table(laws, discount) - found).max() <= 1e-10


def test_pymdptoolbox_finds_the_same_values() -> None:
    q, budget = law(12, 6), 7
    found = surrogate.solve(q, budget, 0.9).value
    laws = bench.convolved_laws(q, budget)
    assert np.abs(bench.pymdptoolbox_table(laws, 0.9) - found).max() <= 1e-10


def test_multiplications_are_counted_as_made(monkeypatch) -> None:
    """Lengths of the factors that the released order really multiplies."""
    made = []

    def counted(p, q, degree):
        made.append(len(p) * len(q))
        return np.convolve(p, q)[: degree + 1]

    monkeypatch.setattr(loop_order, "product", counted)
    budget = 5
    loop_order.solve(law(0), budget, 0.9)
    rest = 0  # the mean of U over the law and the even split's value
    for n in range(1, budget + 1):
        for s in range(1, budget + 1):
            each, more = divmod(s, n)
            rest += (budget + 1 - s) * (min(each * (n - more) + (each + 1) * more, s) + 1 + 2)
    assert loop_order.multiplications(budget) == sum(made) + rest


def test_orders_of_both_programs() -> None:
    made = {
        5.3: (loop_order.multiplications, [24, 32, 40]),
        4.3: (lambda b: surrogate.solve(law(0), b, 0.9).work, [30, 42, 60]),
    }
    for most, (work, budgets) in made.items():
        counts = [work(b) for b in budgets]
        assert 3 < np.polyfit(np.log(budgets), np.log(counts), 1)[0] < most


@pytest.mark.parametrize("degree", [0, 1, 7, 8, 40, 100, 127, 128, 200])
def test_points_of_the_transform(degree) -> None:
    points = surrogate.transform_points(degree)
    assert points % 2 == 0 and degree < points <= 1.1 * degree + 4


@pytest.mark.parametrize(
    ("q", "budget", "discount", "words"),
    [
        ([0.5, 0.6], 3, 0.5, "q sums to"),
        ([1.2, -0.2], 3, 0.5, "q holds the probability"),
        ([0.5, 0.5], -1, 0.5, "budget is -1"),
        ([0.5, 0.5], 2.5, 0.5, "budget is 2.5"),
        ([0.5, 0.5], 3, 1.0, "discount is 1.0"),
        ([0.5, 0.5], 3, -0.1, "discount is -0.1"),
    ],
)
def test_bad_input_is_refused(q, budget, discount, words) -> None:
    with pytest.raises(ValueError, match=words):
        surrogate.solve(np.array(q), budget, discount)


def test_no_budget_no_value() -> None:
    found = surrogate.solve(law(0), 0, 0.9)
    assert found.value.tolist() == [[0.0]] and found.spend.tolist() == [[0]]
