"""Steer the frozen policies online: every arm on its tasks, all seeds of an arm stacked."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor

from scripts.papers.lpds.decoder import PriorPolicy
from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.interaction import Fleet
from scripts.papers.lpds.learning import Learning
from scripts.papers.lpds.policies import load_decoder, load_norm, make_learner
from scripts.papers.lpds.replay import Replay
from scripts.papers.lpds.steering import (
    RMS_STATES,
    Course,
    Examiner,
    Schedule,
    steer_off_policy,
    steer_on_policy,
    warm_up,
)
from scripts.papers.lpds.tasks import SimulatorFault
from scripts.papers.lpds.train import columns
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.stage import Job, Run, main

STEERING_EPISODES = 10_000
WARM_UP_EPISODES = 10_500
EVALUATION_EPISODES = 20_000
FINAL_EVALUATIONS = 3
TRAINED_SHARE = 0.2
"""The last share of training over which the trust region is judged."""


@dataclass
class Steered:
    """An arm on a task: what happened, what was learnt, whether the decoder stayed the same."""

    course: Course
    delta: list[float]
    policy: dict[str, Tensor]
    states: Tensor
    broken: set[int]
    decoder_changed: list[bool]
    parameter_ratio: float


def steer(job: Job) -> None:
    steered: dict[tuple[str, str], list[Steered]] = {}
    shared = Shared(job)
    for run in job.runs():
        runs = columns(job, run.arm)
        column = [one.seed for one in runs].index(run.seed)
        settings = arm_settings(job.params, run.arm)
        curves = []
        for task in settings["tasks"]:
            if (run.arm, task) not in steered:
                steered[run.arm, task] = [
                    steer_task(shared, runs, task, {**settings, **variant})
                    for variant in variants(settings)
                ]
            for variant, found in zip(variants(settings), steered[run.arm, task], strict=True):
                per_delta = len(variant.get("deltas", [None]))
                for place in range(per_delta):
                    where = {"task": task}
                    if "deltas" in variant:
                        where |= {"delta": variant["deltas"][place]}
                        where |= {"reduction": variant["reduction"]}
                    curves += record(job, run, found, column * per_delta + place, where)
            if "deltas" not in settings:
                save_policy(run, steered[run.arm, task][0], task, column)
        run.save_table("curve", pd.DataFrame(curves))


def arm_settings(params: dict[str, Any], arm: str) -> dict[str, Any]:
    """An arm's settings; its tasks default to all.

    Raises:
        PipelineError: an arm without settings.
    """
    if arm not in params["arms"]:
        raise PipelineError(
            f"params.yaml: lpds: steer has an unknown arm {arm!r}; "
            f"allowed: {', '.join(params['arms'])}"
        )
    return {"tasks": list(params["tasks"]), **params["arms"][arm]}


def variants(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of an arm: one, or for a sweep of the budget one for each way to reduce the norm."""
    if "deltas" not in settings:
        return [{}]
    return [
        {"reduction": reduction, "deltas": settings["deltas"]}
        for reduction in settings["reductions"]
    ]


class Shared:
    """What arms of a task share: decoders, warm-ups and simulators."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.learning = Learning(
            **{**job.params["learning"], "hidden": tuple(job.params["learning"]["hidden"])}
        )
        self.decoder = cache(lambda kind, task, seeds: load_decoder(job, kind, task, seeds))
        self.fleet = cache(self._fleet)
        self.warmed = cache(self._warmed)

    def plan(self, task: str, settings: dict[str, Any]) -> Schedule:
        """Numbers of decisions: the task's, or the arm's share of them."""
        schedule = self.job.params["tasks"][task]["schedule"]
        decisions = round(schedule["decisions"] * settings.get("share", 1))
        return Schedule(**{**schedule, "decisions": decisions})

    def draws(self, runs: list[Run], repeat: int, name: str) -> Draws:
        """Draws of a purpose: one generator a column, the same for every arm."""
        generators = [run.generator(f"{name}.{i}") for run in runs for i in range(repeat)]
        return Draws(generators, self.job.device)

    def _fleet(self, task: str, seeds: tuple[int, ...], first: int, width: int) -> Fleet:
        horizon = self.job.params["tasks"][task]["horizon"]
        norm = load_norm(self.job, task, seeds)
        return Fleet(task, horizon, norm, seeds, first, width, self.job.device)

    def _warmed(
        self, kind: str, task: str, seeds: tuple[int, ...], plan: Schedule
    ) -> tuple[Replay, dict[int, SimulatorFault]]:
        """The frozen policy's first transitions of each seed, and the seeds that broke in them."""
        decoder = self.decoder(kind, task, seeds)
        runs = [Run(self.job, cell) for cell in self.job.block.cells]
        first = {run.seed: run for run in reversed(runs)}
        draws = self.draws([first[seed] for seed in seeds], 1, f"{task}.warm_up")
        fleet = self.fleet(task, seeds, WARM_UP_EPISODES, 1)
        fleet.restart()
        replay = warm_up(PriorPolicy(decoder), decoder, fleet, plan, draws)
        return replay, fleet.faults


