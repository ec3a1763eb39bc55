"""Policies and the rules of recruiting, in the model and on a graph."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.papers.network_recruitment import policies, surrogate
from scripts.papers.network_recruitment.lookahead import Rollouts, lookahead
from scripts.papers.network_recruitment.network import Network
from scripts.papers.network_recruitment.people import Types
from scripts.papers.network_recruitment.planner import Planner
from scripts.papers.network_recruitment.pmf import mixture, survival, without_recruiter
from scripts.papers.network_recruitment.policies import Known, Policy
from scripts.papers.network_recruitment.simulate import (
    GraphDraws,
    ModelDraws,
    in_model,
    on_graph,
    sampled,
)
from scripts.papers.network_recruitment.single_round import greedy

BUDGET, START, DISCOUNT, REPLICATES = 12, 3, 0.9, 40


def ring_with_chords(nodes: int = 40) -> Network:
    edges = [(i, (i + step) % nodes) for i in range(nodes) for step in (1, 5)]
    return Network(np.sort(np.array(edges), axis=1), nodes)


def star(leaves: int) -> Network:
    return Network(np.array([(0, leaf) for leaf in range(1, leaves + 1)]), leaves + 1)


def types(nodes: int = 40) -> Types:
    rng = np.random.default_rng(2)
    kinds = np.arange(nodes) % 3
    return Types(kinds, rng.dirichlet(np.ones(5), 3), np.bincount(kinds) / nodes)


def known(budget: int = BUDGET, graph: bool = False) -> Known:
    about = types()
    table = surrogate.solve(mixture(about.pmfs, about.weights), budget, DISCOUNT).value
    pmfs = about.pmfs
    if graph:
        pmfs = np.concatenate([pmfs, without_recruiter(pmfs)])
    return Known(Planner(pmfs, table, DISCOUNT), budget)


def every_policy(graph: bool) -> dict[str, Policy]:
    about = known(graph=graph)
    pmfs = types().pmfs
    pmfs = np.concatenate([pmfs, without_recruiter(pmfs)]) if graph else pmfs
    rollouts = Rollouts(types(), pmfs, DISCOUNT, START, 5, 3, (0.2, 0.5), np.random.default_rng(0))
    return {
        **{f"const_{k}": policies.const(about, k) for k in (1, 3, 10)},
        **{f"greedy_{a}": policies.greedy_share(about, a) for a in (0.1, 0.5, 1.0)},
        "remainder": policies.greedy_remainder(about, 0.5),
        "remainder_ceil": policies.greedy_remainder(about, 0.5, "ceil"),
        **{f"planned_{split}": policies.planned(about, split) for split in policies.SPLITS},
        "lookahead": lookahead(about, rollouts),
    }


class Watched:
    """A policy that remembers what it was asked and what it gave."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.seen = policy, []

    def __call__(self, kinds, left, uniform):
        coupons = self.policy(kinds, left, uniform)
        self.seen.append((kinds.copy(), left.copy(), coupons.copy()))
        return coupons


def run(policy: Policy, graph: bool, seed: int = 0):
    rng = np.random.default_rng(seed)
    if graph:
        network = ring_with_chords()
        draws = GraphDraws.draw(rng, REPLICATES, BUDGET, network)
        return on_graph(policy, network, types(), BUDGET, START, draws)
    draws = ModelDraws.draw(rng, REPLICATES, BUDGET, START)
    return in_model(policy, types(), BUDGET, START, draws)


@pytest.mark.parametrize("graph", [False, True])
def test_coupons_are_spent_when_handed_out_and_never_more_than_are_left(graph) -> None:
    for name, policy in every_policy(graph).items():
        watched = Watched(policy)
        outcome = run(watched, graph)
        for _, left, coupons in watched.seen:
            assert (coupons >= 0).all() and (coupons.sum(axis=1) <= left).all(), name
        total = sum(int(coupons.sum()) for _, _, coupons in watched.seen)
        assert total == (BUDGET - outcome.left).sum(), name
        assert (outcome.recruits.sum(axis=1) <= BUDGET - outcome.left).all(), name
        assert (outcome.left >= 0).all(), name
        _, first_left, first_coupons = watched.seen[0]
        assert (first_left == BUDGET).all()
        assert (outcome.recruits[:, 0] <= first_coupons.sum(axis=1)).all()


