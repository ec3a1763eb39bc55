"""Numbers as text, and dot-and-whisker plots as positions along a numeric axis.

Positions are per cent of the drawing's width, so that a plot stretches with the page while its
lettering keeps its size.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

EDGE = 6.0
"""Share of the width, in per cent, kept free at each end of the axis."""

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


def number(value: float | None, digits: int = 4) -> str:
    """`value` to `digits` significant digits; an em dash stands for a number that is missing."""
    if value is None:
        return "—"
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e6:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{decimals}f}"
        if "." in text:
            text = text.rstrip("0").rstrip(".")
        return text.replace("-", "−")
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa.replace('-', '−')}×10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def p_value(value: float | None) -> str:
    """A p-value to two significant digits, bounded below where more digits mean nothing."""
    if value is not None and value < 1e-4:
        return "< 0.0001"
    return number(None if value is None else float(value), digits=2)


def duration(seconds: float) -> str:
    """Seconds as a person says them: 4.2 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 59.95:
        return f"{seconds:.1f} s".replace(".0 ", " ")
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


@dataclass(frozen=True)
class Axis:
    """A linear axis from `low` to `high` with its labelled ticks as (per cent, text)."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]

    def at(self, value: float) -> float:
        """Where `value` stands, in per cent of the drawing's width."""
        share = (value - self.low) / (self.high - self.low)
        return round(EDGE + (100 - 2 * EDGE) * share, 2)


def axis(values: Iterable[float | None], target: int = 4) -> Axis:
    """The axis that shows all `values` (missing ones are skipped) with about `target` ticks."""
    known = [float(value) for value in values if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    reach = max(abs(low), abs(high))
    if high - low <= 1e-9 * reach or high == low:
        spread = 0.5 * reach or 1.0
        low, high = low - spread, high + spread
    rough = (high - low) / target
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor for factor in _STEPS if factor * power >= rough * (1 - 1e-9)) * power
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    bare = Axis(first * step, last * step, ())
    ticks = [(bare.at(i * step), _tick(i * step, step)) for i in range(first, last + 1)]
    return Axis(bare.low, bare.high, tuple(ticks))


def _tick(value: float, step: float) -> str:
    """A tick's number with the digits that tell it from its neighbours."""
    if value == 0:
        return "0"
    if step < 1e-4 or abs(value) >= 1e6:
        apart = math.floor(math.log10(abs(value))) - math.floor(math.log10(step))
        return number(value, digits=max(1, apart + 2))
    decimals = next(d for d in range(7) if d == 6 or math.isclose(round(step, d), step))
    return f"{value:,.{decimals}f}".replace("-", "−")


@dataclass(frozen=True)
class Claimed:
    """The stretch of values on which a check's claim holds; None at an end: without bound."""

    low: float | None
    high: float | None
    strict: bool = False

    @property
    def bounds(self) -> tuple[float, ...]:
        return tuple(end for end in (self.low, self.high) if end is not None)

    @property
    def text(self) -> str:
        """The stretch in words, for the plot."""
        if self.low is None:
            return f"claimed {'<' if self.strict else '≤'} {number(self.high)}"
        if self.high is None:
            return f"claimed {'>' if self.strict else '≥'} {number(self.low)}"
        if self.low == self.high:
            return f"claimed {number(self.low)}"
        return f"claimed {number(self.low)} to {number(self.high)}"


@dataclass(frozen=True)
class Whisker:
    """One effect drawn on an axis. All positions are per cent of the width; None is not drawn.

    `low_open` and `high_open` mark an interval without that end: it runs to the axis' edge and
    ends in an arrow. `holds` is where the claim holds: start and width.
    """

    axis: Axis
    effect: float
    low: float | None
    high: float | None
    low_open: bool
    high_open: bool
    bounds: tuple[float, ...]
    holds: tuple[float, float] | None
    label: str
    label_at: float


def whisker(
    axis: Axis, effect: float, low: float | None, high: float | None, claimed: Claimed | None
) -> Whisker:
    """Place an effect, its interval and the claimed stretch on `axis`."""
    left, right = EDGE, 100 - EDGE
    drawn = low is not None or high is not None
    low_open, high_open = drawn and low is None, drawn and high is None
    bounds: tuple[float, ...] = ()
    holds = None
    if claimed is not None:
        bounds = tuple(axis.at(bound) for bound in claimed.bounds)
        start = left if claimed.low is None else bounds[0]
        holds = (start, round((right if claimed.high is None else bounds[-1]) - start, 2))
    return Whisker(
        axis=axis,
        effect=axis.at(effect),
        low=left if low_open else None if low is None else axis.at(low),
        high=right if high_open else None if high is None else axis.at(high),
        low_open=low_open,
        high_open=high_open,
        bounds=bounds,
        holds=holds,
        label="" if claimed is None else claimed.text,
        label_at=sum(bounds) / len(bounds) if bounds else left,
    )
