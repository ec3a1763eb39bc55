"""Figures: rate and distortion on Gaussians, loss over bits, distortion of tensors, traffic."""

from typing import TYPE_CHECKING

from scripts.papers.squant.weights import ENCODER, LANGUAGE
from scripts.pipeline.stage import Job, main

if TYPE_CHECKING:
    import pandas as pd

ARMS = {
    "squant_published": "S-Quant, published",
    "squant_fixed": "our variant",
    "seedlm": "SeedLM",
    "squant_awq": "our variant + AWQ scales (calibrated)",
    "rtn": "RTN",
    "nf4": "NormalFloat",
    "hqq": "HQQ",
    "awq": "AWQ (calibrated)",
    "gptq": "GPTQ (calibrated)",
}
SEEDS = ("squant_published", "squant_fixed", "seedlm")
LEVEL = 1.96
DB_PER_BIT = 6.02


def plot(job: Job) -> None:
    from scripts.pipeline.plotting import style

    table = job.load_metrics()
    with style():
        _designs(job)
        _loss(job, table)
        _tensors(job, table)
        _traffic(job, table)


def _look(number: int) -> dict:
    from scripts.pipeline.plotting import COLOURS, MARKERS

    colour = COLOURS[number % len(COLOURS)]
    face = colour if number < len(COLOURS) else "white"
    return {"color": colour, "marker": MARKERS[number % len(MARKERS)], "markerfacecolor": face}


def _designs(job: Job) -> None:
    """Every design that was tried, and those that the arms took."""
    import matplotlib.pyplot as plt

    designs, chosen = job.load_table("prepare", "designs"), job.load_json("prepare", "chosen")
    figure, axes = plt.subplots(figsize=(7.2, 4.6))
    clouds = (
        ("fixed", "sign", "fixed count, sign"),
        ("fixed", "word", "fixed count, word"),
        ("fixed", "state", "fixed count, state"),
        ("adaptive", "state", "adaptive count and int8, state"),
        ("adaptive", "sign", "adaptive count and int8, sign"),
    )
    for number, (coder, basis, label) in enumerate(clouds):
        part = designs[(designs["coder"] == coder) & (designs["basis"] == basis)]
        style = {**_look(number), "linestyle": "", "markersize": 3.5, "alpha": 0.55}
        axes.plot(part["bits"] + 0.015 * (number - 2), part["snr"], label=label, **style)
    for number, (coder, label) in enumerate((("rtn", "RTN, groups of 128"), ("nf", "NF, of 64"))):
        part = designs[designs["coder"] == coder].sort_values("bits")
        axes.plot(part["bits"], part["snr"], label=label, **{**_look(5 + number), "linestyle": "-"})
    for arm, marker in (("squant_published", "o"), ("squant_fixed", "s"), ("seedlm", "D")):
        axes.plot(
            [row["bits"] for row in chosen[arm]],
            [row["snr"] for row in chosen[arm]],
            marker=marker, linestyle="", markersize=11, markerfacecolor="none", color="black",
            label=f"chosen: {ARMS[arm]}",
        )  # fmt: skip
    ends = [min(job.params["targets"]) - 1, max(job.params["targets"]) + 0.5]
    axes.plot(ends, [DB_PER_BIT * b for b in ends], color="#4D4D4D", marker="", linestyle="--",
              label="rate-distortion bound")  # fmt: skip
    axes.set_xlim(ends)
    axes.set_ylim(0, DB_PER_BIT * ends[1])
    axes.set_xlabel("total bits per weight")
    axes.set_ylabel("signal over error (dB)")
    figure.legend(loc="outside lower center", ncols=3)
    spaces = job.params["space"]
    job.save_figure(
        "designs",
        figure,
        caption=(
            "Every design tried, on i.i.d. Gaussian weights, with registers of up to "
            f"{job.params['register']} bits and blocks of "
            f"{', '.join(map(str, spaces['sizes']))} weights: signal over squared error against "
            "total bits (seeds, counts, scales and exponents included; points of a kind are moved "
            "sideways a little). Black outlines: the designs that the arms take, each from its own "
            "kind (SeedLM: word bases, at most 4, coefficients of 4 bits)."
        ),
        source="prepare: designs, chosen",
    )


def _interval(values: "pd.Series") -> tuple[float, float]:
    return values.mean(), LEVEL * values.sem() if len(values) > 1 else 0.0


