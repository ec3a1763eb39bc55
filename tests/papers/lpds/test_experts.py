"""The three experts: random search, the pen's trained policy, and Meta-World's script."""

from dataclasses import replace

import mujoco
import numpy as np
import pytest
import torch

from scripts.papers.lpds import pen_expert
from scripts.papers.lpds.ars import LinearPolicy, Search, search
from scripts.papers.lpds.pen_expert import PenPolicy, Pens, Training, gaussian, train, turned
from scripts.papers.lpds.scripted import approaching
from scripts.papers.lpds.tasks import Simulator, Step, TaskSpec, make


class Follow:
    """A task with a known best policy: the reward is what the action misses of gain @ state."""

    spec = TaskSpec("follow", "", "", 3, 2, False)
    gain = np.array([[0.4, -0.2, 0.0], [0.0, 0.3, 0.5]])

    def reset(self, seed: int) -> np.ndarray:
        self._rng, self._left = np.random.default_rng(seed), 20
        self._state = self._rng.uniform(-1, 1, 3)
        return self._state

    def step(self, action: np.ndarray) -> Step:
        reward = -float(((action - self.gain @ self._state) ** 2).sum())
        self._left -= 1
        self._state = self._rng.uniform(-1, 1, 3)
        return Step(self._state, reward, False, self._left == 0, False)


def found(seed: int, iterations: int = 60) -> list[LinearPolicy]:
    settings = Search(directions=4, best=2, step=0.05, noise=0.1, horizon=50)
    return list(search(Follow(), settings, iterations, np.random.default_rng(seed), 0))


def test_random_search_finds_the_best_linear_policy() -> None:
    policies = found(0, 150)
    missed = [np.linalg.norm(one.weights / one.deviation - Follow.gain) for one in policies]
    assert missed[-1] < 0.4 * missed[0]  # its steps do not shrink
    observation = np.array([0.2, -0.1, 0.3])
    expected = policies[-1].weights @ ((observation - policies[-1].mean) / policies[-1].deviation)
    assert np.allclose(policies[-1].act(observation), expected.clip(-1, 1))
    assert np.abs(policies[-1].act(np.full(3, 100.0))).max() == 1.0


def test_random_search_is_its_generators() -> None:
    assert np.array_equal(found(1, 5)[-1].weights, found(1, 5)[-1].weights)
    assert not np.array_equal(found(1, 5)[-1].weights, found(2, 5)[-1].weights)


def test_one_iteration_of_random_search_by_hand() -> None:
    """ARS-V2 as published, written with loops; the first iteration's states are not yet scaled."""
    settings = Search(directions=3, best=2, step=0.1, noise=0.2, horizon=5)
    policy = next(search(Follow(), settings, 1, np.random.default_rng(4), 7))
    directions = np.random.default_rng(4).standard_normal((3, 2, 3))
    returns, states = [], []
    for direction in directions:
        pair = []
        for sign in (1, -1):
            task, total = Follow(), 0.0
            state = task.reset(7)
            for _ in range(5):
                states.append(state)
                step = task.step((sign * 0.2 * direction @ state).clip(-1, 1))
                total, state = total + step.reward, step.observation
            pair.append(total)
        returns.append(pair)
    best = sorted(range(3), key=lambda k: -max(returns[k]))[:2]
    spread = np.std([returns[k] for k in best])
    change = sum((returns[k][0] - returns[k][1]) * directions[k] for k in best)
    assert np.allclose(policy.weights, 0.1 / (2 * spread) * change)
    assert np.allclose(policy.mean, np.mean(states, axis=0))
    assert np.allclose(policy.deviation, np.std(states, axis=0))


def pen(seed: int = 90_001) -> Simulator:
    simulator = make("pen", 60)
    simulator.reset(seed)
    return simulator


def pens(simulator: Simulator, count: int = 3, seed: int = 0) -> Pens:
    return Pens(simulator, count, np.random.default_rng(seed))


