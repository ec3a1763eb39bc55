"""Fleets of simulators that play action chunks, and the evaluation of a policy."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.tasks import Simulator, SimulatorFault, make, score

RESTING = -1


class Policy(Protocol):
    """Anything that turns observations into chunks."""

    def act(self, observation: Tensor, draws: Draws) -> Tensor:
        """Chunks in [-1, 1], [S, B, D], of normalised observations [S, B, O]."""


class Norm:
    """Min-max scaling of a task's observations and actions to [-1, 1], from its demonstrations.

    Args:
        tensors: observation_low/high [O], action_low/high [A], reward_scale [1]; of S seeds
            with an axis for them in front, [S, 1, O] and so on: see `stacked`.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._low, self._high = tensors["observation_low"], tensors["observation_high"]
        # actions [S, W, chunk, A] have an axis more than observations [S, W, O]
        self._action_low = tensors["action_low"].unsqueeze(-2).cpu().numpy()
        self._action_span = tensors["action_high"].unsqueeze(-2).cpu().numpy() - self._action_low
        self.reward_scale = tensors["reward_scale"].cpu().numpy()

    @classmethod
    def stacked(cls, seeds: Sequence[Mapping[str, Tensor]]) -> "Norm":
        """The scaling of S seeds, each with its own demonstrations, for what is [S, W, ...]."""
        names = ("observation_low", "observation_high", "action_low", "action_high", "reward_scale")
        return cls({name: torch.stack([one[name] for one in seeds])[:, None] for name in names})

    def observation(self, raw: Tensor) -> Tensor:
        """Scaled observations; outside the demonstrations' range they leave [-1, 1], up to 5."""
        scaled = 2 * (raw - self._low) / (self._high - self._low) - 1
        return scaled.clamp(-5, 5)

    def action(self, raw: Tensor) -> Tensor:
        """Scaled actions."""
        low = torch.from_numpy(self._action_low)
        return 2 * (raw - low) / torch.from_numpy(self._action_span) - 1

    def steps_of(self, chunk: Tensor) -> np.ndarray:
        """Actions of a simulator's steps, clipped to its box: [..., chunk, A] of [..., D]."""
        scaled = chunk.unflatten(-1, (-1, self._action_low.shape[-1])).cpu().numpy()
        return ((scaled + 1) / 2 * self._action_span + self._action_low).clip(-1, 1)


