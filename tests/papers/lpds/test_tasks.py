"""The simulators: bit-identical per seed, equal to their packages, and loud when they break."""

import sys
from collections.abc import Callable

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from scripts.papers.lpds import tasks
from scripts.papers.lpds.tasks import SimulatorFault, make, quaternion, score
from scripts.pipeline.errors import PipelineError


def episode(task: str, seed: int, actions: np.ndarray, before: int | None = None) -> list:
    simulator = make(task, 1000)
    if before is not None:
        simulator.reset(before)
        for action in actions[:7]:
            simulator.step(-action)
    seen = [simulator.reset(seed)]
    for action in actions:
        step = simulator.step(action)
        seen.append((step.observation, step.reward, step.success))
    return seen


def flat(seen: list) -> np.ndarray:
    rows = [np.r_[o, r, s] for o, r, s in seen[1:]]
    return np.concatenate([seen[0], *rows])


@pytest.mark.parametrize("task", tasks.TASKS)
def test_the_same_seed_gives_the_same_bits(task: str) -> None:
    """Whatever the simulator did before."""
    spec = tasks.TASKS[task]
    actions = np.random.default_rng(1).uniform(-1, 1, (40, spec.action))
    first, again = episode(task, 3, actions), episode(task, 3, actions, before=4)
    assert first[0].shape == (spec.observation,) and first[0].dtype == np.float32
    assert flat(first).tobytes() == flat(again).tobytes()
    assert flat(first).tobytes() != flat(episode(task, 5, actions)).tobytes()


def cheetah() -> object:
    import gymnasium

    return gymnasium.make("HalfCheetah-v5").unwrapped


def pen() -> object:
    import gymnasium
    import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)
    return gymnasium.make("AdroitHandPen-v1").unwrapped


@pytest.mark.parametrize(("task", "build"), [("halfcheetah", cheetah), ("pen", pen)])
def test_equal_to_the_package(task: str, build: Callable[[], object]) -> None:
    actions = np.random.default_rng(2).uniform(-1, 1, (60, tasks.TASKS[task].action))
    other, simulator = build(), make(task, 1000)
    assert np.array_equal(simulator.reset(11), other.reset(seed=11)[0].astype(np.float32))
    for action in actions:
        step = simulator.step(action)
        observation, reward, *_, info = other.step(action)
        assert np.array_equal(step.observation, observation.astype(np.float32))
        assert step.reward == reward
        assert step.success == bool(info.get("success", False))


def test_pick_place_is_the_packages_own_up_to_its_reward() -> None:
    """Along the package's scripted expert, which succeeds."""
    from metaworld.envs import SawyerPickPlaceEnvV3
    from metaworld.policies import SawyerPickPlaceV3Policy

    expert, ends = SawyerPickPlaceV3Policy(), []
    rng = np.random.default_rng(0)
    for seed in (1, 2, 3):
        simulator = make("pick_place", 100)
        ours = simulator.reset(seed)
        other = SawyerPickPlaceEnvV3()
        other._set_task_called = other._freeze_rand_vec = True
        other._partially_observable = False
        other.__dict__.pop("sawyer_observation_space", None)
        other._last_rand_vec = simulator.world.env._last_rand_vec
        theirs = other.reset()[0]
        assert np.allclose(ours, theirs, atol=1e-6)
        for _ in range(100):
            action = np.clip(expert.get_action(theirs) + 0.1 * rng.standard_normal(4), -1, 1)
            step = simulator.step(action)
            theirs, _, _, _, info = other.step(action)
            assert np.allclose(step.observation, theirs, atol=1e-6)
            assert step.success == step.terminated == bool(info["success"])
            assert step.reward == (0.0 if step.success else -1.0)
            if step.success:
                ends.append(seed)
                break
    assert len(ends) >= 2


def test_quaternions_against_scipy() -> None:
    for rotation in Rotation.random(200, random_state=0):
        ours, theirs = quaternion(rotation.as_matrix().ravel()), rotation.as_quat()
        assert np.allclose(ours, theirs) or np.allclose(ours, -theirs)


def test_episodes_are_cut_at_the_horizon() -> None:
    simulator = make("halfcheetah", 3)
    simulator.reset(0)
    assert [simulator.step(np.zeros(6)).truncated for _ in range(3)] == [False, False, True]


def test_what_is_not_finite_names_task_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = make("halfcheetah", 10)
    simulator.reset(17)
    with pytest.raises(SimulatorFault, match="halfcheetah, environment seed 17: step 0: the act"):
        simulator.step(np.full(6, np.nan))
    broken = (np.full(17, np.nan), 0.0, False, False)
    monkeypatch.setattr(simulator.world, "step", lambda _: broken)
    with pytest.raises(SimulatorFault, match="step 0: the observation is not finite"):
        simulator.step(np.zeros(6))
    monkeypatch.setattr(simulator.world, "step", lambda _: (np.zeros(17), np.inf, False, False))
    with pytest.raises(SimulatorFault, match="the reward is inf"):
        simulator.step(np.zeros(6))


def test_unknown_task_and_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipelineError, match="unknown task 'walker'; allowed: halfcheetah, pen"):
        make("walker", 10)
    monkeypatch.setitem(sys.modules, tasks.TASKS["pick_place"].module, None)
    with pytest.raises(PipelineError, match=r"pick_place needs MuJoCo and metaworld .*pip install"):
        make("pick_place", 10)


def test_scores() -> None:
    assert score("halfcheetah", [1.0, 2.5], [False, False]) == 3.5
    assert score("pick_place", [-1.0, 0.0], [False, True]) == 1.0
    assert score("pen", [0.0] * 10, [True] * 2 + [False] * 8) == 0.0
    assert score("pen", [0.0] * 10, [True] * 3 + [False] * 7) == 1.0
