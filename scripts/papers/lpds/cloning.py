"""Behaviour cloning of S decoders at once from demonstrations."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from scripts.papers.lpds.decoder import cloning_loss, init_network
from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.stacked import Params, copied, track, trainable


@dataclass(frozen=True)
class Cloning:
    """`width`: of the hidden layers; `steps`, `batch`: of training; `rate`: first and last step
    size of a cosine; `decay`: of weights; `average`: memory of the exponential mean, kept."""

    width: int
    steps: int
    batch: int
    rate: tuple[float, float]
    decay: float
    average: float


def windows(episodes: Tensor, actions: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Every chunk that lies within its episode.

    Args:
        episodes: the episode of each step, in order, [N].
        actions: [N, A].
        chunk: steps a chunk.

    Returns:
        The first step of each chunk [M] and the chunks [M, chunk * A], first action first.

    Raises:
        ValueError: no episode is as long as a chunk.
    """
    starts = torch.arange(len(episodes) - chunk + 1)
    starts = starts[episodes[starts] == episodes[starts + chunk - 1]]
    if len(starts) == 0:
        raise ValueError(f"chunk is {chunk} steps; every episode is shorter")
    steps = starts[:, None] + torch.arange(chunk)
    return starts, actions[steps].flatten(1)


def clone(
    kind: str,
    observations: Sequence[Tensor],
    chunks: Sequence[Tensor],
    cloning: Cloning,
    generators: Sequence[torch.Generator],
    log: Callable[[int, Tensor], None],
    device: str = "cpu",
) -> Params:
    """Train decoders of a kind; their averaged parameters.

    Args:
        kind: diffusion or flow.
        observations: of each seed's own demonstrations, normalised, S of [M, O].
        chunks: normalised, S of [M, D]; M may differ between seeds.
        cloning: settings.
        generators: one a seed.
        log: takes a step and the losses [S].
        device: where it runs.
    """
    sizes = observations[0].shape[1], chunks[0].shape[1], cloning.width
    counts = [len(one) for one in chunks]
    # seeds with fewer chunks are filled up with zeros, which are never drawn
    observation_store, chunk_store = (pad_sequence(one, True) for one in (observations, chunks))
    seeds = torch.arange(len(counts), device=device)[:, None]
    params = trainable(init_network(*sizes, generators), device)
    average = copied(params)
    draws = Draws(generators, device)
    first, last = cloning.rate
    optimiser = torch.optim.AdamW(params.values(), lr=first, weight_decay=cloning.decay, fused=True)
    for step in range(1, cloning.steps + 1):
        rate = last + (first - last) * (1 + math.cos(math.pi * step / cloning.steps)) / 2
        optimiser.param_groups[0]["lr"] = rate
        at = seeds, draws.integers(counts, cloning.batch)
        loss = cloning_loss(kind, params, observation_store[at], chunk_store[at], draws)
        optimiser.zero_grad(set_to_none=True)
        loss.sum().backward()
        optimiser.step()
        track(average, params, 1 - min(cloning.average, step / (step + 10)))
        if step % 50 == 0 or step == cloning.steps:
            log(step, loss.detach())
    return average