def sequence(steps: int, count: int = 3) -> np.ndarray:
    noise = np.random.default_rng(5).standard_normal((steps, count, 24))
    return (0.4 * noise).clip(-1, 1)


def test_forecasts_with_the_simulators_own_steps_are_the_simulator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Observations too, but for the place and direction, which lag by a substep in the task's."""
    monkeypatch.setattr(pen_expert, "SUBSTEPS", 5)
    simulator = pen()
    first = simulator.reset(90_001)
    forecast = pens(simulator)
    forecast.wanted[:] = first[36:39]
    assert np.allclose(forecast.observations(forecast._states[:, 1:])[1], first, atol=1e-6)
    for action in sequence(8):
        seen, _ = forecast.play(action, 1, Training())
        observation = simulator.step(action[1]).observation
        assert np.allclose(seen[1, :24], observation[:24], atol=1e-5)
        assert np.allclose(seen[1, 27:33], observation[27:33], atol=1e-3)
        assert np.allclose(seen[1], observation, atol=0.02)


def test_coarse_forecasts_of_the_pen_are_close() -> None:
    simulator = pen()
    forecast = pens(simulator)
    for action in sequence(12):
        seen, _ = forecast.play(action, 1, Training())
        observation = simulator.step(action[0]).observation
        assert np.linalg.norm(seen[0, 24:27] - observation[24:27]) < 0.01


def test_an_action_held_is_the_action_repeated() -> None:
    action = sequence(1)[0]
    held, once = pens(pen()), pens(pen())
    seen, played = held.play(action, 3, Training())
    rewards = [once.play(action, 1, Training()) for _ in range(3)]
    assert np.allclose(seen, rewards[-1][0], atol=1e-3)  # the solver starts cold at each call
    assert np.allclose(played.reward, sum(one.reward for _, one in rewards), atol=1e-2)


def test_place_and_direction_of_the_pen_against_mujoco() -> None:
    simulator = pen()
    model, data, env = simulator.world.model, simulator.world.data, simulator.world.env
    forecast, rng = pens(simulator), np.random.default_rng(0)
    for _ in range(5):
        data.qpos[24:30] = rng.uniform(-1, 1, 6)
        mujoco.mj_kinematics(model, data)
        place, direction = forecast.pen(np.r_[data.qpos, data.qvel])
        along = data.site_xpos[env.obj_t_site_id] - data.site_xpos[env.obj_b_site_id]
        assert np.allclose(place, data.xpos[env.obj_body_id])
        assert np.allclose(direction, along / np.linalg.norm(along))


def test_wanted_directions_are_the_tasks() -> None:
    simulator = make("pen", 60)
    for seed in (90_001, 90_002, 90_003):
        wanted = simulator.reset(seed)[36:39]
        rng = np.random.default_rng(seed)  # what the task draws its two angles from
        angles = np.array([rng.uniform(-1, 1), rng.uniform(-1, 1), 0.0])
        assert np.allclose(turned(pens(simulator)._target, angles), wanted, atol=1e-6)
    drawn = pens(simulator, 2000).wanted
    assert np.allclose(np.linalg.norm(drawn, axis=1), 1)
    assert (drawn.std(axis=0) > 0.1).all()


def test_the_experts_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    forecast = pens(pen(), count=4)
    states = np.zeros((4, 1, 60))
    states[2, 0, 54:57] = (0.3, 0.0, 0.4)
    forecast.wanted = np.tile((0.0, 0.0, 1.0), (4, 1))
    place = forecast._place + np.array([0.02, 0.08, 0.02, 0.05])[:, None, None] * (1.0, 0.0, 0.0)
    direction = np.array([0.96, 0.96, 0.9, -1.0])[:, None, None] * (0.0, 0.0, 1.0)
    monkeypatch.setattr(forecast, "pen", lambda _: (place, direction))
    expected = [0.96 + 1, 0.96 - 0.5, 0.9 - 0.5, -1 - 0.2]
    found = forecast.rewards(states, Training(near=10, calm=2))
    assert np.allclose(found[:, 0], expected)


