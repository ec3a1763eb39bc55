"""Figures: distortion over stages, shrinkage, loss over bits, pass keys, and what sinks change."""

from typing import TYPE_CHECKING

from scripts.pipeline.stage import Job, main

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axis import Axis

STUDY = {
    "kmeans": "K-means",
    "gskm_described": "GSKM, described",
    "gskm_released": "GSKM, released",
    "kmeans_spherical_init": "K-means, spherical start",
    "gskm_spherical_init": "GSKM, spherical start",
    "kmeans_30": "K-means, 30 rounds",
    "gskm_cos": "GSKM, cosine assignment",
    "gskm_norm": "GSKM, mean-norm gain",
}
MODEL = {
    "gsrq": "GSRQ",
    "km_rq_w": "K-means RQ, weighted",
    "vqllm": "VQLLM",
    "gs_rq": "GS-RQ, unweighted",
    "km_rq": "K-means RQ, unweighted",
    "cq": "CQ",
    "nuq": "KVQuant nuq",
    "sign": "sign + scale",
    "rtn": "RTN-2",
    "kivi": "KIVI-2",
}
LEVEL = 1.96


def plot(job: Job) -> None:
    from scripts.pipeline.plotting import style

    table = job.load_metrics()
    with style():
        _distortion(job, table)
        _shrinkage(job, table)
        _loss(job, table)
        _passkeys(job, table)


def _mean_error(frame: "pd.DataFrame", by: str) -> "pd.DataFrame":
    """Mean and 95% half width (normal) of the values by a column."""
    grouped = frame.groupby(by)["value"].agg(["mean", "sem"]).fillna(0.0)
    return grouped.assign(half=LEVEL * grouped["sem"])


def _distortion(job: Job, table: "pd.DataFrame") -> None:
    """Per arm, its paired difference from K-means over stages; a panel per measure and tensor."""
    import matplotlib.pyplot as plt

    held_out = table[(table["dataset"] == "pydoc") & table["metric"].isin(["cosine", "distortion"])]
    unit = ["seed", "layer", "tensor", "dim", "stages"]
    figure, panels = plt.subplots(2, 2, figsize=(7.2, 5.6), sharex=True, sharey="row")
    for row, (metric, name) in enumerate(
        (("cosine", "cosine, difference"), ("distortion", "squared error, ratio - 1 (%)"))
    ):
        wide = held_out[(held_out["metric"] == metric) & (held_out["dim"] == 64)].pivot_table(
            index=unit, columns="arm", values="value"
        )
        for column, (tensor, title) in enumerate((("k", "keys, before RoPE"), ("v", "values"))):
            axes = panels[row, column]
            for number, (arm, label) in enumerate(STUDY.items()):
                if arm in ("kmeans", "gskm_norm") or arm not in wide:
                    continue
                change = wide[arm] - wide["kmeans"]
                if metric == "distortion":
                    change = 100 * (wide[arm] / wide["kmeans"] - 1)
                chosen = change.dropna().rename("value").reset_index()
                chosen = chosen[chosen["tensor"] == tensor]
                found = _mean_error(chosen, "stages")
                at = found.index.to_numpy() * 1.025 ** (number - 4)  # side by side
                axes.errorbar(at, found["mean"], yerr=found["half"], label=label, capsize=2)
            axes.axhline(0, color="#4D4D4D", linewidth=1, linestyle=":")
            axes.set_xscale("log", base=2)
            _ticks(axes.xaxis, [1, 2, 4, 8])
            if row == 0:
                axes.set_title(title)
            if column == 0:
                axes.set_ylabel(name)
            if row == 1:
                axes.set_xlabel("stages of 8 bits" if job.scale != "smoke" else "stages")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    naive = held_out[(held_out["arm"] == "gskm_norm") & (held_out["metric"] == "distortion")]
    plain = held_out[(held_out["arm"] == "kmeans") & (held_out["metric"] == "distortion")]
    both = naive.merge(plain, on=unit, suffixes=("", "_plain"))
    ratio = (both["value"] / both["value_plain"]).groupby(both["stages"]).mean()
    centred = wide.xs("k", level="tensor")[["gskm_centred", "kmeans_centred"]].dropna()
    centred_ratio = (centred["gskm_centred"] / centred["kmeans_centred"]).mean()
    job.save_figure(
        "distortion",
        figure,
        caption=(
            "Held-out vectors of 64 channels: what each way to fit a codebook changes against "
            "K-means with the same codewords, stages and starting points (dotted line). Above: "
            "cosine of vector and reconstruction (higher is better). Below: squared error (lower "
            "is better). Mean and 95% interval over layers and seeds. Left out, being off the "
            "scale: the mean-norm gain, whose squared error is "
            f"{ratio.iloc[0]:.2f} times K-means' at stage 1. With the mean of each channel removed "
            f"first, GSKM's squared error on keys is {centred_ratio:.3f} times K-means'."
        ),
        source="evaluate: cosine, distortion",
    )


