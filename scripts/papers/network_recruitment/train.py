"""Plan: the surrogate's tables for every network, model of types, population and discount."""

import torch

from scripts.papers.network_recruitment import surrogate
from scripts.papers.network_recruitment.people import Types
from scripts.papers.network_recruitment.pmf import mixture, sampled_mixture, without_recruiter
from scripts.papers.network_recruitment.prepare import load_types, named
from scripts.pipeline.stage import Job, Run, main

POPULATIONS = ("exact", "sampled", "shifted")


def train(job: Job) -> None:
    for run in job.runs():
        tables = {}
        for name in job.params["networks"]:
            for model, types in load_types(job, name).items():
                for discount in job.params["discounts"]:
                    with named(f"{job.paper}.{job.scale}"):
                        tables |= plan(job, run, name, model, types, discount)
        run.save_tensors("tables", tables)


def plan(
    job: Job, run: Run, name: str, model: str, types: Types, discount: float
) -> dict[str, torch.Tensor]:
    """U for each population, and how far the released code's sampled mixture is off."""
    rng = run.rng(f"{name}.{model}")
    laws = {
        "exact": mixture(types.pmfs, types.weights),
        "sampled": sampled_mixture(types.pmfs, types.weights, rng, job.params["mixture_draws"]),
        "shifted": mixture(without_recruiter(types.pmfs), types.weights),
    }
    budget = job.params["budget"]
    values = {which: surrogate.solve(laws[which], budget, discount).value for which in POPULATIONS}
    where = {"network": name, "types": model, "gamma": discount}
    run.metric(
        "sampled_mixture_error",
        abs(
            values["sampled"] / values["exact"].max() - values["exact"] / values["exact"].max()
        ).max(),
        unit="share of U",
        n=values["exact"].size,
        **where,
    )
    for start in job.params["starts"]:
        run.metric(
            "planned_value", values["exact"][budget, min(start, budget)],
            unit="discounted recruits", n=1, start=start, **where,
        )  # fmt: skip
    return {
        key(name, model, which, discount): torch.from_numpy(value)
        for which, value in values.items()
    }


def key(name: str, model: str, population: str, discount: float) -> str:
    """Name of a table among the plan's tensors."""
    return f"{name}.{model}.{population}.{discount:g}"


if __name__ == "__main__":
    main(train)
