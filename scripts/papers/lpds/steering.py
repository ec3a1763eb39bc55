"""The loop of online steering: one decision of each seed's simulator, then one update."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from scripts.papers.lpds.decoder import Decoder
from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.interaction import Fleet, Policy, Transition, evaluate
from scripts.papers.lpds.replay import Batch, Replay

RMS_STATES = 64
DIAGNOSTIC_EVERY = 20


@dataclass(frozen=True)
class Schedule:
    """`warm_up`: decisions of the frozen policy before learning; `decisions`: with learning;
    `batch`: transitions an update; `bank`: noise pairs a transition; `evaluations`: how many, the
    first before learning and the last after; `episodes`: of each."""

    warm_up: int
    decisions: int
    batch: int
    bank: int
    evaluations: int
    episodes: int

    def __post_init__(self) -> None:
        if self.evaluations < 3 or self.decisions % (self.evaluations - 1):
            raise ValueError(
                f"evaluations is {self.evaluations}; allowed: at least 3, one less dividing the "
                f"{self.decisions} decisions"
            )


class OffPolicy(Protocol):
    """A learner from replayed transitions."""

    policy: Policy
    parameters: dict[str, Tensor]

    def update(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """One gradient step of each network; diagnostics [S]."""


class OnPolicy(Protocol):
    """A learner that plays its own decisions."""

    policy: Policy
    parameters: dict[str, Tensor]

    def learn(self, fleet: Fleet, draws: Draws, decisions: int) -> dict[str, Tensor]:
        """Play so many decisions of each seed and learn from them; diagnostics [S]."""


@dataclass
class Course:
    """What happened to S seeds: `steps` [E] environment steps a seed at each evaluation, `scores`
    [E, S, episodes], `latent_rms` [E, S] (NaN where the policy has no noise of its own), and
    `diagnostics`, name -> list of (environment steps, [S])."""

    steps: list[float] = field(default_factory=list)
    scores: list[np.ndarray] = field(default_factory=list)
    latent_rms: list[np.ndarray] = field(default_factory=list)
    diagnostics: dict[str, list[tuple[float, np.ndarray]]] = field(default_factory=dict)


def transitions(decoder: Decoder, played: Transition, draws: Draws, bank: int) -> Batch:
    """What the replay stores of a decision: with m prior noises and their chunks at its state."""
    seeds, width, _ = played.observation.shape
    noise = draws.normal(width * bank, decoder.latent)
    repeated = played.observation.repeat_interleave(bank, dim=1)
    chunks = decoder.decode(repeated, noise)
    shape = (seeds, width, bank, decoder.latent)
    return Batch(
        played.observation,
        played.action,
        played.reward,
        played.next_observation,
        (~played.terminated).float(),
        noise.reshape(shape),
        chunks.reshape(shape),
    )


def warm_up(prior: Policy, decoder: Decoder, fleet: Fleet, plan: Schedule, draws: Draws) -> Replay:
    """Decisions of the frozen policy: the first transitions of every arm's replay."""
    capacity = plan.warm_up + plan.decisions
    shape = (decoder.weights["wc"].shape[1], decoder.latent)
    replay = Replay(len(fleet.seeds), capacity, *shape, plan.bank, fleet.device)
    for _ in range(plan.warm_up):
        played = fleet.play(prior.act(fleet.observation, draws))
        replay.add(transitions(decoder, played, draws, plan.bank))
    return replay


def steer_off_policy(
    learner: OffPolicy,
    decoder: Decoder,
    replay: Replay,
    fleet: Fleet,
    plan: Schedule,
    draws: Draws,
    examine: Callable[[Policy, int], None],
    note: Callable[[int, dict[str, Tensor]], None],
) -> None:
    """One environment decision, one update, `plan.decisions` times.

    Args:
        learner: what learns.
        decoder: the frozen policy, for the noise bank.
        replay: the warm-up's, filled further.
        fleet: one simulator a seed.
        plan: numbers of decisions and so on.
        draws: of actions, noise and batches.
        examine: called with the policy and the decisions so far, before the first and after each
            of equal parts.
        note: takes the decisions so far and the means of the updates' diagnostics since the last
            call; called every `DIAGNOSTIC_EVERY` decisions and after the last.
    """
    part = plan.decisions // (plan.evaluations - 1)
    examine(learner.policy, 0)
    sums: dict[str, Tensor] = {}
    summed = 0
    for decision in range(1, plan.decisions + 1):
        played = fleet.play(learner.policy.act(fleet.observation, draws))
        replay.add(transitions(decoder, played, draws, plan.bank))
        found = learner.update(replay.sample(draws, plan.batch), draws)
        sums = {name: sums.get(name, 0) + value for name, value in found.items()}
        summed += 1
        if summed == DIAGNOSTIC_EVERY or decision == plan.decisions:
            note(decision, {name: value / summed for name, value in sums.items()})
            sums, summed = {}, 0
        if decision % part == 0:
            examine(learner.policy, decision)


def steer_on_policy(
    learner: OnPolicy,
    fleet: Fleet,
    plan: Schedule,
    draws: Draws,
    examine: Callable[[Policy, int], None],
    note: Callable[[int, dict[str, Tensor]], None],
) -> None:
    """As many decisions as the others play; of the warm-up's it learns before the first
    evaluation."""
    part = plan.decisions // (plan.evaluations - 1)
    note(0, learner.learn(fleet, draws, plan.warm_up))
    examine(learner.policy, 0)
    for index in range(1, plan.evaluations):
        note(index * part, learner.learn(fleet, draws, part))
        examine(learner.policy, index * part)


@torch.no_grad()
def latent_rms(policy: Policy, observations: Tensor, draws: Draws) -> np.ndarray:
    """Root mean square of the policy's noise vectors at observations [S, B, O]; NaN without."""
    latent = getattr(policy, "latent", None)
    if latent is None:
        return np.full(observations.shape[0], np.nan)
    return latent(observations, draws).square().mean(dim=(1, 2)).sqrt().cpu().numpy()


class Examiner:
    """Evaluates a policy in the course of its learning.

    Args:
        fleet: simulators with the evaluation's episodes.
        episodes: of an evaluation.
        draws_of: gives the draws of evaluation e, the same for every arm.
        observations: states [S, B, O] at which the noise is measured.
        step_of: environment steps a seed after so many decisions.
    """

    def __init__(
        self,
        fleet: Fleet,
        episodes: int,
        draws_of: Callable[[int], Draws],
        observations: Tensor,
        step_of: Callable[[int], float],
    ) -> None:
        self._fleet, self._episodes, self._draws_of = fleet, episodes, draws_of
        self._observations, self._step_of = observations, step_of
        self.course = Course()

    def examine(self, policy: Policy, decisions: int) -> None:
        """Play the evaluation's episodes and measure the noise."""
        draws = self._draws_of(len(self.course.steps))
        self.course.latent_rms.append(latent_rms(policy, self._observations, draws))
        self.course.scores.append(evaluate(policy, self._fleet, self._episodes, draws))
        self.course.steps.append(self._step_of(decisions))

    def note(self, decisions: int, found: dict[str, Tensor]) -> None:
        """Keep diagnostics."""
        for name, value in found.items():
            entry = (self._step_of(decisions), value.detach().cpu().numpy())
            self.course.diagnostics.setdefault(name, []).append(entry)
