"""Roll-out policy: one-step lookahead over the round budget, a generic competitor of the planner.

Each candidate budget is split greedily and followed, in the model, by the best Greedy(α). It knows
what TAP knows, and pays with simulation instead of a table.
"""

from dataclasses import dataclass

import numpy as np

from scripts.papers.network_recruitment import policies
from scripts.papers.network_recruitment.people import Types
from scripts.papers.network_recruitment.planner import Planner
from scripts.papers.network_recruitment.pmf import Array
from scripts.papers.network_recruitment.policies import Ints, Known, Policy
from scripts.papers.network_recruitment.simulate import ModelDraws, in_model, model_rounds, sampled


@dataclass(frozen=True)
class Rollouts:
    """What the lookahead simulates with."""

    types: Types
    """The population that later frontiers are drawn from."""
    pmfs: Array
    """Distributions of the frontier's types, [T', K]; T' > T where recruited people are shifted."""
    discount: float
    start: int
    count: int
    """Roll-outs of each candidate."""
    candidates: int
    """Round budgets tried, evenly spaced up to what is left."""
    shares: tuple[float, ...]
    rng: np.random.Generator

    def base_share(self, budget: int) -> float:
        """The α whose Greedy(α) recruits most in the model."""
        draws = ModelDraws.draw(self.rng, self.count, budget, self.start)
        known = self._model(budget)
        means = [
            in_model(policies.greedy_share(known, share), self.types, budget, self.start, draws)
            .discounted(self.discount)
            .mean()
            for share in self.shares
        ]
        return self.shares[int(np.argmax(means))]

    def _model(self, budget: int) -> Known:
        return Known(Planner(self.types.pmfs, np.zeros((budget + 1,) * 2), self.discount), budget)


def lookahead(known: Known, rollouts: Rollouts) -> Policy:
    """Decide by `count` roll-outs of each candidate round budget."""
    base = policies.greedy_share(rollouts._model(known.budget), rollouts.base_share(known.budget))
    padded = np.concatenate([rollouts.pmfs, np.eye(1, rollouts.pmfs.shape[1])])

    def decide(kinds: Ints, left: Ints, _: Array) -> Ints:
        persons, _chances = known.planner.order(kinds, int(left.max(initial=0)))
        tries = np.arange(1, rollouts.candidates + 1) / rollouts.candidates
        spends = np.ceil(left[:, None] * tries).astype(np.int64)  # [B, C]
        worth = np.zeros(spends.shape)
        for place in range(rollouts.candidates):
            coupons = policies.counted(persons, spends[:, place], kinds.shape)
            repeated = np.repeat(np.arange(len(kinds)), rollouts.count)
            able = sampled(
                padded, kinds[repeated], rollouts.rng.random((len(repeated), kinds.shape[1]))
            )
            new = np.minimum(coupons[repeated], able).sum(axis=1)
            later = _follow(base, rollouts, new, (left - spends[:, place])[repeated])
            worth[:, place] = (new + later).reshape(len(kinds), -1).mean(axis=1)
        best = np.take_along_axis(spends, worth.argmax(axis=1)[:, None], axis=1)[:, 0]
        return policies.counted(persons, best, kinds.shape)

    return decide


def _follow(base: Policy, rollouts: Rollouts, size: Ints, left: Ints) -> Array:
    """Discounted recruits of the base policy from fresh frontiers of given sizes."""

    def uniform(rows: Ints, _: int, width: int) -> tuple[Array, Array, Array]:
        drawn = rollouts.rng.random((2, len(rows), width))
        return drawn[0], drawn[1], drawn[0]

    outcome = model_rounds(base, rollouts.types, size, left, uniform)
    return rollouts.discount * outcome.discounted(rollouts.discount)
