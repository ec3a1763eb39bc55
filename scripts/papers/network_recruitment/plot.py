"""Figures: reward by round, TAP's leads, the cost of planning, bounds against losses."""

from typing import TYPE_CHECKING, Any

from scripts.papers.network_recruitment.compare import SETTING
from scripts.papers.network_recruitment.evaluate import RULES
from scripts.pipeline.plotting import COLOURS, MARKERS
from scripts.pipeline.stage import Job, main

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

FAMILIES = {"const": "Const", "greedy": "Greedy", "remainder": "GreedyRemainder"}
MODES = {"model": "in the model", "graph": "on the graph"}
LEAST = 1e-4  # losses below are not drawn
SOURCES = {
    "frontier": "wrong frontier",
    "population": "wrong population",
    "heterogeneity": "unlike types",
    "joint": "all three",
}
ORDERS = {"released_order": "order of the released code", "hoisted": "hoisted"}
LAST_ROUND = 12  # shown; later rounds add little even to the slowest rule that is ever the best
BLACK = "#000000"
LEAD_LOOKS = {
    1: (COLOURS[0], "o", "above 0"),
    -1: (COLOURS[1], "s", "below 0"),
    0: (BLACK, "D", "contains 0 (near tie)"),
}


def plot(job: Job) -> None:
    from scripts.pipeline.plotting import style

    table = job.load_metrics()
    with style():
        for network in job.params["networks"]:
            _rewards(job, network)
        _leads(job)
        _cost(job, table)
        _bounds(job, table)


def rule_name(arm: dict[str, Any]) -> str:
    """A fixed rule as the paper writes it, such as Const(3) or GreedyRemainder(0.5)."""
    size = arm.get("each", arm.get("share"))
    repaired = ", ceil" if arm.get("rounding") == "ceil" else ""
    return f"{FAMILIES[arm['policy']]}({size:g}{repaired})"


def curves(rounds: "pd.DataFrame", last: int) -> "pd.DataFrame":
    """Mean accumulated reward by round and its standard error, over all seeds' replicates.

    Args:
        rounds: rows of SETTING, round, and the sum, squares and number n of accumulated rewards; a
            seed's rows end where nobody recruits any more.
        last: rounds to give.

    Returns:
        columns SETTING, round, mean, se.
    """
    import numpy as np

    wide = rounds.pivot_table(
        index=[*SETTING, "seed"], columns="round", values=["sum", "squares", "n"]
    )
    steps = range(1, max(last, int(rounds["round"].max())) + 1)
    total, squares, count = (
        wide[name].reindex(columns=steps).ffill(axis=1).loc[:, :last].groupby(SETTING).sum()
        for name in ("sum", "squares", "n")
    )
    mean = total / count
    spread = (squares / count - mean**2).clip(lower=0.0)
    se = np.sqrt(spread / (count - 1))
    long = mean.melt(var_name="round", value_name="mean", ignore_index=False)
    return long.assign(se=se.melt(ignore_index=False)["value"].to_numpy()).reset_index()


def _rewards(job: Job, network: str) -> None:
    """A panel per discount and setting, model and graph side by side."""
    import matplotlib.pyplot as plt
    import pandas as pd

    judged = job.params["type_models"][0]
    rules = {name: arm for name, arm in job.params["arms"].items() if arm["policy"] in RULES}
    found = {}
    for name in ["tap", *rules]:
        tables = [
            job.load_table("steer", "rounds", name, seed).assign(seed=seed) for seed in job.seeds
        ]
        rows = pd.concat(tables)
        found[name] = curves(
            rows[(rows["network"] == network) & (rows["types"] == judged)], LAST_ROUND
        )
    discounts, starts = job.params["discounts"], job.params["starts"]
    columns = [(start, mode) for start in starts for mode in MODES]
    shape = (len(discounts), len(columns))
    figure, panels = plt.subplots(
        *shape, figsize=(2.35 * shape[1], 2.2 * shape[0] + 0.9), sharex=True, sharey="row",
        squeeze=False,
    )  # fmt: skip
    for row, discount in enumerate(discounts):
        for column, (start, mode) in enumerate(columns):
            axes = panels[row, column]
            here = {
                name: part[
                    (part["gamma"] == discount) & (part["start"] == start) & (part["mode"] == mode)
                ]
                for name, part in found.items()
            }
            _panel(axes, here, rules)
            if row == 0:
                axes.set_title(f"{start} people, {MODES[mode]}")
            if row == len(discounts) - 1:
                axes.set_xlabel("round")
        panels[row, 0].set_ylim(bottom=0)  # shared: only once the row is drawn
        panels[row, 0].set_ylabel(f"discount {discount:g}\ndiscounted recruits")
    handles = panels[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5)
    replicates = job.params["replicates"] * len(job.seeds)
    job.save_figure(
        f"rewards_{network}",
        figure,
        caption=(
            f"Network {network}: accumulated discounted recruits by round, mean of {replicates} "
            f"replicates on common random numbers, bands +-1 standard error; budget "
            f"{job.params['budget']}, types: {judged}. Of each family of fixed rules the best one "
            "of each panel is coloured, the others are grey. Of two panels with one number of "
            "first people, the left is the planner's own model, the right the real graph."
        ),
        source="steer: rounds",
    )


