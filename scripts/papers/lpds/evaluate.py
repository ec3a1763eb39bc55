"""Compare the arms: scores as shares of the expert's, headroom, entropy of actions, the toy."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from scripts.papers.lpds import scores, toy
from scripts.papers.lpds.cloning import Cloning
from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.entropy import clipped_share, kozachenko_leonenko
from scripts.papers.lpds.filmstrip import film
from scripts.papers.lpds.interaction import Policy
from scripts.papers.lpds.lagrangian import REDUCTIONS
from scripts.papers.lpds.policies import load_norm, load_policy
from scripts.papers.lpds.steer import EVALUATION_EPISODES
from scripts.papers.lpds.tasks import TASKS
from scripts.papers.lpds.train import columns
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.stage import Job, Run, main

Row = dict[str, Any]
_BASE, _OURS, _TOY = "bc", "lpds", "toy"
_ELSEWHERE = ("bc_flow", "lpds_flow", "sweep")
"""Arms with another base policy or budget, which set no target for the others."""
_AT_ONCE = 8
"""States whose samples are decoded together."""


def evaluate(job: Job) -> None:
    arms = {cell.arm for cell in job.block.cells}
    if missing := {_BASE, _OURS} - arms:
        raise PipelineError(
            f"lpds evaluate: compares arms, but runs without {', '.join(sorted(missing))}; "
            "allowed: all arms of its seeds at once"
        )
    compared = compare(job, sorted(arms & job.params["arms"].keys()))
    sampled = cache(lambda arm, task: sampled_actions(job, arm, task))
    toys = cache(lambda: toy_rows(job))
    for run in job.runs():
        run.metrics(compared.rows.get((run.arm, run.seed), []))
        column = [one.seed for one in columns(job, run.arm)].index(run.seed)
        if run.arm == _TOY:
            run.metrics(toys()[column])
        for task in compared.tasks_of(run):
            actions = sampled(run.arm, task)[column]
            place = {"task": task, "headroom": compared.headroom[task]}
            run.metrics(entropy_rows(job, run, actions, place))
        if run.arm == _OURS and run.seed == 0:
            save_films(job, run, compared.tasks_of(run))


@dataclass
class Compared:
    """Rows of (arm, seed) from the scores; each task's headroom; the (arm, seed, task) scored."""

    headroom: dict[str, str]
    scored: set[tuple[str, int, str]]
    rows: dict[tuple[str, int], list[Row]] = field(default_factory=dict)

    def tasks_of(self, run: Run) -> list[str]:
        """The tasks on which a run has one final policy (a sweep has several and saves none)."""
        settings = run.job.params["arms"].get(run.arm, {"tasks": []})
        if "deltas" in settings:
            return []
        tasks = settings.get("tasks", run.job.params["tasks"])
        return [task for task in tasks if (run.arm, run.seed, task) in self.scored]

    def add(self, table: pd.DataFrame, metrics: dict[str, tuple[str, str | None]]) -> None:
        """Add metrics, name -> (unit, column of n), from a table with a row a run."""
        for one in table.to_dict("records"):
            place = {name: one.get(name) for name in ("task", "delta", "reduction")}
            place["headroom"] = self.headroom[one["task"]]
            self.rows.setdefault((one["arm"], one["seed"]), []).extend(
                {"metric": name, "value": one[name], "unit": unit, "n": one[n] if n else 1, **place}
                for name, (unit, n) in metrics.items()
            )


def compare(job: Job, arms: list[str]) -> Compared:
    """What the claims compare, from the scores of all arms' evaluations."""
    cells = [cell for cell in job.block.cells if cell.arm in arms]
    tables = [
        job.load_table("steer", "curve", cell.arm, cell.seed).assign(arm=cell.arm, seed=cell.seed)
        for cell in cells
    ]
    curves, lost = scores.paired(
        scores.learning_curves(pd.concat([table for table in tables if "score" in table]))
    )
    for task, seed in lost:
        print(f"lpds evaluate: {task}, seed {seed}: not compared, since an arm broke there")
    runs = scores.summaries(curves, job.params["final_evaluations"])
    compared = Compared(
        scores.headroom(runs, _BASE),
        set(runs[["arm", "seed", "task"]].itertuples(index=False, name=None)),
    )
    compared.add(
        pd.concat([runs, scores.best_baseline(runs)]),
        {
            "final_score": ("task score", "final_episodes"),
            "normalised_score": ("expert share", "final_episodes"),
            "auc": ("expert share", "episodes"),
        },
    )
    gains = scores.largest_gain(runs, compared.headroom, _OURS)
    compared.add(gains, {"largest_gain": ("share of the best baseline", None)})
    rivals = set(arms) - {_BASE, *_ELSEWHERE}
    compared.add(
        scores.steps_to_half(curves, runs, rivals, _BASE),
        {"steps_to_half": ("environment step", None), "half_reached": ("yes or no", None)},
    )
    return compared


