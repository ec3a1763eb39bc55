"""Claims as data: read `claims.yaml`, refuse what is wrong with it, expand checks into atoms.

The schema, with the meaning of every key, is `workflow/schemas/claims.schema.yaml`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scripts.pipeline import schema
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import ROOT, digest
from scripts.pipeline.schema import listed, nearest

SCHEMA = ROOT / "workflow" / "schemas" / "claims.schema.yaml"
RESERVED = ("paper", "scale", "metric", "arm", "value", "unit", "n")
"""Columns of the metrics that no check filters by."""
_NUMBER_AS_TEXT = re.compile(r"[+-]?[0-9]+[eE][+-]?[0-9]+")


@dataclass(frozen=True)
class Check:
    """One check of a claim; after `atoms` the same with one `than` and one value per factor."""

    kind: str
    metric: str
    arm: str
    index: int
    than: tuple[str, ...] = ()
    where: dict[str, Any] = field(default_factory=dict)
    than_where: dict[str, Any] = field(default_factory=dict)
    each: dict[str, list[Any]] = field(default_factory=dict)
    pair: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()
    better: str = "higher"
    margin: float = 0.0
    by: str = "interval"
    test: str | None = None
    value: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    within: tuple[float | None, float | None] = (None, None)
    factor: str = ""
    fit: str = "per_unit"
    tolerance: float | None = None
    with_metric: str = ""
    method: str = "spearman"
    direction: str = "positive"
    label: str = ""
    part: str = ""
    required: str | None = None
    any_of: tuple[str, ...] = ()
    setting: dict[str, Any] = field(default_factory=dict)  # atoms: value per factor of `each`

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms of the claimed side ("a + b" names two)."""
        return split_arms(self.arm)

    def atoms(self) -> Iterator[Check]:
        """The cartesian product of `each` and `than`, in the order written."""
        names = list(self.each)
        for values in itertools.product(*self.each.values()):
            setting = dict(zip(names, values, strict=True))
            parts = [f"{name}={show(value)}" for name, value in setting.items()]
            for than in self.than or ("",):
                versus = [f"than {than}"] if len(self.than) > 1 else []
                base = self.label or f"{self.kind} {self.metric}"
                yield replace(
                    self,
                    than=(than,) if than else (),
                    where={**self.where, **setting},
                    setting={**setting, "than": than},
                    label=", ".join([base, *parts, *versus]),
                )


@dataclass(frozen=True)
class Claim:
    """One claim of a paper; `hash` is the sha256 of its canonical JSON (YAML style aside)."""

    id: str
    claim: str
    span: str | None
    reported: dict[str, Any] | None
    checks: tuple[Check, ...]
    judged_at: tuple[str, ...]
    not_testable: dict[str, str]
    partly_needs: int | None
    hash: str


def split_arms(arm: str) -> tuple[str, ...]:
    """Arms named by "a" or "a + b"."""
    return tuple(part.strip() for part in arm.split("+"))


def show(value: Any) -> str:
    """A factor value as a person writes it: 1 for 1.0, "none" for a missing one."""
    if isinstance(value, (list, tuple)):
        return "|".join(show(item) for item in value)
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def load(path: Path, paper: str) -> list[Claim]:
    """The claims of a paper, in the order of its `claims.yaml`.

    Raises:
        PipelineError: the file is missing or no YAML; or, with a line for each fault: the paper,
            the claim, the key, what was found and what is allowed.
    """
    raw = schema.read_yaml(path)
    place = f"claims of {paper}"
    _fits(raw, "file", place)
    for number, claim in enumerate(raw, 1):
        _claim_fits(claim, f"{place}: claim {_name(claim, number)}")
    faults = [f"{place}: claim {raw[at]['id']}: {fault}" for at, fault in _faults(raw)]
    if faults:
        raise PipelineError("\n".join(faults))
    return [_claim(claim) for claim in raw]


def _raw_checks(claim: dict[str, Any]) -> list[dict[str, Any]]:
    return [claim["check"]] if "check" in claim else claim.get("checks", [])


def _claim(raw: dict[str, Any]) -> Claim:
    return Claim(
        id=raw["id"],
        claim=raw["claim"],
        span=raw.get("span"),
        reported=raw.get("reported"),
        checks=tuple(_check(check, index) for index, check in enumerate(_raw_checks(raw), 1)),
        judged_at=tuple(raw["judged_at"]),
        not_testable=raw.get("not_testable", {}),
        partly_needs=raw.get("partly_needs"),
        hash=digest(raw),
    )


def _check(raw: dict[str, Any], index: int) -> Check:
    keys = {("with_metric" if key == "with" else key): value for key, value in raw.items()}
    keys["than"] = _as_list(keys.get("than", []))
    for key in ("than", "pair", "cluster", "within", "any_of"):
        if key in keys:
            keys[key] = tuple(keys[key])
    keys.setdefault("part", f"check {index}")
    return Check(index=index, **keys)


# What is wrong with a file -----------------------------------------------------------------------


def _name(claim: Any, number: int) -> str:
    return str(claim["id"]) if isinstance(claim, dict) and "id" in claim else f"number {number}"


def _fits(value: Any, part: str, place: str) -> None:
    """Check a value against `$defs/<part>` of the schema."""
    whole = schema.load_schema(SCHEMA)
    schema.check(value, {"$ref": f"#/$defs/{part}", "$defs": whole["$defs"]}, place)