def test_rewards_end_with_a_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    forecast = pens(pen(), count=2)
    low = np.array([[0.2, 0.2, 0.2], [0.2, 0.05, 0.2]])
    place = low[..., None] * (0.0, 0.0, 1.0)
    monkeypatch.setattr(forecast, "pen", lambda _: (place, place))
    monkeypatch.setattr(forecast, "observations", lambda _: None)
    monkeypatch.setattr(forecast, "rewards", lambda *_: np.ones((2, 3)))
    actions = np.tile(forecast.still, (2, 1))
    actions[0] += 0.1
    _, played = forecast.play(actions, 3, Training(drop=20, rest=10))
    assert np.allclose(played.reward, [3 - 3 * 10 * 0.01, 1 - 20])
    assert played.dropped.tolist() == [False, True]


def test_log_density_against_torch() -> None:
    x, mean, log = torch.randn(3, 5, 24, generator=torch.Generator().manual_seed(0))
    normal = torch.distributions.Normal(mean, log[0].exp())
    constant = 12 * np.log(2 * np.pi)
    assert torch.allclose(
        gaussian(x, mean, log[0]) - constant, normal.log_prob(x).sum(dim=1), rtol=1e-4
    )


def test_training_is_seeded_and_only_reads() -> None:
    simulator, small = pen(), Training(iterations=2, pens=4, horizon=5, batch=8)
    data, model = simulator.world.data, simulator.world.model
    before = data.qpos.copy(), data.time, model.opt.timestep
    observation = np.full(45, 0.1, np.float32)
    first, again, other = (train(simulator, small, seed).act(observation) for seed in (3, 3, 4))
    assert np.array_equal(before[0], data.qpos)
    assert before[1:] == (data.time, model.opt.timestep)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert first.shape == (24,) and np.abs(first).max() <= 1


def angle_after(policy: PenPolicy, seeds: range, steps: int) -> float:
    """Mean degrees to the wanted direction; 180 for a pen that fell."""
    angles, simulator = [], make("pen", 60)
    for seed in seeds:
        observation = simulator.reset(seed)
        for _ in range(steps):
            observation = simulator.step(policy.act(observation)).observation
        angle = np.degrees(np.arccos(observation[33:36] @ observation[36:39]))
        angles.append(angle if observation[26] > pen_expert.DROPPED else 180)
    return float(np.mean(angles))


def test_training_turns_the_pen() -> None:
    """From 73 to 38 degrees, where the hand at rest leaves it as it was."""
    simulator, seeds = pen(), range(90_010, 90_026)
    quick = Training(iterations=40, pens=32, horizon=30, holds=(2,), batch=100, rate=3e-3)
    resting = angle_after(train(simulator, replace(quick, iterations=0), 0), seeds, 40)
    assert angle_after(train(simulator, quick, 0), seeds, 40) < resting - 15


def test_the_script_picks_and_places_from_either_side() -> None:
    ways = []
    for offset in (-0.06, 0.06):
        simulator = make("pick_place", 100)
        observation = simulator.reset(90_003)
        actor = approaching(offset, 0.0, np.random.default_rng(0))
        beside = []
        while True:
            beside.append(observation[0] - observation[4])
            step = simulator.step(actor(observation))
            observation = step.observation
            if step.terminated or step.truncated:
                break
        assert step.success
        ways.append(beside)
    assert min(ways[0]) < -0.03 and max(ways[1]) > 0.03
    noisy = approaching(0.06, 0.3, np.random.default_rng(0))(simulator.reset(1))
    calm = approaching(0.06, 0.0, np.random.default_rng(0))(simulator.reset(1))
    assert np.allclose(noisy - calm, 0.3 * np.random.default_rng(0).standard_normal(4))