def _shrinkage(job: Job, table: "pd.DataFrame") -> None:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 2, figsize=(7.2, 5.0), sharex="col", sharey="row")
    gaussian = table[table["dataset"] == "gaussian"]
    codewords = gaussian.groupby("codewords")["dim"].nunique().idxmax()
    gaussian = gaussian[gaussian["codewords"] == codewords]
    real = table[(table["dataset"] == "calibration") & (table["dim"] == 64)]
    names = (("rho", "length kept, rho"), ("usage_entropy", "entropy of code use (bit)"))
    for row, (metric, label) in enumerate(names):
        for arm, size in (("kmeans", 8), ("gskm_described", 4)):  # they coincide on Gaussians
            found = _mean_error(gaussian[_is(gaussian, metric, arm)], "dim")
            axes = panels[row, 0]
            axes.errorbar(
                found.index, found["mean"], yerr=found["half"], label=STUDY[arm], markersize=size
            )
            for tensor, line in (("k", "--"), ("v", "-")):
                chosen = real[_is(real, metric, arm) & (real["tensor"] == tensor)]
                found = _mean_error(chosen, "stages")
                panels[row, 1].errorbar(
                    found.index,
                    found["mean"],
                    yerr=found["half"],
                    linestyle=line,
                    color="C0" if arm == "kmeans" else "C1",
                    marker="o" if tensor == "k" else "s",
                    label=f"{STUDY[arm]}, {'keys' if tensor == 'k' else 'values'}",
                )
        panels[row, 0].set_ylabel(label)
    panels[0, 0].set_xscale("log", base=2)
    _ticks(panels[0, 0].xaxis, sorted(gaussian["dim"].dropna().unique()))
    panels[0, 0].set_title(f"Gaussian vectors, {int(codewords)} codewords")
    panels[0, 1].set_title("keys and values, 64 channels")
    panels[1, 0].set_xlabel("dimension")
    panels[1, 1].set_xlabel("residual stage")
    panels[1, 0].legend()
    panels[1, 1].legend()
    job.save_figure(
        "shrinkage",
        figure,
        caption=(
            "Above: rho, the codewords' length over the vectors' length, weighted by use. Below: "
            "entropy of code use. Left: one stage on i.i.d. Gaussian vectors. Right: the stages of "
            "residual codebooks on calibration keys and values. Mean and 95% interval over seeds "
            "(left), layers and seeds (right)."
        ),
        source="compress: rho, usage_entropy",
    )


def _is(frame: "pd.DataFrame", metric: str, arm: str) -> "pd.Series":
    return (frame["metric"] == metric) & (frame["arm"] == arm)


