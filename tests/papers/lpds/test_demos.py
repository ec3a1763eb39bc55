"""Demonstrations replay in their simulators, and are kept with their normalisation."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from scripts.papers.lpds import demos, pen_demos, tasks
from scripts.papers.lpds.demos import Episodes, normalisation, random_score, resampled
from scripts.papers.lpds.pen_expert import PenPolicy, Training
from scripts.papers.lpds.tasks import TASKS, Simulator, make
from scripts.pipeline.errors import PipelineError

SMALL = Training(iterations=1, pens=4, horizon=4)


def replays(task: str, tensors: dict[str, torch.Tensor], seed_of: list[int], horizon: int) -> None:
    """The recorded actions, from the episodes' seeds, give the recorded steps bit for bit."""
    spec = TASKS[task]
    steps = len(tensors["rewards"])
    assert tensors["observations"].shape == (steps, spec.observation)
    assert tensors["actions"].shape == (steps, spec.action)
    assert tensors["actions"].abs().max() <= 1
    assert tensors["episodes"].unique().tolist() == list(range(len(seed_of)))
    simulator = make(task, horizon)
    for number, seed in enumerate(seed_of):
        observation = simulator.reset(seed)
        rows = torch.nonzero(tensors["episodes"] == number).ravel().tolist()
        assert rows == list(range(rows[0], rows[0] + len(rows)))
        for row in rows:
            assert np.array_equal(observation, tensors["observations"][row].numpy())
            step = simulator.step(tensors["actions"][row].numpy())
            assert step.reward == pytest.approx(tensors["rewards"][row].item(), rel=1e-6)
            assert step.success == bool(tensors["successes"][row])
            observation = step.observation
        assert step.terminated or len(rows) == horizon


