"""Random draws of stacked seeds: each seed draws from its own generator, so that S seeds trained
together are the S seeds trained apart."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Draws:
    """Draws with a leading seed axis.

    Args:
        generators: one CPU generator a seed (on any device the same numbers are drawn).
        device: where the draws go.
    """

    def __init__(self, generators: Sequence[torch.Generator], device: str = "cpu") -> None:
        self.generators = list(generators)
        self.device = device

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers [S, *shape]."""
        return self._stack([torch.randn(shape, generator=one) for one in self.generators])

    def uniform(self, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1), [S, *shape]."""
        return self._stack([torch.rand(shape, generator=one) for one in self.generators])

    def integers(self, high: int | Sequence[int], *shape: int) -> Tensor:
        """Integers in [0, high), [S, *shape]; `high` may differ between seeds."""
        highs = [high] * len(self.generators) if isinstance(high, int) else high
        return self._stack(
            [
                torch.randint(below, shape, generator=one)
                for below, one in zip(highs, self.generators, strict=True)
            ]
        )

    def _stack(self, draws: list[Tensor]) -> Tensor:
        return torch.stack(draws).to(self.device)
