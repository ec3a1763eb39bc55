"""Seeds that explain most of a block's energy, over all seeds at once by one matrix product."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 96  # blocks whose energies over all seeds stay in the second cache
GROUP = 64  # seeds whose maximum is taken first


class Hits(NamedTuple):
    """index [n, T] int64, energy [n, T] float32; the best first."""

    index: Tensor
    energy: Tensor


def features(w: Tensor) -> Tensor:
    """Products w_a w_b, a <= b, of blocks [n, C]: [n, C(C+1)/2]."""
    a, b = torch.triu_indices(w.shape[1], w.shape[1], device=w.device)
    return w[:, a] * w[:, b]


def seed_search(w: Tensor, projectors: Tensor, top: int) -> Hits:
    """The `top` seeds of largest explained energy of each block w [n, C].

    projectors: [C(C+1)/2, N], see `basis.projectors`.

    Raises ValueError for a `top` that is not in 1..N.
    """
    count, (n, _) = projectors.shape[1], w.shape
    if not 1 <= top <= count:
        raise ValueError(f"top: {top}; 1 to {count} (the seeds) are allowed")
    index = torch.empty(n, top, dtype=torch.int64, device=w.device)
    energy = torch.empty(n, top, device=w.device)
    pad = -count % GROUP
    padded = torch.nn.functional.pad(projectors, (0, pad))
    scores = torch.empty(min(n, CHUNK), count + pad, device=w.device)
    for start in range(0, n, CHUNK):
        block = features(w[start : start + CHUNK].float())
        score = torch.mm(block, padded, out=scores[: len(block)])
        score[:, count:] = float("-inf")
        best, at = _top(score, top)
        index[start : start + CHUNK], energy[start : start + CHUNK] = at, best
    return Hits(index, energy)


def _top(score: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """`topk` in two steps: the best `top` scores lie in the `top` groups of largest maximum."""
    n, count = score.shape
    groups = count // GROUP
    if top * 2 > groups:
        return score.topk(top)
    rows = score.view(n * groups, GROUP)
    group = rows.amax(1).view(n, groups).topk(top, sorted=False).indices
    first = torch.arange(n, device=score.device)[:, None] * groups
    near = rows.index_select(0, (group + first).flatten()).view(n, top * GROUP)
    best, at = near.topk(top)
    return best, group.gather(1, at // GROUP) * GROUP + at % GROUP
