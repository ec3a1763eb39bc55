"""IDQL: implicit Q-learning, and the best of a few chunks that the frozen policy proposes.

Hansen-Estruch et al., "IDQL: Implicit Q-learning as an actor-critic method with diffusion policies"
(2023), and its public code, philippe-eecs/IDQL, in the first of its settings for fine-tuning:
critics learn online, the cloned policy stays as it is, and in training as in evaluation the
candidate of the highest value of the slow critics is played. A state's value is an expectile of the
lower slow critic at the replayed chunks, so no chunk that was not played is valued in learning.
DPPO's copy of the method (irom-princeton/dppo) goes on cloning the replayed chunks and explores
with expectile weights; neither is done here.

Different from both: the critics are those of the other arms (layer normalisation), and candidates
come from the DDIM steps of the frozen decoder, not from DDPM.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from scripts.papers.lpds.critics import ActionCritic, twin_values
from scripts.papers.lpds.decoder import Decoder
from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.learning import Learning
from scripts.papers.lpds.replay import Batch
from scripts.papers.lpds.stacked import Params, adam, detached, init_mlp, mlp, trainable


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """|expectile - 1(difference < 0)| difference^2, elementwise; its minimiser is the expectile."""
    return torch.where(difference > 0, expectile, 1 - expectile) * difference.square()


class IdqlPolicy:
    """argmax of the lower critic over N chunks of the frozen policy.

    Args:
        decoder: the frozen policy.
        params: of both critics, [S, 2, ...].
        candidates: N.

    Raises:
        ValueError: less than one candidate.
    """

    def __init__(self, decoder: Decoder, params: Params, candidates: int) -> None:
        if candidates < 1:
            raise ValueError(f"candidates is {candidates}; allowed: at least 1")
        self.decoder = decoder
        self.params = params
        self.candidates = candidates

    def act(self, observation: Tensor, draws: Draws) -> Tensor:
        """Chunks [S, B, D]."""
        return self._best(observation, draws)[1]

    def latent(self, observation: Tensor, draws: Draws) -> Tensor:
        """Noise vectors [S, B, D] of the chosen chunks."""
        return self._best(observation, draws)[0]

    @torch.no_grad()
    def _best(self, observation: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Noise and chunk of the best candidate of each observation."""
        rows = observation.shape[1]
        repeated = observation.repeat_interleave(self.candidates, dim=1)
        noise = draws.normal(rows * self.candidates, self.decoder.latent)
        chunk = self.decoder.decode(repeated, noise)
        twin = {name: value.transpose(0, 1).flatten(0, 1) for name, value in self.params.items()}
        values = twin_values(twin, repeated, chunk).amin(dim=0)
        best = values.unflatten(1, (rows, self.candidates)).argmax(dim=2, keepdim=True)

        def chosen(candidates: Tensor) -> Tensor:
            grouped = candidates.unflatten(1, (rows, self.candidates))
            return grouped.take_along_dim(best, dim=2)[:, :, 0]

        return chosen(noise), chosen(chunk)


class Idql:
    """Learns the critics of the policy above.

    Args:
        decoder: frozen.
        learning: step sizes, widths and discount.
        generators: one a seed.
        candidates: chunks to choose from.
        expectile: of a state's value; 0.5 would be the mean over the replayed chunks.

    Raises:
        ValueError: an expectile outside (0, 1).
    """

    def __init__(
        self,
        decoder: Decoder,
        learning: Learning,
        generators: Sequence[torch.Generator],
        *,
        candidates: int,
        expectile: float = 0.7,
    ) -> None:
        if not 0 < expectile < 1:
            raise ValueError(f"expectile is {expectile}; allowed: between 0 and 1")
        observation = decoder.weights["wc"].shape[1]
        hidden, device = learning.hidden, decoder.weights["wx"].device.type
        self.learning, self._expectile = learning, expectile
        self.critic = ActionCritic(
            observation, decoder.latent, hidden, generators, learning.rate, learning.follow, device
        )
        value = init_mlp([observation, *hidden, 1], generators, layer_norm=True)
        self.value = trainable(value, device)
        self._optimiser = adam(self.value, rate=learning.rate)
        self.policy = IdqlPolicy(decoder, self.parameters, candidates)

    @property
    def parameters(self) -> Params:
        """The slow critics, [S, 2, ...], as they are and will be: views."""
        return {
            name: value.unflatten(0, (2, -1)).transpose(0, 1)
            for name, value in self.critic.target.items()
        }

    def update(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """One step of the states' values and one of the critics, without any draw; diagnostics [S].

        The value moves to the expectile of the lower slow critic, then the critics towards
        reward + discount value(next state) if not terminated.
        """
        lower = self.critic.target_value(batch.observation, batch.action)
        value = mlp(self.value, batch.observation)
        loss = expectile_loss(lower - value, self._expectile).mean(dim=(1, 2))
        self._optimiser.zero_grad(set_to_none=True)
        loss.sum().backward()
        self._optimiser.step()
        next_value = mlp(detached(self.value), batch.next_observation)
        q = self.critic.update(batch, next_value, self.learning.discount)
        return {"q": q, "v": value.detach().mean(dim=(1, 2))}
