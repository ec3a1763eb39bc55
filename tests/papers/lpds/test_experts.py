"""The three experts: random search, planning with the pen, and Meta-World's script."""

import mujoco
import numpy as np
import pytest

from scripts.papers.lpds import mppi
from scripts.papers.lpds.ars import LinearPolicy, Search, search
from scripts.papers.lpds.mppi import Mppi, PenModel, Planner
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


def pen(seed: int = 90_001, steps: int = 6) -> Simulator:
    simulator = make("pen", 60)
    simulator.reset(seed)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        simulator.step(rng.uniform(-0.5, 0.5, 24))
    return simulator


def sequences(count: int, horizon: int) -> np.ndarray:
    noise = np.random.default_rng(5).standard_normal((count, 1, 24)).repeat(horizon, axis=1)
    return (0.4 * noise).clip(-1, 1)


def test_forecasts_with_the_simulators_own_steps_are_the_simulator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mppi, "SUBSTEPS", 5)
    simulator, actions = pen(), sequences(2, 8)
    forecast = PenModel(simulator).states(actions)
    for action, state in zip(actions[1], forecast[1], strict=True):
        simulator.step(action)
        data = simulator.world.data
        assert np.allclose(state, np.r_[data.qpos, data.qvel], atol=1e-9)


def test_coarse_forecasts_of_the_pen_are_close() -> None:
    simulator, actions = pen(), sequences(1, 12)
    model = PenModel(simulator)
    places = model.states(actions)[0, :, 24:27]
    for action, place in zip(actions[0], places, strict=True):
        simulator.step(action)
        assert np.linalg.norm(place - simulator.world.data.qpos[24:27]) < 0.01


def test_place_and_direction_of_the_pen_against_mujoco() -> None:
    simulator = pen()
    model, data = simulator.world.model, simulator.world.data
    planner, env = PenModel(simulator), simulator.world.env
    rng = np.random.default_rng(0)
    for _ in range(5):
        data.qpos[24:30] = rng.uniform(-1, 1, 6)
        mujoco.mj_kinematics(model, data)
        distance, alike = planner.pen(np.r_[data.qpos, data.qvel])
        ends = data.site_xpos[[env.obj_t_site_id, env.obj_b_site_id]]
        goal = data.site_xpos[[env.tar_t_site_id, env.tar_b_site_id]]
        along, wanted = ends[0] - ends[1], goal[0] - goal[1]
        place = data.xpos[env.obj_body_id] - data.site_xpos[env.eps_ball_site_id]
        assert distance == pytest.approx(np.linalg.norm(place))
        cosine = along @ wanted / np.linalg.norm(along) / np.linalg.norm(wanted)
        assert alike == pytest.approx(cosine)


def test_the_planners_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    model, settings = PenModel(pen(steps=0)), Mppi(turn=5, hold=60, calm=2)
    states = np.zeros((4, 60))
    states[2, 54:57] = (0.3, 0.0, 0.4)
    where = (np.array([0.02, 0.08, 0.02, 0.05]), np.array([0.96, 0.96, 0.9, -1.0]))
    monkeypatch.setattr(model, "pen", lambda _: where)
    expected = [4.8 + 1, 4.8 - 3.0, 4.5 - 0.5, -5 - 1.2]
    assert np.allclose(model.rewards(states, settings), expected)


def test_the_planner_is_seeded_and_only_reads() -> None:
    simulator = pen(steps=0)
    world, small = simulator.world, Mppi(samples=6, horizon=4)
    before = (world.data.qpos.copy(), world.data.time, world.model.opt.timestep)
    first = Planner(simulator, small, np.random.default_rng(3)).act()
    assert np.array_equal(before[0], world.data.qpos)
    assert before[1:] == (world.data.time, world.model.opt.timestep)
    assert np.array_equal(first, Planner(simulator, small, np.random.default_rng(3)).act())
    assert not np.array_equal(first, Planner(simulator, small, np.random.default_rng(4)).act())
    assert first.shape == (24,) and np.abs(first).max() <= 1


def test_noise_of_the_candidates() -> None:
    settings = Mppi(samples=4000, horizon=3, sigma=0.5, narrow=0.4, memory=0.8)
    noise = Planner(pen(steps=0), settings, np.random.default_rng(0))._noise((3, 24))
    assert (noise[0] == 0).all()
    wide, narrow = noise[2::2], noise[1::2]
    assert np.allclose(wide.std(axis=0), 0.5, atol=0.05)
    assert np.allclose(narrow.std(axis=0), 0.2, atol=0.02)
    alike = (wide[:, 0] * wide[:, 1]).mean() / wide.var()
    assert alike == pytest.approx(0.8, abs=0.02)


def test_planning_turns_the_pen() -> None:
    """From 65 to at most 30 degrees in 25 steps, where random actions drop it."""
    simulator = make("pen", 60)
    simulator.reset(90_002)
    planner = Planner(simulator, Mppi(samples=24), np.random.default_rng(0))
    for _ in range(25):
        observation = simulator.step(planner.act()).observation
    angle = np.degrees(np.arccos(observation[33:36] @ observation[36:39]))
    assert angle < 30 and observation[26] > 0.2


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