def steer_task(shared: Shared, runs: list[Run], task: str, settings: dict[str, Any]) -> Steered:
    """Steer the stacked seeds of an arm on a task; a sweep stacks its budgets beside them."""
    job, kind = shared.job, settings["decoder"]
    plan, chunk = shared.plan(task, settings), job.params["tasks"][task]["chunk"]
    deltas = settings.get("deltas", [settings.get("delta", job.params["tasks"][task]["delta"])])
    repeat = len(deltas)
    seeds = tuple(run.seed for run in runs)
    warmed, broken = shared.warmed(kind, task, seeds, plan)
    replay = warmed.repeated(repeat)
    decoder = shared.decoder(kind, task, seeds).repeated(repeat)
    stacked = tuple(seed for seed in seeds for _ in range(repeat))
    fleet = shared.fleet(task, stacked, STEERING_EPISODES, 1)
    fleet.restart()
    before = decoder.hashes()
    learner = make_learner(
        settings,
        decoder,
        shared.learning,
        shared.draws(runs, repeat, f"{task}.weights").generators,
        torch.tensor(deltas * len(seeds), device=job.device),
    )
    states = replay.held("observation")[:, :RMS_STATES].clone()
    examiner = Examiner(
        shared.fleet(task, stacked, EVALUATION_EPISODES, job.params["tasks"][task]["side_by_side"]),
        plan.episodes,
        lambda index: shared.draws(runs, repeat, f"{task}.evaluation_{index}"),
        states,
        lambda decisions: (plan.warm_up + decisions) * chunk,
    )
    draws = shared.draws(runs, repeat, f"{task}.steering")
    if learner is None:
        policy = PriorPolicy(decoder)
        part = plan.decisions // (plan.evaluations - 1)
        for index in range(plan.evaluations):
            examiner.examine(policy, index * part)
    elif settings["learner"] == "dppo":
        steer_on_policy(learner, fleet, plan, draws, examiner.examine, examiner.note)
    else:
        steer_off_policy(
            learner, decoder, replay, fleet, plan, draws, examiner.examine, examiner.note
        )
    parameters = {} if learner is None else learner.parameters
    trainable = sum(value[0].numel() for value in parameters.values())
    return Steered(
        examiner.course,
        deltas * len(seeds),
        {name: value.detach() for name, value in parameters.items()},
        states,
        set(fleet.faults) | {seed * repeat + place for seed in broken for place in range(repeat)},
        [a != b for a, b in zip(before, decoder.hashes(), strict=True)],
        trainable / decoder.parameters,
    )


def save_policy(run: Run, found: Steered, task: str, column: int) -> None:
    """What a seed learnt; of the frozen policy, the states that it visited."""
    if found.policy:
        tensors = {name: value[column] for name, value in found.policy.items()}
        run.save_tensors(f"policy_{task}", tensors)
    else:
        run.save_tensors(f"states_{task}", {"observation": found.states[column]})


def record(
    job: Job, run: Run, found: Steered, column: int, where: dict[str, Any]
) -> list[dict[str, Any]]:
    """Metrics and curves of a seed on a task; the rows of its learning curve.

    A seed whose simulator broke has none: the message is in the log.
    """
    course, task = found.course, where["task"]
    scores = np.stack(course.scores)[:, column]
    if column in found.broken or not np.isfinite(scores).all():
        return []
    expert = float(job.load_tensors("prepare", f"norm_{task}_s{run.seed}")["expert_score"])
    steps, means = np.array(course.steps), scores.mean(axis=1)
    values = [
        ("decoder_changed", float(found.decoder_changed[column]), "yes or no", 1),
        ("parameter_ratio", found.parameter_ratio, "learnt/frozen", 1),
    ]
    rms = np.stack(course.latent_rms)[:, column]
    if np.isfinite(rms).all():
        values.append(("latent_rms_final", rms[-1], "noise standard deviations", RMS_STATES))
        if np.ptp(rms) > 0:
            trend = stats.spearmanr(steps, rms).statistic
            values.append(("latent_rms_trend", trend, "rank correlation", len(rms)))
        if "delta_sq" in course.diagnostics:
            over = rms[-1] / np.sqrt(1 + found.delta[column])
            values.append(("latent_rms_over_budget", over, "ratio", RMS_STATES))
    values += trust_region(found, column)
    run.metrics(
        {"metric": name, "value": float(value), "unit": unit, "n": n, **where}
        for name, value, unit, n in values
    )
    if "delta" not in where:
        for name, points in course.diagnostics.items():
            for step, value in points:
                run.log(int(step), **{f"{task}.{name}": float(value[column])})
        for step, mean, size in zip(steps, means, rms, strict=True):
            run.log(int(step), **{f"{task}.score": mean})
            if np.isfinite(size):
                run.log(int(step), **{f"{task}.latent_rms": size})
    return [
        {"env_steps": step, "episode": episode, "score": value, "expert": expert, **where}
        for step, row in zip(steps, scores, strict=True)
        for episode, value in enumerate(row)
    ]


def trust_region(found: Steered, column: int) -> list[tuple[str, float, str, int]]:
    """Use of the budget and slackness over the last share of training."""
    diagnostics = found.course.diagnostics
    if "delta_sq" not in diagnostics:
        return []

    def last(name: str) -> np.ndarray:
        values = np.array([value[column] for _, value in diagnostics[name]])
        return values[-max(1, round(len(values) * TRAINED_SHARE)) :]

    used = last("delta_sq")
    return [
        ("mean_delta_sq", used.mean(), "squared noise", len(used)),
        ("constraint_ratio", used.mean() / found.delta[column], "budget", len(used)),
        ("slackness", last("slackness").mean(), "Q scale", len(used)),
        ("multiplier", last("alpha").mean(), "Q scale per squared noise", len(used)),
    ]


if __name__ == "__main__":
    main(steer)
