"""Three real simulators behind one adapter: HalfCheetah, the Adroit hand with a pen, Meta-World's
pick-and-place. MuJoCo runs without a display; nothing here draws.

The same task, seed and actions give bit-identical observations, rewards and successes.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from scripts.pipeline.errors import PipelineError

PEN_SUCCESS_SHARE = 0.2
"""An episode with the pen succeeds when it lies right in more than this share of its steps (more
than 20 of 100 in DAPG's evaluation)."""
REACH = 0.07
"""Meta-World: the puck within 7 cm of its goal is a success."""
LEAST_CARRY = 0.15
"""Meta-World: the puck starts at least 15 cm from its goal."""


@dataclass(frozen=True)
class TaskSpec:
    """A task: its package and module, widths, and whether its score is a success or a return."""

    name: str
    package: str
    module: str
    observation: int
    action: int
    success: bool


TASKS = {
    spec.name: spec
    for spec in (
        TaskSpec("halfcheetah", "gymnasium", "gymnasium.envs.mujoco.half_cheetah_v5", 17, 6, False),
        TaskSpec(
            "pen", "gymnasium-robotics", "gymnasium_robotics.envs.adroit_hand.adroit_pen",
            45, 24, True,
        ),
        TaskSpec(
            "pick_place", "metaworld", "metaworld.envs.sawyer_pick_place_v3", 39, 4, True
        ),
    )
}  # fmt: skip


class Step(NamedTuple):
    """What a step of a simulator gives."""

    observation: np.ndarray
    reward: float
    terminated: bool
    truncated: bool
    success: bool


class SimulatorFault(ValueError):
    """A simulator gave something that is not finite."""

    def __init__(self, task: str, seed: int, what: str) -> None:
        super().__init__(f"task {task}, environment seed {seed}: {what}")
        self.task, self.seed, self.what = task, seed, what


class _World(Protocol):
    """The part of a simulator that differs between tasks."""

    model: Any
    data: Any

    def reset(self, seed: int) -> np.ndarray: ...

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        """Observation, reward, terminated, success."""


class _HalfCheetah:
    """The package's steps without the contact forces, which take time and which nothing here reads
    (a test compares observations and rewards)."""

    def __init__(self, module: Any) -> None:
        import mujoco

        self.env = module.HalfCheetahEnv()
        self.model, self.data = self.env.model, self.env.data
        self._advance, self._seconds = mujoco.mj_step, self.env.dt

    def reset(self, seed: int) -> np.ndarray:
        return self.env.reset(seed=seed)[0]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        data, before = self.data, self.data.qpos[0]
        data.ctrl[:] = action
        self._advance(self.model, data, nstep=self.env.frame_skip)
        speed = (data.qpos[0] - before) / self._seconds
        reward = speed - self.env.control_cost(action)
        return np.concatenate((data.qpos[1:], data.qvel)), reward, False, False


class _Pen:
    def __init__(self, module: Any) -> None:
        self.env = module.AdroitHandPenEnv(reward_type="dense")
        self.model, self.data = self.env.model, self.env.data

    def reset(self, seed: int) -> np.ndarray:
        return self.env.reset(seed=seed)[0]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        observation, reward, _, _, info = self.env.step(action)
        return observation, reward, False, bool(info["success"])


class _PickPlace:
    """Reward -1 a step and 0 at success, which ends the episode.

    The package's reward code takes most of a step's time and is not needed for that: the steps
    here are its own without it (a test compares observations and successes).
    """

    def __init__(self, module: Any) -> None:
        import mujoco

        self.env = module.SawyerPickPlaceEnvV3()
        self.env._set_task_called = True
        self.env._freeze_rand_vec = True
        self.env._partially_observable = False
        self.env.__dict__.pop("sawyer_observation_space", None)  # cached for a hidden goal
        self.model, self.data = self.env.model, self.env.data
        self._forward = mujoco.mj_forward
        bodies = [self.model.body(name).id for name in ("rightclaw", "leftclaw", "hand", "obj")]
        self._right, self._left, self._hand, self._puck = bodies
        self._geom = self.model.geom("objGeom").id
        self._low = self.env.sawyer_observation_space.low
        self._high = self.env.sawyer_observation_space.high

    def reset(self, seed: int) -> np.ndarray:
        rng, space = np.random.default_rng(seed), self.env._random_reset_space
        places = rng.uniform(space.low, space.high)
        while np.linalg.norm(places[:2] - places[3:5]) < LEAST_CARRY:
            places = rng.uniform(space.low, space.high)
        self.env._last_rand_vec = places
        observation = self.env.reset()[0]
        self._previous = observation[:18].copy()
        return observation

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        env = self.env
        env.set_xyz_action(action[:3])
        env.do_simulation([action[-1], -action[-1]], n_frames=env.frame_skip)
        for name, place in env._target_site_config:
            self.model.site(name).pos = place
        self._forward(self.model, self.data)
        observation = self._observe()
        success = bool(np.linalg.norm(observation[4:7] - env._target_pos) <= REACH)
        return observation, 0.0 if success else -1.0, success, success

    def _observe(self) -> np.ndarray:
        """Hand, gripper and puck now, the same a step before, and the goal."""
        places, now = self.data.xpos, np.zeros(18)
        now[:3] = places[self._hand]
        now[3] = min(np.linalg.norm(places[self._right] - places[self._left]) / 0.1, 1.0)
        now[4:7] = places[self._puck]
        now[7:11] = quaternion(self.data.geom_xmat[self._geom])
        observation = np.concatenate([now, self._previous, self.env._target_pos])
        self._previous = now
        return observation.clip(self._low, self._high)


def quaternion(matrix: np.ndarray) -> np.ndarray:
    """Unit quaternion (x, y, z, w) of a rotation matrix [9], as scipy's Rotation.as_quat gives it:
    from the largest of the diagonal and the trace."""
    m00, m01, m02, m10, m11, m12, m20, m21, m22 = matrix.tolist()
    trace = m00 + m11 + m22
    largest = max(m00, m11, m22, trace)
    if largest == trace:
        found = (m21 - m12, m02 - m20, m10 - m01, 1 + trace)
    elif largest == m00:
        found = (1 - trace + 2 * m00, m10 + m01, m20 + m02, m21 - m12)
    elif largest == m11:
        found = (m10 + m01, 1 - trace + 2 * m11, m21 + m12, m02 - m20)
    else:
        found = (m20 + m02, m21 + m12, 1 - trace + 2 * m22, m10 - m01)
    vector = np.array(found)
    return vector / np.linalg.norm(vector)


_WORLDS = {"halfcheetah": _HalfCheetah, "pen": _Pen, "pick_place": _PickPlace}


class Simulator:
    """An episode after another of a task.

    Args:
        spec: the task.
        world: its simulator.
        horizon: steps after which an episode is truncated.
    """

    def __init__(self, spec: TaskSpec, world: _World, horizon: int) -> None:
        self.spec, self.world, self.horizon = spec, world, horizon
        self._seed, self._steps = 0, 0

    def reset(self, seed: int) -> np.ndarray:
        """Start the episode of a seed: its first observation, float32.

        Raises:
            SimulatorFault: it is not finite.
        """
        self._seed, self._steps = seed, 0
        return self._checked(self.world.reset(seed), "the first observation")

    def step(self, action: np.ndarray) -> Step:
        """Apply an action, clipped to [-1, 1].

        Raises:
            SimulatorFault: the action, the observation or the reward is not finite.
        """
        where = f"step {self._steps}"
        if not np.isfinite(action).all():
            raise SimulatorFault(self.spec.name, self._seed, f"{where}: the action is not finite")
        observation, reward, terminated, success = self.world.step(np.clip(action, -1.0, 1.0))
        self._steps += 1
        observation = self._checked(observation, f"{where}: the observation")
        if not np.isfinite(reward):
            raise SimulatorFault(self.spec.name, self._seed, f"{where}: the reward is {reward}")
        truncated = self._steps >= self.horizon and not terminated
        return Step(observation, float(reward), terminated, truncated, success)

    def _checked(self, observation: np.ndarray, what: str) -> np.ndarray:
        small = np.asarray(observation, dtype=np.float32)
        if not np.isfinite(small).all():
            raise SimulatorFault(self.spec.name, self._seed, f"{what} is not finite")
        return small


def make(task: str, horizon: int) -> Simulator:
    """A simulator of a task.

    Raises:
        PipelineError: an unknown task, or a package that is not installed.
    """
    if task not in TASKS:
        raise PipelineError(f"lpds: unknown task {task!r}; allowed: {', '.join(TASKS)}")
    spec = TASKS[task]
    try:
        module = importlib.import_module(spec.module)
    except ImportError as error:
        raise PipelineError(
            f"lpds: task {task} needs MuJoCo and {spec.package} ({error}): "
            "python -m pip install -r requirements.txt"
        ) from error
    return Simulator(spec, _WORLDS[task](module), horizon)


def score(task: str, rewards: Sequence[float], successes: Sequence[bool]) -> float:
    """Score of an episode: its return, or 1 for a success and 0 for none."""
    if task == "pen":
        return float(np.mean(successes) > PEN_SUCCESS_SHARE)
    if TASKS[task].success:
        return float(any(successes))
    return float(np.sum(rewards))
