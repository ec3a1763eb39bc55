"""Clone the demonstrations: a diffusion and a flow decoder for each task and seed."""

import torch

from scripts.papers.lpds.cloning import Cloning, clone, windows
from scripts.papers.lpds.interaction import Norm
from scripts.papers.lpds.stacked import Params
from scripts.pipeline.stage import Job, Run, main


def train(job: Job) -> None:
    cloned: dict[tuple[str, str], Params] = {}
    for run in job.runs():
        runs = columns(job, run.arm)
        for task in job.params["decoders"][run.arm]["tasks"]:
            if (run.arm, task) not in cloned:
                cloned[run.arm, task] = clone_task(job, runs, task)
            column = [one.seed for one in runs].index(run.seed)
            params = cloned[run.arm, task]
            run.save_tensors(task, {name: value[column] for name, value in params.items()})


def columns(job: Job, arm: str) -> list[Run]:
    """The block's runs of an arm: its seeds are trained stacked."""
    return [Run(job, cell) for cell in job.block.cells if cell.arm == arm]


def clone_task(job: Job, runs: list[Run], task: str) -> Params:
    """Decoders of all seeds for a task; losses go to the seeds' curves."""
    chunk = job.params["tasks"][task]["chunk"]
    observations, chunks = zip(*(lessons(job, task, run.seed, chunk) for run in runs), strict=True)

    def log(step: int, losses: torch.Tensor) -> None:
        for run, loss in zip(runs, losses.tolist(), strict=True):
            run.log(step, **{f"{task}.loss": loss})

    settings = job.params["cloning"]
    return clone(
        runs[0].arm,
        observations,
        chunks,
        Cloning(**{**settings, "rate": tuple(settings["rate"])}),
        [run.generator(f"{task}.cloning") for run in runs],
        log,
        job.device,
    )


def lessons(job: Job, task: str, seed: int, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised observations [M, O] and chunks [M, D] of a seed's demonstrations."""
    norm = Norm(job.load_tensors("prepare", f"norm_{task}_s{seed}"))
    demos = job.load_tensors("prepare", f"demos_{task}_s{seed}")
    actions = norm.action(demos["actions"].cpu())
    starts, chunks = windows(demos["episodes"].cpu(), actions, chunk)
    return norm.observation(demos["observations"])[starts.to(job.device)], chunks.to(job.device)


if __name__ == "__main__":
    main(train)
