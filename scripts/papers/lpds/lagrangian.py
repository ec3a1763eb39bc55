"""LP-DS: a state-dependent offset of the prior noise under a mean-square budget.

    max_theta  E[Q^W(s, eps + Delta_theta(s))]   s.t.  E_s ||Delta_theta(s)||^2 <= delta

with Adam ascent in theta and projected ascent in the multiplier alpha. The multiplier acts on the
value divided by a running mean of its size, so that it means the same in every task.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scripts.papers.lpds.critics import ActionCritic, LatentCritic
from scripts.papers.lpds.decoder import Decoder
from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.learning import Learning
from scripts.papers.lpds.replay import Batch
from scripts.papers.lpds.stacked import Params, adam, init_mlp, mlp, trainable

REDUCTIONS = ("mean", "sum")
SCALE_MEMORY = 0.99


@dataclass(frozen=True)
class Budget:
    """The trust region.

    `delta`: budget a seed [S]; `reduction`: of ||Delta||^2 over the latent dimensions (the mean, or
    the literal sum); `multiplier`: alpha at the start; `rate`: its step size, 0 to leave the
    Lagrangian out; `bound`: |Delta| <= bound in each dimension by tanh, None for none.
    """

    delta: Tensor
    reduction: str = "mean"
    multiplier: float = 0.1
    rate: float = 0.01
    bound: float | None = 1.5

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise ValueError(f"reduction is {self.reduction!r}; allowed: {', '.join(REDUCTIONS)}")
        if not bool((self.delta > 0).all()):
            raise ValueError(f"delta is {self.delta.tolist()}; allowed: positive numbers")

    def used(self, offset: Tensor) -> Tensor:
        """||Delta||^2 averaged over states: [S] of offsets [S, B, D]."""
        squares = offset.square()
        each = squares.mean(dim=-1) if self.reduction == "mean" else squares.sum(dim=-1)
        return each.mean(dim=-1)


def ascend_multiplier(alpha: Tensor, used: Tensor, budget: Budget) -> Tensor:
    """alpha <- max(0, alpha + rate (used - delta)), [S]."""
    return (alpha + budget.rate * (used - budget.delta)).clamp(min=0)


class RunningScale:
    """Exponential mean of |value| a seed, corrected for its start."""

    def __init__(self, seeds: int, device: str) -> None:
        self._sum = torch.zeros(seeds, device=device)
        self._weight = 0.0

    def update(self, values: Tensor) -> Tensor:
        """Take values [S, B, 1] in; the scale [S]."""
        self._sum = SCALE_MEMORY * self._sum + (1 - SCALE_MEMORY) * values.abs().mean(dim=(1, 2))
        self._weight = SCALE_MEMORY * self._weight + (1 - SCALE_MEMORY)
        return (self._sum / self._weight).clamp(min=1e-6)


class Offset:
    """Delta_theta(s): a small perceptron of the state alone that starts at exactly 0."""

    def __init__(self, params: Params, bound: float | None) -> None:
        self.params = params
        self.bound = bound

    def __call__(self, observation: Tensor) -> Tensor:
        """Offsets [S, B, D]."""
        raw = mlp(self.params, observation)
        return raw if self.bound is None else self.bound * torch.tanh(raw / self.bound)


class LatentOffsetPolicy:
    """w = eps + Delta(s), decoded: the steered policy."""

    def __init__(self, decoder: Decoder, offset: Offset) -> None:
        self.decoder = decoder
        self.offset = offset

    @torch.no_grad()
    def act(self, observation: Tensor, draws: Draws) -> Tensor:
        """Chunks [S, B, D]."""
        noise = draws.normal(observation.shape[1], self.decoder.latent)
        return self.decoder.decode(observation, noise, self.offset(observation))

    @torch.no_grad()
    def latent(self, observation: Tensor, draws: Draws) -> Tensor:
        """Noise vectors w [S, B, D]."""
        noise = draws.normal(observation.shape[1], self.decoder.latent)
        return noise + self.offset(observation)


class ActionOffsetPolicy:
    """a = clip(Phi(s, eps) + r(s)): the ablation that corrects actions instead of noise."""

    def __init__(self, decoder: Decoder, offset: Offset) -> None:
        self.decoder = decoder
        self.offset = offset

    @torch.no_grad()
    def act(self, observation: Tensor, draws: Draws) -> Tensor:
        """Chunks [S, B, D]."""
        noise = draws.normal(observation.shape[1], self.decoder.latent)
        chunk = self.decoder.decode(observation, noise)
        return (chunk + self.offset(observation)).clamp(-1, 1)

    @torch.no_grad()
    def latent(self, observation: Tensor, draws: Draws) -> Tensor:
        """Noise vectors w [S, B, D]: the prior's."""
        return draws.normal(observation.shape[1], self.decoder.latent)


