"""Fleets, cloning and the steering loop, in the real HalfCheetah."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from scripts.papers.lpds.cloning import Cloning, clone, windows
from scripts.papers.lpds.decoder import Decoder, PriorPolicy, init_network
from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.interaction import RESTING, Fleet, Norm, evaluate
from scripts.papers.lpds.lagrangian import Budget, LagrangianSteering
from scripts.papers.lpds.learning import Learning
from scripts.papers.lpds.steering import (
    Examiner,
    Schedule,
    steer_off_policy,
    transitions,
    warm_up,
)
from scripts.papers.lpds.tasks import Simulator, SimulatorFault, Step, make

CHUNK, HORIZON = 4, 10
LEARNING = Learning(rate=1e-3, hidden=(16, 16), discount=0.99, follow=0.005)
PLAN = Schedule(warm_up=6, decisions=6, batch=8, bank=2, evaluations=4, episodes=2)


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def norm() -> Norm:
    return Norm(
        {
            "observation_low": torch.full((17,), -10.0),
            "observation_high": torch.full((17,), 10.0),
            "action_low": torch.full((6,), -1.0),
            "action_high": torch.full((6,), 1.0),
            "reward_scale": torch.tensor([0.5]),
        }
    )


def fleet(seeds: list[int], first: int = 20_000, width: int = 1, horizon: int = HORIZON) -> Fleet:
    return Fleet("halfcheetah", horizon, norm(), seeds, first, width)


def decoder(*seeds: int) -> Decoder:
    return Decoder.freeze("diffusion", init_network(17, CHUNK * 6, 16, generators(*seeds)), 5)


def steered(seeds: list[int]) -> tuple[np.ndarray, dict[str, torch.Tensor], Fleet]:
    """Scores [E, S, episodes] and what was learnt."""
    frozen = decoder(*seeds)
    learner = LagrangianSteering(
        frozen, Budget(torch.full((len(seeds),), 0.35)), LEARNING, generators(*seeds)
    )
    draws = Draws(generators(*(100 + seed for seed in seeds)))
    replay = warm_up(PriorPolicy(frozen), frozen, fleet(seeds, 10_500), PLAN, draws)
    player = fleet(seeds, 10_000)
    examiner = Examiner(
        fleet(seeds),
        PLAN.episodes,
        lambda index: Draws(generators(*(1000 * (index + 1) + seed for seed in seeds))),
        replay.held("observation").clone(),
        lambda decisions: decisions * CHUNK,
    )
    steer_off_policy(learner, frozen, replay, player, PLAN, draws, examiner.examine, examiner.note)
    return np.stack(examiner.course.scores), learner.parameters, player


def test_the_same_run_gives_the_same_returns_bit_for_bit() -> None:
    first, again = steered([0, 1]), steered([0, 1])
    assert first[0].shape == (4, 2, 2)
    assert first[0].tobytes() == again[0].tobytes()
    assert all(torch.equal(value, again[1][name]) for name, value in first[1].items())
    assert np.ptp(first[0]) > 0


def test_seeds_together_are_seeds_apart() -> None:
    together, apart = steered([0, 3])[0], steered([3])[0]
    assert np.allclose(together[:, 1], apart[:, 0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("decisions", "noted"), [(6, [6]), (20, [20]), (45, [20, 40, 45])], ids=str
)
def test_every_update_is_noted_once(
    decisions: int, noted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run shorter than the interval between notes has one too, and none loses its last part."""
    monkeypatch.setattr("scripts.papers.lpds.steering.transitions", lambda *_: None)
    count = iter(range(decisions))

    class Numbered:
        policy = PriorPolicy(decoder(0))

        def update(self, *_: object) -> dict[str, torch.Tensor]:
            return {"update": torch.tensor([float(next(count))])}

    class Rested:
        observation = torch.zeros(1, 1, 17)

        def add(self, *_: object) -> None: ...
        def play(self, *_: object) -> None: ...
        def sample(self, *_: object) -> None: ...

    plan = Schedule(
        warm_up=0, decisions=decisions, batch=1, bank=1, evaluations=decisions + 1, episodes=1
    )
    notes: list[tuple[int, float]] = []
    steer_off_policy(
        Numbered(),
        Numbered.policy.decoder,
        Rested(),
        Rested(),
        plan,
        Draws(generators(0)),
        lambda *_: None,
        lambda decision, found: notes.append((decision, float(found["update"]))),
    )
    assert [decision for decision, _ in notes] == noted
    lengths = np.diff([0, *noted])
    total = sum(mean * length for (_, mean), length in zip(notes, lengths, strict=True))
    assert total == sum(range(decisions))