@torch.no_grad()
def sampled_actions(job: Job, arm: str, task: str) -> np.ndarray:
    """First actions of an arm's final policies, [S, states, samples, A] in [-1, 1].

    At states that the base policy visits, with the same draws for every arm.
    """
    settings, runs = job.params["entropy"], columns(job, arm)
    seeds = [run.seed for run in runs]
    policy = load_policy(job, arm, task, seeds)
    visited = [job.load_tensors("steer", f"states_{task}", _BASE, seed) for seed in seeds]
    states = torch.stack([one["observation"] for one in visited])[:, : settings["states"]]
    draws = Draws([run.generator(f"{task}.entropy") for run in runs], job.device)
    parts = [
        first_actions(policy, part, settings["samples"], TASKS[task].action, draws)
        for part in states.split(_AT_ONCE, dim=1)
    ]
    return torch.cat(parts, dim=1).double().cpu().numpy()


def first_actions(policy: Policy, states: Tensor, samples: int, width: int, draws: Draws) -> Tensor:
    """First actions [S, B, samples, width] of chunks drawn at states [S, B, O]."""
    chunks = policy.act(states.repeat_interleave(samples, dim=1), draws)
    return chunks[..., :width].clamp(-1, 1).unflatten(1, (-1, samples))


def entropy_rows(job: Job, run: Run, actions: np.ndarray, place: dict[str, str]) -> list[Row]:
    """Entropy of a run's actions [states, samples, A], the mean over states."""
    settings, task = job.params["entropy"], place["task"]
    found = kozachenko_leonenko(
        actions, settings["neighbours"], settings["jitter"], run.rng(f"{task}.jitter")
    ).mean()
    values = (
        ("action_entropy", found, "nat"),
        ("entropy_per_dimension", found / actions.shape[-1], "nat/dimension"),
        ("clipped_fraction", clipped_share(actions), "share of coordinates"),
    )
    n = actions.shape[0] * actions.shape[1]
    return [
        {"metric": metric, "value": float(value), "unit": unit, "n": n, **place}
        for metric, value, unit in values
    ]


def save_films(job: Job, run: Run, tasks: list[str]) -> None:
    """Pictures of the first evaluated episode of each task, frozen beside steered policy."""
    settings, told = job.params["film"], []
    for task in tasks:
        norm = load_norm(job, task, [run.seed])
        frames = {}
        for arm in (_BASE, run.arm):
            shown = film(
                task,
                job.params["tasks"][task]["horizon"],
                norm,
                load_policy(job, arm, task, [run.seed]),
                EVALUATION_EPISODES,
                Draws([run.generator(f"{task}.film")], job.device),
                **settings,
            )
            frames[arm] = torch.from_numpy(shown.frames)
            told += [
                {"task": task, "policy": arm, "caption": caption, "score": shown.score}
                for caption in shown.captions
            ]
        run.save_tensors(f"film_{task}", frames)
    run.save_table("film", pd.DataFrame(told, columns=["task", "policy", "caption", "score"]))


def toy_rows(job: Job) -> list[list[Row]]:
    """Modes under the best offset of each budget, by seed; both decoders see the same noise."""
    settings, runs = job.params["toy"], columns(job, _TOY)
    count = settings["samples"]
    cloning = {**job.params["cloning"], **settings["cloning"]}
    flow = toy.train_flow(
        Cloning(**{**cloning, "rate": tuple(cloning["rate"])}),
        settings["flow_steps"],
        [run.generator("toy.flow") for run in runs],
    )
    noise = Draws([run.generator("toy.noise") for run in runs]).normal(count, toy.LATENT)
    decoders: dict[str, Callable[[Tensor], Tensor]] = {
        "ideal": toy.ideal_decode,
        "flow": lambda noise: toy.decode(flow, noise),
    }
    rows: list[list[Row]] = [[] for _ in runs]
    for reduction, delta, name in product(REDUCTIONS, settings["deltas"], decoders):
        shift = toy.shift_of(delta, reduction)
        expected = float(toy.closed_form(shift)[0])
        chunks = decoders[name](noise + toy.offset_along_x(shift))
        shares = toy.occupancy(toy.mode_of(chunks))
        place = {"decoder": name, "delta": delta, "reduction": reduction}
        for seed, found in enumerate(shares):
            error = float(found[0]) - expected
            values = [
                ("mode_entropy", float(toy.mode_entropy(found)), "nat"),
                ("closed_form_error", abs(error), "probability"),
                *(
                    (f"share_{mode}", float(found[at]), "share")
                    for at, mode in enumerate(toy.MODES)
                ),
            ]
            if name == "ideal":
                spread = math.sqrt(expected * (1 - expected) / count)
                values.append(("closed_form_deviation", error / spread, "standard error"))
            rows[seed] += [
                {"metric": metric, "value": value, "unit": unit, "n": count, **place}
                for metric, value, unit in values
            ]
    return rows


if __name__ == "__main__":
    main(evaluate)
