"""A baseline at a rate that it cannot store: read off its own bits-KL curve, segment by segment."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np


class Point(NamedTuple):
    """A setting: its label, family (settings on one curve), total bits and KL per segment."""

    label: str
    family: str
    bits: float
    kl: np.ndarray


def at_target(points: list[Point], target: float, tolerance: float) -> dict[str, Any] | None:
    """The best of what an arm can do at a rate: kl [segments], bits, setting; None if nothing.

    Candidates are the settings of at most `target + tolerance` bits, and on each curve that passes
    the target the interpolation between the neighbours (KL log-linear in the bits). The lowest mean
    KL on the evaluated text is taken, in favour of the arm.
    """
    found = [
        {"kl": p.kl, "bits": p.bits, "setting": p.label}
        for p in points
        if p.bits <= target + tolerance
    ]
    for family in sorted({p.family for p in points}):
        curve = sorted((p for p in points if p.family == family), key=lambda p: p.bits)
        for low, high in pairwise(curve):
            if low.bits < target < high.bits:
                share = (target - low.bits) / (high.bits - low.bits)
                logs = (1 - share) * np.log(low.kl) + share * np.log(high.kl)
                setting = f"{low.label}~{high.label}"
                found.append({"kl": np.exp(logs), "bits": target, "setting": setting})
    return min(found, key=lambda row: row["kl"].mean()) if found else None
