"""Demonstrations: episodes of experts, and their normalisation."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from scripts.papers.lpds.ars import LinearPolicy, Search, search
from scripts.papers.lpds.tasks import Simulator, make, score

RANDOM_EPISODES = 500_000
SEEDS_APART = 1_000_000
"""Environment seeds: the demonstrations of seed s begin at s million, the random policy's episodes
half a million later. Steering and evaluation have theirs between ten and a hundred thousand."""

Actor = Callable[[np.ndarray], np.ndarray]


@dataclass
class Episodes:
    """Steps of episodes in order, and the score of each episode."""

    observations: list[np.ndarray] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    successes: list[bool] = field(default_factory=list)
    episodes: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def add(self, simulator: Simulator, seed: int, actor: Actor, source: int) -> float:
        """Play an episode of an actor and keep it; its score."""
        observation, number = simulator.reset(seed), len(self.scores)
        rewards, successes = [], []
        while True:
            action = np.asarray(actor(observation), dtype=np.float32)
            step = simulator.step(action)
            self.observations.append(observation)
            self.actions.append(action.clip(-1, 1))
            rewards.append(step.reward)
            successes.append(step.success)
            observation = step.observation
            if step.terminated or step.truncated:
                break
        self.rewards += rewards
        self.successes += successes
        self.episodes += [number] * len(rewards)
        self.sources += [source] * len(rewards)
        self.scores.append(score(simulator.spec.name, rewards, successes))
        return self.scores[-1]

    def tensors(self) -> dict[str, torch.Tensor]:
        """observations [N, O], actions [N, A], rewards [N], successes, episodes and sources [N]."""
        return {
            "observations": torch.from_numpy(np.array(self.observations, dtype=np.float32)),
            "actions": torch.from_numpy(np.array(self.actions, dtype=np.float32)),
            "rewards": torch.tensor(self.rewards, dtype=torch.float32),
            "successes": torch.tensor(self.successes, dtype=torch.uint8),
            "episodes": torch.tensor(self.episodes),
            "sources": torch.tensor(self.sources),
        }


@dataclass(frozen=True)
class Expert:
    """One source of demonstrations: its name, its mean score and over how many episodes."""

    source: str
    score: float
    episodes: int


def halfcheetah(
    settings: dict, horizon: int, rng: np.random.Generator, first: int
) -> tuple[Episodes, list[Expert]]:
    """Episodes of a linear policy at a quarter, half and the end of its search, actions with noise:
    many ways to run, of mixed quality.

    Args:
        settings: iterations, episodes (of each snapshot) and noise.
        horizon: steps an episode.
        rng: of the search and the noise.
        first: environment seed of the first episode.
    """
    simulator, found, experts = make("halfcheetah", horizon), Episodes(), []
    iterations = settings["iterations"]
    wanted = {max(1, round(iterations * share)) for share in (0.25, 0.5, 1.0)}
    snapshots: list[LinearPolicy] = [
        policy
        for number, policy in enumerate(
            search(simulator, Search(), iterations, rng, first), start=1
        )
        if number in wanted
    ]
    for source, policy in enumerate(snapshots):
        scores = [
            found.add(
                simulator,
                first + len(found.scores),
                lambda seen, policy=policy: (
                    policy.act(seen)
                    + settings["noise"] * rng.standard_normal(simulator.spec.action)
                ),
                source,
            )
            for _ in range(settings["episodes"])
        ]
        name = f"ARS, snapshot {source + 1} of {len(snapshots)}"
        experts.append(Expert(name, float(np.mean(scores)), len(scores)))
    return found, experts


def pick_place(
    settings: dict, horizon: int, rng: np.random.Generator, first: int
) -> tuple[Episodes, list[Expert]]:
    """Episodes of Meta-World's own scripted expert, actions with noise, that approach the puck from
    two sides.

    Args:
        settings: episodes (of each approach), noise, and offset: how far beside the puck, in
            metres, an approach aims until it descends.
        horizon: steps an episode.
        rng: of the noise.
        first: environment seed of the first episode.
    """
    from scripts.papers.lpds.scripted import approaching

    simulator, found, experts = make("pick_place", horizon), Episodes(), []
    for source, side in enumerate((-1, 1)):
        scores = []
        for _ in range(settings["episodes"]):
            actor = approaching(side * settings["offset"], settings["noise"], rng)
            scores.append(found.add(simulator, first + len(found.scores), actor, source))
        name = f"scripted, puck {'left' if side < 0 else 'right'}"
        experts.append(Expert(name, float(np.mean(scores)), len(scores)))
    return found, experts


def resampled(
    tensors: dict[str, torch.Tensor], rng: np.random.Generator
) -> dict[str, torch.Tensor]:
    """As many episodes, drawn with replacement: what another set of demonstrations might be."""
    numbers = tensors["episodes"].unique()
    rows = [
        torch.nonzero(tensors["episodes"] == numbers[chosen]).ravel()
        for chosen in rng.integers(len(numbers), size=len(numbers))
    ]
    lengths = torch.tensor([len(one) for one in rows])
    found = {name: values[torch.cat(rows)] for name, values in tensors.items()}
    return {**found, "episodes": torch.arange(len(rows)).repeat_interleave(lengths)}


def random_score(
    task: str, horizon: int, episodes: int, rng: np.random.Generator, first: int
) -> float:
    """Mean score of uniform actions, from environment seed `first` on."""
    simulator, found = make(task, horizon), Episodes()
    width = simulator.spec.action
    for number in range(episodes):
        found.add(simulator, first + number, lambda _: rng.uniform(-1, 1, width), 0)
    return float(np.mean(found.scores))


def normalisation(demos: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Range of observations and actions (a constant one widened to +-1), and the scale that makes
    a step's mean |reward| 1."""
    ranges = {}
    for name, rows in (("observation", demos["observations"]), ("action", demos["actions"])):
        low, high = rows.amin(dim=0), rows.amax(dim=0)
        flat = high - low < 1e-6
        ranges[f"{name}_low"] = torch.where(flat, low - 1, low)
        ranges[f"{name}_high"] = torch.where(flat, high + 1, high)
    size = demos["rewards"].abs().mean().clamp(min=1e-6)
    return {**ranges, "reward_scale": (1 / size).reshape(1)}
