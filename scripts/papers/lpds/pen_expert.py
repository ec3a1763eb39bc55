"""PPO on batched forecasts of the Adroit hand with its pen: the pen's expert.

A small policy acts for many pens at once in MuJoCo, in coarser steps than the environment's. Each
of its actions is held for a number of steps drawn at random, so that it learns to turn the pen
gently: what is cloned from it plays chunks of actions without looking, and a policy that decides
every 10 ms, however good, is of no use when it may look every 40 ms only.
"""

import copy
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from scripts.papers.lpds.dppo import generalised_advantages, surrogate_loss
from scripts.papers.lpds.stacked import Params, adam, detached, init_mlp, mlp, trainable
from scripts.papers.lpds.tasks import Simulator

SUBSTEPS = 2
"""Steps of the forecasts within one of the environment, which takes 5: forecasts of the pen
16 steps ahead then differ by 2 mm and 1.4 degrees (medians), at 2.4 times the speed."""
NEAR, ALIKE = 0.075, 0.95
"""The task: the pen lies right within 7.5 cm of its place, the cosine of its angle above 0.95."""
FIRM = 0.03
"""Metres of distance that the expert's reward forgives."""
DROPPED = 0.1
"""Metres above the ground below which the pen has left the hand."""
WIDEST = 1.0
"""The task: the wanted direction is turned by up to 1 radian about either of two axes."""
FARTHEST = 5.0
"""Scaled observations are clipped to this."""


@dataclass(frozen=True)
class Training:
    """How the expert is trained.

    Each of `iterations` plays one episode of `horizon` steps with each of `pens`, with noise of
    first standard deviation `deviation` around the network's actions, each held for one of `holds`
    steps (the same for all pens); then follow `epochs` of clipped updates in batches of `batch`.
    `hidden` is the width of both layers of both networks, `rate` the step size, which falls to
    zero, `discount` and `memory` are those of a decision, `clip` bounds the ratio.

    A step's reward is the cosine to the wanted direction, less `near` times the metres beyond FIRM,
    `calm` times the pen's squared speed and `rest` times the mean squared action (counted from the
    hand at rest), and 1 where the pen lies right; dropping it costs `drop`. (The task's own reward
    is too flat in the distance: the pen is then dropped.) Returns are divided by `scale`.
    """

    iterations: int = 450
    pens: int = 128
    horizon: int = 60
    holds: tuple[int, ...] = (1, 2, 4)
    deviation: float = 0.25
    hidden: int = 64
    epochs: int = 6
    batch: int = 640
    rate: float = 1e-3
    discount: float = 0.94
    memory: float = 0.94
    clip: float = 0.2
    near: float = 6.0
    calm: float = 0.1
    rest: float = 0.3
    drop: float = 20.0
    scale: float = 40.0


class Played(NamedTuple):
    """What some steps of every pen gave, [N]."""

    reward: np.ndarray
    """Summed, up to a drop."""
    dropped: np.ndarray


