"""What all off-policy learners share: step sizes, widths, discount."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Learning:
    """`rate`: Adam's step size; `hidden`: widths of all hidden layers; `discount`: per decision;
    `follow`: Polyak rate of target networks."""

    rate: float
    hidden: tuple[int, ...]
    discount: float
    follow: float