def _claim_fits(claim: Any, place: str) -> None:
    """Check a claim and then each of its checks, so that an error names the check."""
    for path, value in _leaves(claim):
        if isinstance(value, str) and _NUMBER_AS_TEXT.fullmatch(value):
            raise PipelineError(
                f"{place}: {path}: found the text {value!r}, allowed: a number with a point, like "
                f"{value.lower().replace('e', '.0e')} (without one YAML reads it as text)"
            )
    _fits(claim, "claim", place)
    for number, check in enumerate(_raw_checks(claim), 1):
        _fits(check, "check", f"{place}: check {number}")


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of every scalar below a node."""
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node, 1):
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, node


def _faults(raw: list[dict[str, Any]]) -> Iterator[tuple[int, str]]:
    """(position of the claim, fault): what a JSON schema cannot say, or not well."""
    ids = [claim["id"] for claim in raw]
    for at, claim in enumerate(raw):
        if claim["id"] in ids[:at]:
            yield at, f"id: found {claim['id']} a second time, allowed: an id of its own"
        yield from ((at, fault) for fault in _claim_faults(claim))
        for number, check in enumerate(_raw_checks(claim), 1):
            for fault in (*_setting_faults(check), *_kind_faults(check)):
                yield at, f"check {number}: {fault}"


def _claim_faults(claim: dict[str, Any]) -> Iterator[str]:
    checks, judged_at = _raw_checks(claim), claim["judged_at"]
    if "check" in claim and "checks" in claim:
        yield "check: found next to checks, allowed: one of the two"
    if judged_at and not checks:
        yield f"checks: missing, though judged_at is {listed(judged_at)}"
    for scale in claim.get("not_testable", {}):
        if scale in judged_at:
            yield f"not_testable.{scale}: found in judged_at too, allowed: one of the two"
    parts = {check.get("part", number) for number, check in enumerate(checks)}
    if claim.get("partly_needs", 1) > max(len(parts), 1):
        yield (
            f"partly_needs: found {claim['partly_needs']}, allowed: 1 to {len(parts)}, "
            "the number of parts"
        )
    for path, value in _leaves(claim):
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{path}: found {value}, allowed: a finite number"


def _setting_faults(check: dict[str, Any]) -> Iterator[str]:
    """Filters, factors and columns that contradict each other."""
    each, where, pair = check.get("each", {}), check.get("where", {}), check.get("pair", [])
    than = _as_list(check.get("than", []))
    for key in ("where", "than_where", "each"):
        for column in check.get(key, {}):
            if column in RESERVED:
                yield (
                    f"{key}.{column}: not a column to filter by; allowed: seed, dataset, stage and "
                    "the declared factors (arm, than and metric are keys of their own)"
                )
    for column in each:
        for key, others in (("where", where), ("pair", pair)):
            if column in others:
                yield f"each.{column}: found in {key} too, allowed: one of the two"
    for column in check.get("cluster", []):
        if column not in pair:
            yield f"cluster: found {column!r}{nearest(column, pair)}, allowed: {listed(pair)}"
    varied = [*each, *(["than"] if len(than) > 1 else [])]
    for name in check.get("any_of", []):
        if name not in varied:
            yield (
                f"any_of: found {name!r}{nearest(name, varied)}, allowed: {listed(varied)} "
                "(the factors of each, and than when it is a list)"
            )
    overrides = check.get("than_where", {}).items()
    if check["arm"] in than and not any(
        column not in where or where[column] != value for column, value in overrides
    ):
        yield (
            f"than: found {check['arm']!r}, which is the arm itself with the same factors; "
            "allowed: another arm, or other factors in than_where"
        )
    if "factor" in check and check["factor"] in [*pair, *each]:
        yield f"factor: found {check['factor']!r} in pair or each too, so that it cannot vary"


def _kind_faults(check: dict[str, Any]) -> Iterator[str]:
    """What a single kind of check demands beyond the schema."""
    kind = check["kind"]
    not_contradicted = check.get("by") == "not_contradicted"
    told = "tolerance" in check and kind in ("at_least", "at_most")
    if not_contradicted and "required" not in check and not told:
        yield (
            "by: found not_contradicted, allowed: interval, estimate (as a gate: add required; of "
            "at_least and at_most also with the tolerance within which the interval must be)"
        )
    if told and not not_contradicted:
        by = check.get("by", "interval")
        yield f"tolerance: found beside by: {by}, allowed: by: not_contradicted"
    if kind == "ratio" and ("at_most" in check) == ("at_least" in check):
        yield "ratio: needs exactly one of at_most, at_least"
    if kind == "share" and check["at_least"] == 1 and check.get("by", "interval") == "interval":
        yield "at_least: found 1, allowed: less than 1 (no interval lies above 1), or by: estimate"
    if kind == "exact" and ("value" in check) == ("than" in check):
        yield "exact: needs exactly one of value, than"
    if kind == "exact" and ("than" in check) != ("pair" in check):
        yield "pair: goes with than; it names the cases that are compared"
    if kind == "rate":
        low, high = check["within"]
        if (low is None and high is None) or (None not in (low, high) and low >= high):
            yield f"within: found {check['within']}, allowed: low < high, at most one of them null"


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