@dataclass
class Transition:
    """What one decision of each simulator gave, [S, W, ...]."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    """Summed over the steps played and scaled."""
    next_observation: Tensor
    """Before a reset."""
    terminated: Tensor
    ended: Tensor


class Fleet:
    """W simulators for each of S seeds, which play chunks in lock step.

    A chunk stops where its episode ends, and its other actions are not used. A simulator that
    breaks stops its seed alone: the column is listed in `faults` and plays no more.

    Args:
        task, horizon: what is simulated, and steps an episode.
        norm: of the task, one for all columns or stacked in their order.
        seeds: a number for each of the S columns; columns may share one.
        first_episode: episode e of seed s starts from first_episode + 1000 s + e.
        width: simulators a seed.
        device: where observations go.
    """

    def __init__(
        self,
        task: str,
        horizon: int,
        norm: Norm,
        seeds: Sequence[int],
        first_episode: int,
        width: int = 1,
        device: str = "cpu",
    ) -> None:
        self.task, self.norm, self.device = task, norm, device
        self._first = first_episode
        self.seeds = list(seeds)
        self._simulators = [[make(task, horizon) for _ in range(width)] for _ in seeds]
        self.restart()

    def restart(self, limit: int | None = None) -> None:
        """Begin with each seed's first episodes; after `limit` episodes a seed rests."""
        self._limit = limit
        self.faults: dict[int, SimulatorFault] = {}
        width = len(self._simulators[0])
        spec = self._simulators[0][0].spec
        self._raw = np.zeros((len(self.seeds), width, spec.observation), dtype=np.float32)
        self._next_episode = [0] * len(self.seeds)
        self.episode = np.zeros((len(self.seeds), width), dtype=np.int64)
        self._record = [[([], []) for _ in range(width)] for _ in self.seeds]
        self.scores: list[dict[int, float]] = [{} for _ in self.seeds]
        self.steps = np.zeros(len(self.seeds), dtype=np.int64)
        for index in range(len(self.seeds)):
            for slot in range(width):
                self._reset(index, slot)

    @property
    def observation(self) -> Tensor:
        """Normalised observations [S, W, O]."""
        return self.norm.observation(torch.from_numpy(self._raw.copy()).to(self.device))

    def play(self, chunks: Tensor) -> Transition:
        """Play chunks [S, W, D]; ended episodes are scored and followed by the seed's next ones."""
        before = self.observation
        actions = self.norm.steps_of(chunks)
        shape = actions.shape[:2]
        reward = np.zeros((*shape, 1), dtype=np.float32)
        terminated, ended = np.zeros((*shape, 1), bool), np.zeros((*shape, 1), bool)
        for index, slot in np.ndindex(*shape):
            if self.episode[index, slot] == RESTING:
                continue
            try:
                outcome = self._play_one(index, slot, actions[index, slot])
            except SimulatorFault as fault:
                self._drop(index, fault)
                continue
            reward[index, slot], terminated[index, slot], ended[index, slot] = outcome
        after = self.observation
        for index, slot in np.argwhere(ended[..., 0]):
            self._finish(index, slot)
        return Transition(
            before,
            chunks,
            torch.from_numpy(reward * self.norm.reward_scale).to(self.device),
            after,
            torch.from_numpy(terminated).to(self.device),
            torch.from_numpy(ended).to(self.device),
        )

    def _play_one(self, index: int, slot: int, actions: np.ndarray) -> tuple[float, bool, bool]:
        simulator: Simulator = self._simulators[index][slot]
        rewards, successes = self._record[index][slot]
        total = 0.0
        for action in actions:
            step = simulator.step(action)
            rewards.append(step.reward)
            successes.append(step.success)
            total += step.reward
            self.steps[index] += 1
            if step.terminated or step.truncated:
                break
        self._raw[index, slot] = step.observation
        return total, step.terminated, step.terminated or step.truncated

    def _finish(self, index: int, slot: int) -> None:
        rewards, successes = self._record[index][slot]
        episode = int(self.episode[index, slot])
        self.scores[index][episode] = score(self.task, rewards, successes)
        self._reset(index, slot)

    def _reset(self, index: int, slot: int) -> None:
        episode = self._next_episode[index]
        if index in self.faults or episode == self._limit:
            self.episode[index, slot] = RESTING
            return
        self._next_episode[index] += 1
        self.episode[index, slot] = episode
        self._record[index][slot] = ([], [])
        start = self._first + 1000 * self.seeds[index] + episode
        try:
            self._raw[index, slot] = self._simulators[index][slot].reset(start)
        except SimulatorFault as fault:
            self._drop(index, fault)

    def _drop(self, index: int, fault: SimulatorFault) -> None:
        """Stop a seed whose simulator broke; its observations stay at 0."""
        self.faults[index] = fault
        self.episode[index] = RESTING
        self._raw[index] = 0
        print(f"seed {self.seeds[index]} stops: {fault}", file=sys.stderr, flush=True)


def evaluate(policy: Policy, fleet: Fleet, episodes: int, draws: Draws) -> np.ndarray:
    """Scores of each seed's first episodes, [S, episodes]; NaN for a seed that broke.

    Episodes run side by side in the fleet's width, each to its end.
    """
    fleet.restart(limit=episodes)
    while (fleet.episode != RESTING).any():
        fleet.play(policy.act(fleet.observation, draws))
    return np.array(
        [
            [np.nan if index in fleet.faults else done[episode] for episode in range(episodes)]
            for index, done in enumerate(fleet.scores)
        ]
    )
