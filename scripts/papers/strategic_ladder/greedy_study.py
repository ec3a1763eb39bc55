"""Greedy ladders with and without a leg-up, beside steady and two-level ones (C6, C7, C10)."""

from collections.abc import Mapping

import numpy as np

from scripts.papers.strategic_ladder import closed_forms, draws
from scripts.papers.strategic_ladder.designs import Agents, greedy
from scripts.papers.strategic_ladder.draws import Draws
from scripts.papers.strategic_ladder.ladder import Array
from scripts.papers.strategic_ladder.rows import Row, met, row
from scripts.papers.strategic_ladder.solver import HEADROOM, climb, honest
from scripts.papers.strategic_ladder.steady import costs
from scripts.papers.strategic_ladder.two_levels import best_single

SETTLED = 3  # last steps that are compared with the steady one
CLAIM_LEVELS = 6
COMPARED_LEVELS = 4  # of the greedy ladder beside one threshold
HALVINGS = 16


def saturation_agents(rng: np.random.Generator, count: int, leg_up: bool) -> tuple[Draws, Agents]:
    """Agents of C6; without leg-up they are the same but for delta = 0."""
    beta, gamma = rng.uniform(0.5, 0.85, (2, count))
    drawn = Draws(beta, gamma, rng.uniform(*draws.LEG_UP, count), [draws.DRAWN] * count)
    reward = rng.uniform(1.5, 4.0, count) * drawn.reward_bound
    cost = costs(drawn)["at bound"]
    if not leg_up:
        drawn = Draws(beta, gamma, np.zeros(count), drawn.dataset)
    return drawn, drawn.agents(cost, reward)


def claim_agents(
    rng: np.random.Generator, retention: Mapping[str, float], count: int
) -> tuple[Draws, Agents, Array]:
    """Agents of C7 and C10, which meet C4's conditions; with their reward ratios."""
    drawn = draws.draw(rng, count, retention)
    ratio = rng.uniform(1.05, 4.0, len(drawn))
    return drawn, drawn.agents(costs(drawn)["at bound"], ratio * drawn.reward_bound), ratio


def saturation(
    drawn: Draws, agents: Agents, found: list[Array], levels: int, leg_up: bool
) -> list[Row]:
    """C6: how greedy steps end. A ladder that ended early has a last step of 0."""
    scale = (agents.beta, agents.gamma, agents.honest_cost, agents.reward)
    wide, tight = (
        closed_forms.bounded_attribute(*scale),
        closed_forms.bounded_attribute_tight(*scale),
    )
    rows = []
    for at, thresholds in enumerate(found):
        steps = np.zeros(levels - 1)
        steps[: len(thresholds) - 1] = np.diff(thresholds)
        place = {**drawn.columns(at), "gaming_cost": agents.gaming_cost[at]}
        rows += [
            row("greedy_step", value, **place, levels=number + 2)
            for number, value in enumerate(steps)
        ]
        if leg_up:
            ratio = steps[-SETTLED:].mean() / agents.step[at]
            rows.append(row("last_steps_over_steady", ratio, SETTLED, **place))
        else:
            rows += [
                row("last_step_over_first", steps[-1] / steps[0], levels - 1, **place),
                row("bound_kept", thresholds[-1] <= wide[at], levels, **place),
                row("tight_bound_kept", thresholds[-1] <= tight[at], levels, **place),
            ]
    return rows


def claimed(
    drawn: Draws, agents: Agents, ratio: Array, found: list[Array], nodes: int
) -> list[Row]:
    """C7: are greedy ladders honest on a grid twice as fine, with no more levels than steady ones?

    The level that is wanted lies at 0.95 of the greedy ladder's top; both ladders are cut off
    where they first reach it.
    """
    batch = agents.on(found)
    good = honest(batch, climb(batch, 2 * nodes)[1])[:, 0]
    rows = []
    for at, thresholds in enumerate(found):
        target = 0.95 * thresholds[-1]
        mine = int(np.argmax(thresholds >= target)) + 1
        steady = int(closed_forms.levels_for(target, agents.gamma[at], agents.delta[at]))
        place = {
            **drawn.columns(at), "gaming_cost": agents.gaming_cost[at],
            "reward_ratio": ratio[at], "cost_condition": "met", "reward_condition": "met",
        }  # fmt: skip
        rows += [
            row("honest", good[at], nodes, profile="linear", levels=len(thresholds), **place),
            row("no_more_levels", mine <= steady, steady, **place),
            row("honest_attribute", thresholds[:COMPARED_LEVELS][-1], **place),
        ]
    return rows


def single(drawn: Draws, agents: Agents, ratio: Array, nodes: int) -> list[Row]:
    """C10: the highest honest threshold of two levels, against its closed form.

    The form holds where the threshold lies below the lower cut-off plus s, so that keeping it
    honestly is worth while: threshold_condition.
    """
    scale = (agents.beta, agents.gamma)
    form = closed_forms.first_honest_threshold(
        *scale, agents.delta, agents.honest_cost, agents.reward
    )
    cut = closed_forms.lower_cutoff(*scale, agents.honest_cost, agents.gaming_cost, agents.reward)
    found = best_single(agents, HALVINGS, nodes)
    rows = []
    for at in range(len(drawn)):
        step = HEADROOM * form[at] / (nodes - 1)
        place = {
            **drawn.columns(at), "gaming_cost": agents.gaming_cost[at], "reward_ratio": ratio[at],
        }  # fmt: skip
        error = (found[at] - form[at]) / step
        below = met(form[at] <= cut[at] + agents.step[at])
        rows += [
            row("single_threshold_error", error, HALVINGS, threshold_condition=below, **place),
            row("honest_attribute", found[at], **place),
        ]
    return rows


def ladders_of(agents: Agents, levels: int, nodes: int) -> list[Array]:
    """Greedy ladders of the agents."""
    return greedy(agents, levels, nodes)
