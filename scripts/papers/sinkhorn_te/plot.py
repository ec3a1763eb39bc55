"""Figures: the paper's six panels, saturation, power over eps, the null law, and real studies."""

from typing import TYPE_CHECKING

from scripts.papers.sinkhorn_te.mixture import exact_curve
from scripts.pipeline.plotting import COLOURS, MARKERS
from scripts.pipeline.stage import Job, main

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NAMES = {
    "ste": "STE",
    "mte": "MTE",
    "steagg": "STEAgg",
    "mteagg": "MTEAgg",
    "ste_treated": "STE, law of the treated",
    "ste_conservative": "STE, threshold doubled",
    "aipw": "AIPW means",
    "dr_xkte": "DR-xKTE",
    "kte": "KTE, permuted",
    "unadjusted": "STE, unadjusted",
    "plugin": "plug-in",
}
# Past eight arms colours come again, with another marker.
LOOK = {arm: (COLOURS[k % 8], MARKERS[(k + 3 * (k // 8)) % 8]) for k, arm in enumerate(NAMES)}
LEVEL = 0.05
# Read off the paper's Figure 2 (+-0.02): n -> rejection rates of (STE, MTE), or coverage.
PAPER_SIZES = (250, 500, 1000, 2000)
PAPER = {
    ("gauss_mean", 0.0): ((0.006, 0.018, 0.022, 0.040), (0.004, 0.026, 0.030, 0.012)),
    ("gauss_mean", 0.4): ((0.07, 0.25, 0.65, 0.90), (0.06, 0.18, 0.57, 0.92)),
    ("gauss_mean", 0.8): ((0.34, 0.67, 0.92, 0.99), (0.26, 0.59, 0.91, 0.99)),
    ("gauss_cov", 0.8): ((0.04, 0.11, 0.52, 0.90), (0.02, 0.02, 0.37, 0.83)),
}
PAPER_COVERAGE = (0.90, 0.97, 0.94, 0.95)
DESIGNS = {
    "gauss_mean": "Gaussian",
    "confounded": "confounded",
    "cps": "CPS plasmode",
    "nuclei": "nuclei",
}


def plot(job: Job) -> None:
    from scripts.pipeline.plotting import style

    table = job.load_metrics()
    with style():
        _panels(job, table)
        _saturation(job, table)
        _regularisation(job, table)
        _null(job, table)
        _studies(job, table)


def _select(table: "pd.DataFrame", metric: str, **where: object) -> "pd.DataFrame":
    rows = table[table["metric"] == metric]
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return rows


def _shares(rows: "pd.DataFrame", by: str) -> "pd.DataFrame":
    """Share of ones by a column, with the Clopper-Pearson interval as distances from it."""
    import pandas as pd

    from scripts.pipeline.stats import share_interval

    found = []
    for level, values in rows.groupby(by)["value"]:
        low, high, _ = share_interval(int(values.sum()), len(values))
        share = values.mean()
        found.append({by: level, "share": share, "below": share - low, "above": high - share})
    return pd.DataFrame(found, columns=[by, "share", "below", "above"])


def _bars(axes: "Axes", at: "pd.Series", shares: "pd.DataFrame", arm: str, **look: object) -> None:
    colour, marker = LOOK[arm]
    ends = shares[["below", "above"]].to_numpy().T
    kept = {"label": NAMES[arm], "color": colour, "marker": marker, "capsize": 2, **look}
    axes.errorbar(at, shares["share"], yerr=ends, **kept)


def _panels(job: Job, table: "pd.DataFrame") -> None:
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FixedLocator, NullLocator

    figure, panels = plt.subplots(2, 3, figsize=(9.0, 5.6))
    base = table[table["eta"] == 1.0]
    for axes, design, theta, title in (
        (panels[0, 0], "gauss_mean", 0.0, "(a) size, Gaussian null"),
        (panels[0, 1], "gauss_mean", 0.4, "(b) power, mean shift 0.4"),
        (panels[0, 2], "gauss_mean", 0.8, "(c) power, mean shift 0.8"),
        (panels[1, 0], "gauss_cov", 0.8, "(d) power, covariance shift 0.8"),
    ):
        for number, arm in enumerate(("ste", "mte")):
            rows = _select(base, "reject", dataset=design, theta=theta, arm=arm)
            shares = _shares(rows, "size")
            _bars(axes, shares["size"] * 1.03 ** (2 * number - 1), shares, arm)
            axes.plot(
                [size * 1.03 ** (2 * number - 1) for size in PAPER_SIZES],
                PAPER[design, theta][number],
                color=LOOK[arm][0], marker=LOOK[arm][1], fillstyle="none", linestyle=":",
                linewidth=1, label=f"{NAMES[arm]} in the paper",
            )  # fmt: skip
        axes.set(title=title, ylabel="share of replicates rejected")
        axes.axhline(LEVEL, color=COLOURS[6], linewidth=1, linestyle="--")
    _errors(panels[1, 1], table)
    coverage = _shares(_select(table, "covered", dataset="confounded"), "size")
    _bars(panels[1, 2], coverage["size"], coverage, "ste")
    panels[1, 2].plot(
        PAPER_SIZES, PAPER_COVERAGE, color=LOOK["ste"][0], marker=LOOK["ste"][1],
        fillstyle="none", linestyle=":", linewidth=1,
    )  # fmt: skip
    panels[1, 2].axhline(0.95, color=COLOURS[6], linewidth=1, linestyle="--")
    panels[1, 2].set(title="(f) coverage of 95% intervals", ylabel="share of replicates covered")
    for axes in panels.flat:
        axes.set_xscale("log")
        ticks = [t for t in (50, 125, 250, 500, 1000, 2000) if axes.get_xlim()[0] <= t]
        axes.xaxis.set_major_locator(FixedLocator([t for t in ticks if t <= axes.get_xlim()[1]]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("evaluation rows n")
    handles, labels = panels[0, 1].get_legend_handles_labels()
    extra, names = panels[1, 1].get_legend_handles_labels()
    figure.legend(handles + extra, labels + names, loc="outside lower center", ncols=6)
    job.save_figure(
        "panels",
        figure,
        caption=(
            "The panels of the paper's Figure 2. Rejections at the 5% level (dashed) of the "
            "Sinkhorn (STE) and the kernel (MTE) test, over the rows n of the evaluation half, "
            "with Clopper-Pearson 95% intervals; hollow: the paper's values, read off to +-0.02 "
            "(1000 replicates). (e), (f): mean squared error and coverage on the confounded design "
            "with a mean shift of 0.8, where the truth is 0.64; 95% bootstrap intervals of the "
            "error; hollow in (f): the paper's coverage at a Gaussian mean shift of 1.6."
        ),
        source="evaluate: reject, squared_error, covered",
    )


def _errors(axes: "Axes", table: "pd.DataFrame") -> None:
    """Mean squared error of plug-in and one-step estimate over n."""
    from scripts.pipeline.stats import mean_interval

    for arm, name in (("plugin", "plug-in"), ("ste", "one-step")):
        rows = _select(table, "squared_error", dataset="confounded", arm=arm)
        sizes, means, ends = [], [], []
        for size, values in rows.groupby("size")["value"]:
            low, high, _ = mean_interval(values)
            sizes.append(size)
            means.append(values.mean())
            ends.append((values.mean() - low, high - values.mean()))
        colour, marker = LOOK[arm]
        style = {"color": colour, "marker": marker, "capsize": 2, "label": name, "linestyle": "-."}
        axes.errorbar(sizes, means, yerr=list(zip(*ends, strict=True)), **style)
    axes.set_yscale("log")
    axes.set(title="(e) mean squared error, confounded", ylabel="(squared outcome unit)$^2$")


def _saturation(job: Job, table: "pd.DataFrame") -> None:
    import matplotlib.pyplot as plt
    import numpy as np

    wanted = job.params["mixture"]
    exact = np.array(exact_curve(np.linspace(0.5, max(wanted["thetas"]), 13)))
    figure, axes = plt.subplots(figsize=(6.0, 3.8))
    for column, arm in enumerate(("ste", "mte"), start=1):
        colour, marker = LOOK[arm]
        axes.plot(exact[:, 0], exact[:, column], color=colour, marker="", label=NAMES[arm])
        rows = _select(table, "divergence", arm=arm)
        axes.plot(
            rows["theta"], rows["value"], color=colour, marker=marker, fillstyle="none",
            linestyle="", label=f"{NAMES[arm]}, {wanted['points']} points a law",
        )  # fmt: skip
    axes.set_yscale("log")
    axes.set(xlabel="separation theta of the two halves", ylabel="divergence (squared unit; log)")
    axes.legend()
    job.save_figure(
        "saturation",
        figure,
        caption=(
            "Sinkhorn divergence and half the squared MMD between N(0, I) and its mixture at "
            "-theta 1 and theta 1 in the plane, whose means are equal for every theta. Lines: the "
            "laws themselves, by quadrature; hollow: samples, one mark a seed. The kernel measure "
            "stops growing near theta = 4."
        ),
        source="evaluate: divergence",
    )


def _regularisation(job: Job, table: "pd.DataFrame") -> None:
    """Rejections over eta with the aggregated tests as lines: power left, size right."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FixedLocator, NullLocator

    figure, panels = plt.subplots(1, 2, figsize=(8.0, 3.9))
    rejections = table[(table["metric"] == "reject")]
    for axes, design, theta, title in (
        (panels[0], "gauss_cov", 0.8, "power, covariance shift 0.8"),
        (panels[1], "confounded", 0.0, "size, confounded null"),
    ):
        chosen = rejections[(rejections["dataset"] == design) & (rejections["theta"] == theta)]
        size = chosen[chosen["arm"] == "steagg"]["size"].iloc[0]
        chosen = chosen[chosen["size"] == size]
        for number, arm in enumerate(("ste", "mte")):
            shares = _shares(chosen[chosen["arm"] == arm], "eta")
            _bars(axes, shares["eta"] * 1.04 ** (2 * number - 1), shares, arm)
            merged = _shares(chosen[chosen["arm"] == f"{arm}agg"], "size").iloc[0]
            colour = LOOK[f"{arm}agg"][0]
            axes.axhline(merged["share"], color=colour, linestyle="--", label=NAMES[f"{arm}agg"])
            ends = merged["share"] - merged["below"], merged["share"] + merged["above"]
            axes.axhspan(*ends, color=colour, alpha=0.12, linewidth=0)
        axes.axhline(LEVEL, color=COLOURS[6], linewidth=1, linestyle=":")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(job.params["etas"]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set(title=f"{title}, n = {int(size)}", xlabel="eps in units of the median cost")
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("share of replicates rejected")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    job.save_figure(
        "regularisation",
        figure,
        caption=(
            "Rejections at the 5% level (dotted) over the regularisation eps, and those of the "
            "tests that aggregate all five (dashed); bars and bands: Clopper-Pearson 95% "
            "intervals."
        ),
        source="evaluate: reject",
    )


def _null(job: Job, table: "pd.DataFrame") -> None:
    """p-values against the uniform law, and the size of every test on every null."""
    import matplotlib.pyplot as plt
    import numpy as np

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 4.2), width_ratios=(1, 1.25))
    known = _select(table, "p", dataset="gauss_mean", theta=0.0)
    known = known[known["eta"] == 1.0]
    for arm, line in (("ste", "-"), ("mte", "--")):
        for number, (size, rows) in enumerate(known[known["arm"] == arm].groupby("size")):
            p = np.sort(rows["value"].to_numpy())
            uniform = (np.arange(len(p)) + 0.5) / len(p)
            shade = 0.35 + 0.65 * (number + 1) / known["size"].nunique()
            name = f"{NAMES[arm]}, n = {int(size)}"
            left.plot(
                uniform, p, color=LOOK[arm][0], marker="", linestyle=line, alpha=shade, label=name
            )
    left.plot([0, 1], [0, 1], color=COLOURS[6], marker="", linewidth=1, linestyle=":")
    left.set(
        title="p-values, Gaussian null", xlabel="quantile of the uniform law", ylabel="p-value"
    )
    left.legend()
    nulls = table[(table["metric"] == "reject") & (table["eta"].isna() | (table["eta"] == 1.0))]
    at_null = (nulls["theta"] == 0) & nulls["dataset"].isin(["gauss_mean", "confounded", "cps"])
    nulls = nulls[at_null | ((nulls["theta"] == -20) & (nulls["dataset"] == "nuclei"))]
    # The size at which the other tests ran too, else the largest.
    others = nulls[nulls["arm"].isin(["aipw", "unadjusted"])]
    chosen = {**nulls.groupby("dataset")["size"].max(), **others.groupby("dataset")["size"].max()}
    arms = [arm for arm in NAMES if arm in set(nulls["arm"])]
    for number, arm in enumerate(arms):
        for place, design in enumerate(DESIGNS):
            rows = nulls[(nulls["dataset"] == design) & (nulls["arm"] == arm)]
            rows = rows[rows["size"] == chosen[design]]
            if rows.empty:
                continue
            shares = _shares(rows, "size")
            at = shares["size"] * 0 + place + (number - len(arms) / 2) * 0.085
            _bars(right, at, shares, arm, linestyle="", label=NAMES[arm] if place == 1 else None)
    right.axhline(LEVEL, color=COLOURS[6], linewidth=1, linestyle=":")
    ticks = [f"{name}\nn = {int(chosen[design])}" for design, name in DESIGNS.items()]
    right.set_xticks(range(len(DESIGNS)), ticks)
    right.set_yscale("symlog", linthresh=0.1)
    right.set_yticks([0, 0.05, 0.1, 0.5, 1.0], ["0", "0.05", "0.1", "0.5", "1"])
    right.set_ylim(-0.005, 1.1)
    right.set(title="size of every test", ylabel="share rejected (log above 0.1)")
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    job.save_figure(
        "null",
        figure,
        caption=(
            "Left: p-values of the second-order tests under the Gaussian null against the uniform "
            "law (dotted). Right: rejections of every test under four nulls at the 5% level "
            "(dotted), with Clopper-Pearson 95% intervals. The test without covariates fails where "
            "they confound, and only there; the tests run on every design except where a mark is "
            "missing."
        ),
        source="evaluate: p, reject",
    )


def _studies(job: Job, table: "pd.DataFrame") -> None:
    """p-values of every test on real studies, a mark for each random split."""
    import matplotlib.pyplot as plt
    import numpy as np

    studies = {
        "nsw_before": "NSW, earnings\nbefore (null)",
        "nsw_after": "NSW, earnings\nafter",
        "nhefs": "NHEFS, quitting:\nweight, pressure",
    }
    rows = table[(table["metric"] == "p") & table["dataset"].isin(list(studies))]
    rows = rows[rows["eta"].isna() | (rows["eta"] == 1.0)]
    figure, axes = plt.subplots(figsize=(7.2, 3.9))
    arms = [arm for arm in NAMES if arm in set(rows["arm"])]
    for number, arm in enumerate(arms):
        colour, marker = LOOK[arm]
        for place, study in enumerate(studies):
            p = rows[(rows["arm"] == arm) & (rows["dataset"] == study)]["value"].to_numpy()
            at = place + (number - (len(arms) - 1) / 2) * 0.15
            shared = {"color": colour, "marker": marker, "linestyle": ""}
            axes.plot(np.full(len(p), at), p, alpha=0.35, markersize=3.5, **shared)
            name = NAMES[arm] if place == 0 else None
            axes.plot([at], [np.median(p)], markersize=7, fillstyle="none", label=name, **shared)
    axes.axhline(LEVEL, color=COLOURS[6], linewidth=1, linestyle=":")
    axes.set_yscale("log")
    axes.set_xticks(range(len(studies)), studies.values())
    axes.set_ylabel("p-value (log)")
    axes.legend(ncols=5, loc="upper center", bbox_to_anchor=(0.5, 1.14))
    job.save_figure(
        "studies",
        figure,
        caption=(
            "Real studies, shown and not judged: p-values of each random split into halves (small) "
            "and their median (large, hollow); dotted: 0.05. NSW is a randomised training "
            "programme, NHEFS an observational study of quitting smoking."
        ),
        source="evaluate: p",
    )


if __name__ == "__main__":
    main(plot)
