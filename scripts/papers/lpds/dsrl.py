"""DSRL with noise aliasing: a soft actor-critic over the noise of a frozen decoder.

Wagenmaker et al., "Steering your diffusion policy with latent space reinforcement learning", and
its public configurations: w = bound * tanh(Gaussian), critics of actions and of noise (distilled on
the prior), entropy coefficient tuned towards target entropy 0. As in the soft actor-critic of
stable-baselines3 that it forks, log-probabilities are those of tanh(Gaussian), before scaling.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from scripts.papers.lpds.critics import ActionCritic, LatentCritic
from scripts.papers.lpds.decoder import Decoder
from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.learning import Learning
from scripts.papers.lpds.replay import Batch
from scripts.papers.lpds.stacked import Params, adam, init_mlp, mlp, trainable

LOG_STD_RANGE = (-20.0, 2.0)


def squashed_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """tanh of a Gaussian sample and its log-probability summed over the last axis.

    Uses log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)).
    """
    raw = mean + log_std.exp() * noise
    gaussian = -0.5 * (noise.square() + math.log(2 * math.pi)) - log_std
    squash = 2 * (math.log(2) - raw - F.softplus(-2 * raw))
    return torch.tanh(raw), (gaussian - squash).sum(dim=-1, keepdim=True)


class NoisePolicy:
    """pi(w|s) = bound * tanh(N(mean(s), std(s)^2)), decoded."""

    def __init__(self, decoder: Decoder, params: Params, bound: float) -> None:
        self.decoder = decoder
        self.params = params
        self.bound = bound

    def sample(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Noise vectors w [S, B, D] and their log-probability [S, B, 1], with gradients."""
        mean, log_std = mlp(self.params, observation).chunk(2, dim=-1)
        squashed, log_prob = squashed_gaussian(mean, log_std.clamp(*LOG_STD_RANGE), noise)
        return self.bound * squashed, log_prob

    @torch.no_grad()
    def latent(self, observation: Tensor, draws: Draws) -> Tensor:
        """Noise vectors w [S, B, D]."""
        noise = draws.normal(observation.shape[1], self.decoder.latent)
        return self.sample(observation, noise)[0]

    @torch.no_grad()
    def act(self, observation: Tensor, draws: Draws) -> Tensor:
        """Chunks [S, B, D]."""
        return self.decoder.decode(observation, self.latent(observation, draws))


class NoiseActorCritic:
    """Learns the policy above.

    Args:
        decoder: frozen.
        bound: largest |w| in each dimension.
        learning: step sizes, widths and discount.
        generators: one a seed.
        target_entropy: of tanh(Gaussian), in nat.
        temperature: of the entropy before it is tuned.
        start: standard deviation of w before learning, about, with mean 0; None leaves both to the
            network's initial values (about bound * tanh of a standard Gaussian).
    """

    def __init__(
        self,
        decoder: Decoder,
        bound: float,
        learning: Learning,
        generators: Sequence[torch.Generator],
        target_entropy: float = 0.0,
        temperature: float = 1.0,
        start: float | None = None,
    ) -> None:
        observation = decoder.weights["wc"].shape[1]
        hidden, device = learning.hidden, decoder.weights["wx"].device.type
        sizes = [observation, *hidden, 2 * decoder.latent]
        actor = init_mlp(sizes, generators, zero_last=start is not None)
        if start is not None:
            actor[f"b{len(hidden)}"][..., decoder.latent :] += math.log(start / bound)
        actor = trainable(actor, device)
        self.policy = NoisePolicy(decoder, actor, bound)
        self.learning, self._target_entropy = learning, target_entropy
        self.critic = ActionCritic(
            observation, decoder.latent, hidden, generators, learning.rate, learning.follow, device
        )
        self.latent_critic = LatentCritic(
            observation, decoder.latent, hidden, generators, learning.rate, device
        )
        logs = torch.full((len(generators),), math.log(temperature), device=device)
        self._log_temperature = logs.requires_grad_()
        self._actor_optimiser = adam(actor, rate=learning.rate)
        self._temperature_optimiser = adam({"log": self._log_temperature}, rate=learning.rate)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What was learnt beside the critics."""
        return self.policy.params

    def update(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """One step of both critics, the temperature and the actor; diagnostics [S]."""
        shape = batch.action.shape[1:]
        temperature = self._log_temperature.detach().exp()[:, None, None]
        with torch.no_grad():
            latent, log_prob = self.policy.sample(batch.next_observation, draws.normal(*shape))
            chunk = self.policy.decoder.decode(batch.next_observation, latent)
            next_value = self.critic.target_value(batch.next_observation, chunk)
            next_value = next_value - temperature * log_prob
        value = self.critic.update(batch, next_value, self.learning.discount)
        self.latent_critic.update(batch, self.critic)
        latent, log_prob = self.policy.sample(batch.observation, draws.normal(*shape))
        self._tune_temperature(log_prob.detach())
        loss = temperature * log_prob - self.latent_critic.value(batch.observation, latent)
        self._actor_optimiser.zero_grad(set_to_none=True)
        loss.mean(dim=(1, 2)).sum().backward()
        self._actor_optimiser.step()
        return {"q": value, "temperature": temperature.flatten()}

    def _tune_temperature(self, log_prob: Tensor) -> None:
        excess = log_prob.mean(dim=(1, 2)) + self._target_entropy
        self._temperature_optimiser.zero_grad(set_to_none=True)
        (-(self._log_temperature * excess).sum()).backward()
        self._temperature_optimiser.step()
