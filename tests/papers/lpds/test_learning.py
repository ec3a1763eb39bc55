"""The offset's trust region, the critics, the noise actor and the noise bank."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions

from scripts.papers.lpds.decoder import Decoder, PriorPolicy, init_network
from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.dsrl import NoiseActorCritic, squashed_gaussian
from scripts.papers.lpds.interaction import Transition
from scripts.papers.lpds.lagrangian import (
    Budget,
    LagrangianSteering,
    LatentOffsetPolicy,
    Offset,
    ascend_multiplier,
)
from scripts.papers.lpds.learning import Learning
from scripts.papers.lpds.replay import Batch, Replay
from scripts.papers.lpds.stacked import init_mlp, mlp
from scripts.papers.lpds.steering import transitions

OBSERVATION, LATENT, WIDTH = 5, 6, 16
LEARNING = Learning(rate=3e-4, hidden=(16, 16), discount=0.99, follow=0.005)


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def decoder(*seeds: int, kind: str = "diffusion") -> Decoder:
    params = init_network(OBSERVATION, LATENT, WIDTH, generators(*seeds))
    return Decoder.freeze(kind, params, 5)


def batch_of(frozen: Decoder, draws: Draws, count: int = 12) -> Batch:
    played = Transition(
        draws.normal(count, OBSERVATION),
        draws.normal(count, LATENT).clamp(-1, 1),
        draws.normal(count, 1),
        draws.normal(count, OBSERVATION),
        draws.uniform(count, 1) < 0.2,
        draws.uniform(count, 1) < 0.3,
    )
    return transitions(frozen, played, draws, bank=3)


@pytest.mark.parametrize("kind", ["diffusion", "flow"])
def test_zero_offset_is_the_frozen_policy_bit_for_bit(kind: str) -> None:
    frozen = decoder(0, 1, kind=kind)
    params = init_mlp([OBSERVATION, 8, LATENT], generators(2, 3), zero_last=True)
    observation = torch.randn(2, 7, OBSERVATION)
    steered = LatentOffsetPolicy(frozen, Offset(params, 1.5))
    both = (steered, PriorPolicy(frozen))
    actions = [policy.act(observation, Draws(generators(4, 5))) for policy in both]
    assert torch.equal(*actions)
    assert actions[0].abs().max() <= 1


def test_training_leaves_the_decoder_as_it_was() -> None:
    frozen = decoder(0, 1)
    before = frozen.hashes()
    draws = Draws(generators(2, 3))
    learner = LagrangianSteering(frozen, Budget(torch.ones(2)), LEARNING, generators(4, 5))
    for _ in range(3):
        learner.update(batch_of(frozen, draws), draws)
    assert frozen.hashes() == before
    changed = {**frozen.weights, "bo": frozen.weights["bo"] + 1e-6}
    assert Decoder(frozen.kind, changed, frozen.steps).hashes() != before


def test_divergence_of_a_shifted_prior() -> None:
    """KL(N(Delta, I) || N(0, I)) = ||Delta||^2 / 2, by Monte Carlo."""
    offset = torch.tensor([0.3, -0.7, 0.2], dtype=torch.float64)
    sample = offset + torch.randn(200_000, 3, generator=generators(0)[0], dtype=torch.float64)
    shifted = distributions.Normal(offset, 1.0).log_prob(sample).sum(-1)
    ratio = shifted - distributions.Normal(0.0, 1.0).log_prob(sample).sum(-1)
    error = ratio.std() / math.sqrt(len(ratio))
    assert abs(ratio.mean() - offset.square().sum() / 2) < 3 * error


@pytest.mark.parametrize(
    ("gradient", "curvature", "delta"), [(3.0, 0.5, 0.35), (1.0, 0.0, 0.1), (0.2, 1.0, 0.35)]
)
def test_dual_ascent_finds_the_constrained_optimum(
    gradient: float, curvature: float, delta: float
) -> None:
    """On Q(w) = g w - c w^2 / 2: ||Delta||^2 = delta and alpha = (g / sqrt(delta) - c) / 2 where
    the budget binds; else alpha = 0 and Delta = g / c."""
    budget = Budget(torch.tensor([delta]), "sum", rate=0.02)
    offset = torch.zeros(1, 1, 1, requires_grad=True)
    alpha = torch.tensor([budget.multiplier])
    optimiser = torch.optim.SGD([offset], lr=0.02)
    for _ in range(8000):
        used = budget.used(offset)
        gain = gradient * offset.sum() - curvature / 2 * offset.square().sum() - alpha * used
        optimiser.zero_grad()
        (-gain).sum().backward()
        optimiser.step()
        alpha = ascend_multiplier(alpha, used.detach(), budget)
    free = gradient / curvature if curvature else math.inf
    if free**2 > delta:
        assert offset.item() ** 2 == pytest.approx(delta, rel=1e-3)
        assert alpha.item() == pytest.approx(
            (gradient / math.sqrt(delta) - curvature) / 2, rel=1e-3
        )
    else:
        assert offset.item() == pytest.approx(free, rel=1e-3)
        assert alpha.item() == 0


@given(st.floats(0, 5), st.floats(0, 3), st.floats(0.01, 1))
@settings(deadline=None, max_examples=30)
def test_multiplier_is_projected(alpha: float, used: float, delta: float) -> None:
    budget = Budget(torch.tensor([delta]), rate=0.5)
    after = ascend_multiplier(torch.tensor([alpha]), torch.tensor([used]), budget).item()
    assert after == pytest.approx(max(0.0, alpha + 0.5 * (used - delta)), abs=1e-5)


def test_both_readings_of_the_budget() -> None:
    offset = torch.randn(2, 9, LATENT)
    mean, total = (Budget(torch.ones(2), name).used(offset) for name in ("mean", "sum"))
    assert torch.allclose(total, LATENT * mean)
    assert torch.allclose(total, offset.square().sum(-1).mean(-1))


def test_bad_budgets_are_named() -> None:
    with pytest.raises(ValueError, match=r"delta is \[-1.0\]"):
        Budget(torch.tensor([-1.0]))
    with pytest.raises(ValueError, match="reduction is 'max'; allowed: mean, sum"):
        Budget(torch.ones(1), "max")


def test_squashed_gaussian_against_torch_distributions() -> None:
    mean, log_std, noise = torch.randn(3, 4, 5, 6, dtype=torch.float64)
    squashed, log_prob = squashed_gaussian(mean, log_std, noise)
    other = distributions.TransformedDistribution(
        distributions.Normal(mean, log_std.exp()), distributions.TanhTransform(cache_size=1)
    )
    raw = mean + log_std.exp() * noise
    wanted = distributions.Normal(mean, log_std.exp()).log_prob(raw)
    wanted = wanted - distributions.TanhTransform().log_abs_det_jacobian(raw, torch.tanh(raw))
    assert torch.allclose(log_prob[..., 0], wanted.sum(-1))
    inside = squashed.abs() < 0.99
    assert torch.allclose(other.log_prob(squashed)[inside], wanted[inside], atol=1e-6)


LEARNERS = {
    "lagrangian": lambda frozen, seeds: LagrangianSteering(
        frozen, Budget(torch.full((len(seeds),), 0.35)), LEARNING, generators(*seeds)
    ),
    "action": lambda frozen, seeds: LagrangianSteering(
        frozen, Budget(torch.full((len(seeds),), 0.35), bound=0.2), LEARNING,
        generators(*seeds), "action",
    ),
    "noise_actor": lambda frozen, seeds: NoiseActorCritic(
        frozen, 1.5, LEARNING, generators(*seeds)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEARNERS)
def test_stacked_seeds_learn_as_separate_ones(name: str) -> None:
    def learnt(*seeds: int) -> dict[str, torch.Tensor]:
        frozen = decoder(*seeds)
        learner = LEARNERS[name](frozen, [10 + seed for seed in seeds])
        draws = Draws(generators(*(20 + seed for seed in seeds)))
        for _ in range(20):
            learner.update(batch_of(frozen, draws), draws)
        return learner.parameters

    together = learnt(0, 1, 2)
    for column in range(3):
        apart = learnt(column)
        for key, value in together.items():
            assert torch.allclose(value[column], apart[key][0], atol=1e-5), key


def test_critics_learn_a_known_value() -> None:
    """One decision, reward a . a0: Q^A is the reward, and Q^W the reward of the decoded noise."""
    frozen = decoder(0)
    draws = Draws(generators(1))
    learning = Learning(rate=3e-3, hidden=(32, 32), discount=0.9, follow=0.05)
    learner = LagrangianSteering(frozen, Budget(torch.tensor([0.35])), learning, generators(2))
    replay = Replay(1, 400, OBSERVATION, LATENT, 3)
    played = batch_of(frozen, draws, 400)
    played.action = PriorPolicy(frozen).act(played.observation, draws)
    played.reward = played.action[..., :1].clone()
    played.bootstrap = torch.zeros_like(played.bootstrap)
    replay.add(played)
    for _ in range(600):
        learner.update(replay.sample(draws, 64), draws)
    noise = draws.normal(200, LATENT)
    observation = replay.held("observation")[:, :200]
    chunk = frozen.decode(observation, noise)
    reward = chunk[..., :1]
    for value in (
        learner.critic.value(observation, chunk), learner.latent_critic.value(observation, noise)
    ):  # fmt: skip
        error = (value - reward).detach().std() / reward.std()
        assert error < 0.5
    steered = learner.policy.act(observation, draws)
    assert steered[..., 0].mean() > reward.mean()


def test_termination_stops_the_bootstrap() -> None:
    frozen, draws = decoder(0), Draws(generators(1))
    batch = batch_of(frozen, draws, 40)
    learner = LagrangianSteering(frozen, Budget(torch.ones(1)), LEARNING, generators(2))
    batch.bootstrap = torch.zeros_like(batch.bootstrap)
    first = learner.critic.update(batch, torch.full_like(batch.reward, 1e6), 0.99)
    weights = {name: value.detach().clone() for name, value in learner.critic.params.items()}
    again = LagrangianSteering(frozen, Budget(torch.ones(1)), LEARNING, generators(2))
    second = again.critic.update(batch, torch.full_like(batch.reward, -5.0), 0.99)
    assert torch.equal(first, second)
    assert all(torch.equal(again.critic.params[name], value) for name, value in weights.items())


def test_noise_bank_holds_what_the_decoder_gives() -> None:
    frozen, draws = decoder(0, 1), Draws(generators(2, 3))
    replay = Replay(2, 20, OBSERVATION, LATENT, 3)
    replay.add(batch_of(frozen, draws, 12))
    stored = replay.held("bank_noise").flatten(1, 2)
    drawn = set()
    for _ in range(40):
        sample = replay.sample(draws, 9)
        fresh = frozen.decode(sample.observation, sample.bank_noise[:, :, 0])
        assert sample.bank_noise.shape == (2, 9, 1, LATENT)
        assert torch.allclose(fresh, sample.bank_action[:, :, 0], atol=1e-5)
        same = (sample.bank_noise == stored[:, None]).all(-1)
        assert same.any(-1).all()
        drawn |= set(same[0].nonzero()[:, 1].tolist())
    assert len(drawn) == stored.shape[1]  # every pair is drawn
    with pytest.raises(ValueError, match="24 transitions do not fit the replay's capacity 20"):
        replay.add(batch_of(frozen, draws, 12))


def test_a_decoder_that_does_not_fit_is_named() -> None:
    frozen = decoder(0)
    with pytest.raises(
        ValueError, match="observation has 4 numbers; this decoder was trained on 5"
    ):
        frozen.decode(torch.zeros(1, 2, 4), torch.zeros(1, 2, LATENT))
    with pytest.raises(ValueError, match="noise has 7 numbers; allowed: 6"):
        frozen.decode(torch.zeros(1, 2, OBSERVATION), torch.zeros(1, 2, 7))
    with pytest.raises(ValueError, match="kind is 'gan'; allowed: diffusion, flow"):
        decoder(0, kind="gan")


def test_perceptron_against_torch_modules() -> None:
    params = init_mlp([4, 8, 8, 2], generators(0, 1), layer_norm=True)
    x = torch.randn(2, 5, 4)
    for seed in range(2):
        layers: list[torch.nn.Module] = []
        for index, (inputs, outputs) in enumerate([(4, 8), (8, 8), (8, 2)]):
            linear = torch.nn.Linear(inputs, outputs)
            linear.weight.data = params[f"w{index}"][seed].T
            linear.bias.data = params[f"b{index}"][seed, 0]
            layers += [linear, torch.nn.LayerNorm(outputs), torch.nn.ReLU()]
        wanted = torch.nn.Sequential(*layers[:-2])(x[seed])
        assert np.allclose(mlp(params, x)[seed].detach(), wanted.detach(), atol=1e-5)