@pytest.mark.parametrize("graph", [False, True])
def test_all_policies_meet_the_same_first_frontier(graph) -> None:
    first = None
    for name, policy in every_policy(graph).items():
        watched = Watched(policy)
        run(watched, graph, seed=3)
        kinds = watched.seen[0][0]
        first = kinds if first is None else first
        assert np.array_equal(kinds, first), name
    watched = Watched(policies.const(known(graph=graph), 2))
    run(watched, graph, seed=4)
    assert not np.array_equal(watched.seen[0][0], first)


@pytest.mark.parametrize("graph", [False, True])
def test_same_seed_same_recruits(graph) -> None:
    for name in every_policy(graph):
        one, two = (run(every_policy(graph)[name], graph) for _ in range(2))
        assert np.array_equal(one.recruits, two.recruits), name
        assert np.array_equal(one.left, two.left), name


@pytest.mark.parametrize("graph", [False, True])
def test_a_replicate_does_not_depend_on_the_others(graph) -> None:
    policy = policies.planned(known(graph=graph))
    whole = run(policy, graph)
    rng = np.random.default_rng(0)
    if graph:
        network = ring_with_chords()
        draws = GraphDraws.draw(rng, REPLICATES, BUDGET, network).first(7)
        part = on_graph(policy, network, types(), BUDGET, START, draws)
    else:
        draws = ModelDraws.draw(rng, REPLICATES, BUDGET, START).first(7)
        part = in_model(policy, types(), BUDGET, START, draws)
    assert np.array_equal(part.recruits, whole.recruits[:7])


def test_common_random_numbers_in_the_model() -> None:
    """With enough coupons for all, rounds are the same under any rule that gives plenty."""
    few, many = (run(policies.const(known(), k), False).recruits[:, 0] for k in (3, 4))
    assert (many >= few - 3).all()  # the last in line may get less
    one = run(policies.greedy_share(known(), 1.0), False)
    two = run(policies.greedy_remainder(known(), 1.0), False)
    assert np.array_equal(one.recruits, two.recruits)


def test_fresh_frontiers_follow_the_shares_and_the_types() -> None:
    about = types()
    uniform = np.linspace(0, 1, 100_000, endpoint=False)
    for kind in range(3):
        drawn = sampled(about.pmfs, np.full(len(uniform), kind), uniform)
        shares = np.bincount(drawn, minlength=5) / len(uniform)
        assert shares == pytest.approx(about.pmfs[kind], abs=1e-4)


def test_rollouts_of_the_even_policy_reach_the_table() -> None:
    q, budget, replicates = np.random.default_rng(5).dirichlet(np.ones(5)), 15, 6000
    found = surrogate.solve(q, budget, DISCOUNT)
    population = Types(np.zeros(1, dtype=np.int64), q[None], np.ones(1))
    policy = policies.planned(Known(Planner(q[None], found.value, DISCOUNT), budget), "even")
    draws = ModelDraws.draw(np.random.default_rng(1), replicates, budget, START)
    reward = in_model(policy, population, budget, START, draws).discounted(DISCOUNT)
    error = reward.std(ddof=1) / replicates**0.5
    assert abs(reward.mean() - found.value[budget, START]) < 4 * error


def recruited(network: Network, policy: Policy, budget: int, start: int, seed: int = 0):
    """Recruits by round of each replicate, with who is in, found by an own plain simulation."""
    draws = GraphDraws.draw(np.random.default_rng(seed), 25, budget, network)
    about = types(network.nodes)
    found = on_graph(policy, network, about, budget, start, draws)
    for row in range(25):
        seeds = np.argsort(draws.seeds[row], kind="stable")[:start]
        frontier = sorted(seeds.tolist(), key=lambda person: draws.order[row, person])
        inside, left, rounds = set(frontier), budget, []
        for turn in range(budget):
            kinds = np.array([[about.kinds[p] + 3 * (turn > 0) for p in frontier]])
            coupons = policy(kinds, np.array([left]), draws.policy[row, turn][None])[0]
            new = []
            for person, k in zip(frontier, coupons, strict=True):
                near = network.neighbours[person].tolist()
                free = [
                    (draws.preference[row, person, place], other)
                    for place, other in enumerate(near)
                    if other >= 0 and other not in inside
                ]
                chosen = [other for _, other in sorted(free)[:k]]
                assert not inside & set(chosen)
                inside |= set(chosen)
                new += chosen
            rounds.append(len(new))
            left -= int(coupons.sum())
            frontier = sorted(new, key=lambda person: draws.order[row, person])
            if not new or left == 0 or not coupons.sum():
                break
        expected = np.zeros(budget, dtype=int)
        expected[: len(rounds)] = rounds
        assert found.recruits[row].tolist() == expected.tolist()
        assert found.left[row] == left
        assert len(inside) == start + found.recruits[row].sum()  # nobody twice
    return found


