"""Four equally likely modes, for which the effect of the budget has a closed form.

Chunks repeat one of the directions +x, -x, +y, -y. The ideal decoder picks the direction on which
the noise projects most; the exact flow does the same, since the problem's symmetries map the basins
of its modes onto each other. Under an offset of length m along +x

    P(+x) = Ncdf(m / sqrt 2)^2,

because +x wins when u + m > |v| for independent standard normal u, v, that is when both
u - v > -m and u + v > -m, whose left sides are independent with variance 2.
"""

import math

import torch
from scipy.special import entr, ndtr
from torch import Tensor

from scripts.papers.lpds.cloning import Cloning, clone
from scripts.papers.lpds.decoder import Decoder

CHUNK = 8
LATENT = 2 * CHUNK
MODES = ("right", "left", "up", "down")
_DIRECTIONS = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
_OBSERVATION = 1  # a constant: the toy has one state


def mode_chunks() -> Tensor:
    """The four chunks [4, 16], in the order of `MODES`."""
    return _DIRECTIONS.repeat(1, CHUNK)


def mode_of(chunks: Tensor) -> Tensor:
    """The direction on which noise or chunks [..., 16] project most, [...]."""
    return (chunks @ mode_chunks().T).argmax(dim=-1)


def ideal_decode(noise: Tensor) -> Tensor:
    """Chunks of noise [..., 16]."""
    return mode_chunks()[mode_of(noise)]


def shift_of(delta: float, reduction: str) -> float:
    """Length m of the longest offset with a mean or summed square of delta.

    Raises:
        ValueError: an unknown reduction or a negative budget.
    """
    if delta < 0:
        raise ValueError(f"delta is {delta}; allowed: at least 0")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}; allowed: mean, sum")
    return math.sqrt(delta * (LATENT if reduction == "mean" else 1))


def closed_form(shift: float) -> Tensor:
    """Probabilities of the four modes [4] under an offset of length `shift` along +x."""
    towards, away = ndtr(shift / math.sqrt(2)), ndtr(-shift / math.sqrt(2))
    sideways = towards * away
    return torch.tensor([towards**2, away**2, sideways, sideways], dtype=torch.float64)


def offset_along_x(shift: float) -> Tensor:
    """The offset [16] of that length along +x."""
    return mode_chunks()[0] * (shift / math.sqrt(CHUNK))


def occupancy(modes: Tensor) -> Tensor:
    """Shares of the four modes [S, 4] of mode numbers [S, N]."""
    return torch.stack([(modes == mode).double().mean(dim=1) for mode in range(4)], dim=1)


def mode_entropy(shares: Tensor) -> Tensor:
    """Entropy in nat of shares [..., 4]: log 4 when all modes are equally likely, 0 for one."""
    return torch.from_numpy(entr(shares.numpy())).sum(dim=-1)


def train_flow(cloning: Cloning, steps: int, generators: list[torch.Generator]) -> Decoder:
    """A flow decoder per generator, cloned from the four chunks.

    Args:
        cloning: how it is trained.
        steps: Euler steps.
        generators: one a seed.
    """
    seeds = len(generators)
    observations = [torch.zeros(len(MODES), _OBSERVATION)] * seeds
    chunks = [mode_chunks()] * seeds
    params = clone("flow", observations, chunks, cloning, generators, lambda *_: None)
    return Decoder.freeze("flow", params, steps)


def decode(decoder: Decoder, noise: Tensor) -> Tensor:
    """Chunks [S, N, 16] of noise [S, N, 16] by a trained flow."""
    observation = torch.zeros(*noise.shape[:2], _OBSERVATION)
    return decoder.decode(observation, noise)