class Pens:
    """Forecasts of N pens from the simulator's first state, each with its own wanted direction.

    Args:
        simulator: of the pen task, just reset; it is read, not changed.
        count: N.
        rng: of the directions.
    """

    def __init__(self, simulator: Simulator, count: int, rng: np.random.Generator) -> None:
        import mujoco
        from mujoco import rollout

        env = self._env = simulator.world.env
        self.count, self._rng, self._rollout = count, rng, rollout.rollout
        self._model = copy.copy(env.model)
        self._model.opt.timestep *= env.frame_skip / SUBSTEPS
        self._scratch = mujoco.MjData(self._model)
        self._first = np.zeros(1 + self._model.nq + self._model.nv)
        mujoco.mj_getState(env.model, env.data, self._first, mujoco.mjtState.mjSTATE_FULLPHYSICS)
        frame = np.zeros(9)
        mujoco.mju_quat2Mat(frame, self._model.body_quat[env.obj_body_id])
        self._frame = frame.reshape(3, 3)
        self._origin = self._model.body_pos[env.obj_body_id].copy()
        self._place = env.data.site_xpos[env.eps_ball_site_id].copy()
        self._along = self._between(env.obj_t_site_id, env.obj_b_site_id)
        self._target = self._between(env.tar_t_site_id, env.tar_b_site_id)
        self.still = ((env.data.actuator_length - env.act_mean) / env.act_rng).clip(-1, 1)
        self.reset()

    def reset(self) -> np.ndarray:
        """Begin anew, with other directions: the first observations [N, 45]."""
        angles = np.zeros((self.count, 3))
        angles[:, :2] = self._rng.uniform(-WIDEST, WIDEST, (self.count, 2))
        self.wanted = turned(self._target, angles)
        self._states = np.tile(self._first, (self.count, 1))
        return self.observations(self._states[:, 1:])

    def play(
        self, actions: np.ndarray, steps: int, settings: Training
    ) -> tuple[np.ndarray, Played]:
        """Hold actions [N, 24] for some steps: the observations after them [N, 45], and more."""
        controls = self._env.act_mean + actions.clip(-1, 1) * self._env.act_rng
        states, _ = self._rollout(
            self._model,
            [self._scratch],
            self._states,
            np.repeat(controls[:, None], steps * SUBSTEPS, axis=1),
        )
        self._states = states[:, -1]
        after = states[:, SUBSTEPS - 1 :: SUBSTEPS, 1:]
        low = self.pen(after)[0][..., 2] < DROPPED
        held = np.cumsum(low, axis=1) == 0
        efforts = settings.rest * ((actions - self.still) ** 2).mean(axis=1)
        rewards = self.rewards(after, settings) - efforts[:, None]
        dropped = low.any(axis=1)
        total = (rewards * held).sum(axis=1) - settings.drop * dropped
        return self.observations(after[:, -1]), Played(total, dropped)

    def pen(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Place and direction [..., 3] of the pen in states [..., 60] (joint positions, then
        velocities): it hangs on three slides and three hinges."""
        place = self._origin + states[..., 24:27] @ self._frame.T
        return place, turned(self._along, states[..., 27:30]) @ self._frame.T

    def observations(self, states: np.ndarray) -> np.ndarray:
        """The task's observations [N, 45] of states [N, 60]."""
        place, direction = self.pen(states)
        return np.concatenate(
            [
                states[:, :24], place, states[:, 54:60], direction, self.wanted,
                place - self._place, direction - self.wanted,
            ],
            axis=1,
        )  # fmt: skip

    def rewards(self, states: np.ndarray, settings: Training) -> np.ndarray:
        """The expert's reward [N, T], but for its effort, of states [N, T, 60]."""
        place, direction = self.pen(states)
        distance = np.linalg.norm(place - self._place, axis=-1)
        alike = (direction * self.wanted[:, None]).sum(axis=-1)
        speed = (states[..., 54:57] ** 2).sum(axis=-1)
        right = (distance < NEAR) & (alike > ALIKE)
        far = np.maximum(distance - FIRM, 0)
        return alike - settings.near * far - settings.calm * speed + right

    def _between(self, top: int, bottom: int) -> np.ndarray:
        """Unit vector [3] between two sites of a body, in its frame."""
        along = self._model.site_pos[top] - self._model.site_pos[bottom]
        return along / np.linalg.norm(along)


def turned(vector: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rx(a) Ry(b) Rz(c) vector for angles [..., 3]."""
    (sa, sb, sc), (ca, cb, cc) = (np.moveaxis(f(angles), -1, 0) for f in (np.sin, np.cos))
    x, y, z = vector
    x, y = cc * x - sc * y, sc * x + cc * y
    x, z = cb * x + sb * z, cb * z - sb * x
    y, z = ca * y - sa * z, sa * y + ca * z
    return np.stack([x, y, z], axis=-1)


@dataclass(frozen=True)
class PenPolicy:
    """action = clip(still + network((observation - mean) / spread)).

    `actor` is stacked over one seed; `mean` and `spread` are [45], `still` [24]: the hand at rest.
    """

    actor: Params
    mean: Tensor
    spread: Tensor
    still: np.ndarray

    def scaled(self, observations: np.ndarray) -> Tensor:
        """What the networks take, [1, N, 45], of observations [N, 45]."""
        rows = (torch.from_numpy(observations).float() - self.mean) / self.spread
        return rows.clamp(-FARTHEST, FARTHEST)[None]

    @torch.no_grad()
    def act(self, observation: np.ndarray) -> np.ndarray:
        """An action [24]."""
        offset = mlp(self.actor, self.scaled(observation[None]), torch.tanh)[0, 0].numpy()
        return (self.still + offset).clip(-1, 1)


class Rollout(NamedTuple):
    """Decisions of all pens until they were dropped, [M, ...], time first."""

    inputs: Tensor
    offsets: Tensor
    log_prob: Tensor
    advantage: Tensor
    value: Tensor
    """What the critic is to say."""


def train(simulator: Simulator, settings: Training, seed: int) -> PenPolicy:
    """Train the expert.

    Args:
        simulator: of the pen task, just reset; it is read, not changed.
        settings: of the training.
        seed: of networks, directions, holds and noise.
    """
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    pens = Pens(simulator, settings.pens, rng)
    sizes = 45, settings.hidden, settings.hidden
    actor = trainable(init_mlp([*sizes, 24], [generator], zero_last=True), "cpu")
    critic = trainable(init_mlp([*sizes, 1], [generator]), "cpu")
    width = trainable({"log": torch.full((24,), math.log(settings.deviation))}, "cpu")
    policy = PenPolicy(actor, *_moments(pens, settings, rng), pens.still)
    optimiser = adam(actor, critic, width, rate=settings.rate)
    for iteration in range(settings.iterations):
        optimiser.param_groups[0]["lr"] = settings.rate * (1 - iteration / settings.iterations)
        rollout = _collect(pens, policy, critic, width["log"], settings, rng, generator)
        for _ in range(settings.epochs):
            order = torch.randperm(len(rollout.value), generator=generator)
            for chosen in order.split(settings.batch):
                batch = Rollout(*(rows[chosen] for rows in rollout))
                loss = _loss(batch, actor, critic, width["log"], settings.clip)
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
    return PenPolicy(detached(actor), policy.mean, policy.spread, policy.still)


def _moments(pens: Pens, settings: Training, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Mean and deviation (widened by 0.05) [45] of the observations that noise alone leads to."""
    seen = [pens.reset()]
    for _ in range(settings.horizon):
        noise = settings.deviation * rng.standard_normal((pens.count, 24))
        seen.append(pens.play(pens.still + noise, 1, settings)[0])
    rows = torch.from_numpy(np.concatenate(seen)).float()
    return rows.mean(dim=0), rows.std(dim=0) + 0.05


@torch.no_grad()
def _collect(
    pens: Pens,
    policy: PenPolicy,
    critic: Params,
    log_width: Tensor,
    settings: Training,
    rng: np.random.Generator,
    generator: torch.Generator,
) -> Rollout:
    """Play one episode of every pen."""
    inputs, offsets, log_prob, reward, dropped = [], [], [], [], []
    scaled, left = policy.scaled(pens.reset()), settings.horizon
    while left:
        steps = min(int(rng.choice(settings.holds)), left)
        mean = mlp(policy.actor, scaled, torch.tanh)[0]
        offset = mean + log_width.exp() * torch.randn(mean.shape, generator=generator)
        observations, played = pens.play(pens.still + offset.double().numpy(), steps, settings)
        inputs.append(scaled[0])
        offsets.append(offset)
        log_prob.append(gaussian(offset, mean, log_width))
        reward.append(torch.from_numpy(played.reward / settings.scale).float())
        dropped.append(torch.from_numpy(played.dropped))
        scaled, left = policy.scaled(observations), left - steps
    values = mlp(critic, torch.stack([*inputs, scaled[0]]).flatten(0, 1)[None], torch.tanh)
    values, over = values.reshape(-1, pens.count), torch.stack(dropped)
    advantage = generalised_advantages(
        torch.stack(reward), values[:-1], values[1:], over, over, settings.discount, settings.memory
    )
    before = over.cumsum(dim=0) - over.long() == 0
    rows = [torch.stack(rows)[before] for rows in (inputs, offsets, log_prob)]
    wanted, advantage = (values[:-1] + advantage)[before], advantage[before]
    return Rollout(*rows, (advantage - advantage.mean()) / (advantage.std() + 1e-8), wanted)


def _loss(batch: Rollout, actor: Params, critic: Params, log_width: Tensor, clip: float) -> Tensor:
    """PPO's clipped loss plus half the critic's squared error."""
    mean = mlp(actor, batch.inputs[None], torch.tanh)[0]
    ratio = gaussian(batch.offsets, mean, log_width) - batch.log_prob
    value = mlp(critic, batch.inputs[None], torch.tanh)[0, :, 0]
    surrogate = surrogate_loss(ratio, batch.advantage, torch.tensor(clip))
    return surrogate.mean() + 0.5 * ((value - batch.value) ** 2).mean()


def gaussian(x: Tensor, mean: Tensor, log_width: Tensor) -> Tensor:
    """Log density [N] of rows x [N, A], but for a constant."""
    return -(((x - mean) / log_width.exp()) ** 2).sum(dim=1) / 2 - log_width.sum()