@pytest.mark.parametrize("name", ["const_3", "greedy_0.5", "remainder_ceil", "planned_greedy"])
def test_graph_rounds_are_those_of_a_plain_simulation(name) -> None:
    recruited(ring_with_chords(), every_policy(True)[name], BUDGET, START)


def test_own_recruiter_is_taken() -> None:
    """On a star the hub takes leaves, whose only neighbour is in already."""
    network, about = star(9), known(8, graph=True)
    draws = GraphDraws.draw(np.random.default_rng(0), 60, 8, network)
    outcome = on_graph(policies.const(about, 3), network, types(10), 8, 1, draws)
    from_hub = draws.seeds.argmin(axis=1) == 0
    assert 0 < from_hub.sum() < 60
    assert (outcome.recruits[from_hub, :2] == [3, 0]).all()
    assert (outcome.left[from_hub] == 0).all()  # 3, then 3 + 2 in vain
    assert (outcome.recruits[~from_hub, :3] == [1, 3, 0]).all()


def test_nobody_can_be_recruited_twice_on_a_small_graph() -> None:
    network = Network(np.array([(0, 1), (1, 2), (0, 2)]), 3)
    draws = GraphDraws.draw(np.random.default_rng(0), 30, 8, network)
    outcome = on_graph(policies.const(known(8, graph=True), 2), network, types(3), 8, 1, draws)
    assert (outcome.recruits.sum(axis=1) == 2).all()
    assert (outcome.recruits[:, 0] == 2).all()


@pytest.mark.parametrize("graph", [False, True])
def test_without_coupons_nobody_is_recruited(graph) -> None:
    policy, network = policies.const(known(), 2), ring_with_chords()
    rng = np.random.default_rng(0)
    if graph:
        draws = GraphDraws.draw(rng, 4, 0, network)
        outcome = on_graph(policy, network, types(), 0, START, draws)
    else:
        outcome = in_model(policy, types(), 0, START, ModelDraws.draw(rng, 4, 0, START))
    assert outcome.recruits.sum() == 0
    assert outcome.discounted(DISCOUNT).tolist() == [0.0] * 4


def test_const_serves_in_order() -> None:
    about = known()
    kinds = np.array([[0, 1, 2, 0], [0, 1, about.nobody, about.nobody]])
    left = np.array([8, 8])
    unused = np.zeros((2, BUDGET))
    assert policies.const(about, 3)(kinds, left, unused).tolist() == [[3, 3, 2, 0], [3, 3, 0, 0]]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(0, BUDGET))
