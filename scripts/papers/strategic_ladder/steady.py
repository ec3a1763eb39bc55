"""Equally spaced ladders: when steady thresholds are climbed honestly, and how high (C4, C5)."""

from collections.abc import Mapping

import numpy as np

from scripts.papers.strategic_ladder import draws
from scripts.papers.strategic_ladder.designs import Agents, spaced
from scripts.papers.strategic_ladder.draws import Draws
from scripts.papers.strategic_ladder.ladder import Array, ladders
from scripts.papers.strategic_ladder.rows import Row, met, row
from scripts.papers.strategic_ladder.solver import climb, honest

REWARD_RATIOS = (0.98, 1.001, 1.5, 3.0)
SPACINGS = {"steady": 1.0, "dense": 0.5, "sparse": 2.0, "subsidised": 1.0}
SUBSIDY = 0.5  # share of c+ that a subsidised agent is spared, the classical remedy
CREDIT = "credit"


def costs(drawn: Draws) -> dict[str, Array]:
    """c-/c+ at the theorem's bound, near 1, and half way from (1 - beta gamma) to the bound."""
    bound = drawn.gaming_cost_bound
    return {
        "at bound": np.minimum(1.001 * bound, 0.9999),
        "near 1": np.maximum(0.98, np.minimum(1.001 * bound, 0.9999)),
        "below bound": (drawn.incentive_bound + bound) / 2,
    }


def branch(drawn: Draws) -> list[str]:
    """Which term of the bound on c- is the larger."""
    both = drawn.beta * drawn.gamma
    first = (1 + both / 2) * (1 - both) >= both * (1 - drawn.beta * both)
    return ["first" if one else "second" for one in first]


def spaced_ladders(
    rng: np.random.Generator,
    retention: Mapping[str, float],
    profile: Array,
    count: int,
    arm: str,
    nodes: int,
) -> list[Row]:
    """C4: honest or not, over rewards and gaming costs, for one spacing of the thresholds.

    Also with the real, non-linear `profile` of rewards (steady ladders only; outside the theorem),
    scaled so that its smallest step is the ratio times the bound.
    """
    drawn = draws.draw(rng, count, retention)
    levels = rng.integers(3, 7, len(drawn))
    honest_cost = 1 - SUBSIDY if arm == "subsidised" else 1.0
    step = SPACINGS[arm] * drawn.delta / (1 - drawn.gamma)
    terms = branch(drawn)
    rows = []
    for design, cost in costs(drawn).items():
        for ratio in REWARD_RATIOS:
            agents = drawn.agents(cost, ratio * drawn.reward_bound, honest_cost)
            thresholds = [spaced(*each) for each in zip(step, levels, strict=True)]
            place = [
                {
                    **drawn.columns(at), "levels": levels[at], "gaming_cost": cost[at],
                    "reward_ratio": ratio, "design": design, "branch": terms[at],
                    "step_ratio": SPACINGS[arm],
                    "cost_condition": met(design != "below bound"),
                    "reward_condition": met(ratio >= 1),
                }
                for at in range(len(drawn))
            ]  # fmt: skip
            rows += _honest_rows(agents, thresholds, None, place, "linear", nodes)
            if arm == "steady":
                shape = profile / np.diff(profile).min()
                pay = [
                    bound * ratio * shape[:size]
                    for bound, size in zip(drawn.reward_bound, levels, strict=True)
                ]
                rows += _honest_rows(agents, thresholds, pay, place, CREDIT, nodes)
    return rows


def _honest_rows(
    agents: Agents,
    thresholds: list[Array],
    pay: list[Array] | None,
    place: list[dict],
    profile: str,
    nodes: int,
) -> list[Row]:
    batch = agents.on(thresholds)
    if pay is not None:
        batch = ladders(
            thresholds=thresholds, rewards=pay, beta=agents.beta, gamma=agents.gamma,
            delta=agents.delta, honest_cost=agents.honest_cost, gaming_cost=agents.gaming_cost,
        )  # fmt: skip
    _, paths = climb(batch, nodes)
    good = honest(batch, paths)[:, 0]
    steps = paths.reached.shape[2]
    return [
        row("honest", good[at], steps, profile=profile, **place[at]) for at in range(len(batch))
    ]


def long_climbs(
    rng: np.random.Generator,
    retention: Mapping[str, float],
    count: int,
    promotions: list[int],
) -> list[Row]:
    """C5: steady ladders of many levels, r at 1.05 and c- at 1.001 of their bounds.

    The grid has eight nodes a promotion, so that each threshold's surroundings are resolved alike.
    """
    drawn = draws.draw(rng, count, retention)
    cost = costs(drawn)["at bound"]
    agents = drawn.agents(cost, 1.05 * drawn.reward_bound)
    rows = []
    for number in promotions:
        batch = agents.on([spaced(step, number + 1) for step in agents.step])
        _, paths = climb(batch, max(201, 8 * number + 1), tolerance=1e-9)
        good = honest(batch, paths)[:, 0]
        top = paths.level[:, 0] == number
        for at in range(len(drawn)):
            place = {
                **drawn.columns(at), "promotions": number, "levels": number + 1,
                "gaming_cost": cost[at], "cost_condition": "met", "reward_condition": "met",
                "reward_ratio": 1.05,
            }  # fmt: skip
            steps = paths.reached.shape[2]
            arrived = int(np.argmax(top[at])) + 1 if top[at].any() else steps
            rows += [
                row("honest_climb", good[at], steps, **place),
                row("extra_steps", arrived - number, steps, **place),
                row("attribute_over_target", paths.reached[at, 0, -1] / batch.top[at], **place),
            ]
    return rows
