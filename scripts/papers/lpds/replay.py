"""Transitions of S seeds, with a noise bank: since the decoder is frozen, each stored observation
keeps a few pairs (noise, decoded chunk), computed once, and distillation decodes nothing."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from scripts.papers.lpds.draws import Draws


@dataclass
class Batch:
    """Transitions [S, B, ...]; a decision is one chunk."""

    observation: Tensor
    action: Tensor
    """Chunks in [-1, 1], [S, B, D]."""
    reward: Tensor
    """Summed over the chunk's steps, scaled, [S, B, 1]."""
    next_observation: Tensor
    bootstrap: Tensor
    """0 where the episode terminated (not where it was cut by its time limit), else 1."""
    bank_noise: Tensor
    """Prior noise [S, B, m, D]; m is 1 in a sample."""
    bank_action: Tensor
    """Its decoded chunks at the observation, [S, B, m, D]."""


class Replay:
    """A store of up to `capacity` transitions a seed, filled in step.

    Args:
        seeds, capacity: how many seeds and transitions.
        observation, latent: widths.
        bank: pairs kept a transition.
        device: where the store lives.
    """

    def __init__(
        self,
        seeds: int,
        capacity: int,
        observation: int,
        latent: int,
        bank: int,
        device: str = "cpu",
    ) -> None:
        shapes = {
            "observation": (observation,),
            "action": (latent,),
            "reward": (1,),
            "next_observation": (observation,),
            "bootstrap": (1,),
            "bank_noise": (bank, latent),
            "bank_action": (bank, latent),
        }
        self._store = {
            name: torch.zeros(seeds, capacity, *shape, device=device)
            for name, shape in shapes.items()
        }
        self.capacity = capacity
        self.size = 0

    def add(self, batch: Batch) -> None:
        """Add W transitions a seed.

        Raises:
            ValueError: the store is full.
        """
        count = batch.observation.shape[1]
        if self.size + count > self.capacity:
            raise ValueError(
                f"{self.size + count} transitions do not fit the replay's capacity {self.capacity}"
            )
        for field in fields(Batch):
            self._store[field.name][:, self.size : self.size + count] = getattr(batch, field.name)
        self.size += count

    def sample(self, draws: Draws, count: int) -> Batch:
        """A uniform sample with replacement, each seed's own; of each bank one pair at random."""
        chosen = draws.integers(self.size, count)
        seeds = torch.arange(chosen.shape[0], device=chosen.device)[:, None]
        found = {name: value[seeds, chosen] for name, value in self._store.items()}
        pair = draws.integers(found["bank_noise"].shape[2], count)[..., None]
        within = torch.arange(count, device=chosen.device)[:, None]
        for name in ("bank_noise", "bank_action"):
            found[name] = found[name][seeds[..., None], within, pair]
        return Batch(**found)

    def held(self, name: str) -> Tensor:
        """All stored values of a field, [S, size, ...]."""
        return self._store[name][:, : self.size]

    def repeated(self, times: int) -> "Replay":
        """A copy in which each seed stands `times` times: the warm-up that arms share."""
        twin = object.__new__(Replay)
        twin._store = {
            name: value.repeat_interleave(times, dim=0) for name, value in self._store.items()
        }
        twin.capacity, twin.size = self.capacity, self.size
        return twin