def _loss(job: Job, table: "pd.DataFrame") -> None:
    """KL over total bits, settings joined where they share a group size."""
    import matplotlib.pyplot as plt

    kl = table[(table["metric"] == "kl") & (table["dataset"] == LANGUAGE) & (table["arm"] != "fp")]
    figure, axes = plt.subplots(figsize=(7.2, 4.8))
    for number, (arm, label) in enumerate(ARMS.items()):
        part = kl[kl["arm"] == arm]
        families = part["setting"].str.partition("-")[2]
        for family, rows in part.groupby(families, sort=False):
            points = sorted(
                (row["bits"].iloc[0], *_interval(row["value"]))
                for _, row in rows.groupby("setting")
            )
            bits, mean, half = zip(*points, strict=True)
            first = family == families.iloc[0]
            line = {"linestyle": "-" if arm in SEEDS else ":", "capsize": 2, **_look(number)}
            axes.errorbar(bits, mean, yerr=half, label=label if first else None, **line)
    for target in job.params["targets"]:
        axes.axvline(target, color="#4D4D4D", linewidth=0.8, linestyle="--")
    axes.set_yscale("log")
    means = kl.groupby(["arm", "setting"])["value"].mean()
    axes.set_ylim(means.min() / 2, means.max() * 2)
    axes.set_xlabel("total bits per weight of the compressed matrices")
    axes.set_ylabel("KL from the full model (nat/token)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    layers = len(job.params["layers"])
    grid = table[table["metric"] == "grid_error"].groupby("rotated")["value"].mean()
    warning = (
        " A warning, not evidence: 16 even levels per 32 weights reproduce the weights of the "
        f"unrotated file with a relative squared error of {grid['no']:.1g}, and the rotated ones "
        f"with {grid['yes']:.2g}."
        if job.params["rotate"]
        else ""
    )
    job.save_figure(
        "loss",
        figure,
        caption=(
            f"KL divergence of the language model with {layers} of its layers compressed against "
            "total bits per weight, logarithmic: mean and 95% interval over text segments. Points "
            "of one method and group size are joined; baselines are read off these lines at the "
            "dashed rates." + warning
        ),
        source="evaluate: kl; compress: grid_error",
    )


def _tensors(job: Job, table: "pd.DataFrame") -> None:
    import matplotlib.pyplot as plt

    snr = table[(table["metric"] == "snr") & (table["seed"] == 0) & table["target"].notna()]
    targets = sorted(snr["target"].unique())
    figure, panels = plt.subplots(1, len(targets), figsize=(7.2, 3.8), sharey=True, squeeze=False)
    names = {LANGUAGE: "language", ENCODER: "encoder"}
    for axes, target in zip(panels[0], targets, strict=True):
        groups, labels = [], []
        for arm in SEEDS:
            for dataset, name in names.items():
                part = snr[
                    (snr["arm"] == arm) & (snr["dataset"] == dataset) & (snr["target"] == target)
                ]
                groups.append(part["value"].to_numpy())
                labels.append(f"{ARMS[arm]}\n{name}")
        boxes = axes.boxplot(groups, patch_artist=True, widths=0.6, medianprops={"color": "black"})
        for number, box in enumerate(boxes["boxes"]):
            box.set_facecolor(_look(number // 2)["color"])
            box.set_alpha(0.75 if number % 2 == 0 else 0.35)
        axes.set_xticks(range(1, len(labels) + 1), labels, rotation=60, ha="right", fontsize=8)
        axes.set_title(f"{target:g} bits")
    panels[0, 0].set_ylabel("signal over error of a tensor (dB)")
    job.save_figure(
        "tensors",
        figure,
        caption=(
            "Signal over squared error of each weight matrix of the language model (rotated) and "
            "of the sentence encoder at equal total bits: median, quartiles, whiskers to 1.5 times "
            "the interquartile range, and what lies beyond."
        ),
        source="compress: snr",
    )


def _traffic(job: Job, table: "pd.DataFrame") -> None:
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.ticker import NullLocator

    arms = [arm for arm in SEEDS if arm in set(table["arm"])]
    shapes = list(job.params["shapes"])
    target = max(job.params["targets"])
    model = table[(table["target"] == target) & table["shape"].notna()]
    wide = model.pivot_table(index=["arm", "shape"], columns="metric", values="value")
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.8))
    at, width = np.arange(len(shapes)), 0.8 / (len(arms) + 1)
    full = wide.xs(arms[0], level="arm").reindex(shapes)
    left.bar(at - 0.4 + width / 2, full["full_bytes"] / 1e9, width, color="#999999", label="16 bit")
    for number, arm in enumerate(arms):
        rows = wide.xs(arm, level="arm").reindex(shapes)
        place = at - 0.4 + (number + 1.5) * width
        left.bar(place, rows["token_bytes"] / 1e9, width, color=_look(number)["color"],
                 label=ARMS[arm])  # fmt: skip
        for x, y, ratio in zip(place, rows["token_bytes"] / 1e9, rows["traffic_ratio"],
                               strict=True):  # fmt: skip
            left.annotate(
                f"{ratio:.2g}×", (x, y), ha="center", va="bottom", fontsize=7.5, rotation=90
            )
        line = {**_look(number), "linestyle": ""}
        right.plot(1e3 * rows["memory_s"], 1e3 * rows["compute_s"], **line, label=ARMS[arm])
    left.set_xticks(at, [f"Llama {name}" for name in shapes])
    left.set_yscale("log")
    left.set_ylabel("GB moved per token")
    left.legend()
    ends = [0.5 * 1e3 * wide["memory_s"].min(), 2 * 1e3 * wide["memory_s"].max()]
    right.plot(ends, ends, color="#4D4D4D", marker="", linestyle="--", label="equal times")
    right.set_xscale("log")
    ticks = [tick for tick in (10, 20, 50, 100, 200, 500, 1000) if ends[0] <= tick <= ends[1]]
    right.set_yscale("log")
    right.xaxis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    right.xaxis.set_minor_locator(NullLocator())
    right.set_xlabel("memory time per token (ms, modelled)")
    right.set_ylabel("generator time per token (ms, modelled)")
    right.legend()
    chip = job.params["accelerator"]
    job.save_figure(
        "traffic",
        figure,
        caption=(
            f"A model, not a measurement, of one decode step at {target:g} bits and 2048 tokens of "
            "context. Left: bytes moved (weights, scales, seeds; keys and values, head, norms and "
            "activations at 16 bits), with the ratio to 16-bit weights. Right: time to regenerate "
            "the weights against time to move the bytes, for an assumed accelerator with "
            f"{chip['bandwidth'] / 1e9:g} GB/s, {chip['adders']:g} adders and "
            f"{chip['multipliers']:g} multipliers at {chip['clock'] / 1e9:g} GHz; below the dashed "
            "line memory is the limit."
        ),
        source="evaluate: token_bytes, traffic_ratio, memory_s, compute_s",
    )


if __name__ == "__main__":
    main(plot)
