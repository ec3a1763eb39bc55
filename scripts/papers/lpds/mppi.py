"""Sampling model-predictive control (MPPI) on the true state of the Adroit hand with its pen.

Action sequences are drawn around the last plan with noise that is correlated in time, rolled out in
MuJoCo, and averaged with weights exp(return / temperature) (Williams et al., 2017). It plans in the
simulator that it acts in, which makes it an expert, not a learner.
"""

import copy
from dataclasses import dataclass

import numpy as np

from scripts.papers.lpds.tasks import Simulator

SUBSTEPS = 2
"""Steps of the planner's model within one of the environment, which takes 5: forecasts of the pen
16 steps ahead then differ by 2 mm and 1.4 degrees (medians), at 2.4 times the speed."""
NEAR, ALIKE = 0.075, 0.95
"""The task: the pen lies right within 7.5 cm of its place, the cosine of its angle above 0.95."""
FIRM = 0.03
"""Metres of distance that the planner's reward forgives."""


@dataclass(frozen=True)
class Mppi:
    """How the planner plans.

    `samples` sequences of `horizon` environment steps, anew each step; noise of standard deviation
    `sigma` in an action (in every other sequence `narrow` times that), kept from step to step with
    `memory`; `temperature` in standard deviations of the returns. A step's reward is `turn` times
    the cosine to the wanted direction, less `hold` times the metres beyond FIRM and `calm` times
    the pen's squared speed, and 1 where the pen lies right. (The task's own reward is too flat in
    the distance: the planner then drops the pen.)
    """

    samples: int = 40
    horizon: int = 16
    sigma: float = 0.5
    narrow: float = 0.4
    memory: float = 0.85
    temperature: float = 0.1
    turn: float = 5.0
    hold: float = 60.0
    calm: float = 1.0


class PenModel:
    """Batched forecasts of the pen from its simulator's present state.

    Args:
        simulator: of the pen task; it is read, not changed.
    """

    def __init__(self, simulator: Simulator) -> None:
        import mujoco
        from mujoco import rollout

        self.env = simulator.world.env
        self._get_state, self._rollout = mujoco.mj_getState, rollout.rollout
        self._kind = mujoco.mjtState.mjSTATE_FULLPHYSICS
        self._model = copy.copy(self.env.model)
        self._model.opt.timestep *= self.env.frame_skip / SUBSTEPS
        self._scratch = mujoco.MjData(self._model)
        pen, sites = self.env.obj_body_id, self._model.site_pos
        frame = np.zeros(9)
        mujoco.mju_quat2Mat(frame, self._model.body_quat[pen])
        self._frame, self._origin = frame.reshape(3, 3), self._model.body_pos[pen].copy()
        along = sites[self.env.obj_t_site_id] - sites[self.env.obj_b_site_id]
        self._along = along / np.linalg.norm(along)

    def states(self, actions: np.ndarray) -> np.ndarray:
        """Joint positions, then velocities, [N, T, 60] after each of the actions [N, T, 24]."""
        env, nq = self.env, self._model.nq
        state = np.zeros(1 + nq + self._model.nv)
        self._get_state(env.model, env.data, state, self._kind)
        controls = np.repeat(env.act_mean + actions * env.act_rng, SUBSTEPS, axis=1)
        states, _ = self._rollout(
            self._model,
            [self._scratch],
            np.tile(state, (len(actions), 1)),
            controls,
            initial_warmstart=np.tile(env.data.qacc_warmstart, (len(actions), 1)),
        )
        return states[:, SUBSTEPS - 1 :: SUBSTEPS, 1:]

    def pen(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Metres [...] to the wanted place and cosine [...] of the angle to the wanted direction,
        of states [..., 60]: the pen hangs on three slides and three hinges."""
        env, sites = self.env, self.env.data.site_xpos
        place = self._origin + states[..., 24:27] @ self._frame.T
        direction = _turned(self._along, states[..., 27:30]) @ self._frame.T
        wanted = (sites[env.tar_t_site_id] - sites[env.tar_b_site_id]) / env.tar_length
        return np.linalg.norm(place - sites[env.eps_ball_site_id], axis=-1), direction @ wanted

    def rewards(self, states: np.ndarray, settings: Mppi) -> np.ndarray:
        """The planner's reward [...] of states [..., 60]."""
        distance, alike = self.pen(states)
        speed = (states[..., 54:57] ** 2).sum(axis=-1)
        right = (distance < NEAR) & (alike > ALIKE)
        far = np.maximum(distance - FIRM, 0)
        return settings.turn * alike - settings.hold * far - settings.calm * speed + right


def _turned(vector: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rx(a) Ry(b) Rz(c) vector for angles [..., 3]."""
    (sa, sb, sc), (ca, cb, cc) = (np.moveaxis(f(angles), -1, 0) for f in (np.sin, np.cos))
    x, y, z = vector
    x, y = cc * x - sc * y, sc * x + cc * y
    x, z = cb * x + sb * z, cb * z - sb * x
    y, z = ca * y - sa * z, sa * y + ca * z
    return np.stack([x, y, z], axis=-1)


class Planner:
    """Plans anew each step from its last plan, at first from keeping the hand as it is.

    Args:
        simulator: of the pen task, just reset.
        settings: of the planner.
        rng: of its samples.
    """

    def __init__(self, simulator: Simulator, settings: Mppi, rng: np.random.Generator) -> None:
        self._model, self._settings, self._rng = PenModel(simulator), settings, rng
        env = self._model.env
        still = (env.data.actuator_length - env.act_mean) / env.act_rng
        self._plan = np.tile(still.clip(-1, 1), (settings.horizon, 1))

    def act(self) -> np.ndarray:
        """The next action [24]."""
        settings = self._settings
        kept = np.concatenate([self._plan[1:], self._plan[-1:]])
        candidates = (kept + self._noise(kept.shape)).clip(-1, 1)
        returns = self._model.rewards(self._model.states(candidates), settings).sum(axis=1)
        width = settings.temperature * returns.std() + 1e-9
        weights = np.exp((returns - returns.max()) / width)
        self._plan = np.tensordot(weights / weights.sum(), candidates, axes=1)
        return self._plan[0]

    def _noise(self, shape: tuple[int, ...]) -> np.ndarray:
        """Of every candidate, [samples, T, 24]; the first is the plan itself."""
        settings = self._settings
        noise = self._rng.standard_normal((settings.samples, *shape))
        fresh = np.sqrt(1 - settings.memory**2)
        for step in range(1, shape[0]):
            noise[:, step] = settings.memory * noise[:, step - 1] + fresh * noise[:, step]
        noise[1::2] *= settings.narrow
        noise[0] = 0
        return settings.sigma * noise
