"""DPPO: proximal policy optimisation of the last denoising steps of a diffusion policy.

Ren et al., "Diffusion Policy Policy Optimization" (2024), and its public code, irom-princeton/dppo
with its settings for gym. From there come: a decision process of two layers, in which each of the
last K of T DDPM steps is a Gaussian action of a fine-tuned copy of the network, while the first
T - K stay with the frozen one; the floors of the standard deviation; the clips of the noise and of
log-probabilities, and their mean over the chunk; the ratio's clip, which may grow exponentially
towards the last step; the discount of earlier denoising steps; advantages normalised in each batch;
rewards divided by the running deviation of their discounted sums; the step sizes; evaluation with
DDPM's own noise, without the floor.

Different from it: rollouts are of few simulators, hence batches are small, and gradient steps are
as many a decision as the other arms take, so that no divergence stops an iteration early. Where the
time limit cuts an episode, the trace of advantages ends and the value bootstraps from the state
before the reset (the public code goes on with the state after it). The time embedding is fine-tuned
as a table of K rows, not through its own small network. The critic is a plain perceptron of the
widths that all arms have. Quantiles of advantages, the entropy bonus, the cloning loss and the clip
of gradients are left out, since the gym settings switch them off.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from scripts.papers.lpds.decoder import (
    TRAINING_STEPS,
    Decoder,
    condition,
    cosine_schedule,
    network,
)
from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.interaction import Fleet, Transition
from scripts.papers.lpds.learning import Learning
from scripts.papers.lpds.stacked import Params, adam, init_mlp, mlp, trainable

EXPLORING_STD = 0.1
LOG_PROB_STD = 0.1
SAMPLING_STD = 1e-3
NOISE_CLIP = 3.0
LOG_PROB_RANGE = (-5.0, 2.0)
ADVANTAGE_MEMORY = 0.95
DENOISING_DISCOUNT = 0.99
CLIP_GROWTH = 3.0
LARGEST_REWARD = 10.0


def posterior_coefficients(abar: Tensor) -> Tensor:
    """DDPM's posterior q(x_{t-1} | x_t, x0), one row a step t: [T, 5] of abar [T].

    Rows are (sqrt(1 - abar), sqrt(abar), weight of x0, weight of x_t, standard deviation) with
    beta = 1 - abar_t / abar_{t-1}; the deviation of the last step, t = 0, is 0.
    """
    before = torch.cat([abar.new_ones(1), abar[:-1]])
    alpha = abar / before
    clean = (1 - alpha) * before.sqrt() / (1 - abar)
    carried = (1 - before) * alpha.sqrt() / (1 - abar)
    variance = (1 - alpha) * (1 - before) / (1 - abar)
    return torch.stack([(1 - abar).sqrt(), abar.sqrt(), clean, carried, variance.sqrt()], dim=1)


def denoising_mean(x: Tensor, noise: Tensor, coefficients: Tensor) -> Tensor:
    """Mean of x_{t-1} given x_t and its predicted noise [..., D], x0 clipped to [-1, 1].

    `coefficients` [..., 5] are rows of `posterior_coefficients`, one an item.
    """
    spread, signal, clean, carried, _ = coefficients[..., None].unbind(dim=-2)
    return clean * ((x - spread * noise) / signal).clamp(-1, 1) + carried * x


def step_log_prob(after: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log-probability of a denoising step, [...], of chunks [..., D] and deviations [...].

    Each number's density, with the deviation at least 0.1, is clamped to [-5, 2]; their mean over
    the chunk takes the place of the sum.
    """
    std = std.clamp(min=LOG_PROB_STD)[..., None]
    density = -0.5 * ((after - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)
    return density.clamp(*LOG_PROB_RANGE).mean(dim=-1)


def clip_schedule(steps: int, first: float, last: float) -> Tensor:
    """Clip of the ratio at the K fine-tuned steps, in the order of denoising, [K].

    It grows from `first` to `last`, which acts, as exp(3 k / (K - 1)).

    Raises:
        ValueError: fewer than two steps.
    """
    if steps < 2:
        raise ValueError(f"steps is {steps}; allowed: at least 2")
    place = torch.linspace(0, 1, steps, dtype=torch.float64)
    growth = torch.expm1(CLIP_GROWTH * place) / math.expm1(CLIP_GROWTH)
    return (first + (last - first) * growth).float()


def surrogate_loss(log_ratio: Tensor, advantage: Tensor, clip: Tensor) -> Tensor:
    """The clipped objective of each item, to be minimised; all [..., B]."""
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(advantage * ratio, advantage * clipped)


def generalised_advantages(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    ended: Tensor,
    discount: float,
    memory: float = ADVANTAGE_MEMORY,
) -> Tensor:
    """GAE(lambda) of rollouts [n, ...], first decision first.

    A_t = d_t + discount memory (1 - ended_t) A_{t+1} with
    d_t = reward_t + discount (1 - terminated_t) next_value_t - value_t.

    Args:
        reward, value: of each decision and its state.
        next_value: of the state it led to, before any reset.
        terminated: nothing follows, by the task's rules.
        ended: terminated, or cut by the time limit: what follows is another episode.
        discount: of a decision.
        memory: lambda.
    """
    errors = reward + discount * next_value.masked_fill(terminated, 0) - value
    kept = torch.full_like(value, discount * memory).masked_fill(ended, 0)
    advantage = torch.zeros_like(errors)
    later = torch.zeros_like(errors[0])
    for step in reversed(range(len(errors))):
        later = errors[step] + kept[step] * later
        advantage[step] = later
    return advantage


def standardised(values: Tensor) -> Tensor:
    """Values [S, B] of mean 0 and deviation 1 a seed."""
    centred = values - values.mean(dim=1, keepdim=True)
    return centred / (values.std(dim=1, keepdim=True) + 1e-8)


def picked(values: Tensor, index: Tensor) -> Tensor:
    """Each seed's own rows, [S, B, ...] of values [S, M, ...] and indices [S, B]."""
    seeds = torch.arange(len(values), device=values.device)[:, None]
    return values[seeds, index]


class RewardScale:
    """Divides rewards by the running deviation of their discounted sums so far, a seed.

    As the public code's (and OpenAI's phasic policy gradient's): the moments' count starts at
    1e-4 with variance 1, and the rewards that came out are at most 10 in size.
    """

    def __init__(self, seeds: int, discount: float, device: str) -> None:
        self._discount = discount
        self._sum: Tensor | float = 0.0
        self._mean = torch.zeros(seeds, dtype=torch.float64, device=device)
        self._variance = torch.ones(seeds, dtype=torch.float64, device=device)
        self._count = 1e-4

    def __call__(self, reward: Tensor, ended: Tensor) -> Tensor:
        """Scaled rewards of the next decisions, [n, S, W], and the moments with them."""
        sums = torch.zeros_like(reward)
        for step in range(len(reward)):
            sums[step] = reward[step] + self._discount * self._sum
            self._sum = sums[step].masked_fill(ended[step], 0)
        self._take(sums.transpose(0, 1).flatten(1).double())
        deviation = (self._variance + 1e-8).sqrt().float()[:, None]
        return (reward / deviation).clamp(-LARGEST_REWARD, LARGEST_REWARD)

    def _take(self, values: Tensor) -> None:
        """Join moments with those of values [S, B]."""
        count = values.shape[1]
        total = self._count + count
        shift = values.mean(dim=1) - self._mean
        squares = self._variance * self._count + values.var(dim=1, correction=0) * count
        squares = squares + shift.square() * (self._count * count / total)
        self._mean = self._mean + shift * (count / total)
        self._variance = squares / (total - 1)
        self._count = total


class DppoPolicy:
    """A diffusion policy of T DDPM steps of which the last K are fine-tuned.

    Args:
        decoder: the frozen policy.
        params: the fine-tuned network: a decoder's weights, of `ht` only the last K steps.
    """

    def __init__(self, decoder: Decoder, params: Mapping[str, Tensor]) -> None:
        self.decoder = decoder
        self.params = params
        self.steps = params["ht"].shape[1]
        table = posterior_coefficients(cosine_schedule()).float()
        self._coefficients = table.to(params["ht"].device)

    def act(self, observation: Tensor, draws: Draws) -> Tensor:
        """Chunks [S, B, D], with DDPM's noise but none at the last step."""
        std = self._coefficients[:, 4].clamp(min=SAMPLING_STD)
        std[0] = 0
        return self._denoise(observation, draws, std)[:, :, -1].clamp(-1, 1)

    def explore(self, observation: Tensor, draws: Draws) -> Tensor:
        """x_K ... x_0 of noisier chunks, [S, B, K + 1, D]; the last is not clipped to [-1, 1]."""
        std = self._coefficients[:, 4].clamp(min=EXPLORING_STD)
        return self._denoise(observation, draws, std)

    def log_prob(self, observation: Tensor, step: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Log-probabilities [S, B] of fine-tuned steps, with gradients.

        Args:
            observation: [S, B, O].
            step: which of the K, in the order of denoising, [S, B].
            before, after: x_t and x_{t-1}, [S, B, D].
        """
        time = self.steps - 1 - step
        first = condition(self.params, observation) + picked(self.params["ht"], time)
        coefficients = self._coefficients[time]
        mean = denoising_mean(before, network(self.params, before, first), coefficients)
        return step_log_prob(after, mean, coefficients[..., 4])

    @torch.no_grad()
    def _denoise(self, observation: Tensor, draws: Draws, std: Tensor) -> Tensor:
        """x_K ... x_0 with deviations [T] of the steps' noise."""
        noise = draws.normal(TRAINING_STEPS + 1, observation.shape[1], self.decoder.latent)
        x, steps_noise = noise[:, -1], noise.clamp(-NOISE_CLIP, NOISE_CLIP)
        frozen = self.decoder.weights
        conditions = condition(frozen, observation), condition(self.params, observation)
        chain = [x] if self.steps == TRAINING_STEPS else []
        for time in reversed(range(TRAINING_STEPS)):
            tuned = time < self.steps
            weights = self.params if tuned else frozen
            first = conditions[tuned] + weights["ht"][:, time, None]
            mean = denoising_mean(x, network(weights, x, first), self._coefficients[time])
            x = mean + std[time] * steps_noise[:, time]
            if time <= self.steps:
                chain.append(x)
        return torch.stack(chain, dim=2)


@dataclass
class Rollout:
    """M decisions of each seed: `observation` [S, M, O], `chain` of denoising [S, M, K + 1, D],
    `advantage` and `returns` [S, M]."""

    observation: Tensor
    chain: Tensor
    advantage: Tensor
    returns: Tensor


class Dppo:
    """Learns the policy above from its own decisions.

    Args:
        decoder: of kind diffusion; stays as it is.
        learning: widths of the critic and discount; the step sizes are DPPO's own.
        generators: one a seed.
        iteration: decisions between two updates of the policy, at most.
        epochs: how often an iteration's data are gone through.
        updates: gradient steps a decision; with the epochs it decides the batch,
            K epochs width / updates denoising steps.
        steps: K.
        clip: of the ratio at the first and at the last of them.
        actor_rate, critic_rate: Adam's step sizes.

    Raises:
        ValueError: a decoder that is no diffusion, or numbers that are not allowed.
    """

    def __init__(
        self,
        decoder: Decoder,
        learning: Learning,
        generators: Sequence[torch.Generator],
        *,
        iteration: int,
        epochs: int = 5,
        updates: float = 1.0,
        steps: int = 10,
        clip: Sequence[float] = (0.01, 0.01),
        actor_rate: float = 1e-4,
        critic_rate: float = 1e-3,
    ) -> None:
        if decoder.kind != "diffusion":
            raise ValueError(f"decoder is of kind {decoder.kind!r}; allowed: diffusion")
        if not 2 <= steps <= TRAINING_STEPS:
            raise ValueError(f"steps is {steps}; allowed: 2 to {TRAINING_STEPS}")
        if iteration < 1 or epochs < 1 or updates <= 0:
            raise ValueError(
                f"iteration, epochs, updates are {iteration}, {epochs}, {updates}; "
                "allowed: positive numbers"
            )
        device = decoder.weights["wx"].device.type
        tuned = {name: value.clone() for name, value in decoder.weights.items()}
        tuned["ht"] = tuned["ht"][:, :steps].clone()
        self.policy = DppoPolicy(decoder, trainable(tuned, device))
        observation = decoder.weights["wc"].shape[1]
        sizes = [observation, *learning.hidden, 1]
        self._critic = trainable(init_mlp(sizes, generators), device)
        self._discount, self._iteration, self._epochs = learning.discount, iteration, epochs
        self._updates = updates
        self._clip = clip_schedule(steps, *clip).to(device)
        order = torch.arange(steps - 1, -1, -1, device=device)
        self._denoising_discount = DENOISING_DISCOUNT**order
        self._scale = RewardScale(len(generators), learning.discount, device)
        self._actor_optimiser = adam(self.parameters, rate=actor_rate)
        self._critic_optimiser = adam(self._critic, rate=critic_rate)

    @property
    def parameters(self) -> Params:
        """The fine-tuned network."""
        return dict(self.policy.params)

    def learn(self, fleet: Fleet, draws: Draws, decisions: int) -> dict[str, Tensor]:
        """Play so many decisions of each simulator and learn from them; diagnostics [S].

        They are cut into equal iterations: a rollout, then its gradient steps.
        """
        count = math.ceil(decisions / self._iteration)
        found: dict[str, Tensor] = {}
        for index in range(count):
            length = decisions * (index + 1) // count - decisions * index // count
            rollout = self._collect(fleet, draws, length)
            for name, value in self._improve(rollout, draws, round(length * self._updates)).items():
                found[name] = found.get(name, 0) + value / count
        return found

    def _collect(self, fleet: Fleet, draws: Draws, decisions: int) -> Rollout:
        chains: list[Tensor] = []
        played: list[Transition] = []
        for _ in range(decisions):
            chains.append(self.policy.explore(fleet.observation, draws))
            played.append(fleet.play(chains[-1][:, :, -1].clamp(-1, 1)))

        def stacked(name: str) -> Tensor:
            return torch.stack([getattr(one, name) for one in played])

        observation, ended = stacked("observation"), stacked("ended")[..., 0]
        with torch.no_grad():
            value = self._value(observation)
            next_value = self._value(stacked("next_observation"))
        advantage = generalised_advantages(
            self._scale(stacked("reward")[..., 0], ended),
            value,
            next_value,
            stacked("terminated")[..., 0],
            ended,
            self._discount,
        )
        return Rollout(
            *(
                part.transpose(0, 1).flatten(1, 2)
                for part in (observation, torch.stack(chains), advantage, advantage + value)
            )
        )

    def _value(self, observation: Tensor) -> Tensor:
        """Values [n, S, W] of observations [n, S, W, O]."""
        stacked = observation.transpose(0, 1)
        flat = mlp(self._critic, stacked.flatten(1, 2), F.mish)
        return flat.reshape(stacked.shape[:3]).transpose(0, 1)

    def _improve(self, rollout: Rollout, draws: Draws, updates: int) -> dict[str, Tensor]:
        """So many gradient steps of actor and critic on equal parts of the epochs."""
        steps, decisions = self.policy.steps, rollout.advantage.shape[1]
        items = decisions * steps
        order = draws.uniform(self._epochs, items).argsort(dim=-1).flatten(1)
        batch = max(2, order.shape[1] // max(1, updates))
        everything = torch.arange(items, device=order.device).expand(len(order), -1)
        with torch.no_grad():
            before = self._log_prob(rollout, everything)
        kl = torch.zeros(len(order), device=order.device)
        clipped = torch.zeros_like(kl)
        for index in range(updates):
            chosen = order[:, index * batch : (index + 1) * batch]
            log_ratio = self._log_prob(rollout, chosen) - before.gather(1, chosen)
            loss = self._loss(rollout, chosen, log_ratio)
            self._actor_optimiser.zero_grad(set_to_none=True)
            self._critic_optimiser.zero_grad(set_to_none=True)
            loss.sum().backward()
            self._actor_optimiser.step()
            self._critic_optimiser.step()
            with torch.no_grad():
                excess = log_ratio.expm1()
                kl += (excess - log_ratio).mean(dim=1) / updates
                outside = excess.abs() > self._clip[chosen % steps]
                clipped += outside.float().mean(dim=1) / updates
        value = (rollout.returns - rollout.advantage).mean(dim=1)
        return {"q": value, "kl": kl, "clipped_share": clipped}

    def _log_prob(self, rollout: Rollout, chosen: Tensor) -> Tensor:
        """Log-probabilities [S, B] of chosen items: decision times K plus denoising step."""
        decision, step = chosen // self.policy.steps, chosen % self.policy.steps
        chain = rollout.chain.flatten(1, 2)
        place = decision * (self.policy.steps + 1) + step
        before, after = picked(chain, place), picked(chain, place + 1)
        return self.policy.log_prob(picked(rollout.observation, decision), step, before, after)

    def _loss(self, rollout: Rollout, chosen: Tensor, log_ratio: Tensor) -> Tensor:
        """Clipped surrogate plus the critic's squared error, a seed: [S]."""
        decision, step = chosen // self.policy.steps, chosen % self.policy.steps
        advantage = standardised(rollout.advantage.gather(1, decision))
        advantage = advantage * self._denoising_discount[step]
        policy = surrogate_loss(log_ratio, advantage, self._clip[step]).mean(dim=1)
        value = mlp(self._critic, picked(rollout.observation, decision), F.mish)[..., 0]
        error = (value - rollout.returns.gather(1, decision)).square().mean(dim=1)
        return policy + 0.5 * error
