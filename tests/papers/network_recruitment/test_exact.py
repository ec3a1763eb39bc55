"""The exact recursion against one written from the problem alone; the planner inside it."""

from itertools import combinations_with_replacement

import numpy as np
import pytest

from scripts.papers.network_recruitment import exact, robustness, single_round, surrogate
from scripts.papers.network_recruitment.exact import Problem, Shape
from scripts.papers.network_recruitment.planner import Planner
from scripts.papers.network_recruitment.pmf import mixture, survival, truncated
from tests.papers.network_recruitment.bellman import optimum


def problems(types: int, budget: int, cases: int, seed: int = 0, size: int = 5) -> Problem:
    rng = np.random.default_rng(seed)
    return Problem(
        Shape(types, budget),
        rng.dirichlet(np.full(size, 0.5), (cases, types)),
        rng.dirichlet(np.ones(types), cases),
        rng.choice([0.0, 0.3, 0.6, 0.9], cases),
    )


@pytest.mark.parametrize(("types", "budget"), [(1, 4), (2, 3), (3, 3)])
def test_optimum_is_that_of_a_plain_recursion(types, budget) -> None:
    problem = problems(types, budget, cases=3, seed=types)
    found, mean = exact.solve(problem)
    for case in range(3):
        discount = float(problem.discount[case])
        best = optimum(problem.pmfs[case].tolist(), problem.weights[case].tolist(), discount)
        for number, counts in enumerate(problem.shape.frontiers):
            people = tuple(np.repeat(np.arange(types), counts).tolist())
            for r in range(budget + 1):
                assert found[case, r, number] == pytest.approx(best(r, people), abs=1e-12)
    for size in range(budget + 1):
        here = problem.shape.sizes == size
        weighted = (found * problem.composition[:, None, :])[..., here].sum(axis=-1)
        assert problem.composition[:, here].sum(axis=1) == pytest.approx(1, abs=1e-12)
        assert mean[..., size] == pytest.approx(weighted, abs=1e-12)


def test_frontiers_actions_and_their_links() -> None:
    shape = Shape(2, 3)
    assert len(shape.frontiers) == 10  # multisets of at most 3 of 2 types
    assert {shape.index(row) for row in shape.frontiers} == set(range(10))
    pairs = [(kind, k) for kind in range(2) for k in (1, 2, 3)]
    every = {
        action
        for size in range(4)
        for action in combinations_with_replacement(pairs, size)
        if sum(k for _, k in action) <= 3
    }
    assert set(shape.actions) == every and len(shape.actions) == len(every)
    assert (np.diff(shape.spent) >= 0).all()
    for number, row in enumerate(shape.frontiers):
        for kind in range(2):
            less = row - np.eye(2, dtype=int)[kind]
            expected = shape.index(less) if row[kind] else number
            assert shape.smaller[number, kind] == expected


@pytest.mark.parametrize("types", [1, 2, 3])
def test_reachable_states_are_counted(types) -> None:
    budget, start = 3, 2
    shape = Shape(types, budget)
    seen = {(budget, row) for row in range(len(shape.frontiers)) if shape.sizes[row] == start}
    todo = list(seen)
    while todo:
        left, row = todo.pop()
        if not shape.sizes[row]:
            continue
        for spent in range(1, left + 1):
            for after in np.flatnonzero(shape.sizes <= spent):
                if (left - spent, int(after)) not in seen:
                    seen.add((left - spent, int(after)))
                    todo.append((left - spent, int(after)))
    assert shape.reachable(start) == len(seen)


def test_one_type_is_the_surrogate() -> None:
    problem = problems(1, 6, cases=5)
    _, mean = exact.solve(problem)
    for case in range(5):
        found = surrogate.solve(problem.pmfs[case, 0], 6, float(problem.discount[case]))
        assert mean[case] == pytest.approx(found.value, abs=1e-12)


def test_no_policy_beats_the_optimum_and_its_own_is_reached() -> None:
    problem = problems(2, 4, cases=4)
    best, _ = exact.solve(problem)
    rng = np.random.default_rng(1)
    shape = problem.shape
    policy = np.zeros((4, 5, len(shape.frontiers)), dtype=np.int64)
    for r in range(5):
        for number, row in enumerate(shape.frontiers):
            fits = (shape.spent <= r) & (shape.frontiers[shape.users] <= row).all(axis=1)
            policy[:, r, number] = rng.choice(np.flatnonzero(fits), 4)
    worth, _ = exact.evaluate(problem, policy)
    assert (worth <= best + 1e-12).all()
    assert (worth < best - 1e-3).any()


