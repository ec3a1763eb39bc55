"""Build the experts, play their demonstrations, and write both with their normalisation."""

import hashlib

import pandas as pd
import torch

from scripts.papers.lpds import demos
from scripts.papers.lpds.demos import Expert
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
        horizon = settings["horizon"]
        if task == "pen":
            tensors, experts = built_ahead(job)
        else:
            found, experts = BUILDERS[task](settings["demos"], horizon, job.rng(f"{task}.demos"))
            tensors = found.tensors()
        job.save_tensors(f"demos_{task}", tensors)
        # the best source is the expert: the others are there for their variety
        best = max(expert.score for expert in experts)
        uniform = demos.random_score(task, horizon, settings["random"], job.rng(f"{task}.random"))
        scores = {"expert_score": torch.tensor([best]), "random_score": torch.tensor([uniform])}
        job.save_tensors(f"norm_{task}", {**demos.normalisation(tensors), **scores})
        rows += [
            {
                "task": task,
                **vars(expert),
                "steps": len(tensors["rewards"]),
                "sha256": hashed(tensors),
            }
            for expert in experts
        ]
    job.save_table("experts", pd.DataFrame(rows))


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