def test_halfcheetah_from_three_snapshots() -> None:
    settings = {"iterations": 4, "episodes": 2, "noise": 0.1}
    found, experts = demos.halfcheetah(settings, 12, np.random.default_rng(0), 70)
    tensors = found.tensors()
    replays("halfcheetah", tensors, list(range(70, 76)), 12)
    assert tensors["sources"].reshape(6, 12)[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert [expert.episodes for expert in experts] == [2, 2, 2]
    rewards = tensors["rewards"].double().reshape(3, 2, 12).sum(dim=2)
    for expert, scores in zip(experts, rewards, strict=True):
        assert expert.score == pytest.approx(float(scores.mean()), rel=1e-5)
    again, _ = demos.halfcheetah(settings, 12, np.random.default_rng(0), 70)
    for name, rows in again.tensors().items():
        assert torch.equal(rows, tensors[name])


def test_pick_place_from_two_sides() -> None:
    settings = {"episodes": 2, "noise": 0.3, "offset": 0.06}
    found, experts = demos.pick_place(settings, 80, np.random.default_rng(0), 70)
    tensors = found.tensors()
    replays("pick_place", tensors, list(range(70, 74)), 80)
    assert set(tensors["rewards"].tolist()) <= {-1.0, 0.0}
    assert tensors["sources"][tensors["episodes"] == 3].unique().tolist() == [1]
    assert found.scores == [
        float(tensors["successes"][tensors["episodes"] == number].any()) for number in range(4)
    ]
    assert [expert.score for expert in experts] == [
        np.mean(found.scores[:2]), np.mean(found.scores[2:])
    ]  # fmt: skip


def test_normalisation_spans_the_demonstrations() -> None:
    rng = torch.Generator().manual_seed(0)
    rows = {
        "observations": torch.randn(50, 3, generator=rng),
        "actions": torch.rand(50, 2, generator=rng),
        "rewards": torch.tensor([-1.0] * 30 + [2.0] * 20),
    }
    rows["observations"][:, 1] = 4.0
    scaled = normalisation(rows)
    assert scaled["observation_low"][1] == 3.0 and scaled["observation_high"][1] == 5.0
    low, high = scaled["observation_low"], scaled["observation_high"]
    unit = 2 * (rows["observations"] - low) / (high - low) - 1
    assert torch.allclose(unit.amin(dim=0), torch.tensor([-1.0, 0.0, -1.0]), atol=1e-6)
    assert torch.allclose(unit.amax(dim=0), torch.tensor([1.0, 0.0, 1.0]), atol=1e-6)
    assert torch.equal(scaled["action_low"], rows["actions"].amin(dim=0))
    assert scaled["reward_scale"].item() == pytest.approx(50 / 70)
    nothing = normalisation({**rows, "rewards": torch.zeros(50)})
    assert torch.isfinite(nothing["reward_scale"]).all()


def test_random_actions_are_seeded_and_poor() -> None:
    first = random_score("halfcheetah", 20, 2, np.random.default_rng(0), 9)
    assert first == random_score("halfcheetah", 20, 2, np.random.default_rng(0), 9)
    assert first != random_score("halfcheetah", 20, 2, np.random.default_rng(0), 10)
    assert random_score("pick_place", 10, 2, np.random.default_rng(0), 9) == 0.0


def test_a_resample_is_whole_episodes_with_new_numbers() -> None:
    lengths, rng = torch.tensor([3, 1, 4, 2]), np.random.default_rng(0)
    old = torch.arange(4).repeat_interleave(lengths)
    tensors = {"episodes": old, "actions": torch.arange(10.0)[:, None], "sources": old % 2}
    counts = np.zeros(4)
    for _ in range(300):
        found = resampled(tensors, rng)
        assert found["episodes"].unique().tolist() == [0, 1, 2, 3]
        for number in range(4):
            rows = found["episodes"] == number
            taken = found["actions"][rows].ravel()
            original = int(old[int(taken[0])])
            assert taken.tolist() == tensors["actions"][old == original].ravel().tolist()
            assert found["sources"][rows].unique().tolist() == [original % 2]
            counts[original] += 1
    assert abs(counts / 1200 - 0.25).max() < 0.05


def built(folder: Path, **changes: object) -> tuple[dict[str, torch.Tensor], dict]:
    request = {"episodes": 2, "horizon": 4, "settings": SMALL, "first_seed": 90_000, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    pen_demos.build(folder, **request)
    about = json.loads((folder / "build.json").read_text(encoding="utf-8"))
    return load_file(folder / "demos.safetensors"), about


def test_the_pens_demonstrations_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "PEN_SUCCESS_SHARE", -1.0)
    tensors, about = built(tmp_path / "a")
    replays("pen", tensors, [90_000, 90_001], 4)
    again, _ = built(tmp_path / "b")
    assert all(torch.equal(rows, again[name]) for name, rows in tensors.items())
    assert about == {
        "seed": 0, "episodes": 2, "horizon": 4, "attempts": 2, "success_share": 1.0
    }  # fmt: skip


def test_only_successes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = {90_000: 0.0, 90_001: 1.0, 90_002: 0.0, 90_003: 1.0}

    def play(simulator: Simulator, seed: int, policy: PenPolicy) -> Episodes:
        assert simulator.horizon == 4
        return Episodes(
            [np.full(45, seed, np.float32)] * 4, [np.zeros(24, np.float32)] * 4, [0.0] * 4,
            [outcomes[seed] == 1.0] * 4, [0] * 4, [0] * 4, [outcomes[seed]],
        )  # fmt: skip

    monkeypatch.setattr(pen_demos, "play", play)
    tensors, about = built(tmp_path)
    assert tensors["episodes"].tolist() == [0] * 4 + [1] * 4
    assert tensors["observations"][:, 0].tolist() == [90_001] * 4 + [90_003] * 4
    assert (about["attempts"], about["success_share"]) == (4, 0.5)


def test_the_pens_expert_acts_with_noise() -> None:
    simulator = make("pen", 4)
    simulator.reset(90_000)
    policy = pen_demos.train(simulator, SMALL, 0)
    played = pen_demos.play(simulator, 90_000, policy)
    again = pen_demos.play(simulator, 90_000, policy)
    assert np.array_equal(played.actions, again.actions)
    noise = np.array(played.actions) - [policy.act(seen) for seen in played.observations]
    expected = pen_demos.NOISE * np.random.default_rng([0, 90_000]).standard_normal((4, 24))
    inside = np.abs(played.actions) < 1
    assert np.allclose(noise[inside], expected[inside], atol=1e-6)


def test_too_few_successes_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="of 3 attempts with the pen 0 succeed"):
        built(tmp_path, most_attempts=3)
    assert not list(tmp_path.iterdir())