def _loss(job: Job, table: "pd.DataFrame") -> None:
    import matplotlib.pyplot as plt

    from scripts.pipeline.plotting import COLOURS, MARKERS

    text = table[(table["dataset"] == "pydoc") & (table["protocol"] == "all")]
    figure, panels = plt.subplots(1, 2, figsize=(7.2, 4.4))
    floor = text[text["arm"] == "no_past"]
    for axes, metric, label in (
        (panels[0], "kl", "KL from full precision (nat/token)"),
        (panels[1], "nll", "negative log-likelihood (nat/token)"),
    ):
        for number, (arm, name) in enumerate(MODEL.items()):
            chosen = text[_is(text, metric, arm)]
            found = _mean_error(
                chosen.groupby(["bits", "segment"])["value"].mean().reset_index(), "bits"
            )
            style = {"linestyle": "-" if number < 3 else ":", "capsize": 2, "label": name}
            style |= {"color": COLOURS[number % 8], "marker": MARKERS[number % 8]}
            style["markerfacecolor"] = COLOURS[number % 8] if number < 8 else "white"
            at = found.index.to_numpy() + 0.02 * (number % 6 - 2.5)  # side by side
            axes.errorbar(at, found["mean"], yerr=found["half"], **style)
        axes.axhline(
            floor[floor["metric"] == metric]["value"].mean(), color="#4D4D4D", linestyle="--"
        )
        axes.set_xlabel("total bits per cached element")
        axes.set_ylabel(label)
    panels[0].set_yscale("log")
    low, high = panels[0].get_ylim()
    _ticks(panels[0].yaxis, [v for v in (0.1, 0.2, 0.5, 1, 2, 5, 10) if low <= v <= high])
    right = panels[0].get_xlim()[1]
    top = floor[floor["metric"] == "kl"]["value"].mean()
    panels[0].annotate("no past", (right, top), ha="right", va="bottom", fontsize=8.5)
    full = text[_is(text, "nll", "fp")]["value"].mean()
    panels[1].axhline(full, color="#4D4D4D", linestyle="-", linewidth=1)
    panels[1].annotate("full precision", (right, full), ha="right", va="bottom", fontsize=8.5)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    job.save_figure(
        "loss",
        figure,
        caption=(
            "Loss of the model with its cache quantized against total bits per element, scales "
            "included. Left: KL divergence from full precision, logarithmic. Right: negative "
            "log-likelihood. Dashed: each token sees itself and the first token only. Mean and 95% "
            "interval over text segments, seeds averaged; scalar arms are dotted."
        ),
        source="evaluate: kl, nll",
    )


def _passkeys(job: Job, table: "pd.DataFrame") -> None:
    import matplotlib.pyplot as plt
    import numpy as np

    wide = table[table["metric"] == "passkey_retained"].pivot_table(
        index="prompt", columns="arm", values="value"
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.6))
    arms = [arm for arm in MODEL if arm in wide]
    shift = np.linspace(-0.12, 0.12, len(wide))
    for prompt in range(len(wide)):
        at = np.arange(len(arms)) + shift[prompt]
        left.plot(at, wide[arms].iloc[prompt], color="#999999", marker=".", linewidth=0.6)
    mean, half = wide[arms].mean(), LEVEL * wide[arms].sem().fillna(0.0)
    left.errorbar(range(len(arms)), mean, yerr=half, color="C1", marker="D", linestyle="", zorder=3)
    left.set_xticks(range(len(arms)), [MODEL[arm].replace(", ", ",\n") for arm in arms])
    left.set_ylabel("retained pass-key score")
    left.axhline(1, color="#4D4D4D", linewidth=1, linestyle=":")
    left.axhline(0, color="#4D4D4D", linewidth=1, linestyle=":")
    sides = table[(table["metric"] == "kl") & (table["seed"] == 0)]
    rate = sides[sides["protocol"].str.startswith("sink", na=False)]["rate"].max()
    sides = sides[sides["rate"] == rate]
    same = sides[sides["protocol"].str.startswith("sink", na=False)]["segment"].unique()
    kinds = {
        "no sink kept": (sides["dataset"] == "pydoc")
        & (sides["protocol"] == "all")
        & sides["segment"].isin(same),
        "first tokens kept": sides["protocol"].str.startswith("sink"),
        "other domain": sides["dataset"] == "sklearn",
    }
    for number, arm in enumerate(arms):
        chosen = [sides[keep & (sides["arm"] == arm)]["value"] for keep in kinds.values()]
        right.errorbar(
            np.arange(len(kinds)) + 0.12 * (number - 1),
            [values.mean() for values in chosen],
            yerr=[LEVEL * values.sem() if len(values) > 1 else 0 for values in chosen],
            linestyle="",
            capsize=2,
            label=MODEL[arm],
        )
    right.set_xticks(range(len(kinds)), [name.replace(" ", "\n", 1) for name in kinds])
    right.set_ylabel("KL from full precision (nat/token)")
    right.set_ylim(bottom=0)
    right.legend()
    job.save_figure(
        "passkey",
        figure,
        caption=(
            f"At {rate:g} total bit per element. Left: share of the full-precision pass-key score "
            "above chance that is kept; grey: a prompt across arms; diamonds: mean and 95% "
            "interval over prompts. Right: KL when the first tokens stay in full precision, and on "
            "a second domain, mean and 95% interval over segments (seed 0)."
        ),
        source="evaluate: passkey_retained, kl",
    )


def _ticks(axis: "Axis", values: list[float]) -> None:
    from matplotlib.ticker import NullLocator

    axis.set_ticks(values, [f"{value:g}" for value in values])
    axis.set_minor_locator(NullLocator())


if __name__ == "__main__":
    main(plot)
