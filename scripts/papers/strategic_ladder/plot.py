"""Figures: who can be made to improve, two levels, climbs and greedy ladders, the credit ladder."""

from typing import TYPE_CHECKING

from scripts.papers.strategic_ladder import closed_forms, credit, pictures, two_levels
from scripts.pipeline.stage import Job, main

if TYPE_CHECKING:
    import pandas as pd

BETA = 0.95  # at which the retention of real ladders is marked


def plot(job: Job) -> None:
    from scripts.pipeline.plotting import style

    table = job.load_metrics()
    with style():
        _phase(job, table)
        _two_levels(job)
        _climbs(job, table)
        _credit(job, table)


def _phase(job: Job, table: "pd.DataFrame") -> None:
    """Shares of designs over beta gamma and c-/c+."""
    import matplotlib.pyplot as plt

    from scripts.pipeline.plotting import COLOURS

    cells = table[table["dataset"] == "map"].copy()
    cells["both"] = (cells["beta"] * cells["gamma"]).round(9)
    retention = job.load_json("prepare", "calibration")["retention"]
    figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.7), sharey=True)
    for axes, metric, title in zip(
        panels,
        ("improving_share", "honest_share"),
        ("the agent improves", "honest to the top"),
        strict=True,
    ):
        wide = cells[cells["metric"] == metric].pivot_table(
            index="gaming_cost", columns="both", values="value"
        )
        drawn = axes.imshow(
            wide, cmap="cividis", vmin=0, vmax=1, origin="lower", extent=(0, 1, 0, 1), aspect="auto"
        )
        axes.plot([0, 1], [1, 0], color=COLOURS[1], linewidth=2, marker="", label="1 - beta gamma")
        for number, (name, gamma) in enumerate(retention.items()):
            axes.axvline(
                BETA * gamma, color="white", linestyle=("--", ":")[number], marker="",
                label=f"gamma of {name} ({gamma:.2f})",
            )  # fmt: skip
        axes.set(title=title, xlabel="beta gamma (discount x retention)")
        axes.grid(visible=False)
    panels[0].set_ylabel("cost of gaming over cost of effort, c-/c+")
    figure.colorbar(drawn, ax=panels, label="share of designs tried")
    handles, labels = panels[0].get_legend_handles_labels()
    for handle in handles[1:]:
        handle.set_color("#4D4D4D")
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    for axes in panels:  # the legend's handles are the first panel's lines
        for line in axes.lines[1:]:
            line.set_color("white")
    tried = int(cells.loc[cells["metric"] == "improving_share", "n"].iloc[0])
    seeds = cells["seed"].nunique()
    job.save_figure(
        "phase",
        figure,
        caption=(
            f"Share of designs under which an agent that starts with nothing improves (left) or "
            f"climbs to the top without gaming (right); {tried} designs x {seeds} seeds a cell, "
            "beta = gamma. Below the line nobody improves under any design tried. Dashed and "
            "dotted: where agents with the retention of real ladders lie if beta = 0.95."
        ),
        source="evaluate: improving_share, honest_share",
    )


def _two_levels(job: Job) -> None:
    """What an agent does at x when the threshold is mu, for two leg-ups."""
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    from scripts.pipeline.plotting import COLOURS

    colours = ("#E8E8E8", COLOURS[2], COLOURS[1], COLOURS[5])
    numbers = (pictures.BETA, pictures.GAMMA, 1.0, pictures.MAP_COST, pictures.MAP_REWARD)
    lower = float(closed_forms.lower_cutoff(*numbers))
    upper = float(closed_forms.upper_cutoff(*numbers))
    table = job.load_table("evaluate", "map", "two_level", 0)
    top = pictures.MAP_TOP
    figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.9), sharey=True)
    for axes, delta in zip(panels, pictures.MAP_LEG_UPS, strict=True):
        some = table[table["delta"] == delta]
        wide = some.pivot_table(index="x", columns="mu", values="label")
        axes.imshow(
            wide,
            cmap=ListedColormap(colours),
            vmin=-0.5,
            vmax=3.5,
            origin="lower",
            extent=(0, top, 0, top),
            aspect="auto",
            interpolation="nearest",
        )
        step = delta / (1 - pictures.GAMMA)
        lines = (("lower cut-off", lower, "--"), ("upper cut-off", upper, "-"))
        for name, cut, look in lines:
            axes.axvline(step + cut, color="black", linestyle=look, label=name, marker="")
        if step:
            axes.axvline(step, color="black", linestyle=":", label="delta/(1 - gamma)", marker="")
        axes.plot([0, top], [0, top], color="#4D4D4D", linewidth=1, marker="")
        axes.set(
            title=f"leg-up delta = {delta:g}", xlabel="threshold mu (attribute)", xlim=(0, top)
        )
        axes.grid(visible=False)
    panels[0].set_ylabel("attribute x before acting")
    patches = [Patch(color=c, label=n) for c, n in zip(colours, two_levels.NAMES, strict=True)]
    lines = panels[1].get_legend_handles_labels()[0]
    figure.legend(handles=[*patches, *lines], loc="outside lower center", ncols=4)
    job.save_figure(
        "two_levels",
        figure,
        caption=(
            "Two levels: what the agent does at attribute x (vertical) under threshold mu "
            f"(horizontal), by value iteration; beta = gamma = {pictures.BETA}, c+ = 1, "
            f"c- = {pictures.MAP_COST}, r = {pictures.MAP_REWARD:g}. The cut-offs are closed "
            "forms; the leg-up moves them by "
            "delta/(1 - gamma) and changes nothing else above it. Above the grey diagonal the "
            "agent passes without acting."
        ),
        source="evaluate: map",
    )


