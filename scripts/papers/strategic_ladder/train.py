"""Design thresholds: greedy ladders, the search below the reward bound, the credit ladder."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from scripts.papers.strategic_ladder import credit, draws, greedy_study, search, steady
from scripts.pipeline.stage import Job, Run, main

if TYPE_CHECKING:
    import pandas as pd

    from scripts.papers.strategic_ladder.ladder import Array


def train(job: Job) -> None:
    for run in job.runs():
        _TRAIN[run.arm](job, run)


def scores_of(job: Job) -> credit.Scores:
    """The starting attributes that prepare saved."""
    table = job.load_table("prepare", "scores")
    groups = {
        name.removeprefix("weight_"): table[name].to_numpy()
        for name in table
        if name.startswith("weight_")
    }
    people = int(table["people"].iloc[0])
    return credit.Scores(table["x"].to_numpy(), table["weight"].to_numpy(), groups, people)


def retention_of(job: Job) -> dict[str, float]:
    return job.load_json("prepare", "calibration")["retention"]


def searched_agents(run: Run, job: Job, count: int) -> draws.Draws:
    """Agents of the search below the reward bound."""
    return draws.draw(run.rng("searched"), count, retention_of(job))


def thresholds_frame(found: "list[Array]") -> "pd.DataFrame":
    """Ladders as a table: instance, level, threshold."""
    import pandas as pd

    rows = [
        {"instance": at, "level": level, "threshold": value}
        for at, thresholds in enumerate(found)
        for level, value in enumerate(thresholds)
    ]
    return pd.DataFrame(rows)


def thresholds_of(frame: "pd.DataFrame") -> "list[Array]":
    """The inverse of `thresholds_frame`."""
    return [some["threshold"].to_numpy() for _, some in frame.groupby("instance", sort=True)]


def _greedy(job: Job, run: Run) -> None:
    chosen = job.params
    leg_up = run.arm == "greedy"
    count, levels = chosen["ladders"]["saturation"], chosen["saturation_levels"]
    _, agents = greedy_study.saturation_agents(run.rng("saturation"), count, leg_up)
    found = greedy_study.ladders_of(agents, levels, chosen["nodes"])
    run.save_table("saturation", thresholds_frame(found))
    if leg_up:
        _, agents, _ = greedy_study.claim_agents(
            run.rng("ladders"), retention_of(job), chosen["ladders"]["agents"]
        )
        found = greedy_study.ladders_of(agents, greedy_study.CLAIM_LEVELS, chosen["nodes"])
        run.save_table("ladders", thresholds_frame(found))


def _searched(job: Job, run: Run) -> None:
    import pandas as pd

    chosen = job.params["search"]
    drawn = searched_agents(run, job, chosen["agents"])
    rng = run.rng("search")
    options = steady.costs(drawn)
    high = rng.uniform(size=len(drawn)) < 0.5
    cost = np.where(high, options["near 1"], options["at bound"])
    agents = drawn.agents(cost, 0.9 * drawn.reward_bound)
    found = search.search(agents, rng, chosen["random"], chosen["evolved"], chosen["nodes"])
    rows = [
        {
            "instance": at, "gaming_cost": cost[at], "tried": one.tried, "honest": one.honest,
            "tried_high": one.tried_high, "honest_high": one.honest_high,
            "violation": one.violation, "levels": len(one.thresholds),
        }
        for at, one in enumerate(found)
    ]  # fmt: skip
    run.save_table("found", pd.DataFrame(rows))


def _principal(job: Job, run: Run) -> None:
    import pandas as pd

    chosen, scores = job.params["credit"], scores_of(job)
    steps, nodes = chosen["steps"], chosen["nodes"]
    rows = []
    for case in credit.CASES:
        best: tuple[float, Array] | None = None
        for levels in chosen["levels"]:
            seed = int(run.rng(f"principal {case} {levels}").integers(1, 2**31))
            found = credit.design(case, levels, scores, chosen["evaluations"], seed, steps, nodes)
            at, clean = int(np.argmax(found.objective)), int(np.argmin(found.gaming_share))
            rows.append(_design_row(case, "best of levels", found, at))
            rows.append(_design_row(case, "least gaming of levels", found, clean))
            if best is None or found.objective[at] > best[0]:
                best = float(found.objective[at]), found.designs[at]
            for number, value in enumerate(np.maximum.accumulate(found.objective)):
                run.log(number, **{f"objective_{case}_{levels}": value})
        point, value = credit.polish(case, best[1], scores, chosen["polish"], steps, nodes)
        outcome = credit.evaluate(case, point[None], len(point), scores, steps, nodes)
        polished = credit.Designed(point[None], np.array([value]), outcome.gaming_share)
        rows.append(_design_row(case, "polished", polished, 0))
    run.save_table("designs", pd.DataFrame(rows))


def _design_row(case: str, design: str, found: credit.Designed, at: int) -> dict[str, object]:
    return {
        "case": case, "design": design, "levels": found.designs.shape[1],
        "tried": len(found.designs), "objective": found.objective[at],
        "gaming_share": found.gaming_share[at], "point": found.designs[at].tolist(),
    }  # fmt: skip


_TRAIN: dict[str, Callable[[Job, Run], None]] = {
    "greedy": _greedy,
    "greedy_no_legup": _greedy,
    "searched": _searched,
    "principal": _principal,
}


if __name__ == "__main__":
    main(train)
