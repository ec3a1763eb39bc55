"""The kinds of check: what each measures on the metrics table, and when it is reproduced.

A kind is a function (table, atom, place) -> Measured in `KINDS`. Kinds with a threshold are decided
by `decide` from estimate, interval and Holm-adjusted p-value; the others decide by a rule of their
own. Effects of greater, not_worse and share are signed so that positive is better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scripts.pipeline import stats, units
from scripts.pipeline.claims import Check, show
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.stats import Interval
from scripts.pipeline.units import NotHere

if TYPE_CHECKING:
    import pandas as pd

ALPHA = 0.05
REPRODUCED = "reproduced"
PARTLY = "partly"
NOT_REPRODUCED = "not reproduced"


@dataclass(frozen=True)
class Measured:
    """What an atom found; `sign` is -1 when low values are claimed, `neutral` is no effect."""

    effect: float | None
    interval: Interval
    n: int
    seeds: int
    unit: str
    effect_unit: str
    words: str  # the finding, up to and without the number
    counted: str  # what n counts
    direction: str
    margin: float | None
    sign: int = 1
    threshold: float = 0.0
    strict: bool = False
    neutral: float | None = None
    p: float | None = None
    test: str | None = None
    mde: float | None = None
    rule: str | None = None  # the verdict, for kinds that decide by a rule
    tolerance: float | None = None  # half width beyond which "not contradicted" tells nothing
    extra: str = ""
    horizon: float | None = None


def measure(table: pd.DataFrame, atom: Check, place: str) -> Measured:
    """Effect, interval and p-value of an atom; PipelineError when rows are missing or unequal."""
    return KINDS[atom.kind](table, atom, place)


def decide(found: Measured, p_holm: float | None, by: str) -> str:
    """Verdict of an atom; see the head of claims.schema.yaml."""
    if found.rule is not None:
        return found.rule
    if found.effect is None:
        return NOT_REPRODUCED
    # Orient everything so that large is claimed.
    sign, bar = found.sign, found.sign * found.threshold
    estimate = sign * found.effect
    ends = [sign * end for end in found.interval[:2] if end is not None]

    def clears(value: float) -> bool:
        return value > bar if found.strict else value >= bar

    if found.n == 1 or not ends:
        return PARTLY if clears(estimate) else NOT_REPRODUCED
    right_way = found.neutral is not None and estimate > sign * found.neutral
    if by == "estimate":
        if clears(estimate):
            return REPRODUCED
        return PARTLY if right_way else NOT_REPRODUCED
    if by == "not_contradicted":
        if max(ends) < bar:
            return NOT_REPRODUCED
        return PARTLY if _too_wide(found.interval, found.tolerance) else REPRODUCED
    if clears(min(ends)) and (p_holm is None or p_holm < ALPHA):
        return REPRODUCED
    if clears(estimate) or (right_way and max(ends) >= bar):
        return PARTLY
    return NOT_REPRODUCED


def _too_wide(interval: Interval, tolerance: float | None) -> bool:
    return tolerance is not None and (interval.high - interval.low) / 2 > tolerance


def _p(values: np.ndarray, margin: float, atom: Check) -> tuple[float | None, str | None]:
    """p-value of mean > margin where the atom is judged by one."""
    if atom.by != "interval" or len(values) < 2:
        return None, None
    return stats.mean_above(values, margin, atom.test)


def _gains(
    table: pd.DataFrame, atom: Check, place: str
) -> tuple[units.Pairs, np.ndarray, str, str]:
    """Differences per unit, positive when the arm is better, and how to name them."""
    both = units.pairs(table, atom, place)
    up = atom.better == "higher"
    gains = units.clustered(both.arm - both.than if up else both.than - both.arm, atom.cluster)
    overridden = ", ".join(f"{name}={show(value)}" for name, value in atom.than_where.items())
    other = f"{atom.than[0]} ({overridden})" if overridden else atom.than[0]
    first, second = (atom.arm, other) if up else (other, atom.arm)
    words = f"{first} minus {second} in {atom.metric}"
    return both, gains, words, _counted(atom, len(gains), len(both.arm), both.rows, "pairs")


def _counted(atom: Check, n: int, keys: int, rows: int, noun: str) -> str:
    clusters = f"{n} clusters of " if atom.cluster else ""
    of_rows = f", means of {rows} rows" if rows > keys else ""
    return f"{clusters}{keys} {noun}{of_rows}"


def _difference(table: pd.DataFrame, atom: Check, place: str) -> Measured:
    both, gains, words, counted = _gains(table, atom, place)
    gains_needed = atom.margin if atom.kind == "greater" else -atom.margin
    p, test = _p(gains, gains_needed, atom)
    lower = atom.better == "lower"
    claimed = f"claimed above {gains_needed:g}" if gains_needed else ""
    return Measured(
        effect=stats.mean(gains),
        interval=stats.mean_interval(gains),
        n=len(gains),
        seeds=both.seeds,
        unit=both.unit,
        effect_unit=both.unit,
        words=words,
        counted=counted,
        direction=atom.better,
        margin=atom.margin,
        threshold=gains_needed,
        strict=atom.kind == "greater",
        neutral=0.0 if atom.kind == "greater" else None,
        p=p,
        test=test,
        mde=stats.smallest_detectable(gains),
        extra="; ".join(text for text in ("lower is better" if lower else "", claimed) if text),
    )


def _value(table: pd.DataFrame, atom: Check, place: str) -> Measured:
    one = units.side(table, atom.metric, atom.arm, atom.where, atom.pair, place)
    values = units.clustered(one.by_unit, atom.cluster)
    sign = 1 if atom.kind == "at_least" else -1
    if 0 < atom.value < 1 and np.isin(values, (0, 1)).all() and len(values) > 1:
        interval, p, test, mde = _indicators(values, atom, sign)
    else:
        interval, mde = stats.mean_interval(values), stats.smallest_detectable(values)
        p, test = _p(sign * values, sign * atom.value, atom)
    direction = atom.kind.replace("_", " ")
    within = interval.low is not None and interval.low <= atom.value <= interval.high
    wide = within and _too_wide(interval, atom.tolerance)
    return Measured(
        effect=stats.mean(values),
        interval=interval,
        n=len(values),
        seeds=one.rows["seed"].nunique(),
        unit=one.unit,
        effect_unit=one.unit,
        words=f"{atom.metric} of {atom.arm}",
        counted=_counted(atom, len(values), len(one.by_unit), len(one.rows), "units"),
        direction=direction,
        margin=atom.value,
        sign=sign,
        threshold=atom.value,
        p=p,
        test=test,
        mde=mde,
        tolerance=atom.tolerance,
        extra=f"claimed {direction} {atom.value:g}" + (", too noisy to tell" if wide else ""),
    )


def _indicators(
    values: np.ndarray, atom: Check, sign: int
) -> tuple[Interval, float | None, str | None, float]:
    """Exact binomial interval, p-value, test and smallest detectable excess of yes/no units.

    Rejections of a test are such: near 0 or 1, where sizes and coverages lie, a bootstrap of them
    is poor, and without a single one it has no width at all.
    """
    hits, n = int(values.sum()), len(values)
    claimed, share = (hits, atom.value) if sign > 0 else (n - hits, 1 - atom.value)
    tested = atom.by == "interval"
    return (
        stats.share_interval(hits, n),
        stats.share_above(claimed, n, share) if tested else None,
        "exact binomial" if tested else None,
        stats.smallest_detectable_share(n, share),
    )


def _ratio(table: pd.DataFrame, atom: Check, place: str) -> Measured:
    both = units.pairs(table, atom, place)
    if min(both.arm.min(), both.than.min()) <= 0:
        raise PipelineError(
            f"{place}: '{atom.metric}' has values that are not positive, so it has no ratio; "
            "use kind greater or not_worse"
        )
    logs = units.clustered(np.log(both.arm) - np.log(both.than), atom.cluster)
    sign, bound = (1, atom.at_least) if atom.at_least is not None else (-1, atom.at_most)
    p, test = _p(sign * logs, sign * float(np.log(bound)), atom)
    low, high, how = stats.mean_interval(logs)
    seen = stats.smallest_detectable(logs)
    direction = "at least" if sign > 0 else "at most"
    return Measured(
        effect=float(np.exp(stats.mean(logs))),
        interval=Interval(*(None if x is None else float(np.exp(x)) for x in (low, high)), how),
        n=len(logs),
        seeds=both.seeds,
        unit=both.unit,
        effect_unit="ratio",
        words=f"{atom.arm} over {atom.than[0]} in {atom.metric} (geometric mean)",
        counted=_counted(atom, len(logs), len(both.arm), both.rows, "pairs"),
        direction=direction,
        margin=bound,
        sign=sign,
        threshold=bound,
        neutral=1.0,
        p=p,
        test=test,
        mde=None if seen is None else float(np.exp(sign * seen)),
        extra=f"claimed {direction} {bound:g}",
    )


def _share(table: pd.DataFrame, atom: Check, place: str) -> Measured:
    both, gains, words, counted = _gains(table, atom, place)
    hits, n = int((gains > atom.margin).sum()), len(gains)
    return Measured(
        effect=hits / n,
        interval=stats.share_interval(hits, n) if n > 1 else Interval(None, None, "none: one unit"),
        n=n,
        seeds=both.seeds,
        unit=both.unit,
        effect_unit="share",
        words=f"share of pairs with {words} above {atom.margin:g}",
        counted=counted,
        direction="at least",
        margin=atom.at_least,
        threshold=atom.at_least,
        neutral=0.5,
        p=stats.share_above(hits, n, atom.at_least) if atom.by == "interval" and n > 1 else None,
        test="exact binomial" if atom.by == "interval" and n > 1 else None,
        extra=f"claimed at least {atom.at_least:g}",
    )


def _rate(table: pd.DataFrame, atom: Check, place: str) -> Measured:
    one, x, y = units.grid(table, atom, place)
    if len(x) < 3:
        raise NotHere(
            f"{place}: a rate needs at least 3 sizes of {atom.factor}, found {show(x.tolist())}; "
            "measure more sizes"
        )
    if x.min() <= 0 or y.min() <= 0:
        raise PipelineError(
            f"{place}: a log-log slope needs positive {atom.factor} and '{atom.metric}'; "
            f"smallest are {x.min():g} and {y.min():g}"
        )
    slope, interval = (stats.slope_pooled if atom.fit == "pooled" else stats.slope_over_units)(x, y)
    low = -np.inf if atom.within[0] is None else atom.within[0]
    high = np.inf if atom.within[1] is None else atom.within[1]
    inside = low <= slope <= high
    if interval.low is None:
        rule = PARTLY if inside else NOT_REPRODUCED
    elif atom.by == "not_contradicted":
        rule = REPRODUCED if interval.high >= low and interval.low <= high else NOT_REPRODUCED
    elif atom.by == "estimate":
        rule = REPRODUCED if inside else NOT_REPRODUCED
    else:
        sure = low <= interval.low and interval.high <= high
        rule = REPRODUCED if sure else PARTLY if inside else NOT_REPRODUCED
    bounds = f"[{', '.join('open' if end is None else f'{end:g}' for end in atom.within)}]"
    return Measured(
        effect=slope,
        interval=interval,
        n=y.size if atom.fit == "pooled" else len(y),
        seeds=one.rows["seed"].nunique(),
        unit=one.unit,
        effect_unit="log-log slope",
        words=f"{atom.metric} of {atom.arm} grows as a power of {atom.factor}, with exponent",
        counted=f"{len(y)} units x {len(x)} sizes, seen up to {atom.factor}={x.max():g}",
        direction=f"within {bounds}",
        margin=None,
        rule=rule,
        horizon=float(x.max()),
        extra=f"claimed within {bounds}",
    )


def _exact(table: pd.DataFrame, atom: Check, place: str) -> Measured:
    tolerance = atom.tolerance or 0.0
    if atom.than:
        both = units.pairs(table, atom, place)
        if both.rows > len(both.arm):
            raise PipelineError(
                f"{place}: {both.rows} rows share {len(both.arm)} pairs; averaging could hide a "
                "difference: add columns to 'pair' until every case stands alone"
            )
        off = np.abs((both.arm - both.than).to_numpy(dtype=float))
        unit, seeds, target = both.unit, both.seeds, f"that of {atom.than[0]}"
    else:
        rows = units.select(table, atom.metric, atom.arms, atom.where, place)
        units.one_unit(rows, place)
        off = np.abs(rows["value"].to_numpy(dtype=float) - atom.value)
        unit, seeds, target = rows["unit"].iloc[0], rows["seed"].nunique(), f"{atom.value:g}"
    hits = int((off <= tolerance).sum())
    return Measured(
        effect=float(off.max()),
        interval=Interval(None, None, "none: every case must hold"),
        n=len(off),
        seeds=seeds,
        unit=unit,
        effect_unit=unit,
        words=f"{atom.metric} of {atom.arm} equals {target} in {hits} of {len(off)} cases, "
        "largest difference",
        counted=f"{len(off)} cases",
        direction="equal",
        margin=tolerance,
        rule=REPRODUCED if hits == len(off) else NOT_REPRODUCED,
        extra=f"tolerance {tolerance:g}",
    )


def _same_value(table: pd.DataFrame, atom: Check, place: str) -> Measured:
    one = units.side(table, atom.metric, atom.arm, atom.where, atom.pair, place)
    if len(one.by_unit) < 2:
        raise NotHere(f"{place}: a prediction interval needs at least 2 repeated runs, found 1")
    interval = stats.prediction_interval(one.by_unit)
    inside = interval.low <= atom.value <= interval.high
    wide = _too_wide(interval, atom.tolerance)
    return Measured(
        effect=stats.mean(one.by_unit),
        interval=interval,
        n=len(one.by_unit),
        seeds=one.rows["seed"].nunique(),
        unit=one.unit,
        effect_unit=one.unit,
        words=f"{atom.metric} of {atom.arm}",
        counted=_counted(atom, 0, len(one.by_unit), len(one.rows), "runs"),
        direction="equal",
        margin=atom.value,
        rule=NOT_REPRODUCED if not inside else PARTLY if wide else REPRODUCED,
        extra=f"reported {atom.value:g}" + (", too noisy to tell" if wide else ""),
    )


def _correlates(table: pd.DataFrame, atom: Check, place: str) -> Measured:
    one = units.side(table, atom.metric, atom.arm, atom.where, atom.pair, place)
    two = units.side(table, atom.with_metric, atom.arm, atom.where, atom.pair, place)
    lonely = one.by_unit.index.symmetric_difference(two.by_unit.index)
    if len(lonely):
        raise PipelineError(
            f"{place}: {len(lonely)} units have only one of '{atom.metric}' and "
            f"'{atom.with_metric}'; measure both in every unit of {', '.join(atom.pair)}"
        )
    x, y = one.by_unit, two.by_unit.reindex(one.by_unit.index)
    sign = 1 if atom.direction == "positive" else -1
    # The test is one-sided for a positive correlation: turn the claimed direction into it.
    r, interval, p, test = stats.correlation(x, sign * y, atom.method)
    ends = sorted(sign * end for end in interval[:2] if end is not None) or (None, None)
    bound = atom.at_least or 0.0
    tested = r is not None and atom.by == "interval"
    name = f"{atom.method.capitalize()} correlation"
    return Measured(
        effect=None if r is None else sign * r,
        interval=Interval(*ends, interval.how),
        n=len(x),
        seeds=one.rows["seed"].nunique(),
        unit=f"{one.unit} and {two.unit}",
        effect_unit=name,
        words=f"{name} of {atom.metric} with {atom.with_metric} over units of {atom.arm}",
        counted=_counted(atom, 0, len(x), len(one.rows), "units"),
        direction=atom.direction,
        margin=bound,
        sign=sign,
        threshold=sign * bound,
        strict=True,
        neutral=0.0,
        p=p if tested else None,
        test=test if tested else None,
        extra=f"claimed {atom.direction}" + (f", stronger than {bound:g}" if bound else ""),
    )


def _trend(table: pd.DataFrame, atom: Check, place: str) -> Measured:
    one, x, y = units.grid(table, atom, place)
    if len(x) < 2:
        raise NotHere(f"{place}: a trend needs at least 2 levels of {atom.factor}, found {show(x)}")
    hits, n = int(stats.monotone(y, atom.direction, atom.tolerance).sum()), len(y)
    needed = 1.0 if atom.at_least is None else atom.at_least
    fine = hits / n >= needed
    right_way = fine or hits > n / 2
    rule = REPRODUCED if fine and n > 1 else PARTLY if right_way else NOT_REPRODUCED
    how = "strictly" if atom.tolerance is None else f"to a tolerance of {atom.tolerance:g}"
    return Measured(
        effect=hits / n,
        interval=stats.share_interval(hits, n) if n > 1 else Interval(None, None, "none: one unit"),
        n=n,
        seeds=one.rows["seed"].nunique(),
        unit=one.unit,
        effect_unit="share",
        words=f"{atom.metric} of {atom.arm} is {how} {atom.direction} along {atom.factor} "
        f"({x.min():g} to {x.max():g}) in a share of units",
        counted=f"{n} units x {len(x)} levels",
        direction=atom.direction,
        margin=needed,
        rule=rule,
        horizon=float(x.max()),
        extra=f"claimed at least {needed:g}",
    )


def statement(atom: Check, found: Measured, p_holm: float | None, verdict: str) -> str:
    """One line of plain English: what was found, where, from how many units."""
    if found.effect is None:
        number = "undefined"
    else:
        signed = found.direction in ("higher", "lower", "positive", "negative")
        number = f"{found.effect:+.3g}" if signed else f"{found.effect:.4g}"
        if found.effect_unit == found.unit:  # the words name all other units
            number += f" {found.unit}"
    if found.interval.low is not None:
        number += f" [{found.interval.low:.3g}, {found.interval.high:.3g}]"
    where = ", ".join(f"{name}={show(value)}" for name, value in atom.where.items())
    seeds = f"{found.seeds} seed{'s' if found.seeds != 1 else ''}"
    line = f"{found.words} = {number}{f' at {where}' if where else ''} (n={found.counted}, {seeds})"
    notes = [found.extra]
    if p_holm is not None:
        notes.append(f"p={p_holm:.2g} after Holm, {found.test}")
    if atom.by == "estimate":
        notes.append("judged by the estimate")
    if atom.by == "not_contradicted":
        notes.append("judged by not being contradicted")
    if found.mde is not None and verdict == NOT_REPRODUCED:
        notes.append(f"smallest detectable effect {found.mde:.2g} {found.effect_unit}")
    return "; ".join([line, *(note for note in notes if note)])


KINDS: dict[str, Callable[[pd.DataFrame, Check, str], Measured]] = {
    "greater": _difference,
    "not_worse": _difference,
    "at_least": _value,
    "at_most": _value,
    "ratio": _ratio,
    "share": _share,
    "rate": _rate,
    "exact": _exact,
    "same_value": _same_value,
    "correlates": _correlates,
    "trend": _trend,
}