def _panel(axes: "Axes", here: "dict[str, pd.DataFrame]", rules: dict[str, dict[str, Any]]) -> None:
    final = {name: here[name]["mean"].iloc[-1] for name in rules}
    best = {}
    for family in FAMILIES:
        members = [name for name, arm in rules.items() if arm["policy"] == family]
        if members:
            best[family] = max(members, key=final.__getitem__)
    others = [name for name in rules if name not in best.values()]
    for number, name in enumerate(others):
        axes.plot(
            here[name]["round"], here[name]["mean"], color="#BDBDBD", linewidth=0.8, marker="",
            label=None if number else "other fixed rules",
        )  # fmt: skip
    shown = [*((name, *look) for look, name in zip(_family_looks(), best.values(), strict=False))]
    for name, label, colour, marker in [*shown, ("tap", "TAP", BLACK, "*")]:
        part = here[name]
        big = 7 if name == "tap" else 4
        axes.plot(
            part["round"], part["mean"], color=colour, marker=marker, markersize=big, label=label,
            markevery=(0, 2), linewidth=1.3,
        )  # fmt: skip
        axes.fill_between(
            part["round"], part["mean"] - part["se"], part["mean"] + part["se"], color=colour,
            alpha=0.2, linewidth=0,
        )  # fmt: skip
    axes.set_xticks(range(2, LAST_ROUND + 1, 2))


def _family_looks() -> list[tuple[str, str, str]]:
    return [(f"best {name}", COLOURS[k], MARKERS[k]) for k, name in enumerate(FAMILIES.values())]


