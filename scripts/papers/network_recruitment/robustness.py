"""The planner inside the exact recursion: what its surrogate and wrong beliefs cost (Theorem 7.2).

Three sources of error: wrong distributions of the present frontier, a wrong population behind U,
and a population of unlike types, whose mixture U takes for everybody's distribution.
"""

from dataclasses import dataclass

import numpy as np

from scripts.papers.network_recruitment import exact, surrogate
from scripts.papers.network_recruitment.exact import Ints, Problem, Shape
from scripts.papers.network_recruitment.planner import TIE
from scripts.papers.network_recruitment.pmf import Array, mixture, survival, total_variation


@dataclass(frozen=True)
class Start:
    """Where each problem starts: coupons [I] and the number of its frontier [I]."""

    budget: Ints
    frontier: Ints


def surrogate_tables(problem: Problem, weights: Array) -> Array:
    """U of each problem under believed shares of its types, [I, b + 1, b + 1]."""
    laws = mixture(problem.pmfs, weights)
    budget = problem.shape.budget
    return np.array(
        [
            surrogate.solve(q, budget, float(discount)).value
            for q, discount in zip(laws, problem.discount, strict=True)
        ]
    )


def greedy_actions(shape: Shape, pmfs: Array) -> Ints:
    """Greedy's action in every frontier for every round budget s <= b, [I, M, b + 1].

    People stand by type, so that ties go to the lowest type.
    """
    budget = shape.budget
    digit = (budget + 1) ** np.arange(shape.types * budget, dtype=np.int64)
    code = np.concatenate(
        [np.zeros((shape.types, 1), dtype=np.int64), digit.reshape(shape.types, budget)], axis=1
    )
    of_action = np.array([sum(code[kind, k] for kind, k in action) for action in shape.actions])
    order = np.argsort(of_action)
    levels = survival(pmfs, budget)
    out = np.zeros((len(pmfs), len(shape.frontiers), budget + 1), dtype=np.int64)
    for number, counts in enumerate(shape.frontiers):
        people = np.repeat(np.arange(shape.types), counts)
        if not len(people):
            continue
        flat = levels[:, people].reshape(len(pmfs), -1)
        first = np.argsort(-flat, axis=1, kind="stable")[:, :budget] // budget
        codes = np.zeros((len(pmfs), budget + 1), dtype=np.int64)
        given = np.zeros((len(pmfs), len(people)), dtype=np.int64)
        rows = np.arange(len(pmfs))
        for s in range(budget):
            given[rows, first[:, s]] += 1
            codes[:, s + 1] = code[people, given].sum(axis=1)
        out[:, number] = order[np.searchsorted(of_action, codes, sorter=order)]
    return out


def planner_policy(shape: Shape, believed: Array, tables: Array, discount: Array) -> Ints:
    """The planner's action in every state, [I, b + 1, M], under believed types and U."""
    values, laws = exact.action_values(shape, believed)
    greedy = greedy_actions(shape, believed)
    each = np.arange(len(believed))[:, None]
    out = np.zeros((len(believed), shape.budget + 1, len(shape.frontiers)), dtype=np.int64)
    for r in range(1, shape.budget + 1):
        scores = np.zeros((r + 1, *greedy.shape[:2]))
        for s in range(1, r + 1):
            action = greedy[:, :, s]
            later = np.einsum("imk,ik->im", laws[each, action], tables[:, r - s])
            scores[s] = values[each, action] + discount[:, None] * later
        best = (scores >= scores.max(axis=0) - TIE).argmax(axis=0)
        out[:, r] = np.take_along_axis(greedy, best[..., None], axis=2)[..., 0]
    return out


def losses(problem: Problem, start: Start, believed: Array, weights: Array) -> tuple[Array, Array]:
    """Optimal value of each problem's start and what the planner loses against it, [I] each.

    The present frontier's distributions are the believed ones; those of later frontiers are known
    when they are met; U comes from the true types with believed shares in every round.
    """
    tables = surrogate_tables(problem, weights)
    policy = planner_policy(problem.shape, problem.pmfs, tables, problem.discount)
    misled = planner_policy(problem.shape, believed, tables, problem.discount)
    rows = np.arange(len(believed))
    policy[rows, start.budget] = misled[rows, start.budget]
    best = exact.solve(problem)[0][rows, start.budget, start.frontier]
    reached = exact.evaluate(problem, policy)[0][rows, start.budget, start.frontier]
    return best, best - reached


def bound(problem: Problem, start: Start, believed: Array, weights: Array) -> Array:
    """The theorem's bound on the loss, [I].

    2 (1 + γ) r sum_i TV(D_i, D^_i) + c TV(P, P^) + c r E TV(D, mean D), c = 2 γ r / (1 - γ).
    """
    people = problem.shape.frontiers[start.frontier]
    frontier = (people * total_variation(problem.pmfs, believed)).sum(axis=1)
    population = total_variation(problem.weights, weights)
    common = mixture(problem.pmfs, problem.weights)[:, None, :]
    spread = (problem.weights * total_variation(problem.pmfs, common)).sum(axis=1)
    r, discount = start.budget, problem.discount
    c = 2 * discount * r / (1 - discount)
    return 2 * (1 + discount) * r * frontier + c * population + c * r * spread
