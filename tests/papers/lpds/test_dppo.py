"""The denoising steps' formulas, the rollouts' arithmetic, and what the learner may change."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, distributions

from scripts.papers.lpds.decoder import (
    TRAINING_STEPS,
    Decoder,
    condition,
    cosine_schedule,
    init_network,
    network,
)
from scripts.papers.lpds.dppo import (
    Dppo,
    DppoPolicy,
    RewardScale,
    Rollout,
    clip_schedule,
    denoising_mean,
    generalised_advantages,
    posterior_coefficients,
    standardised,
    step_log_prob,
    surrogate_loss,
)
from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.interaction import Transition
from scripts.papers.lpds.learning import Learning
from scripts.papers.lpds.stacked import mlp

OBSERVATION, LATENT, WIDTH, STEPS = 3, 4, 16, 10
LEARNING = Learning(rate=3e-4, hidden=(16, 16), discount=0.99, follow=0.005)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These networks are so small that threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def decoder(*seeds: int, latent: int = LATENT) -> Decoder:
    params = init_network(OBSERVATION, latent, WIDTH, generators(*seeds))
    return Decoder.freeze("diffusion", params, 5)


class PointMass:
    """Reward -|a - target|^2; the observation says nothing; an episode ends every third decision,
    by its time limit and by termination in turn."""

    def __init__(self, seeds: int, width: int, target: float = 0.4) -> None:
        self.observation = torch.ones(seeds, width, OBSERVATION)
        self.target, self.played = target, 0
        self.rewards: list[float] = []

    def play(self, chunks: Tensor) -> Transition:
        assert bool((chunks.abs() <= 1).all())
        self.played += 1
        reward = -(chunks - self.target).square().mean(dim=-1, keepdim=True)
        self.rewards.append(float(reward.mean()))
        ended = torch.full_like(reward, self.played % 3 == 0, dtype=torch.bool)
        terminated = ended & (self.played % 2 == 0)
        here = self.observation
        return Transition(here, chunks, reward, here, terminated, ended)


def test_posterior_is_bayes_rule():
    abar = cosine_schedule()
    table = posterior_coefficients(abar)
    clean, noisy = 0.3, -0.7
    for t in range(1, TRAINING_STEPS):
        alpha = abar[t] / abar[t - 1]
        # x_{t-1} ~ N(sqrt(abar_{t-1}) x0, 1 - abar_{t-1}), x_t ~ N(sqrt(alpha) x_{t-1}, 1 - alpha)
        precision = 1 / (1 - abar[t - 1]) + alpha / (1 - alpha)
        mean = abar[t - 1].sqrt() * clean / (1 - abar[t - 1]) + alpha.sqrt() * noisy / (1 - alpha)
        assert table[t, 2] * clean + table[t, 3] * noisy == pytest.approx(float(mean / precision))
        assert table[t, 4] == pytest.approx(float(precision**-0.5))
    assert table[0].tolist() == pytest.approx(
        [float((1 - abar[0]).sqrt()), float(abar[0].sqrt()), 1.0, 0.0, 0.0]
    )


def test_mean_agrees_with_diffusers():
    diffusers = pytest.importorskip("diffusers")
    abar = cosine_schedule()
    betas = 1 - abar / torch.cat([abar.new_ones(1), abar[:-1]])
    scheduler = diffusers.DDPMScheduler(
        TRAINING_STEPS, trained_betas=betas.numpy(), variance_type="fixed_small", clip_sample=True
    )
    table = posterior_coefficients(abar).float()
    x, noise = torch.randn(2, 7, LATENT, generator=generators(1)[0])
    for t in range(TRAINING_STEPS):
        wanted = scheduler.step(noise, t, x, generator=generators(2)[0]).prev_sample
        added = torch.randn(7, LATENT, generator=generators(2)[0]) * table[t, 4]
        torch.testing.assert_close(
            denoising_mean(x, noise, table[t]) + added, wanted, rtol=1e-4, atol=1e-5
        )


def test_exact_noise_of_a_point_mass_ends_at_the_point():
    table = posterior_coefficients(cosine_schedule())
    point = torch.tensor([0.2, -0.9, 1.0], dtype=torch.float64)
    x = torch.randn(3, generator=generators(1)[0], dtype=torch.float64)
    for t in reversed(range(TRAINING_STEPS)):
        exact = (x - table[t, 1] * point) / table[t, 0]
        x = denoising_mean(x, exact, table[t]) + 0.1 * (t > 0)
    torch.testing.assert_close(x, point)


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_log_probability_is_that_of_a_gaussian(seed):
    after, mean = torch.randn(2, 2, 5, LATENT, generator=generators(seed)[0])
    std = torch.rand(2, 5, generator=generators(seed)[0])
    found = step_log_prob(after, mean, std)
    for place in np.ndindex(2, 5):
        normal = distributions.Normal(mean[place], max(float(std[place]), 0.1))
        wanted = [min(2.0, max(-5.0, float(v))) for v in normal.log_prob(after[place])]
        assert float(found[place]) == pytest.approx(sum(wanted) / LATENT, abs=1e-5)


def test_clamped_densities_give_no_gradient():
    mean = torch.tensor([[0.0, 0.0, 3.0]], requires_grad=True)
    step_log_prob(torch.tensor([[0.05, 0.0, 0.0]]), mean, torch.tensor([0.2])).sum().backward()
    # 0.05 is a quarter of a deviation away: (x - m) / std^2 / 3; at 3 the density is below -5
    assert mean.grad.tolist() == [[pytest.approx(0.05 / 0.04 / 3), 0.0, 0.0]]


def test_clip_grows_exponentially():
    found = clip_schedule(STEPS, 0.001, 0.01)
    for k in range(STEPS):
        share = (math.exp(3 * k / 9) - 1) / (math.exp(3) - 1)
        assert float(found[k]) == pytest.approx(0.001 + 0.009 * share)
    assert clip_schedule(STEPS, 0.01, 0.01).tolist() == pytest.approx([0.01] * STEPS)
    with pytest.raises(ValueError, match="steps is 1; allowed: at least 2"):
        clip_schedule(1, 0.01, 0.01)


def test_surrogate_by_cases():
    ratios = [0.5, 0.95, 1.0, 1.05, 1.5]
    log_ratio = torch.tensor([[math.log(r) for r in ratios]] * 2, requires_grad=True)
    advantage = torch.tensor([[2.0], [-2.0]])
    loss = surrogate_loss(log_ratio, advantage, torch.tensor(0.1))
    for row, gain in enumerate([2.0, -2.0]):
        for column, ratio in enumerate(ratios):
            wanted = -min(gain * ratio, gain * min(max(ratio, 0.9), 1.1))
            assert loss[row, column].item() == pytest.approx(wanted)
    loss.sum().backward()
    # no gradient only where the ratio has already gone too far in the advantage's direction
    assert (log_ratio.grad != 0).tolist() == [
        [True, True, True, True, False],
        [False, True, True, True, True],
    ]


@given(st.integers(0, 1000), st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_advantages_are_direct_sums(seed, length):
    rng = np.random.default_rng(seed)
    shape = (length, 2, 3)
    reward, value, following = (torch.tensor(rng.normal(size=shape)) for _ in range(3))
    ended = torch.tensor(rng.random(shape) < 0.3)
    terminated = ended & torch.tensor(rng.random(shape) < 0.5)
    found = generalised_advantages(reward, value, following, terminated, ended, 0.9, 0.8)
    for seed_index, slot in np.ndindex(2, 3):
        for start in range(length):
            total = 0.0
            for t in range(start, length):
                place = t, seed_index, slot
                bootstrap = 0.0 if terminated[place] else 0.9 * float(following[place])
                error = float(reward[place]) + bootstrap - float(value[place])
                total += (0.9 * 0.8) ** (t - start) * error
                if ended[place]:
                    break
            assert float(found[start, seed_index, slot]) == pytest.approx(total)


def test_advantages_of_memory_one_are_returns_minus_value():
    reward = torch.ones(4, 1)
    value = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    no, yes = torch.zeros(4, 1, dtype=torch.bool), torch.zeros(4, 1, dtype=torch.bool)
    yes[3] = True
    found = generalised_advantages(reward, value, value.roll(-1, 0), yes, yes, 0.5, 1.0)
    wanted = [1.875 - 1, 1.75 - 2, 1.5 - 3, 1 - 4]
    assert found[:, 0].tolist() == pytest.approx(wanted)
    cut = generalised_advantages(reward, value, torch.full((4, 1), 8.0), no, yes, 0.5, 1.0)
    assert float(cut[3]) == pytest.approx(1 + 0.5 * 8 - 4)


def test_rewards_are_divided_by_the_deviation_of_discounted_sums():
    rng = np.random.default_rng(0)
    reward = rng.normal(2.0, [[[1.0], [5.0]]], size=(400, 2, 1)).repeat(3, axis=2)
    reward += rng.normal(size=reward.shape)
    ended = rng.random(reward.shape) < 0.05
    sums = np.zeros_like(reward)
    for seed_index, slot in np.ndindex(2, 3):
        running = 0.0
        for t in range(400):
            running = reward[t, seed_index, slot] + 0.9 * running
            sums[t, seed_index, slot] = running
            running *= not ended[t, seed_index, slot]
    scale = RewardScale(2, 0.9, "cpu")
    for part in (slice(0, 150), slice(150, 400)):
        found = scale(torch.tensor(reward[part]).float(), torch.tensor(ended[part]))
        for seed_index in range(2):
            deviation = sums[: part.stop, seed_index].std()
            np.testing.assert_allclose(
                found[:, seed_index],
                (reward[part, seed_index] / deviation).clip(-10, 10),
                rtol=5e-3,
            )


def test_first_deviation_is_that_of_a_sample():
    reward = torch.tensor([1.0, 4.0, 2.0])[:, None, None]
    sums = [1.0, 4.5, 4.25]
    found = RewardScale(1, 0.5, "cpu")(reward, torch.zeros(3, 1, 1, dtype=torch.bool))
    wanted = reward.flatten() / np.std(sums, ddof=1)
    torch.testing.assert_close(found.flatten(), wanted.float(), rtol=1e-3, atol=0)


def test_standardised_a_seed():
    values = torch.randn(3, 40, generator=generators(0)[0]) * torch.tensor([[1.0], [5.0], [0.1]])
    found = standardised(values)
    torch.testing.assert_close(found.mean(dim=1), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.std(dim=1), torch.ones(3), atol=1e-5, rtol=0)


def changed(policy: DppoPolicy) -> DppoPolicy:
    params = {name: value.detach() + 0.05 for name, value in policy.params.items()}
    return DppoPolicy(policy.decoder, params)


def fresh(*seeds: int, **options) -> Dppo:
    options = {"iteration": 8, **options}
    return Dppo(decoder(*seeds), LEARNING, generators(*seeds), **options)


class Loud(Draws):
    """Noise that is often larger than 3."""

    def normal(self, *shape: int) -> Tensor:
        return 2 * super().normal(*shape)


@pytest.mark.parametrize("exploring", [True, False])
def test_chain_by_the_letter(exploring):
    policy = changed(fresh(1, 2).policy)
    observation = torch.randn(2, 3, OBSERVATION, generator=generators(7)[0])
    noise = Loud(generators(3, 4)).normal(TRAINING_STEPS + 1, 3, LATENT)
    abar, floor = cosine_schedule(), 0.1 if exploring else 1e-3
    x = noise[:, -1]
    states, densities = [], []
    for t in reversed(range(TRAINING_STEPS)):
        if t == STEPS - 1:
            states.append(x)
        weights = policy.params if t < STEPS else policy.decoder.weights
        first = condition(weights, observation) + weights["ht"][:, t, None]
        clean = (x - (1 - abar[t]).sqrt() * network(weights, x, first)) / abar[t].sqrt()
        before = abar[t - 1] if t else torch.tensor(1.0)
        beta = 1 - abar[t] / before
        mean = beta * before.sqrt() / (1 - abar[t]) * clean.clamp(-1, 1)
        mean = mean + (1 - before) * (1 - beta).sqrt() / (1 - abar[t]) * x
        std = max(float((beta * (1 - before) / (1 - abar[t])).sqrt()), floor)
        std = std if t > 0 or exploring else 0.0
        x = (mean + std * noise[:, t].clamp(-3, 3)).float()
        if t < STEPS:
            states.append(x)
            normal = distributions.Normal(mean.float(), max(std, 0.1))
            densities.append(normal.log_prob(x).clamp(-5, 2).mean(dim=-1))
    if not exploring:
        found = policy.act(observation, Loud(generators(3, 4)))
        torch.testing.assert_close(found, x.clamp(-1, 1), atol=1e-4, rtol=1e-4)
        return
    chain = policy.explore(observation, Loud(generators(3, 4)))
    torch.testing.assert_close(chain, torch.stack(states, dim=2), atol=1e-4, rtol=1e-4)
    for step, wanted in enumerate(densities):
        index = torch.full((2, 3), step)
        log_prob = policy.log_prob(observation, index, chain[:, :, step], chain[:, :, step + 1])
        torch.testing.assert_close(log_prob, wanted, atol=1e-3, rtol=1e-3)


def test_loss_by_the_letter():
    learner = fresh(1, 2, clip=(0.001, 0.1))
    draws = Draws(generators(3, 4))
    advantage, returns = 3 * draws.normal(5) + 1, draws.normal(5)
    chain = torch.zeros(2, 5, STEPS + 1, LATENT)
    rollout = Rollout(draws.normal(5, OBSERVATION), chain, advantage, returns)
    chosen = torch.tensor([[0, 9, 23, 37, 48, 49], [5, 15, 25, 30, 31, 32]])
    log_ratio = 0.1 * draws.normal(6)
    value = mlp(learner._critic, rollout.observation, F.mish)[..., 0]
    clips = clip_schedule(STEPS, 0.001, 0.1)
    for seed, found in enumerate(learner._loss(rollout, chosen, log_ratio).tolist()):
        gains = [advantage[seed, item // STEPS].item() for item in chosen[seed].tolist()]
        total = 0.0
        for item, gain, log in zip(chosen[seed].tolist(), gains, log_ratio[seed], strict=True):
            decision, step = item // STEPS, item % STEPS
            gain = 0.99 ** (STEPS - 1 - step) * (gain - np.mean(gains)) / np.std(gains, ddof=1)
            ratio, clip = math.exp(log), float(clips[step])
            total -= min(gain * ratio, gain * min(max(ratio, 1 - clip), 1 + clip))
            total += 0.5 * (value[seed, decision] - returns[seed, decision]).item() ** 2
        assert found == pytest.approx(total / 6, rel=1e-4)


def test_first_steps_stay_with_the_frozen_network():
    policy = fresh(1).policy
    observation = torch.zeros(1, 4, OBSERVATION)
    base = policy.explore(observation, Draws(generators(3)))
    tuned = changed(policy).explore(observation, Draws(generators(3)))
    assert torch.equal(base[:, :, 0], tuned[:, :, 0])
    assert not torch.equal(base[:, :, 1], tuned[:, :, 1])


def test_gradients_reach_the_tuned_network_alone_and_its_own_seed():
    learner = fresh(1, 2)
    chain = learner.policy.explore(torch.zeros(2, 3, OBSERVATION), Draws(generators(3, 4)))
    step = torch.zeros(2, 3, dtype=torch.int64)
    log_prob = learner.policy.log_prob(
        torch.zeros(2, 3, OBSERVATION), step, chain[:, :, 0], chain[:, :, 1]
    )
    log_prob[0].sum().backward()
    assert float(learner.parameters["wh"].grad[0].abs().sum()) > 0
    for value in learner.parameters.values():
        assert float(value.grad[1].abs().sum()) == 0
    # of the time table only the row of step 9, the first of the fine-tuned ones
    used = learner.parameters["ht"].grad[0].abs().sum(dim=-1)
    assert (used > 0).tolist() == [False] * (STEPS - 1) + [True]
    assert all(value.grad is None for value in learner.policy.decoder.weights.values())


def test_learning_changes_neither_decoder_nor_budget_of_steps():
    learner = fresh(1, 2)
    before = learner.policy.decoder.hashes()
    start = {name: value.detach().clone() for name, value in learner.parameters.items()}
    fleet = PointMass(2, 1)
    found = learner.learn(fleet, Draws(generators(3, 4)), 19)
    assert fleet.played == 19
    assert learner.policy.decoder.hashes() == before
    assert all(not torch.equal(start[name], value) for name, value in learner.parameters.items())
    states = learner._actor_optimiser.state.values()
    assert {int(state["step"]) for state in states} == {19}
    assert found.keys() == {"q", "kl", "clipped_share"}
    assert all(value.shape == (2,) and bool(value.isfinite().all()) for value in found.values())
    half = fresh(1, updates=0.5)
    half.learn(PointMass(1, 2), Draws(generators(3)), 8)
    assert {int(state["step"]) for state in half._actor_optimiser.state.values()} == {4}


def test_stacked_seeds_are_separate_runs():
    stacked = fresh(1, 2)
    stacked.learn(PointMass(2, 2), Draws(generators(3, 4)), 20)
    for index, (seed, draw) in enumerate([(1, 3), (2, 4)]):
        alone = fresh(seed)
        alone.learn(PointMass(1, 2), Draws(generators(draw)), 20)
        for name, value in alone.parameters.items():
            torch.testing.assert_close(stacked.parameters[name][index], value[0], atol=1e-5, rtol=0)


def test_actions_are_within_bounds_and_restored_ones_the_same():
    learner = fresh(1, 2)
    learner.learn(PointMass(2, 1), Draws(generators(3, 4)), 10)
    observation = torch.randn(2, 64, OBSERVATION, generator=generators(5)[0])
    chunks = learner.policy.act(observation, Draws(generators(6, 7)))
    assert bool(chunks.isfinite().all()) and float(chunks.abs().max()) <= 1
    saved = {name: value.detach().clone() for name, value in learner.parameters.items()}
    restored = DppoPolicy(learner.policy.decoder, saved)
    assert torch.equal(restored.act(observation, Draws(generators(6, 7))), chunks)


def test_learns_a_point_mass():
    policy = decoder(1, 2, latent=2)
    learner = Dppo(
        policy,
        LEARNING,
        generators(1, 2),
        iteration=10,
        clip=(0.1, 0.1),
        actor_rate=2e-3,
        updates=2,
    )
    observation, fleet = torch.ones(2, 512, OBSERVATION), PointMass(2, 64)

    def loss() -> Tensor:
        chunks = learner.policy.act(observation, Draws(generators(8, 9)))
        return (chunks - fleet.target).square().mean(dim=(1, 2))

    before = loss()
    learner.learn(fleet, Draws(generators(3, 4)), 150)
    assert bool((loss() < 0.2 * before).all())
    assert np.mean(fleet.rewards[-10:]) > 0.2 * np.mean(fleet.rewards[:10])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 1}, "steps is 1; allowed: 2 to 20"),
        ({"steps": 21}, "steps is 21; allowed: 2 to 20"),
        ({"iteration": 0}, "iteration, epochs, updates are 0, 5, 1.0; allowed: positive"),
        ({"updates": 0.0}, "iteration, epochs, updates are 8, 5, 0.0; allowed: positive"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        fresh(1, **options)


def test_a_flow_is_refused():
    params = init_network(OBSERVATION, LATENT, WIDTH, generators(1))
    with pytest.raises(ValueError, match="kind 'flow'; allowed: diffusion"):
        Dppo(Decoder.freeze("flow", params, 5), LEARNING, generators(1), iteration=8)