def test_a_policy_is_valued_by_hand() -> None:
    """One person a round who gets one coupon: recruits with chance p, so p (1 + γ p)."""
    problem = Problem(Shape(1, 2), np.array([[[0.4, 0.6]]]), np.ones((1, 1)), np.array([0.5]))
    give_one = problem.shape.actions.index(((0, 1),))
    policy = np.zeros((1, 3, 3), dtype=np.int64)
    policy[:, 1:, 1:] = give_one
    worth, _ = exact.evaluate(problem, policy)
    assert worth[0, 2, 1] == pytest.approx(0.6 * (1 + 0.5 * 0.6))


def brute_scores(pmfs, frontier, left, table, discount) -> list[float]:
    """TAP's score of every round budget, from its definition."""
    levels, laws = survival(pmfs, left), truncated(pmfs, left)
    scores = []
    for s in range(left + 1):
        coupons = single_round.greedy(levels[frontier], s)
        law = np.ones(1)
        for kind, k in zip(frontier, coupons, strict=True):
            law = np.convolve(law, laws[kind, k])
        law = law[: len(table)]
        value = single_round.round_value(levels[frontier], coupons)
        scores.append(value + discount * law @ table[left - s, : len(law)])
    return scores


@pytest.mark.parametrize("people", [1, 2, 3, 7])
def test_planner_scores_every_round_budget(people) -> None:
    rng = np.random.default_rng(people)
    pmfs, weights = rng.dirichlet(np.full(9, 0.5), 3), np.full(3, 1 / 3)
    budget, discount = 8, 0.9
    table = surrogate.solve(mixture(pmfs, weights), budget, discount).value
    planner = Planner(pmfs, table, discount)
    kinds = rng.integers(0, 3, (6, people))
    left = np.array([0, 1, 3, 5, 8, 8])
    kinds[1:3, people // 2 + 1 :] = planner.types  # padding
    _, scores = planner.scores(kinds, left)
    spend, persons = planner.spend(kinds, left)
    for row in range(6):
        frontier = kinds[row][kinds[row] < planner.types]
        expected = brute_scores(pmfs, frontier, int(left[row]), table, discount)
        assert scores[row, : left[row] + 1] == pytest.approx(expected, abs=1e-10)
        assert (scores[row, left[row] + 1 :] == -np.inf).all()
        assert spend[row] == int(np.argmax(np.array(expected) >= max(expected) - 1e-9))
        coupons = np.bincount(persons[row, : spend[row]], minlength=people)[: len(frontier)]
        greedy = single_round.greedy(survival(pmfs, 8)[frontier], int(spend[row]))
        assert coupons.tolist() == greedy.tolist()


@pytest.mark.parametrize(("gain", "spent"), [(1e-6, 2), (0.0, 1), (1e-12, 1)])
def test_planner_takes_small_gains_and_saves_coupons_in_ties(gain, spent) -> None:
    planner = Planner(np.array([[0.5, 0.5 - gain, gain]]), np.zeros((4, 4)), 0.9)
    assert planner.spend(np.array([[0]]), np.array([3]))[0].tolist() == [spent]


@pytest.mark.parametrize("discount", [0.3, 0.9, 0.99])
def test_planner_with_one_type_is_the_surrogate(discount) -> None:
    q, budget = np.random.default_rng(5).dirichlet(np.ones(6)), 10
    found = surrogate.solve(q, budget, discount)
    planner = Planner(q[None], found.value, discount)
    for n in (1, 2, 4, 10):
        left = np.arange(1, budget + 1)
        _, scores = planner.scores(np.zeros((budget, n), dtype=np.int64), left)
        assert scores.max(axis=1) == pytest.approx(found.value[1:, n], abs=1e-10)


def test_planner_inside_the_recursion_plays_tap() -> None:
    problem = problems(2, 4, cases=3, seed=4)
    shape = problem.shape
    tables = robustness.surrogate_tables(problem, problem.weights)
    policy = robustness.planner_policy(shape, problem.pmfs, tables, problem.discount)
    for case in range(3):
        planner = Planner(problem.pmfs[case], tables[case], float(problem.discount[case]))
        for number, counts in enumerate(shape.frontiers[1:], start=1):
            people = np.repeat(np.arange(2), counts)
            for r in range(1, 5):
                spend, persons = planner.spend(people[None], np.array([r]))
                coupons = np.bincount(persons[0, : spend[0]], minlength=len(people))
                action = sorted((int(t), int(k)) for t, k in zip(people, coupons, strict=True) if k)
                assert sorted(shape.actions[policy[case, r, number]]) == action


def noisy(problem: Problem, noise: float, seed: int = 9):
    rng = np.random.default_rng(seed)
    size = problem.pmfs.shape
    believed = (1 - noise) * problem.pmfs + noise * rng.dirichlet(np.ones(size[2]), size[:2])
    weights = (1 - noise) * problem.weights + noise * rng.dirichlet(np.ones(size[1]), size[0])
    return believed, weights


@pytest.mark.parametrize("noise", [0.0, 0.2, 0.5])
def test_loss_of_the_planner_stays_below_the_bound(noise) -> None:
    problem = problems(2, 4, cases=40, seed=6)
    rng = np.random.default_rng(7)
    start = robustness.Start(
        rng.integers(1, 5, 40), rng.integers(1, len(problem.shape.frontiers), 40)
    )
    believed, weights = noisy(problem, noise)
    best, loss = robustness.losses(problem, start, believed, weights)
    bound = robustness.bound(problem, start, believed, weights)
    assert (loss >= -1e-12).all()
    assert (loss <= bound + 1e-9).all()
    assert (loss <= best + 1e-12).all()
    assert noise < 0.5 or (loss > 1e-6).any()


def test_one_type_and_right_beliefs_lose_nothing() -> None:
    problem = problems(1, 5, cases=20, seed=8)
    start = robustness.Start(np.full(20, 5), np.arange(20) % 5 + 1)
    _, loss = robustness.losses(problem, start, problem.pmfs, problem.weights)
    assert np.abs(loss).max() <= 1e-12
    assert np.abs(robustness.bound(problem, start, problem.pmfs, problem.weights)).max() <= 1e-12


def test_swapped_beliefs_about_the_frontier_lose_what_they_misplace() -> None:
    """One coupon for a person who recruits with .8 or one with .3."""
    pmfs = np.array([[[0.2, 0.8], [0.7, 0.3]]])
    shape = Shape(2, 2)
    start = robustness.Start(np.array([1]), np.array([shape.index(np.array([1, 1]))]))
    problem = Problem(shape, pmfs, np.array([[0.5, 0.5]]), np.array([0.9]))
    best, loss = robustness.losses(problem, start, pmfs[:, ::-1], problem.weights)
    assert best == pytest.approx([0.8]) and loss == pytest.approx([0.5])
    _, loss = robustness.losses(problem, start, pmfs, problem.weights)
    assert loss == pytest.approx([0.0])


def test_bound_by_hand() -> None:
    """r = 2, two people of the first type, γ = .5, so c = 4."""
    shape = Shape(2, 2)
    pmfs, weights = np.array([[[1.0, 0.0], [0.0, 1.0]]]), np.array([[0.5, 0.5]])
    problem = Problem(shape, pmfs, weights, np.array([0.5]))
    start = robustness.Start(np.array([2]), np.array([shape.index(np.array([2, 0]))]))
    believed, shares = np.array([[[0.9, 0.1], [0.0, 1.0]]]), np.array([[0.8, 0.2]])
    expected = 2 * 1.5 * 2 * (2 * 0.1) + 4 * 0.3 + 4 * 2 * 0.5
    assert robustness.bound(problem, start, believed, shares) == pytest.approx([expected])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pmfs": np.array([[[0.5, 0.6]]])}, "pmfs sums to"),
        ({"pmfs": np.array([[[1.5, -0.5]]])}, "pmfs holds the probability"),
        ({"weights": np.array([[0.7]])}, "weights sums to"),
        ({"discount": np.array([1.0])}, "discount is 1.0"),
        ({"shape": Shape(1, -1)}, "budget is -1"),
        ({"shape": Shape(2, 2)}, "pmfs has the shape"),
    ],
)
def test_bad_problems_are_refused(change, words) -> None:
    good = {
        "shape": Shape(1, 2),
        "pmfs": np.array([[[0.5, 0.5]]]),
        "weights": np.array([[1.0]]),
        "discount": np.array([0.5]),
    }
    Problem(**good)
    with pytest.raises(ValueError, match=words):
        Problem(**good | change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pmfs": np.array([[0.5, 0.6]])}, "pmfs sums to"),
        ({"pmfs": np.array([[1.5, -0.5]])}, "pmfs holds the probability"),
        ({"discount": 1.0}, "discount is 1.0"),
        ({"discount": -0.5}, "discount is -0.5"),
        ({"table": np.zeros((3, 4))}, "table has the shape"),
    ],
)
def test_bad_input_of_the_planner_is_refused(change, words) -> None:
    good = {"pmfs": np.array([[0.5, 0.5]]), "table": np.zeros((4, 4)), "discount": 0.5}
    with pytest.raises(ValueError, match=words):
        Planner(**good | change)