def test_fixed_rules_split_greedily(frontier, left) -> None:
    about = known()
    kinds, coupons_left = np.array([frontier]), np.array([left])
    levels = survival(types().pmfs, 4)[frontier]
    unused = np.zeros((1, BUDGET))
    budgets = {
        policies.greedy_share(about, 0.5): min(left, 6),
        policies.greedy_share(about, 0.1): min(left, 1),
        policies.greedy_remainder(about, 0.5): left // 2,
        policies.greedy_remainder(about, 0.5, "ceil"): -(-left // 2),
    }
    for policy, budget in budgets.items():
        expected = greedy(levels, budget)
        assert policy(kinds, coupons_left, unused)[0].tolist() == expected.tolist()


def test_shares_round_as_numbers_do_not() -> None:
    """0.1 of 30 is 3, although 0.1 * 30 > 3 or < 3 as floats may be."""
    about = known(60)
    kinds, unused = np.zeros((1, 30), dtype=int), np.zeros((1, 60))
    for share, left, floor, ceil in (
        (0.1, 30, 3, 3),
        (0.2, 15, 3, 3),
        (0.1, 9, 0, 1),
        (0.7, 10, 7, 7),
    ):
        for rounding, expected in (("floor", floor), ("ceil", ceil)):
            policy = policies.greedy_remainder(about, share, rounding)
            assert policy(kinds, np.array([left]), unused).sum() == expected


def test_released_remainder_stops_with_coupons_left_and_ceil_does_not() -> None:
    floor, ceil = (
        run(policies.greedy_remainder(known(), 0.5, how), False) for how in ("floor", "ceil")
    )
    assert (floor.left >= 1).all()
    assert (ceil.left == 0).any()


def test_ablations_spend_as_the_planner_does() -> None:
    about = known()
    rng = np.random.default_rng(0)
    kinds, left = rng.integers(0, 3, (20, 5)), rng.integers(0, BUDGET + 1, 20)
    kinds[:10, 3:] = about.nobody
    uniform = rng.random((20, BUDGET))
    spent = {
        split: policies.planned(about, split)(kinds, left, uniform) for split in policies.SPLITS
    }
    totals = {split: coupons.sum(axis=1).tolist() for split, coupons in spent.items()}
    assert totals["even"] == totals["random"] == totals["greedy"]
    for split in ("even", "random"):
        assert not spent[split][kinds == about.nobody].any()
    even = spent["even"]
    assert (even[10:].max(axis=1) - even[10:].min(axis=1) <= 1).all()
    assert not np.array_equal(spent["random"], even)


def test_myopic_planner_spends_all_that_may_help() -> None:
    pmfs = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    policy = policies.planned(Known(Planner(pmfs, np.zeros((9, 9)), 0.9), 8))
    assert policy(np.array([[0, 1, 0]]), np.array([8]), np.zeros((1, 8))).tolist() == [[2, 0, 2]]


def test_lookahead_finds_a_clear_choice() -> None:
    """Everybody recruits two: with γ = 0 all coupons that can be used should go at once."""
    pmfs = np.array([[0.0, 0.0, 1.0]])
    about = Known(Planner(pmfs, np.zeros((9, 9)), 0.0), 8)
    rollouts = Rollouts(
        Types(np.zeros(1, dtype=int), pmfs, np.ones(1)), pmfs, 0.0, 4, 4, 4, (0.25, 1.0),
        np.random.default_rng(0),
    )  # fmt: skip
    assert rollouts.base_share(8) == 1.0
    policy = lookahead(about, rollouts)
    found = policy(np.zeros((2, 4), dtype=int), np.array([8, 4]), np.zeros((2, 8)))
    assert found.tolist() == [[2, 2, 2, 2], [2, 2, 0, 0]]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: policies.planned(known(), "fair"), "split is 'fair'"),
        (lambda: policies.greedy_remainder(known(), 0.5, "up"), "rounding is 'up'"),
        (lambda: policies.greedy_remainder(known(), 1.5), "share is 1.5"),
        (lambda: policies.greedy_share(known(), 0.0), "share is 0.0"),
        (lambda: policies.const(known(), 0), "each is 0"),
    ],
)
def test_bad_policies_are_refused(make, words) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("budget", "start", "words"),
    [
        (-1, 3, "budget is -1"),
        (2.5, 3, "budget is 2.5"),
        (5, 0, "start is 0"),
        (5, -2, "start is -2"),
    ],
)
def test_bad_simulations_are_refused(budget, start, words) -> None:
    policy, network, rng = policies.const(known(), 2), ring_with_chords(), np.random.default_rng(0)
    with pytest.raises(ValueError, match=words):
        in_model(policy, types(), budget, start, ModelDraws.draw(rng, 2, 5, 3))
    draws = GraphDraws.draw(rng, 2, 5, network)
    with pytest.raises(ValueError, match=words):
        on_graph(policy, network, types(), budget, start, draws)
    with pytest.raises(ValueError, match="start is 41"):
        on_graph(policy, network, types(), 5, 41, draws)
