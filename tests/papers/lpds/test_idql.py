"""The expectile, the critics' targets and the choice among candidates."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from torch import Tensor

from scripts.papers.lpds.critics import twin_values
from scripts.papers.lpds.decoder import Decoder, PriorPolicy, init_network
from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.idql import Idql, IdqlPolicy, expectile_loss
from scripts.papers.lpds.learning import Learning
from scripts.papers.lpds.replay import Batch
from scripts.papers.lpds.stacked import Params, mlp

OBSERVATION, LATENT, WIDTH = 3, 4, 16
LEARNING = Learning(rate=3e-3, hidden=(32, 32), discount=0.9, follow=0.05)


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


def fresh(*seeds: int, **options) -> Idql:
    options = {"candidates": 8, **options}
    return Idql(decoder(*seeds), LEARNING, generators(*seeds), **options)


def batch(action: Tensor, reward: Tensor, bootstrap: float = 1.0) -> Batch:
    """Transitions between states of zeros, without a noise bank."""
    state = torch.zeros(*action.shape[:2], OBSERVATION)
    going_on = torch.full_like(reward, bootstrap)
    nothing = torch.zeros(*action.shape[:2], 0, action.shape[2])
    return Batch(state, action, reward, state, going_on, nothing, nothing)


def random_batch(seed: int, seeds: int) -> Batch:
    """Each column's transitions from its own generator."""
    draws = Draws(generators(*range(seed, seed + seeds)))
    made = batch(draws.normal(32, LATENT).tanh(), draws.normal(32, 1))
    made.observation = draws.normal(32, OBSERVATION)
    made.next_observation = draws.normal(32, OBSERVATION)
    made.bootstrap = (draws.uniform(32, 1) > 0.2).float()
    return made


@given(st.integers(0, 1000), st.sampled_from([0.3, 0.5, 0.7, 0.9]))
@settings(max_examples=20, deadline=None)
def test_least_loss_is_at_the_expectile(seed, expectile):
    values = np.random.default_rng(seed).normal(size=30)

    def loss(at: float) -> float:
        found = expectile_loss(torch.tensor(values - at), expectile)
        wanted = [abs(expectile - (v < at)) * (v - at) ** 2 for v in values]
        np.testing.assert_allclose(found, wanted)
        return float(found.sum())

    least = optimize.minimize_scalar(loss, bounds=(-4, 4), method="bounded").x
    assert least == pytest.approx(stats.expectile(values, expectile), abs=1e-4)


def test_values_of_a_bandit():
    # one state, episodes of one decision, reward = first number of the chunk, uniform in [-1, 1]
    learner = fresh(1, 2)
    draws = Draws(generators(3, 4))
    for _ in range(600):
        action = 2 * draws.uniform(64, LATENT) - 1
        learner.update(batch(action, action[..., :1], bootstrap=0.0), draws)
    action = 2 * draws.uniform(2000, LATENT) - 1
    state = torch.zeros(2, 2000, OBSERVATION)
    found = twin_values(learner.critic.params, state, action)
    assert (found.detach() - action[..., :1]).abs().mean().item() < 0.1
    value = mlp(learner.value, torch.zeros(2, 1, OBSERVATION)).detach().flatten()
    wanted = stats.expectile(np.linspace(-1, 1, 2001), 0.7)
    np.testing.assert_allclose(value, wanted, atol=0.05)


def test_values_of_a_loop():
    # reward 1 a decision for ever: 1 / (1 - discount) whatever is played
    learner = fresh(1)
    draws = Draws(generators(3))
    for _ in range(800):
        action = draws.normal(32, LATENT).tanh()
        learner.update(batch(action, torch.ones(1, 32, 1)), draws)
    value = mlp(learner.value, torch.zeros(1, 1, OBSERVATION))
    assert value.item() == pytest.approx(10, abs=0.5)


def test_steps_by_the_letter():
    learner = fresh(1)
    with torch.no_grad():
        for target in learner.critic.target.values():
            target += 0.1
    data = random_batch(5, 1)

    def leaves(params: Params) -> Params:
        return {name: value.detach().clone().requires_grad_() for name, value in params.items()}

    def moved_down(trial: Params, params: Params) -> None:
        """Adam's first step is the sign of the gradient."""
        for name, value in params.items():
            gradient = trial[name].grad
            moved = (trial[name] - value).detach() / LEARNING.rate
            clear = gradient.abs() > 1e-5
            torch.testing.assert_close(moved[clear], gradient[clear].sign(), atol=2e-2, rtol=0)

    lower = twin_values(learner.critic.target, data.observation, data.action).amin(dim=0)
    value, critics = leaves(learner.value), leaves(learner.critic.params)
    difference = lower - mlp(value, data.observation)
    (torch.abs(0.7 - (difference < 0).float()) * difference**2).mean().backward()
    learner.update(data, Draws(generators(3)))
    moved_down(value, learner.value)
    following = mlp(learner.value, data.next_observation).detach()
    wanted = data.reward + LEARNING.discount * data.bootstrap * following
    for one in twin_values(critics, data.observation, data.action):
        (one - wanted).square().mean().backward(retain_graph=True)
    moved_down(critics, learner.critic.params)


