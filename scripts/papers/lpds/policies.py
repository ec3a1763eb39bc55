"""The arms: how each is made of its settings, and how a saved one is brought back."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from scripts.papers.lpds.decoder import Decoder, PriorPolicy
from scripts.papers.lpds.dppo import Dppo, DppoPolicy
from scripts.papers.lpds.dsrl import NoiseActorCritic, NoisePolicy
from scripts.papers.lpds.idql import Idql, IdqlPolicy
from scripts.papers.lpds.interaction import Norm, Policy
from scripts.papers.lpds.lagrangian import (
    ActionOffsetPolicy,
    Budget,
    LagrangianSteering,
    LatentOffsetPolicy,
    Offset,
)
from scripts.papers.lpds.learning import Learning
from scripts.pipeline.stage import Job


def make_learner(
    settings: Mapping[str, Any],
    decoder: Decoder,
    learning: Learning,
    generators: Sequence[torch.Generator],
    delta: Tensor,
) -> Any:
    """The learner of an arm; None for the frozen policy, which learns nothing.

    Args:
        settings: the arm's, of params.yaml.
        decoder: frozen, of S columns.
        learning: what all arms share.
        generators: one a column.
        delta: the arm's budget a column, [S].
    """
    match settings["learner"]:
        case "none":
            return None
        case "lagrangian":
            budget = Budget(
                delta,
                settings.get("reduction", "mean"),
                settings["multiplier"],
                settings["multiplier_rate"],
                settings["bound"],
            )
            return LagrangianSteering(
                decoder, budget, learning, generators, settings.get("acts_on", "latent")
            )
        case "noise_actor":
            return NoiseActorCritic(
                decoder,
                settings["bound"],
                learning,
                generators,
                temperature=settings["temperature"],
                start=settings.get("start"),
            )
        case "idql":
            return Idql(decoder, learning, generators, **settings["idql"])
        case "dppo":
            return Dppo(decoder, learning, generators, **settings["dppo"])
    raise ValueError(f"learner is {settings['learner']!r}; see params.schema.yaml")


def restored(settings: Mapping[str, Any], decoder: Decoder, params: dict[str, Tensor]) -> Policy:
    """The policy of an arm from the tensors that steer saved."""
    match settings["learner"]:
        case "none":
            return PriorPolicy(decoder)
        case "lagrangian":
            offset = Offset(params, settings["bound"])
            on_latent = settings.get("acts_on", "latent") == "latent"
            return (LatentOffsetPolicy if on_latent else ActionOffsetPolicy)(decoder, offset)
        case "noise_actor":
            return NoisePolicy(decoder, params, settings["bound"])
        case "idql":
            return IdqlPolicy(decoder, params, settings["idql"]["candidates"])
        case "dppo":
            return DppoPolicy(decoder, params)
    raise ValueError(f"learner is {settings['learner']!r}; see params.schema.yaml")


def load_decoder(job: Job, kind: str, task: str, seeds: Sequence[int]) -> Decoder:
    """The cloned policies of some seeds, stacked in that order."""
    tensors = [job.load_tensors("train", task, kind, seed) for seed in seeds]
    params = {name: torch.stack([one[name] for one in tensors]) for name in tensors[0]}
    return Decoder.freeze(kind, params, job.params["decoders"][kind]["steps"])


def load_norm(job: Job, task: str, seeds: Sequence[int]) -> Norm:
    """The scaling of some seeds' demonstrations, stacked in that order."""
    return Norm.stacked([job.load_tensors("prepare", f"norm_{task}_s{seed}") for seed in seeds])


def load_policy(job: Job, arm: str, task: str, seeds: Sequence[int]) -> Policy:
    """An arm's final policy of some seeds, stacked in that order."""
    settings = job.params["arms"][arm]
    decoder = load_decoder(job, settings["decoder"], task, seeds)
    if settings["learner"] == "none":
        return PriorPolicy(decoder)
    tensors = [job.load_tensors("steer", f"policy_{task}", arm, seed) for seed in seeds]
    params = {name: torch.stack([one[name] for one in tensors]) for name in tensors[0]}
    return restored(settings, decoder, params)