class LagrangianSteering:
    """Learns the offset of one of the two policies above.

    Args:
        decoder: frozen.
        budget: the trust region.
        learning: step sizes, widths and discount.
        generators: one a seed.
        acts_on: "latent" (LP-DS) or "action" (its ablation).
    """

    def __init__(
        self,
        decoder: Decoder,
        budget: Budget,
        learning: Learning,
        generators: Sequence[torch.Generator],
        acts_on: str = "latent",
    ) -> None:
        observation = decoder.weights["wc"].shape[1]
        hidden, device = learning.hidden, decoder.weights["wx"].device.type
        sizes = [observation, *hidden, decoder.latent]
        theta = trainable(init_mlp(sizes, generators, zero_last=True), device)
        policies = {"latent": LatentOffsetPolicy, "action": ActionOffsetPolicy}
        self.policy = policies[acts_on](decoder, Offset(theta, budget.bound))
        self.budget, self.learning, self._on_latent = budget, learning, acts_on == "latent"
        self.critic = ActionCritic(
            observation, decoder.latent, hidden, generators, learning.rate, learning.follow, device
        )
        self.latent_critic = LatentCritic(
            observation, decoder.latent, hidden, generators, learning.rate, device
        )
        self._optimiser = adam(theta, rate=learning.rate)
        seeds = len(generators)
        start = budget.multiplier if budget.rate > 0 else 0.0
        self.alpha = torch.full((seeds,), start, device=device)
        self._scale = RunningScale(seeds, device)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What was learnt beside the critics."""
        return self.policy.offset.params

    def update(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """One step of the action critic, the latent critic, theta and alpha; diagnostics [S]."""
        next_action = self.policy.act(batch.next_observation, draws)
        next_value = self.critic.target_value(batch.next_observation, next_action)
        value = self.critic.update(batch, next_value, self.learning.discount)
        self.latent_critic.update(batch, self.critic)
        used, scale = self._ascend(batch, draws)
        slackness = (self.alpha * (used - self.budget.delta)).abs()
        if self.budget.rate > 0:
            self.alpha = ascend_multiplier(self.alpha, used, self.budget)
        return {
            "delta_sq": used,
            "alpha": self.alpha,
            "q": value,
            "slackness": slackness,
            "q_scale": scale,
        }

    def _ascend(self, batch: Batch, draws: Draws) -> tuple[Tensor, Tensor]:
        """One step of theta on value / scale - alpha ||Delta||^2."""
        offset = self.policy.offset(batch.observation)
        if self._on_latent:
            noise = draws.normal(*offset.shape[1:])
            values = self.latent_critic.value(batch.observation, noise + offset)
        else:
            chunk = (batch.bank_action[:, :, 0] + offset).clamp(-1, 1)
            values = self.critic.value(batch.observation, chunk)
        scale = self._scale.update(values.detach())
        used = self.budget.used(offset)
        gain = values.mean(dim=(1, 2)) / scale - self.alpha * used
        self._optimiser.zero_grad(set_to_none=True)
        (-gain.sum()).backward()
        self._optimiser.step()
        return used.detach(), scale