def _leads(job: Job) -> None:
    """Paired lead over the best fixed rule of each setting, model left, graph right."""
    import matplotlib.pyplot as plt

    table = job.load_table("evaluate", "leads", "comparison", 0)
    judged = job.params["type_models"][0]
    table = table[(table["against"] == "best_fixed") & (table["types"] == judged)]
    chosen = job.load_table("evaluate", "best_fixed", "comparison", 0)
    table = table.merge(chosen, on=SETTING)
    order = [
        (network, discount, start)
        for network in job.params["networks"]
        for start in job.params["starts"]
        for discount in job.params["discounts"]
    ]
    figure, panels = plt.subplots(
        1, 2, figsize=(9.0, 1.4 + 0.3 * len(order)), sharey=True, sharex=True
    )
    for axes, (mode, title) in zip(panels, MODES.items(), strict=True):
        part = table[table["mode"] == mode].set_index(["network", "gamma", "start"]).loc[order]
        for place, (_, lead) in enumerate(part.iterrows()):
            colour, marker, _ = LEAD_LOOKS[int(lead["low"] > 0) - int(lead["high"] < 0)]
            ends = [[lead["lead"] - lead["low"]], [lead["high"] - lead["lead"]]]
            axes.errorbar(lead["lead"], place, xerr=ends, color=colour, marker=marker, capsize=3)
            axes.annotate(
                rule_name(job.params["arms"][lead["policy"]]), (1.0, place),
                xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=7.5,
                color="#4D4D4D",
            )  # fmt: skip
        axes.axvline(0, color="#4D4D4D", linewidth=1, marker="")
        axes.set(title=title, xlabel="TAP minus the best fixed rule (discounted recruits)")
    panels[0].set_yticks(
        range(len(order)), [f"{name}, {start} people, {gamma:g}" for name, gamma, start in order]
    )
    panels[0].invert_yaxis()
    low, high = panels[0].get_xlim()
    panels[0].set_xlim(low, high + 0.45 * (high - low))  # room for the names of the rules
    handles = [
        plt.Line2D([], [], color=colour, marker=marker, label=f"interval {name}")
        for colour, marker, name in LEAD_LOOKS.values()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    replicates = job.params["replicates"] * len(job.seeds)
    job.save_figure(
        "leads",
        figure,
        caption=(
            f"Paired lead of TAP over the best fixed rule of each setting (network, people at the "
            f"start, discount), mean of {replicates} replicates with 95% bootstrap intervals. The "
            "rule, named at the right, is chosen after the fact by its mean over the same "
            "replicates, which favours it. In the paper's Figures TAP itself loses on the real "
            "graph of Gonorrhoea (11.3 against 13.2 from 5, 29.4 against 34.7 from 15 people, "
            "discount 0.9)."
        ),
        source="evaluate: leads",
    )


def _cost(job: Job, table: "pd.DataFrame") -> None:
    """Multiplications over the budget with slopes fitted to the judged half of the points."""
    import matplotlib.pyplot as plt
    import numpy as np

    from scripts.pipeline.stats import slope_pooled

    rows = table[table["metric"] == "multiplications"]
    figure, axes = plt.subplots(figsize=(6.4, 4.0))
    for number, (order, name) in enumerate(ORDERS.items()):
        part = rows[rows["quantity"] == order].sort_values("budget")
        budgets, work = part["budget"].to_numpy(float), part["value"].to_numpy()
        half = budgets > budgets.max() / 2
        fit = slope_pooled(budgets[half], work[half]).slope
        look = {"color": COLOURS[number], "marker": MARKERS[number]}
        axes.plot(budgets, work, linestyle="", fillstyle="none", **look)
        axes.plot(budgets[half], work[half], linestyle="", label=f"{name}: slope {fit:.2f}", **look)
        centre = np.log(work[half]).mean() - fit * np.log(budgets[half]).mean()
        axes.plot(
            budgets, np.exp(centre) * budgets**fit, color=COLOURS[number], linewidth=1, marker=""
        )
    axes.set(
        xscale="log", yscale="log", xlabel="budget b (coupons; log)",
        ylabel="multiplications for the table U (log)",
    )  # fmt: skip
    ticks = [10, 20, 40, 100, 200]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.legend()
    job.save_figure(
        "cost",
        figure,
        caption=(
            "Multiplications that the surrogate's program makes by budget, counted: with the laws "
            "of the number of recruits raised inside the loop over (r, n, s), as in the released "
            "code, and once for every (n, s). Lines: least squares on the upper half of the "
            "budgets (filled). The theorem allows b^5 log b."
        ),
        source="evaluate: multiplications",
    )


def _bounds(job: Job, table: "pd.DataFrame") -> None:
    """Bound against loss: single round left, many rounds by source of error right."""
    import matplotlib.pyplot as plt

    single = job.load_table("evaluate", "round_bounds", "single_round", 0)
    several = job.load_table("evaluate", "planning_bounds", "exact", 0)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 4.2))
    lossy, harmed = (part[part["loss"] > LEAST] for part in (single, several))
    scatter = {"linestyle": "", "markersize": 2.5, "alpha": 0.35, "rasterized": True}
    left.plot(
        lossy["loss"], lossy["bound"], color=COLOURS[0], marker="o", label="random", **scatter
    )
    tight = table[table["metric"] == "round_loss"]["value"]
    left.plot(
        tight, tight, color=COLOURS[1], marker="s", markersize=6, linestyle="", fillstyle="none",
        label="constructions of equality",
    )  # fmt: skip
    left.set(title="one round", xlabel="loss (recruits; log)", ylabel="bound (recruits; log)")
    for number, (source, name) in enumerate(SOURCES.items()):
        part = harmed[harmed["source"] == source]
        look = scatter | {"markersize": 3.5}
        right.plot(
            part["loss"], part["bound"], color=COLOURS[number], marker=MARKERS[number],
            label=name, **look,
        )  # fmt: skip
    right.set(
        title="many rounds", xlabel="loss (discounted recruits; log)",
        ylabel="bound (discounted recruits; log)",
    )  # fmt: skip
    for axes, limits in ((left, lossy["bound"]), (right, harmed["bound"])):
        least, most = 0.4 * limits.min(), 2.5 * limits.max()
        axes.plot([least, most], [least, most], color="#4D4D4D", marker="", label="bound = loss")
        axes.set(xscale="log", yscale="log", xlim=(LEAST, most), ylim=(least, most))
        axes.legend(loc="upper left", fontsize=7.5, markerscale=1.4, frameon=True)
    job.save_figure(
        "bounds",
        figure,
        caption=(
            f"Bounds on the loss from wrong beliefs against the loss itself. Left: {len(single)} "
            f"random pairs of true and believed distributions, of which {len(lossy)} "
            f"lose more than {LEAST:g} (drawn), and the constructions on which the bound is tight. "
            f"Right: exact small problems by source of error, {len(harmed)} of {len(several)} "
            "drawn. The bound of many rounds holds, and is far from the loss."
        ),
        source="evaluate: round_bounds, planning_bounds",
    )


if __name__ == "__main__":
    main(plot)
