"""Theorems on small instances; TAP against the best fixed rule, its ablations and a lookahead."""

from collections.abc import Callable

import pandas as pd

from scripts.papers.network_recruitment import compare, theory
from scripts.papers.network_recruitment.pmf import mixture
from scripts.papers.network_recruitment.prepare import load_network, load_types
from scripts.papers.network_recruitment.steer import REWARD, paired_rows
from scripts.pipeline.stage import Job, Run, main

RULES = ("const", "greedy", "remainder")


def evaluate(job: Job) -> None:
    arms: dict[str, Callable[[Job, Run], None]] = {
        "single_round": single_round,
        "exact": exact_recursion,
        "surrogate": population_model,
        "best_fixed": best_rule,
        "best_fraction": best_rule,
        "comparison": comparison,
    }
    for run in job.runs():
        arms[run.arm](job, run)


def single_round(job: Job, run: Run) -> None:
    """C1, C5."""
    sizes = job.params["theory"]
    run.metrics(theory.greedy_rows(run.rng("greedy"), sizes["single_round"]))
    rows, pairs = theory.single_round_bound(run.rng("robustness"), sizes["robustness"])
    run.metrics(rows)
    run.save_table("round_bounds", pairs)


def exact_recursion(job: Job, run: Run) -> None:
    """C2, C6, C10."""
    sizes = job.params["theory"]
    run.metrics(theory.recursion_rows(sizes["recursion"]))
    rows, table, relative = theory.planning_losses(run.rng("problems"), sizes["multi_round"])
    run.metrics([*rows, *relative])
    run.save_table("planning_bounds", table)


def population_model(job: Job, run: Run) -> None:
    """C3, C4."""
    sizes = job.params["theory"]["population"]
    run.metrics(theory.surrogate_rows(run.rng("populations"), sizes))
    for name in job.params["networks"]:
        model = job.params["type_models"][0]
        types = load_types(job, name)[model]
        law = mixture(types.pmfs, types.weights)
        for discount in job.params["discounts"]:
            for start in job.params["starts"]:
                rng = run.rng(f"{name}.{discount}.{start}.rollouts")
                row = theory.rollout_row(
                    rng, law, job.params["budget"], discount, start, sizes["rollouts"]
                )
                run.metrics([{**row, "network": name}])
    run.metrics(theory.cost_rows(job.params["theory"]["sweep"]))


def load_runs(job: Job, arm: str) -> pd.DataFrame:
    """A policy's runs of all seeds."""
    return pd.concat(
        [job.load_table("steer", "runs", arm, seed).assign(seed=seed) for seed in job.seeds],
        ignore_index=True,
    )


def rules(job: Job, group: str) -> list[str]:
    """Fixed rules: all, those of the released code, or those that spend a share of what is left."""
    arms = {name: arm for name, arm in job.params["arms"].items() if arm["policy"] in RULES}
    if group == "best_released":
        return [name for name, arm in arms.items() if arm.get("rounding", "floor") == "floor"]
    if group == "best_fraction":
        return [name for name, arm in arms.items() if arm["policy"] == "remainder"]
    return list(arms)


def best_of(job: Job, group: str) -> pd.DataFrame:
    """The best rule of a group per setting, chosen on the replicates that it is judged on."""
    return compare.best_in_hindsight({name: load_runs(job, name) for name in rules(job, group)})


def best_rule(job: Job, run: Run) -> None:
    """Rewards of the best rule, as an arm of its own."""
    best = best_of(job, run.arm)
    judged = best[(best["types"] == job.params["type_models"][0]) & (best["seed"] == run.seed)]
    for setting, part in judged.groupby(compare.SETTING, sort=False):
        where = {**dict(zip(compare.SETTING, setting, strict=True)), "types": None}
        if run.arm == "best_fixed":
            run.metrics(paired_rows(part, where))
        run.metric(
            "mean_reward", part["reward"].mean(), unit=REWARD, n=len(part),
            against=part["policy"].iloc[0], **where,
        )  # fmt: skip


def comparison(job: Job, run: Run) -> None:
    """C7 to C9: TAP's lead over each policy in each setting, and whether it is beyond chance."""
    tap = load_runs(job, "tap")
    groups = ("best_fixed", "best_released", "best_fraction")
    others = {group: best_of(job, group) for group in groups}
    for arm, policy in job.params["arms"].items():
        if policy["policy"] not in RULES and arm != "tap":
            others[arm] = load_runs(job, arm)
    tables = []
    for against, other in others.items():
        found = compare.leads(tap, other).assign(against=against)
        tables.append(found)
        run.metrics(_lead_rows(job, found))
    run.save_table("leads", pd.concat(tables, ignore_index=True))
    choices = others["best_fixed"][[*compare.SETTING, "policy"]].drop_duplicates()
    run.save_table("best_fixed", choices)
    _model_against_graph(job, run, tap)
    for name in job.params["networks"]:
        network = load_network(job, name)
        for metric, value, unit in (
            ("people", network.nodes, "people"),
            ("mean_degree", network.degree.mean(), "neighbours"),
            ("components", len(network.components), "components"),
            ("largest_component", network.components[0] / network.nodes, "share of people"),
        ):
            run.metric(metric, value, unit=unit, n=network.nodes, network=name)


def _lead_rows(job: Job, found: pd.DataFrame) -> list[dict[str, object]]:
    rows = []
    for lead in found.to_dict("records"):
        where = {name: lead[name] for name in (*compare.SETTING, "against")}
        n = int(lead["n"])
        rows += [
            {"metric": metric, "value": lead[name], "unit": unit, "n": n, **where}
            for metric, name, unit in (
                ("lead", "lead", REWARD),
                ("lead_low", "low", REWARD),
                ("lead_high", "high", REWARD),
                ("lead_detectable", "detectable", REWARD),
                ("lead_share", "share", "share of the other's reward"),
            )
        ]
        if lead["types"] == job.params["type_models"][0]:
            clear = {"clear_lead": lead["low"] > 0, "clear_loss": lead["high"] < 0}
            clear["near_tie"] = not any(clear.values())
            rows += [
                {"metric": metric, "value": float(value), "unit": "setting", "n": n, **where}
                for metric, value in clear.items()
            ]
    return rows


def _model_against_graph(job: Job, run: Run, tap: pd.DataFrame) -> None:
    """What the wrong model costs: TAP's mean in the model minus that on the graph."""
    judged = tap[tap["types"] == job.params["type_models"][0]]
    keys = ["network", "gamma", "start"]
    means = judged.pivot_table(index=keys, columns="mode", values="reward", sort=False)
    counts = judged[judged["mode"] == "graph"].groupby(keys)["reward"].size()
    for setting, row in means.iterrows():
        run.metric(
            "model_minus_graph", row["model"] - row["graph"], unit=REWARD, n=int(counts[setting]),
            **dict(zip(keys, setting, strict=True)),
        )  # fmt: skip


if __name__ == "__main__":
    main(evaluate)
