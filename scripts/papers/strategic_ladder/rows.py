"""Rows of the metrics table."""

from typing import Any

Row = dict[str, Any]

_UNITS = {
    "largest_effort": "attribute",
    "boundary_offset": "cell",
    "lower_cutoff": "attribute",
    "upper_cutoff": "attribute",
    "lower_cutoff_error": "grid step",
    "upper_cutoff_error": "grid step",
    "lower_cutoff_spread": "grid step",
    "upper_cutoff_spread": "grid step",
    "single_threshold_error": "grid step",
    "honest_attribute": "attribute",
    "honest_designs": "design",
    "honest_high_designs": "design",
    "extra_steps": "step",
    "greedy_step": "attribute",
    "value_error": "reward",
    "objective": "attribute step",
    "improvement_found": "yes or no",
    "low_threshold_form": "yes or no",
    "regimes_in_order": "yes or no",
    "honest": "yes or no",
    "honest_climb": "yes or no",
    "bound_kept": "yes or no",
    "tight_bound_kept": "yes or no",
    "no_more_levels": "yes or no",
    "error_within_bound": "yes or no",
    "improving_share": "share of designs",
    "honest_share": "share of designs",
    "gaming_share": "share of actions",
    "least_violation": "ratio",
    "cutoff_over_limit": "ratio",
    "retention_over_farsightedness": "ratio",
    "attribute_over_target": "ratio",
    "last_step_over_first": "ratio",
    "last_steps_over_steady": "ratio",
    "sweeps_over_theory": "ratio",
    "design_reward": "reward",
    "top_threshold": "attribute",
    "group_attribute": "attribute",
}


def row(metric: str, value: float, n: int = 1, **columns: Any) -> Row:
    """A row of a metric, with its unit; n counts the cases behind the value."""
    return {
        "metric": metric, "value": float(value), "unit": _UNITS[metric], "n": int(n), **columns
    }  # fmt: skip


def met(condition: bool) -> str:
    """How a theorem's condition is written in its column."""
    return "met" if condition else "unmet"