def broken_at(seed: int, step: int) -> Callable[[Simulator, np.ndarray], Step]:
    """A simulator's step that breaks in the episodes of a seed."""
    sound = Simulator.step

    def play(self: Simulator, action: np.ndarray) -> Step:
        if self._seed // 1000 % 10 == seed and self._steps == step and self._seed < 20_000:
            raise SimulatorFault(
                self.spec.name, self._seed, "step 3: the observation is not finite"
            )
        return sound(self, action)

    return play


def test_a_broken_simulator_costs_its_seed_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = steered([0, 1])[0]
    monkeypatch.setattr(Simulator, "step", broken_at(1, 3))
    scores, _, player = steered([0, 1])
    assert scores[:, 0].tobytes() == whole[:, 0].tobytes()
    assert list(player.faults) == [1]
    assert "seed 1 stops: task halfcheetah, environment seed 11" in capsys.readouterr().err


def test_a_fleet_that_broke_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What breaks one arm does not keep the next from playing."""
    player = fleet([0, 1], first=10_000)
    chunk = torch.zeros(2, 1, CHUNK * 6)
    with monkeypatch.context() as patch:
        patch.setattr(Simulator, "step", broken_at(1, 0))
        player.play(chunk)
    assert list(player.faults) == [1] and (player.episode[1] == RESTING).all()
    player.restart()
    assert not player.faults
    assert torch.equal(player.play(chunk).reward, fleet([0, 1], first=10_000).play(chunk).reward)


def test_a_broken_evaluation_scores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Simulator, "_checked", lambda self, observation, what: _no_seed_one(self, observation, what)
    )
    scores = evaluate(PriorPolicy(decoder(0, 1)), fleet([0, 1]), 2, Draws(generators(0, 1)))
    assert np.isfinite(scores[0]).all() and np.isnan(scores[1]).all()


def _no_seed_one(simulator: Simulator, observation: np.ndarray, what: str) -> np.ndarray:
    if simulator._seed >= 21_000:
        raise SimulatorFault("halfcheetah", simulator._seed, f"{what} is not finite")
    return observation.astype(np.float32)


def test_a_chunk_stops_at_the_end_of_its_episode() -> None:
    """Ten steps are two chunks of four and one of which two steps are played."""
    player, other = fleet([2]), make("halfcheetah", HORIZON)
    other.reset(22_000)
    chunks = torch.rand(3, 1, 1, CHUNK * 6) * 2 - 1
    for index, chunk in enumerate(chunks):
        before = player.observation
        played = player.play(chunk)
        actions = chunk.reshape(CHUNK, 6).numpy()[: 2 if index == 2 else CHUNK]
        steps = [other.step(action) for action in actions]
        total = sum(step.reward for step in steps)
        assert played.reward.item() == pytest.approx(0.5 * total, rel=1e-5)
        assert torch.equal(played.observation, before)
        wanted = torch.from_numpy(steps[-1].observation)[None, None]
        assert torch.equal(played.next_observation, norm().observation(wanted))
        assert played.ended.item() == (index == 2) and not played.terminated.item()
    assert player.steps.tolist() == [HORIZON]
    assert player.episode.tolist() == [[1]]
    wanted = torch.from_numpy(make("halfcheetah", HORIZON).reset(22_001))
    assert torch.equal(player.observation[0, 0], norm().observation(wanted))
    stored = transitions(decoder(0), played, Draws(generators(0)), 2)
    assert stored.bootstrap.item() == 1  # cut by the time limit, not terminated


def test_evaluation_plays_each_episode_once_whatever_its_width() -> None:
    class Fixed:
        def act(self, observation: torch.Tensor, draws: Draws) -> torch.Tensor:
            return torch.full((*observation.shape[:2], CHUNK * 6), 0.3)

    draws = Draws(generators(0, 1))
    narrow, wide = fleet([0, 1]), fleet([0, 1], width=2)
    scores = evaluate(Fixed(), narrow, 3, draws)
    assert scores.shape == (2, 3)
    assert np.array_equal(scores, evaluate(Fixed(), wide, 3, draws))
    assert (wide.episode == RESTING).all()
    assert wide.steps.tolist() == [3 * HORIZON] * 2


def test_scaling_there_and_back() -> None:
    scale = norm()
    actions = torch.rand(7, CHUNK, 6) * 2 - 1
    chunk = scale.action(actions).flatten(1)
    assert np.allclose(scale.steps_of(chunk), actions.numpy(), atol=1e-6)
    assert scale.observation(torch.full((1, 17), 1e9)).max() == 5


def test_stacked_scalings_are_each_seeds_own() -> None:
    rng = torch.Generator().manual_seed(0)
    tensors = [
        {
            "observation_low": -1 - torch.rand(17, generator=rng),
            "observation_high": 1 + torch.rand(17, generator=rng),
            "action_low": -torch.rand(6, generator=rng),
            "action_high": torch.rand(6, generator=rng),
            "reward_scale": 1 + torch.rand(1, generator=rng),
        }
        for _ in range(3)
    ]
    together, apart = Norm.stacked(tensors), [Norm(one) for one in tensors]
    raw, chunks = torch.randn(3, 2, 17), torch.rand(3, 2, CHUNK * 6) * 2 - 1
    rewards = np.ones((3, 2, 1), np.float32)
    assert together.observation(raw).shape == (3, 2, 17)
    assert together.steps_of(chunks).shape == (3, 2, CHUNK, 6)
    for seed, one in enumerate(apart):
        assert torch.equal(together.observation(raw)[seed], one.observation(raw[seed]))
        assert np.array_equal(together.steps_of(chunks)[seed], one.steps_of(chunks[seed]))
        scaled = (rewards * together.reward_scale)[seed]
        assert np.array_equal(scaled, rewards[seed] * one.reward_scale)


def test_windows_stay_within_their_episodes() -> None:
    episodes = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    actions = torch.arange(9.0)[:, None]
    starts, chunks = windows(episodes, actions, 3)
    assert starts.tolist() == [0, 5, 6]
    assert chunks.tolist() == [[0, 1, 2], [5, 6, 7], [6, 7, 8]]
    with pytest.raises(ValueError, match="chunk is 5 steps; every episode is shorter"):
        windows(episodes, actions, 5)


@pytest.mark.parametrize("kind", ["diffusion", "flow"])
def test_cloning_learns_what_the_observation_tells(kind: str) -> None:
    """Of seed 0 chunks are (s, -s), of seed 1 (-s, s) from fewer demonstrations: each decoder gives
    back its own, as if trained apart."""
    observations = torch.linspace(-0.9, 0.9, 64)[:, None]
    chunks = torch.stack(
        [torch.cat([sign * observations, -sign * observations], 1) for sign in (1, -1)]
    )
    shown = [slice(None), slice(0, 64, 2)]
    cloning = Cloning(32, 600, 64, (3e-3, 1e-4), 1e-6, 0.99)

    def cloned(*seeds: int) -> Decoder:
        losses = []
        params = clone(
            kind,
            [observations[shown[seed]] for seed in seeds],
            [chunks[seed, shown[seed]] for seed in seeds],
            cloning,
            generators(*seeds),
            lambda step, loss: losses.append(loss),
        )
        assert losses[-1].max() < losses[0].min()
        return Decoder.freeze(kind, params, 5)

    both, second = cloned(0, 1), cloned(1)
    noise = Draws(generators(5, 6)).normal(64, 2)
    decoded = both.decode(observations.expand(2, -1, -1), noise)
    assert (decoded - chunks).abs().mean() < 0.12
    alone = second.decode(observations[None], noise[1:])
    assert torch.allclose(decoded[1:], alone, atol=1e-3)


def test_a_schedule_that_does_not_divide_is_named() -> None:
    with pytest.raises(ValueError, match="evaluations is 4; allowed: at least 3, one less"):
        Schedule(warm_up=1, decisions=10, batch=1, bank=1, evaluations=4, episodes=1)
