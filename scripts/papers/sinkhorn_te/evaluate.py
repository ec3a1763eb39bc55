"""All replicates of all cells, the curves of the divergence itself, and its derivatives."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.papers.sinkhorn_te import anchors, designs, operations
from scripts.papers.sinkhorn_te.mixture import saturation_curve
from scripts.papers.sinkhorn_te.replicate import Cell, Settings, run_cell
from scripts.papers.sinkhorn_te.sinkhorn import Array
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.stage import Job, Run, main

if TYPE_CHECKING:
    import pandas as pd

UNITS = {
    "reject": "rejection",
    "p": "p-value",
    "error": "squared outcome unit",
    "covered": "interval that covers",
}
SQUARED = "squared outcome unit"
COUNTED_SEEDS = 2  # operations hardly vary between seeds


def evaluate(job: Job) -> None:
    import pandas as pd

    tensors = job.load_tensors("prepare", "pools")
    pools: dict[str, dict[str, Array]] = {}
    for key, values in tensors.items():
        design, name = key.split(".")
        pools.setdefault(design, {})[name] = values.cpu().numpy()
    eps, truths = job.load_json("prepare", "eps"), job.load_json("prepare", "truth")
    tables: dict[int, pd.DataFrame] = {}  # arms of a seed share one pass
    for run in job.runs():
        if run.seed not in tables:
            tables[run.seed] = _measure(job, run, pools, eps, truths)
        mine = tables[run.seed]
        run.metrics(mine[mine["arm"] == run.arm].drop(columns="arm"))


def _measure(
    job: Job,
    run: Run,
    pools: Mapping[str, designs.Pool],
    eps: Mapping[str, float],
    truths: list[dict[str, Any]],
) -> "pd.DataFrame":
    """Rows of all arms: arm, metric, value, unit, n, dataset and factors."""
    import pandas as pd

    rows = [
        *_truth_rows(truths, len(next(iter(pools["nuclei"].values())))),
        *_curve_rows(job, run),
        *_derivative_rows(job, run),
        *(_operation_rows(job, run, eps) if run.seed < COUNTED_SEEDS else []),
    ]
    frames = [pd.DataFrame(rows)]
    for described in job.params["cells"]:
        frames.append(_cell_rows(job, run, described, pools, eps))
    return pd.concat(frames, ignore_index=True)


def _cell_rows(
    job: Job,
    run: Run,
    described: dict[str, Any],
    pools: Mapping[str, designs.Pool],
    eps: Mapping[str, float],
) -> "pd.DataFrame":
    import pandas as pd

    design, theta, size = described["design"], described["theta"], described["size"]
    estimates = described.get("estimates", False)
    cell = Cell(
        design,
        theta,
        size,
        described["replicates"],
        eps[design],
        described.get("dense", False),
        tuple(described.get("tests", [])),
        theta**2 if estimates else None,
    )
    settings = Settings(
        *(job.params[name] for name in ("alpha", "draws", "permutations", "bandwidth")),
        tuple(job.params["etas"]),
    )
    try:
        found = run_cell(cell, settings, pools.get(design, {}), run.rng(f"{design} {theta} {size}"))
    except ValueError as error:
        place = f"sinkhorn_te.{job.scale}.cells: {design} at theta={theta}, size={size}"
        raise PipelineError(f"{place}: {error}") from error
    null_law = described.get("null_law", False)
    kept = {"reject", "error", "covered"}
    if null_law or described.get("p_values", False):
        kept.add("p")
    table = found[found["metric"].isin(kept)]
    parts = [table.assign(unit=table["metric"].map(UNITS))]
    if null_law:
        parts.append(pd.DataFrame(_null_law_rows(found, size)))
    if estimates:
        parts.append(pd.DataFrame(_bias_rows(found)))
    return pd.concat(parts, ignore_index=True).assign(
        n=size, dataset=design, theta=theta, size=size
    )


def _null_law_rows(found: "pd.DataFrame", size: int) -> list[dict[str, Any]]:
    """Per arm: whether its p-values below 1/2 are uniform there, and the spread of its estimate."""
    from scipy.stats import kstest

    rows: list[dict[str, Any]] = []
    base = found[found["eta"] == 1.0]
    for arm in ("ste", "mte"):
        mine = base[base["arm"] == arm]
        p = mine.loc[mine["metric"] == "p", "value"]
        statistic = mine.loc[mine["metric"] == "statistic", "value"]
        tail = p[p < 0.5]
        result = kstest(2 * tail, "uniform").pvalue if len(tail) > 1 else 1.0
        values = {
            "ks_p": (result, "p-value"),
            "ks_rejects": (float(result < 0.01), "rejection at 1%"),
            "spread": (statistic.std() / size, SQUARED),
        }
        rows += [
            {"arm": arm, "metric": name, "value": value, "unit": unit}
            for name, (value, unit) in values.items()
        ]
    return [{**row, "eta": 1.0} for row in rows]


def _bias_rows(found: "pd.DataFrame") -> list[dict[str, Any]]:
    """Per replicate: half the plug-in's error less the one-step's, as it lies on either side.

    Both means are positive exactly where the one-step bias is below half the plug-in's.
    """
    errors = found[found["metric"] == "error"]
    plug_in, one_step = (
        errors[errors["arm"] == arm].sort_values("replicate")["value"].to_numpy()
        for arm in ("plugin", "ste")
    )
    half = 0.5 * np.sign(plug_in.mean()) * plug_in
    base = {"arm": "ste", "metric": "bias_margin", "unit": SQUARED, "eta": 1.0}
    rows = [
        {**base, "side": side, "replicate": number, "value": value}
        for side, values in (("above", half - one_step), ("below", half + one_step))
        for number, value in enumerate(values)
    ]
    squared = [
        {**base, "arm": arm, "metric": "squared_error", "unit": "outcome unit to the fourth",
         "replicate": number, "value": value**2}
        for arm, values in (("plugin", plug_in), ("ste", one_step))
        for number, value in enumerate(values)
    ]  # fmt: skip
    return rows + squared


def _truth_rows(truths: list[dict[str, Any]], pool: int) -> list[dict[str, Any]]:
    return [
        {"arm": arm, "metric": "true_value", "value": row[arm], "unit": SQUARED, "n": pool}
        | {"dataset": row["design"], "theta": row["theta"]}
        for row in truths
        for arm in ("ste", "mte")
    ]


def _curve_rows(job: Job, run: Run) -> list[dict[str, Any]]:
    """Divergences of a two-sided mixture from a Gaussian of the same mean, on one sample a seed."""
    wanted = job.params["mixture"]
    curve = saturation_curve(wanted["thetas"], wanted["points"], run.rng("mixture"))
    return [
        {"arm": arm, "metric": "divergence", "value": value, "unit": SQUARED}
        | {"n": wanted["points"], "dataset": "mixture", "theta": theta}
        for theta, *values in curve
        for arm, value in zip(("ste", "mte"), values, strict=True)
    ]


def _derivative_rows(job: Job, run: Run) -> list[dict[str, Any]]:
    """Finite differences of S against both influence functions on random discrete laws."""
    wanted, rng = job.params["laws"], run.rng("laws")
    rows = []
    for law in range(wanted["count"]):
        y, mu, nu = anchors.random_law(wanted["points"], 2, rng)
        gamma = np.stack([anchors.mass_zero(wanted["points"], rng) for _ in range(2)])
        for eta in job.params["etas"]:
            # 1.39 is the median cost of two standard normal points in the plane.
            eps = 1.39 * eta
            second = anchors.second_order_check(y, mu, gamma[0], eps)
            values = {
                "first_order_error": anchors.first_order_error(y, mu, nu, gamma, eps),
                "second_order_error": second.error,
                "second_order_error_printed": second.error_printed,
                "first_derivative_at_null": second.largest_first,
                "eigenvalue_below_zero": second.below_zero,
            }
            rows += [
                {"arm": "ste", "metric": name, "value": value, "n": wanted["points"]}
                | {"unit": "relative error" if "error" in name else SQUARED}
                | {"dataset": "discrete", "replicate": law, "eta": eta}
                for name, value in values.items()
            ]
    return rows


def _operation_rows(job: Job, run: Run, eps: Mapping[str, float]) -> list[dict[str, Any]]:
    """Operations of the dense and the low-rank path over n, and how far their statistics differ."""
    rows = []
    for size in job.params["operation_sizes"]:
        halves = designs.draw("gauss_mean", {}, 0.4, 1, size, run.rng(f"operations {size}"))
        arguments = (*halves, eps["gauss_mean"], job.params["bandwidth"])
        dense, exact = operations.count_operations(*arguments, dense=True)
        low_rank, found = operations.count_operations(*arguments, dense=False)
        gap = float(abs(found[0] / exact[0] - 1))
        values = (
            ("ste_dense", "operations", dense, "flop"),
            ("ste", "operations", low_rank, "flop"),
            ("ste", "low_rank_error", gap, "relative error"),
        )
        rows += [
            {"arm": arm, "metric": name, "value": value, "unit": unit, "n": size}
            | {"size": size, "dataset": "gauss_mean", "theta": 0.4}
            for arm, name, value, unit in values
        ]
    return rows


if __name__ == "__main__":
    main(evaluate)