def test_what_follows_a_termination_does_not_matter():
    data = random_batch(5, 1)
    data.bootstrap = torch.zeros_like(data.bootstrap)
    one, two = fresh(1), fresh(1)
    one.update(data, Draws(generators(3)))
    data.next_observation = data.next_observation + 5
    two.update(data, Draws(generators(3)))
    for name, value in one.critic.params.items():
        assert torch.equal(value, two.critic.params[name])


def test_best_candidate_by_the_letter():
    learner = fresh(1, 2, candidates=5)
    for step in range(3):
        learner.update(random_batch(step, 2), Draws(generators(3, 4)))
    observation = torch.randn(2, 3, OBSERVATION, generator=generators(9)[0])
    chunks = learner.policy.act(observation, Draws(generators(6, 7)))
    latents = learner.policy.latent(observation, Draws(generators(6, 7)))
    noise = Draws(generators(6, 7)).normal(15, LATENT).reshape(2, 3, 5, LATENT)
    winners = set()
    for row in range(3):
        proposed = learner.policy.decoder.decode(
            observation[:, row, None].expand(-1, 5, -1), noise[:, row]
        )
        values = twin_values(
            learner.critic.target, observation[:, row, None].expand(-1, 5, -1), proposed
        )
        for seed in range(2):
            scores = [min(values[:, seed, index, 0].tolist()) for index in range(5)]
            best = int(np.argmax(scores))
            winners.add(best)
            torch.testing.assert_close(chunks[seed, row], proposed[seed, best])
            assert torch.equal(latents[seed, row], noise[seed, row, best])
    assert len(winners) > 1


def test_one_candidate_is_the_frozen_policy():
    learner = fresh(1, 2, candidates=1)
    observation = torch.randn(2, 3, OBSERVATION, generator=generators(9)[0])
    prior = PriorPolicy(learner.policy.decoder).act(observation, Draws(generators(6, 7)))
    assert torch.equal(learner.policy.act(observation, Draws(generators(6, 7))), prior)


def test_stacked_seeds_are_separate_runs():
    stacked = fresh(1, 2)
    for step in range(20):
        stacked.update(random_batch(10 * step, 2), Draws(generators(3, 4)))
    for index, seed in enumerate([1, 2]):
        alone = fresh(seed)
        for step in range(20):
            alone.update(random_batch(10 * step + index, 1), Draws(generators(3)))
        for name, value in alone.parameters.items():
            torch.testing.assert_close(stacked.parameters[name][index], value[0], atol=1e-5, rtol=0)


def test_decoder_stays_and_restored_policy_is_the_same():
    learner = fresh(1, 2)
    before = learner.policy.decoder.hashes()
    start = {name: value.clone() for name, value in learner.parameters.items()}
    found = learner.update(random_batch(0, 2), Draws(generators(3, 4)))
    assert found.keys() == {"q", "v"}
    assert all(value.shape == (2,) for value in found.values())
    assert learner.policy.decoder.hashes() == before
    assert all(not torch.equal(start[name], value) for name, value in learner.parameters.items())
    observation = torch.randn(2, 64, OBSERVATION, generator=generators(9)[0])
    chunks = learner.policy.act(observation, Draws(generators(6, 7)))
    assert bool(chunks.isfinite().all()) and float(chunks.abs().max()) <= 1
    columns = [{name: value[i] for name, value in learner.parameters.items()} for i in range(2)]
    saved = {name: torch.stack([one[name] for one in columns]) for name in columns[0]}
    restored = IdqlPolicy(learner.policy.decoder, saved, 8)
    assert torch.equal(restored.act(observation, Draws(generators(6, 7))), chunks)


def test_learns_a_point_mass():
    policy, target = decoder(1, 2, latent=2), 0.4
    learner = Idql(policy, LEARNING, generators(1, 2), candidates=16)
    prior, draws = PriorPolicy(policy), Draws(generators(3, 4))
    state = torch.zeros(2, 512, OBSERVATION)

    def loss(chunks: Tensor) -> Tensor:
        return (chunks - target).square().mean(dim=(1, 2))

    before = loss(prior.act(state, draws))
    for _ in range(300):
        action = prior.act(state[:, :64], draws)
        reward = -(action - target).square().mean(dim=-1, keepdim=True)
        learner.update(batch(action, reward, bootstrap=0.0), draws)
    assert bool((loss(learner.policy.act(state, draws)) < 0.3 * before).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": 0}, "candidates is 0; allowed: at least 1"),
        ({"expectile": 1.0}, "expectile is 1.0; allowed: between 0 and 1"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        fresh(1, **options)
