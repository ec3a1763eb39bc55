"""Measure what each claim speaks of: an arm is a kind of agent, of ladder or of search."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from scripts.papers.strategic_ladder import (
    accuracy,
    credit,
    greedy_study,
    incentives,
    pictures,
    search,
    steady,
    train,
    two_levels,
)
from scripts.papers.strategic_ladder.rows import Row, row
from scripts.pipeline.stage import Job, Run, main


def evaluate(job: Job) -> None:
    for run in job.runs():
        run.metrics(_EVALUATE[run.arm](job, run))


def _myopic(job: Job, run: Run) -> list[Row]:
    return incentives.one_shot(run.rng("one shot"), job.params["one_shot"], job.params["nodes"])


def _random(job: Job, run: Run) -> list[Row]:
    chosen, retention = job.params, train.retention_of(job)
    above, grid = chosen["above"], chosen["map"]
    return [
        *incentives.below_bound(
            run.rng("below"), retention, chosen["below"], "random", chosen["nodes"]
        ),
        *incentives.above_bound(
            run.rng("above"), retention, above["agents"], above["designs"], chosen["nodes"]
        ),
        *incentives.cost_map(run.rng("map"), grid["cells"], grid["designs"], grid["nodes"]),
    ]


def _two_level(job: Job, run: Run) -> list[Row]:
    chosen, retention = job.params, train.retention_of(job)
    high, cutoffs, nodes = chosen["high"], chosen["cutoffs"], chosen["nodes"]
    if run.seed == 0:
        run.save_table("map", pictures.policy_map(nodes))
    return [
        *two_levels.low_thresholds(run.rng("low"), retention, chosen["low"], nodes),
        *two_levels.high_thresholds(
            run.rng("high"), retention, high["agents"], high["deltas"], high["heights"],
            high["halvings"], nodes,
        ),
        *two_levels.cutoff_sweep(
            run.rng("cut-offs"), cutoffs["values"], cutoffs["near_one"], high["halvings"], nodes
        ),
    ]  # fmt: skip


def _spaced(job: Job, run: Run) -> list[Row]:
    chosen, retention = job.params, train.retention_of(job)
    profile = np.array(job.load_json("prepare", "calibration")["profile"])
    rows = steady.spaced_ladders(
        run.rng("steady"), retention, profile, chosen["steady"], run.arm, chosen["nodes"]
    )
    if run.arm != "steady":
        return rows
    climbs = chosen["climbs"]
    if run.seed == 0:
        run.save_table("climbs", pictures.climbs(chosen["nodes"]))
    return [
        *rows,
        *incentives.below_bound(
            run.rng("below"), retention, chosen["below"], "steady", chosen["nodes"]
        ),
        *steady.long_climbs(run.rng("climbs"), retention, climbs["agents"], climbs["promotions"]),
    ]


def _greedy(job: Job, run: Run) -> list[Row]:
    chosen = job.params
    leg_up = run.arm == "greedy"
    drawn, agents = greedy_study.saturation_agents(
        run.rng("saturation"), chosen["ladders"]["saturation"], leg_up
    )
    found = train.thresholds_of(run.load_table("train", "saturation"))
    rows = greedy_study.saturation(drawn, agents, found, chosen["saturation_levels"], leg_up)
    if leg_up:
        found = train.thresholds_of(run.load_table("train", "ladders"))
        rows += greedy_study.claimed(*_claim_agents(job, run), found, chosen["nodes"])
    return rows


def _single(job: Job, run: Run) -> list[Row]:
    return greedy_study.single(*_claim_agents(job, run), job.params["nodes"])


def _claim_agents(job: Job, run: Run) -> tuple:
    count = job.params["ladders"]["agents"]
    return greedy_study.claim_agents(run.rng("ladders"), train.retention_of(job), count)


def _searched(job: Job, run: Run) -> list[Row]:
    drawn = train.searched_agents(run, job, job.params["search"]["agents"])
    found = run.load_table("train", "found").sort_values("instance")
    rows = search.chained_rows(drawn, found["gaming_cost"].to_numpy(), job.params["nodes"])
    for one in found.itertuples():
        place = {
            **drawn.columns(one.instance), "gaming_cost": one.gaming_cost, "reward_ratio": 0.9,
            "cost_condition": "met", "reward_condition": "unmet",
        }  # fmt: skip
        rows.append(row("honest_designs", one.honest, one.tried, **place))
        if one.tried_high:
            rows.append(row("honest_high_designs", one.honest_high, one.tried_high, **place))
        rows.append(row("least_violation", one.violation, one.tried, **place, levels=one.levels))
    return rows


def _solver(job: Job, run: Run) -> list[Row]:
    chosen = job.params["accuracy"]
    return accuracy.grid_errors(
        run.rng("accuracy"), chosen["agents"], chosen["exponents"], chosen["reference"]
    )


def _principal(job: Job, run: Run) -> list[Row]:
    chosen, scores = job.params["credit"], train.scores_of(job)
    table = run.load_table("train", "designs")
    rows: list[Row] = []
    seen = []
    for case, tried in table.groupby("case"):
        searches = int(tried.loc[tried["design"] == "best of levels", "tried"].sum())
        for one in tried.itertuples():
            place = {"case": case, "design": one.design, "levels": one.levels}
            rows.append(row("objective", one.objective, one.tried, **place))
            rows.append(row("gaming_share", one.gaming_share, one.tried, **place))
        best = tried.loc[tried["objective"].idxmax()]
        clean = tried.loc[tried["gaming_share"].idxmin()]
        for design, one in (("best", best), ("least gaming", clean)):
            place = {"case": case, "design": design, "levels": one["levels"]}
            rows.append(row("objective", one["objective"], searches, **place))
            rows.append(row("gaming_share", one["gaming_share"], searches, **place))
        reward, thresholds = credit.unpack(np.array(best["point"]), best["levels"])
        place = {"case": case, "design": "best", "levels": best["levels"]}
        rows.append(row("design_reward", reward[0], searches, **place))
        rows.append(row("top_threshold", thresholds[0][-1], searches, **place))
        nodes = chosen["nodes"]
        seen.append(pictures.borrowers(str(case), reward, thresholds, scores, nodes))
        batch = credit.borrowers(str(case), reward, thresholds)
        paths = credit.paths_of(batch, scores.x, chosen["steps"], nodes)
        rows += [
            row("group_attribute", paths.reached[0, :, -1] @ weight, scores.people, **place,
                group=group)
            for group, weight in scores.groups.items()
        ]  # fmt: skip
    run.save_table("borrowers", pd.concat(seen, ignore_index=True))
    return rows


_EVALUATE: dict[str, Callable[[Job, Run], list[Row]]] = {
    "myopic": _myopic,
    "random": _random,
    "two_level": _two_level,
    **dict.fromkeys(steady.SPACINGS, _spaced),
    "greedy": _greedy,
    "greedy_no_legup": _greedy,
    "single": _single,
    "searched": _searched,
    "solver": _solver,
    "principal": _principal,
}


if __name__ == "__main__":
    main(evaluate)