def _climbs(job: Job, table: "pd.DataFrame") -> None:
    """Levels and attributes over time on a steady ladder; greedy steps with and without leg-up."""
    import matplotlib.pyplot as plt

    from scripts.pipeline.plotting import COLOURS, MARKERS

    table_of = job.load_table("evaluate", "climbs", "steady", 0)
    figure, panels = plt.subplots(1, 3, figsize=(9.0, 3.6))
    for at, name in enumerate(pictures.CLIMB):
        some = table_of[table_of["agent"] == name]
        look = {"color": COLOURS[at], "marker": MARKERS[at], "label": name}
        panels[0].plot(some["step"], some["level"], **look)
        panels[1].plot(some["step"], some["attribute"], **look)
    panels[0].set(title="level held", xlabel="step", ylabel="level")
    panels[1].set(title="true attribute", xlabel="step", ylabel="attribute")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=3)
    steps = table[table["metric"] == "greedy_step"]
    for number, (arm, name) in enumerate(
        (("greedy", "with leg-up"), ("greedy_no_legup", "without"))
    ):
        some = steps[steps["arm"] == arm]
        ratio = some.assign(first=some.groupby(["seed", "instance"])["value"].transform("first"))
        share = ratio["value"] / ratio["first"]
        by_level = share.groupby(ratio["levels"])
        bands = {quantile: by_level.quantile(quantile) for quantile in pictures.QUARTILES}
        at = bands[0.5].index.to_numpy(float)
        panels[2].plot(
            at, bands[0.5], color=COLOURS[number + 3], marker=MARKERS[number + 3], label=name
        )
        panels[2].fill_between(at, bands[0.25], bands[0.75], color=COLOURS[number + 3], alpha=0.2)
    panels[2].set(
        title="greedy steps",
        xlabel="level",
        ylabel="step over the first",
        ylim=(0, 1.1),
        xticks=at[::3],
    )
    panels[2].legend(loc="upper right")
    count = len(steps[["seed", "instance"]].drop_duplicates())
    job.save_figure(
        "climbs",
        figure,
        caption=(
            "Left and middle: the optimal path on a steady ladder of nine levels (beta = gamma = "
            "0.8, delta = 0.1, c-/c+ = 0.7) just above and just below the reward bound, and where "
            "gaming costs less than (1 - beta gamma) c+: the leg-up alone then raises it. "
            f"Right: greedy steps over the first, median and quartiles of {count} agents; without "
            "a leg-up they end, with one they fall to its steady step."
        ),
        source="evaluate: climbs, greedy_step",
    )


def _credit(job: Job, table: "pd.DataFrame") -> None:
    """Cost cases of the credit ladder: paths of the quartiles, gaming share and objective by L."""
    import matplotlib.pyplot as plt

    from scripts.pipeline.plotting import COLOURS, MARKERS

    paths = job.load_table("evaluate", "borrowers", "principal", 0)
    figure, panels = plt.subplots(2, 4, figsize=(9.0, 5.2), sharey="row")
    for at, case in enumerate(credit.CASES):
        axes = panels[0, at]
        for number, share in enumerate(pictures.QUARTILES):
            some = paths[(paths["case"] == case) & (paths["share"] == share)]
            axes.plot(
                some["step"], some["attribute"], color=COLOURS[number], marker=MARKERS[number],
                markevery=5, label=f"{100 * share:.0f}th percentile",
            )  # fmt: skip
        honest_cost, gaming_cost = credit.CASES[case]
        axes.set(title=f"{case}: c+ {honest_cost}, c- {gaming_cost}", xlabel="step")
    panels[0, 0].set_ylabel("true attribute (score / 10)")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=3, title="starting score")
    rows = table[(table["arm"] == "principal") & (table["design"] == "best of levels")]
    for metric, part, label in (
        ("objective", slice(0, 2), "objective J (attribute steps)"),
        ("gaming_share", slice(2, 4), "gaming share of all actions"),
    ):
        grid = panels[1, part.start].get_gridspec()
        for axes in panels[1, part]:
            axes.remove()
        axes = figure.add_subplot(grid[1, part])
        for number, case in enumerate(credit.CASES):
            some = rows[(rows["metric"] == metric) & (rows["case"] == case)].sort_values("levels")
            axes.plot(
                some["levels"], some["value"], color=COLOURS[number + 3],
                marker=MARKERS[number + 3], label=case,
            )  # fmt: skip
        axes.set(xlabel="levels L", ylabel=label, xticks=sorted(rows["levels"].unique()))
    axes.set_ylim(-0.03, 1.03)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=4, title="cost case, below")
    evaluations = job.params["credit"]["evaluations"]
    job.save_figure(
        "credit",
        figure,
        caption=(
            "The credit ladder on TransUnion scores (beta = gamma = 0.8, delta = 0.01). "
            "Above: true attribute of three borrowers under the best design of each cost case. "
            f"Below: the principal's objective and the gaming share of the best of {evaluations} "
            "designs (CMA-ES) by number of levels; 1 where nobody improves. Only in case IV does "
            "gaming cost less than (1 - beta gamma) c+."
        ),
        source="evaluate: borrowers, objective, gaming_share",
    )


if __name__ == "__main__":
    main(plot)
