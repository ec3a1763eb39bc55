"""Build each seed's experts, play their demonstrations, and write both with their normalisation.

A seed has demonstrations of its own, so that what differs between seeds is all that would differ if
the experiment were done again, and not only what is drawn once the demonstrations are given.
"""

import hashlib
from typing import Any

import pandas as pd
import torch

from scripts.papers.lpds import demos
from scripts.papers.lpds.demos import RANDOM_EPISODES, SEEDS_APART, Expert
from scripts.papers.lpds.tasks import TASKS
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import read_json, read_tensors
from scripts.pipeline.stage import Job, main

BUILDERS = {"halfcheetah": demos.halfcheetah, "pick_place": demos.pick_place}


def prepare(job: Job) -> None:
    rows = []
    for task, settings in job.params["tasks"].items():
        if task not in TASKS:
            raise PipelineError(
                f"params.yaml: lpds.{job.scale}.tasks: unknown task {task!r}; "
                f"allowed: {', '.join(TASKS)}"
            )
        for seed in job.seeds:
            rows += prepare_seed(job, task, settings, seed)
    job.save_table("experts", pd.DataFrame(rows))


def prepare_seed(
    job: Job, task: str, settings: dict[str, Any], seed: int
) -> list[dict[str, object]]:
    """Write a seed's demonstrations of a task; a row for each of their sources."""
    horizon, first = settings["horizon"], seed * SEEDS_APART
    rng = job.rng(f"{task}.demos.{seed}")
    if task == "pen":
        planned, experts = built_ahead(job)
        tensors = demos.resampled(planned, rng)
    else:
        found, experts = BUILDERS[task](settings["demos"], horizon, rng, first)
        tensors = found.tensors()
    job.save_tensors(f"demos_{task}_s{seed}", tensors)
    # the best source is the expert: the others are there for their variety
    best = max(expert.score for expert in experts)
    uniform = demos.random_score(
        task, horizon, settings["random"], job.rng(f"{task}.random.{seed}"), first + RANDOM_EPISODES
    )
    scores = {"expert_score": torch.tensor([best]), "random_score": torch.tensor([uniform])}
    job.save_tensors(f"norm_{task}_s{seed}", {**demos.normalisation(tensors), **scores})
    about = {
        "task": task,
        "seed": seed,
        "sha256": hashed(tensors),
        "steps": len(tensors["rewards"]),
    }
    return [{**about, **vars(expert)} for expert in experts]


def built_ahead(job: Job) -> tuple[dict[str, torch.Tensor], list[Expert]]:
    """The pen's demonstrations, an asset, since training their expert takes minutes."""
    folder = job.asset("pen")
    again = "snakemake --cores 1 data/assets/adroit-pen-demos/manifest.json"
    built = read_json(folder / "build.json", again)
    tensors = read_tensors(folder / "demos.safetensors", again, "cpu")
    expert = Expert("PPO with noise", built["success_share"], built["episodes"])
    return tensors, [expert]


def hashed(tensors: dict[str, torch.Tensor]) -> str:
    """SHA-256 of the demonstrations."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main(prepare)
