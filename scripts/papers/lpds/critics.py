"""Values of chunks and of noise vectors: a twin action critic learned by temporal differences, and
a latent critic distilled from it on the prior noise alone."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from scripts.papers.lpds.replay import Batch
from scripts.papers.lpds.stacked import (
    Params,
    adam,
    copied,
    detached,
    init_mlp,
    mlp,
    track,
    trainable,
)


def init_twin(inputs: int, hidden: Sequence[int], generators: Sequence[torch.Generator]) -> Params:
    """Two critics a seed, stacked as [2S, ...], with layer normalisation."""
    pair = [init_mlp([inputs, *hidden, 1], generators, layer_norm=True) for _ in range(2)]
    return {name: torch.cat([pair[0][name], pair[1][name]]) for name in pair[0]}


def twin_values(params: Mapping[str, Tensor], observation: Tensor, action: Tensor) -> Tensor:
    """Both critics' values [2, S, B, 1]."""
    inputs = torch.cat([observation, action], dim=-1)
    values = mlp(params, inputs.repeat(2, 1, 1))
    return values.unflatten(0, (2, -1))


class ActionCritic:
    """Twin critics of (observation, chunk) with slowly following targets.

    Args:
        observation, latent: widths of observations and chunks.
        hidden: widths of the hidden layers.
        generators: one a seed.
        rate: Adam's step size.
        follow: Polyak rate of the targets.
        device: where it runs.
    """

    def __init__(
        self,
        observation: int,
        latent: int,
        hidden: Sequence[int],
        generators: Sequence[torch.Generator],
        rate: float,
        follow: float,
        device: str,
    ) -> None:
        self.params = trainable(init_twin(observation + latent, hidden, generators), device)
        self.target = copied(self.params)
        self.follow = follow
        self._optimiser = adam(self.params, rate=rate)

    def update(self, batch: Batch, next_value: Tensor, discount: float) -> Tensor:
        """One step towards reward + discount next_value if not terminated; the mean value [S]."""
        wanted = batch.reward + discount * batch.bootstrap * next_value
        values = twin_values(self.params, batch.observation, batch.action)
        loss = (values - wanted).square().mean(dim=(2, 3)).sum()
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self._optimiser.step()
        track(self.target, self.params, self.follow)
        return values.detach().mean(dim=(0, 2, 3))

    def value(self, observation: Tensor, action: Tensor) -> Tensor:
        """The lower of both values [S, B, 1], with gradients into the action alone."""
        return twin_values(detached(self.params), observation, action).amin(dim=0)

    @torch.no_grad()
    def target_value(self, observation: Tensor, action: Tensor) -> Tensor:
        """The lower of both targets [S, B, 1]."""
        return twin_values(self.target, observation, action).amin(dim=0)


class LatentCritic:
    """The value of noise: min_j Q^A_j(s, Phi(s, eps)) distilled for eps ~ N(0, I) only, so that
    noise far from the prior is valued by extrapolation."""

    def __init__(
        self,
        observation: int,
        latent: int,
        hidden: Sequence[int],
        generators: Sequence[torch.Generator],
        rate: float,
        device: str,
    ) -> None:
        sizes = [observation + latent, *hidden, 1]
        self.params = trainable(init_mlp(sizes, generators, layer_norm=True), device)
        self._optimiser = adam(self.params, rate=rate)

    def update(self, batch: Batch, critic: ActionCritic) -> Tensor:
        """One step on all pairs of the batch's noise bank; the loss [S]."""
        pairs = batch.bank_noise.shape[2]
        observation = batch.observation.repeat_interleave(pairs, dim=1)
        with torch.no_grad():
            wanted = critic.value(observation, batch.bank_action.flatten(1, 2))
        inputs = torch.cat([observation, batch.bank_noise.flatten(1, 2)], dim=-1)
        loss = (mlp(self.params, inputs) - wanted).square().mean(dim=(1, 2))
        self._optimiser.zero_grad(set_to_none=True)
        loss.sum().backward()
        self._optimiser.step()
        return loss.detach()

    def value(self, observation: Tensor, noise: Tensor) -> Tensor:
        """Values [S, B, 1], with gradients into the noise alone."""
        return mlp(detached(self.params), torch.cat([observation, noise], dim=-1))
