"""Recruit: every policy in every setting, in the model and on the graph."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch

from scripts.papers.network_recruitment import policies
from scripts.papers.network_recruitment.lookahead import Rollouts, lookahead
from scripts.papers.network_recruitment.network import Network
from scripts.papers.network_recruitment.people import Types
from scripts.papers.network_recruitment.planner import Planner
from scripts.papers.network_recruitment.pmf import without_recruiter
from scripts.papers.network_recruitment.policies import Known, Policy
from scripts.papers.network_recruitment.prepare import load_network, load_types, named
from scripts.papers.network_recruitment.simulate import (
    GraphDraws,
    ModelDraws,
    Outcome,
    in_model,
    on_graph,
)
from scripts.papers.network_recruitment.train import key
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.stage import Job, Run, main

REWARD = "discounted recruits"


@dataclass(frozen=True)
class Setting:
    """Where a policy recruits."""

    network: str
    mode: str
    types: str
    start: int


def steer(job: Job) -> None:
    data = {
        name: (load_network(job, name), load_types(job, name)) for name in job.params["networks"]
    }
    tables = job.load_tensors("train", "tables", arm="plan")

    @cache
    def draws(seed: int, name: str, start: int, mode: str) -> ModelDraws | GraphDraws:
        rng = seeded[seed].rng(f"{name}.{start}.{mode}")
        count, budget = job.params["replicates"], job.params["budget"]
        if mode == "model":
            return ModelDraws.draw(rng, count, budget, start)
        return GraphDraws.draw(rng, count, budget, data[name][0])

    seeded: dict[int, Run] = {}
    for run in job.runs():
        seeded[run.seed] = run
        arm = policy_arm(job.params, run.arm)
        runs, rounds = [], []
        for setting in settings(job.params):
            chance = draws(run.seed, setting.network, setting.start, setting.mode)
            with named(f"{job.paper}.{job.scale}"):
                found = recruit(job, run, arm, setting, *data[setting.network], tables, chance)
            for discount, outcome in found.items():
                _record(run, arm, setting, discount, outcome, runs, rounds)
        run.save_table("runs", pd.concat(runs, ignore_index=True))
        run.save_table("rounds", pd.concat(rounds, ignore_index=True))


def policy_arm(params: dict[str, Any], name: str) -> dict[str, Any]:
    """The policy of an arm."""
    if name not in params["arms"]:
        raise PipelineError(
            f"params.yaml: network_recruitment: unknown policy {name!r}; "
            f"allowed: {', '.join(params['arms'])}"
        )
    return params["arms"][name]


def settings(params: dict[str, Any]) -> list[Setting]:
    """In the model with the judged types, on the graph with all."""
    first = params["type_models"][0]
    modes = [("model", first), *(("graph", model) for model in params["type_models"])]
    return [
        Setting(name, mode, model, start)
        for name in params["networks"]
        for start in params["starts"]
        for mode, model in modes
    ]


def recruit(
    job: Job,
    run: Run,
    arm: dict[str, Any],
    setting: Setting,
    network: Network,
    models: dict[str, Types],
    tables: dict[str, torch.Tensor],
    chance: ModelDraws | GraphDraws,
) -> dict[float, Outcome]:
    """Outcomes by discount; a fixed rule ignores the discount and is run once."""
    types, budget = models[setting.types], job.params["budget"]
    chance = chance.first(arm.get("replicates", job.params["replicates"]))
    found: dict[float, Outcome] = {}
    for discount in job.params["discounts"]:
        if found and arm["policy"] in ("const", "greedy", "remainder"):
            found[discount] = next(iter(found.values()))
            continue
        policy = make_policy(job, run, arm, setting, types, tables, discount)
        if setting.mode == "model":
            found[discount] = in_model(policy, types, budget, setting.start, chance)
        else:
            found[discount] = on_graph(policy, network, types, budget, setting.start, chance)
    return found


def make_policy(
    job: Job,
    run: Run,
    arm: dict[str, Any],
    setting: Setting,
    types: Types,
    tables: dict[str, torch.Tensor],
    discount: float,
) -> Policy:
    """The policy of an arm in a setting; on a graph the recruited have types of their own."""
    budget = job.params["budget"]
    population = arm.get("population", "exact")
    table = np.zeros((budget + 1, budget + 1))
    if population != "none":
        table = tables[key(setting.network, setting.types, population, discount)].numpy()
    pmfs = types.pmfs
    if setting.mode == "graph":
        pmfs = np.concatenate([pmfs, without_recruiter(pmfs)])
    known = Known(Planner(pmfs, table, discount), budget)
    match arm["policy"]:
        case "const":
            return policies.const(known, arm["each"])
        case "greedy":
            return policies.greedy_share(known, arm["share"])
        case "remainder":
            return policies.greedy_remainder(known, arm["share"], arm.get("rounding", "floor"))
        case "planned":
            return policies.planned(known, arm.get("split", "greedy"))
        case "lookahead":
            shares = [a["share"] for a in job.params["arms"].values() if a["policy"] == "greedy"]
            rng = run.rng(f"{setting}.{discount}.rollouts")
            rollouts = Rollouts(
                types, pmfs, discount, setting.start, arm["rollouts"], arm["candidates"],
                tuple(shares), rng,
            )  # fmt: skip
            return lookahead(known, rollouts)
    raise ValueError(f"policy is {arm['policy']!r}; see params.schema.yaml")


def _record(
    run: Run,
    arm: dict[str, Any],
    setting: Setting,
    discount: float,
    outcome: Outcome,
    runs: list[pd.DataFrame],
    rounds: list[pd.DataFrame],
) -> None:
    """A row per replicate and per round; metrics per setting, per replicate where it is judged."""
    where = {**vars(setting), "gamma": discount}
    reward = outcome.discounted(discount)
    count = len(reward)
    took_place = (outcome.recruits > 0).sum(axis=1)
    frame = pd.DataFrame(
        {
            "replicate": np.arange(count),
            "reward": reward,
            "total": outcome.recruits.sum(axis=1),
            "rounds": took_place,
            "unspent": outcome.left,
        }
    )
    runs.append(frame.assign(**where))
    shown = int(took_place.max()) + 1
    gained = outcome.recruits * discount ** np.arange(outcome.recruits.shape[1])
    reached = gained.cumsum(axis=1)[:, :shown]
    rounds.append(
        pd.DataFrame(
            {"round": np.arange(1, reached.shape[1] + 1), "sum": reached.sum(axis=0),
             "squares": (reached**2).sum(axis=0), "n": count}
        ).assign(**where)
    )  # fmt: skip
    for name, unit in (
        ("reward", REWARD), ("total", "recruits"), ("rounds", "rounds"), ("unspent", "coupons")
    ):  # fmt: skip
        run.metric(f"mean_{name}", frame[name].mean(), unit=unit, n=count, **where)
    judged = setting.types == run.job.params["type_models"][0]
    if arm.get("paired", False) and judged:
        run.metrics(paired_rows(frame, {**where, "types": None}))


def paired_rows(frame: pd.DataFrame, where: dict[str, Any]) -> list[dict[str, Any]]:
    """The reward of every replicate as metrics."""
    return [
        {"metric": "reward", "value": row.reward, "unit": REWARD, "n": 1,
         "replicate": row.replicate, **where}
        for row in frame.itertuples()
    ]  # fmt: skip


if __name__ == "__main__":
    main(steer)
