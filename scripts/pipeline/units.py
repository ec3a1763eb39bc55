"""From the metrics table to units: the rows of a check, matched and averaged.

A unit is one combination of the check's `pair` columns. Several rows of a unit are averaged with a
plain mean; values are sorted before every sum, so that the order of the rows never matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.pipeline.claims import RESERVED, Check, show, split_arms
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.schema import listed, nearest

if TYPE_CHECKING:
    import pandas as pd


class NotHere(PipelineError):
    """A factor level or a number of sizes that this table lacks (normal at smoke scale)."""


@dataclass(frozen=True)
class Side:
    """One side of a check: a value per unit (index: the pair columns), and where they come from."""

    by_unit: pd.Series
    rows: pd.DataFrame
    unit: str


@dataclass(frozen=True)
class Pairs:
    """Matched values of both sides (same index), and the facts the ledger reports."""

    arm: pd.Series
    than: pd.Series
    unit: str
    seeds: int
    rows: int


def select(
    table: pd.DataFrame, metric: str, arms: tuple[str, ...], where: dict[str, Any], place: str
) -> pd.DataFrame:
    """Rows of a metric and arms that match every filter; a filter that leaves none is an error."""
    rows = table[table["metric"] == metric]
    if rows.empty:
        known = sorted(table["metric"].unique())
        raise PipelineError(
            f"{place}: no metric '{metric}'; measured: {listed(known)}"
            f"{nearest(metric, known)}; add it to a stage or correct the claim"
        )
    known = sorted(rows["arm"].unique())
    for arm in arms:
        if arm not in known:
            raise PipelineError(
                f"{place}: no arm '{arm}' with metric '{metric}'; arms with it: "
                f"{listed(known)}{nearest(arm, known)}; add the arm to the stage in params.yaml"
            )
    rows = rows[rows["arm"].isin(arms)]
    for column, wanted in where.items():
        _known_column(table, column, place)
        kept = [_matches(rows[column], value) for value in _as_list(wanted)]
        for value, mask in zip(_as_list(wanted), kept, strict=True):
            if not mask.any():
                raise NotHere(
                    f"{place}: metric '{metric}' of {' + '.join(arms)}: no rows with "
                    f"{column}={show(value)}; {_existing(rows[column], value)}"
                )
        rows = rows[np.logical_or.reduce(kept)]
    if not np.isfinite(rows["value"].to_numpy(dtype=float)).all():
        raise PipelineError(f"{place}: metric '{metric}' has values that are not finite")
    return rows


def _as_list(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) else [wanted]


def _known_column(table: pd.DataFrame, column: str, place: str) -> None:
    allowed = [name for name in table.columns if name not in RESERVED]
    if column not in allowed:
        raise PipelineError(
            f"{place}: no column '{column}'; allowed: {listed(allowed)}"
            f"{nearest(column, allowed)}; factors are declared in params.yaml"
        )


def _matches(column: pd.Series, value: Any) -> np.ndarray:
    from pandas.api.types import is_numeric_dtype

    if value is None:
        return column.isna().to_numpy()
    if is_numeric_dtype(column):
        if isinstance(value, str):
            return np.zeros(len(column), dtype=bool)
        numbers = column.to_numpy(dtype=float, na_value=np.nan)
        return np.isclose(numbers, float(value), rtol=1e-9, atol=1e-12)
    return np.array([type(item) is type(value) and item == value for item in column], dtype=bool)


def _existing(column: pd.Series, value: Any) -> str:
    """'existing values of bits: ...; nearest: ...' for a filter that matched nothing."""
    levels = sorted(column.dropna().unique().tolist(), key=lambda item: (str(type(item)), item))
    if not levels:
        return f"{column.name} is empty for these rows (null selects them)"
    shown = ", ".join(repr(item) if isinstance(item, str) else show(item) for item in levels[:12])
    text = f"existing values of {column.name}: {shown}{', ...' if len(levels) > 12 else ''}"
    if isinstance(value, (int, float)) and not isinstance(levels[0], str):
        near = min(levels, key=lambda item: abs(item - value))
        return f"{text}; nearest: {show(near)}"
    return text + nearest(value, [str(item) for item in levels])


def _average(values: pd.Series, levels: list[str]) -> pd.Series:
    """Mean per index group, summed in sorted order (independent of the order of rows)."""
    return values.sort_values(kind="stable").groupby(level=levels, sort=True).mean()


def side(
    table: pd.DataFrame,
    metric: str,
    arm: str,
    where: dict[str, Any],
    columns: tuple[str, ...],
    place: str,
) -> Side:
    """Values of an arm (or the mean of several) by unit; every arm must have every unit."""
    arms = split_arms(arm)
    rows = select(table, metric, arms, where, place)
    for column in columns:
        if column != "arm":
            _known_column(table, column, place)
        if rows[column].isna().any():
            raise PipelineError(
                f"{place}: column '{column}' is empty in {int(rows[column].isna().sum())} rows of "
                f"'{metric}' of {arm}: it cannot name units; leave it out of pair or filter it"
            )
    unit = one_unit(rows, place)
    names = list(columns)
    if len(arms) == 1 or "arm" in names:
        return Side(_average(rows.set_index(names)["value"], names), rows, unit)
    wide = _wide(rows, names, "arm")
    for name in wide.columns:
        gaps = wide.index[wide[name].isna()]
        if len(gaps):
            raise PipelineError(
                f"{place}: arm '{name}' of '{arm}' lacks the unit {_key(gaps[0], names)}; "
                "averaged arms need equal units"
            )
    return Side(wide.mean(axis=1), rows, unit)


def one_unit(rows: pd.DataFrame, place: str) -> str:
    """The unit of all rows; an error when there are several."""
    units = sorted(rows["unit"].unique())
    if len(units) > 1:
        metric = rows["metric"].iloc[0]
        raise PipelineError(
            f"{place}: metric '{metric}' mixes the units {listed(units)}; give one another name"
        )
    return units[0]


def _wide(rows: pd.DataFrame, names: list[str], column: str) -> pd.DataFrame:
    """Mean value per unit (rows) and level of a column (columns), like `_average`."""
    ordered = rows.sort_values("value", kind="stable")
    return ordered.pivot_table(index=names, columns=column, values="value", aggfunc="mean")


def pairs(table: pd.DataFrame, check: Check, place: str) -> Pairs:
    """Both sides of an atom, matched by its pair columns; a unit on one side only is an error."""
    (than,) = check.than
    other_where = {**check.where, **check.than_where}
    one = side(table, check.metric, check.arm, check.where, check.pair, place)
    two = side(table, check.metric, than, other_where, check.pair, place)
    if one.unit != two.unit:
        raise PipelineError(
            f"{place}: '{check.metric}' is in {one.unit} for {check.arm} and in {two.unit} for "
            f"{than}; only equal units are compared"
        )
    for mine, name, theirs, missing in (
        (one, check.arm, two, than),
        (two, than, one, check.arm),
    ):
        lonely = mine.by_unit.index.difference(theirs.by_unit.index)
        if len(lonely):
            raise PipelineError(
                f"{place}: {len(lonely)} of {len(mine.by_unit)} pairs of {name} have no match in "
                f"{missing}, first {_key(lonely[0], list(check.pair))}; run {missing} there too, "
                "filter with 'where', or leave the column out of 'pair'"
            )
    _same_mix(one, two, check, place)
    return Pairs(
        arm=one.by_unit,
        than=two.by_unit.reindex(one.by_unit.index),
        unit=one.unit,
        seeds=len(set(one.rows["seed"]) | set(two.rows["seed"])),
        rows=len(one.rows),
    )


def _same_mix(one: Side, two: Side, check: Check, place: str) -> None:
    """Refuse means over different levels: 0.5 and 1 bit of one arm against 1 bit of the other."""
    fixed = {*RESERVED, "seed", *check.pair, *check.than_where}
    for column in one.rows.columns:
        if column in fixed:
            continue
        here, there = (set(s.rows[column].dropna().unique().tolist()) for s in (one, two))
        if here != there and max(len(here), len(there)) > 1:
            raise PipelineError(
                f"{place}: {check.arm} averages over {column}={show(sorted(here, key=str))}, "
                f"{check.than[0]} over {show(sorted(there, key=str)) or 'none'}; "
                f"fix '{column}' in where, than_where, each or pair"
            )


def clustered(values: pd.Series, cluster: tuple[str, ...]) -> np.ndarray:
    """Values averaged within each cluster (all of them when there is no cluster)."""
    return (_average(values, list(cluster)) if cluster else values).to_numpy(dtype=float)


def grid(table: pd.DataFrame, check: Check, place: str) -> tuple[Side, np.ndarray, np.ndarray]:
    """Values along a factor: (side, levels [s] ascending, values [units, s]), without gaps."""
    from pandas.api.types import is_numeric_dtype

    columns = (*check.pair, check.factor)
    if check.factor in table.columns and not is_numeric_dtype(table[check.factor]):
        raise PipelineError(f"{place}: factor '{check.factor}' is text; sizes must be numbers")
    one = side(table, check.metric, check.arm, check.where, columns, place)
    wide = _wide(one.rows, list(check.pair), check.factor)
    gaps = wide.isna()
    if gaps.to_numpy().any():
        unit = wide.index[gaps.any(axis=1)][0]
        lacking = show(wide.columns[gaps.loc[[unit]].to_numpy()[0]].tolist())
        raise PipelineError(
            f"{place}: unit {_key(unit, list(check.pair))} lacks {check.factor}={lacking}; "
            "every unit needs all sizes"
        )
    return one, wide.columns.to_numpy(dtype=float), wide.to_numpy(dtype=float)


def _key(key: Any, names: list[str]) -> str:
    values = key if isinstance(key, tuple) else (key,)
    return ", ".join(f"{name}={show(value)}" for name, value in zip(names, values, strict=True))
