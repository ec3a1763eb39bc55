"""Figures: learning curves, the trust region, entropy and budget, the toy, episodes."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scripts.papers.lpds import toy
from scripts.papers.lpds.lagrangian import REDUCTIONS
from scripts.papers.lpds.tasks import TASKS
from scripts.pipeline.plotting import COLOURS, MARKERS
from scripts.pipeline.stage import Job, main

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class Look(NamedTuple):
    """How an arm is drawn, the same in every figure."""

    label: str
    colour: str
    marker: str


LOOKS = {
    "bc": Look("frozen policy", COLOURS[6], ""),
    "lpds": Look("LP-DS", COLOURS[0], MARKERS[0]),
    "dsrl": Look("DSRL", COLOURS[1], MARKERS[1]),
    "dppo": Look("DPPO", COLOURS[2], MARKERS[2]),
    "idql": Look("IDQL", COLOURS[3], MARKERS[3]),
    "dsrl_unbounded": Look("DSRL, no bound", COLOURS[7], MARKERS[6]),
    "no_lagrangian": Look("no Lagrangian", COLOURS[5], MARKERS[4]),
    "no_bound": Look("no Lagrangian, no bound", COLOURS[4], MARKERS[5]),
    "action_residual": Look("acts on the action", "black", MARKERS[7]),
    "bc_flow": Look("frozen flow", COLOURS[6], ""),
    "lpds_flow": Look("LP-DS on the flow", COLOURS[0], MARKERS[3]),
}
TITLES = {"halfcheetah": "HalfCheetah", "pen": "Adroit hand, pen", "pick_place": "pick and place"}
_MAIN = ("bc", "lpds", "dsrl", "dppo", "idql")
_ABLATIONS = ("bc", "lpds", "dsrl_unbounded", "no_lagrangian", "no_bound", "action_residual")
_FLOWS = ("bc_flow", "lpds_flow")
_ABLATED = "halfcheetah"
_REDUCTION_NAMES = {"mean": "mean over dimensions", "sum": "sum over dimensions"}


def plot(job: Job) -> None:
    from scripts.pipeline.plotting import style

    table, curves = job.load_metrics(), job.load_curves()
    with style():
        _learning(job, curves)
        _trust_region(job, curves)
        _entropy(job, table)
        _toy(job, table)
        _episodes(job)


def _mean_and_half(values: "pd.DataFrame | pd.Series") -> tuple["pd.Series", "pd.Series"]:
    """Mean and half width of Student's 95% interval over seeds, by the index (NaN for one seed)."""
    from scipy import stats

    groups = values.groupby(level=0, sort=True)
    count = groups.size()
    return groups.mean(), stats.t.ppf(0.975, (count - 1).clip(lower=1)) * groups.sem()


def _line(axes: "Axes", curves: "pd.DataFrame", metric: str, look: Look, **style: object) -> bool:
    """Mean over seeds with its interval; whether there was anything to draw."""
    some = curves[curves["metric"] == metric]
    if some.empty:
        return False
    mean, half = _mean_and_half(some.set_index("step")["value"])
    every = max(1, len(mean) // 6)
    shown = {"color": look.colour, "marker": look.marker, "markevery": every, **style}
    axes.plot(mean.index, mean, label=look.label, **shown)
    axes.fill_between(mean.index, mean - half, mean + half, color=look.colour, alpha=0.15, lw=0)
    return True


def _legend_of_all(figure: object, panels: "np.ndarray", **where: object) -> None:
    """One legend for the labels of several panels."""
    found = {}
    for axes in panels:
        found |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(found.values(), found.keys(), **where)


def _learning(job: Job, curves: "pd.DataFrame") -> None:
    """Score over environment steps."""
    import matplotlib.pyplot as plt

    tasks = list(job.params["tasks"])
    figure, grid = plt.subplots(2, 3, figsize=(9.0, 6.2), squeeze=False)
    panels = [(task, _MAIN) for task in tasks]
    panels += [(None, ())] * (3 - len(tasks)) + [(_ABLATED, _ABLATIONS), (_ABLATED, _FLOWS)]
    for axes, (task, arms) in zip(grid.flat, panels, strict=False):
        if task is None:
            axes.axis("off")
            continue
        for arm in arms:
            look = {"linestyle": "--"} if arm.startswith("bc") else {}
            _line(axes, curves[curves["arm"] == arm], f"{task}.score", LOOKS[arm], **look)
        experts = [
            float(job.load_tensors("prepare", f"norm_{task}_s{seed}")["expert_score"])
            for seed in job.seeds
        ]
        axes.axhline(np.mean(experts), color="black", linestyle=":", marker="", label="expert")
        success = TASKS[task].success
        axes.set(
            title=TITLES[task],
            xlabel="environment steps",
            ylabel="share of successes" if success else "return",
        )
        if success:
            axes.set_ylim(-0.03, 1.03)
        axes.xaxis.set_major_locator(plt.MaxNLocator(4))
    grid[1, 0].set_title(f"{TITLES[_ABLATED]}: ablations")
    grid[1, 1].set_title(f"{TITLES[_ABLATED]}: flow policy")
    grid[1, 2].axis("off")
    drawn = np.array([axes for axes in grid.flat if axes.lines])
    _legend_of_all(grid[1, 2], drawn, loc="center", title="mean, 95% interval over seeds")
    seeds = curves["seed"].nunique()
    job.save_figure(
        "learning_curves",
        figure,
        caption=(
            "Score of the policy's episodes against environment steps, the shared warm-up with the "
            f"frozen policy included: mean and 95% Student interval over {seeds} seeds. Above: the "
            "tasks with the baselines. Below: ablations, and the same method on a flow-matching "
            "policy. Dashed: the frozen policy, evaluated with the same draws; dotted: the expert "
            "of the demonstrations."
        ),
        source="steer: score",
    )


def _trust_region(job: Job, curves: "pd.DataFrame") -> None:
    """Noise, offset and multiplier over training."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(9.0, 3.9))
    for arm in ("lpds", "dsrl", "dsrl_unbounded", "no_lagrangian", "no_bound"):
        some = curves[curves["arm"] == arm]
        _line(panels[0], some, f"{_ABLATED}.latent_rms", LOOKS[arm])
        _line(panels[1], some, f"{_ABLATED}.delta_sq", LOOKS[arm])
    panels[0].axhline(1, color="black", linestyle=":", marker="", label="prior")
    panels[0].set(yscale="log", ylabel="rms of the noise w", title=TITLES[_ABLATED])
    delta = job.params["arms"]["lpds"].get("delta", job.params["tasks"][_ABLATED]["delta"])
    panels[1].axhline(delta, color="black", linestyle="--", marker="", label="budget delta")
    panels[1].set(yscale="log", ylabel="mean square of the offset", title=TITLES[_ABLATED])
    ours = curves[curves["arm"] == "lpds"]
    for number, task in enumerate(job.params["tasks"]):
        look = Look(TITLES[task], COLOURS[number], MARKERS[number])
        _line(panels[2], ours, f"{task}.alpha", look)
    panels[2].set(ylabel="multiplier alpha", title="LP-DS, each task")
    panels[2].set_ylim(bottom=0)
    panels[2].legend()
    for axes in panels:
        axes.set_xlabel("environment steps")
        axes.xaxis.set_major_locator(plt.MaxNLocator(4))
    for axes in panels[:2]:
        axes.yaxis.set_major_formatter(plt.FormatStrFormatter("%g"))
        axes.yaxis.set_minor_formatter(plt.NullFormatter())
    _legend_of_all(figure, panels[:2], loc="outside lower center", ncols=4)
    job.save_figure(
        "trust_region",
        figure,
        caption=(
            "Left: root mean square of the noise at fixed states; the prior's is 1. Middle: mean "
            "square of the learnt offset over the batch's states, whose budget the dashed line "
            "is. Right: the multiplier that holds it there; at 0 the budget does not bind. Mean "
            "and 95% Student interval over seeds."
        ),
        source="steer: latent_rms, delta_sq, alpha",
    )


def _entropy(job: Job, table: "pd.DataFrame") -> None:
    """Entropy beside the score, by arm and task; score over the budget."""
    import matplotlib.pyplot as plt

    tasks = list(job.params["tasks"])
    figure, grid = plt.subplots(2, 2, figsize=(7.8, 6.6), squeeze=False)
    for axes, task in zip(grid.flat, tasks, strict=False):
        rows = table[(table["task"] == task) & table["arm"].isin(LOOKS)]
        for arm, look in LOOKS.items():
            some = rows[rows["arm"] == arm]
            means = [
                _mean_and_half(some[some["metric"] == metric].set_index("arm")["value"])
                for metric in ("normalised_score", "action_entropy")
            ]
            if any(mean.empty for mean, _ in means):
                continue
            (x, dx), (y, dy) = means
            axes.errorbar(
                x, y, xerr=dx, yerr=dy, color=look.colour, marker=look.marker or "_",
                markersize=7, linestyle="", elinewidth=0.8, label=look.label,
                mfc="none" if arm.endswith("flow") else look.colour,
            )  # fmt: skip
        axes.axvspan(0.2, 0.75, color="black", alpha=0.05, lw=0)
        axes.set(
            title=TITLES[task], xlabel="final score (expert = 1)", ylabel="action entropy (nat)"
        )
    for axes in grid.flat[len(tasks) : 3]:
        axes.axis("off")
    axes = grid[1, 1]
    sweep = table[(table["arm"] == "sweep") & (table["metric"] == "normalised_score")]
    for number, reduction in enumerate(REDUCTIONS):
        some = sweep[sweep["reduction"] == reduction].set_index("delta")["value"]
        mean, half = _mean_and_half(some)
        axes.errorbar(
            mean.index, mean, yerr=half, color=COLOURS[number], marker=MARKERS[number],
            label=_REDUCTION_NAMES[reduction],
        )  # fmt: skip
    base = table[
        (table["arm"] == "bc")
        & (table["task"] == _ABLATED)
        & (table["metric"] == "normalised_score")
    ]["value"].mean()
    axes.axhline(base, color=LOOKS["bc"].colour, linestyle="--", marker="", label="frozen policy")
    axes.set(
        title=f"{TITLES[_ABLATED]}: LP-DS by budget", xscale="log", xlabel="budget delta",
        ylabel="final score (expert = 1)",
    )  # fmt: skip
    axes.xaxis.set_major_formatter(plt.FormatStrFormatter("%g"))
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.6 * (high - low))  # room for the legend
    axes.legend(title="||Delta||^2 as the", loc="upper left")
    _legend_of_all(figure, grid.flat[: len(tasks)], loc="outside lower center", ncols=4)
    entropy = job.params["entropy"]
    job.save_figure(
        "entropy",
        figure,
        caption=(
            "Entropy of the policy's first action (nearest neighbours, "
            f"{entropy['samples']} samples at each of {entropy['states']} states that the frozen "
            "policy visits, actions scaled to [-1, 1]) against the final score, so that mere noise "
            "does not pass for skill. Mean and 95% Student interval over seeds. Shaded: where a "
            "frozen policy has headroom. Last: score by budget, for both readings of the norm."
        ),
        source="evaluate: action_entropy, normalised_score",
    )


def _toy(job: Job, table: "pd.DataFrame") -> None:
    """Modes of the toy by budget, with the closed form."""
    import matplotlib.pyplot as plt

    rows = table[table["arm"] == "toy"]
    deltas = job.params["toy"]["deltas"]
    figure, panels = plt.subplots(1, 3, figsize=(9.0, 3.8))
    line = np.geomspace(deltas[0] / 1.5, deltas[-1] * 1.5, 100)
    for number, reduction in enumerate(REDUCTIONS):
        shifts = [toy.shift_of(delta, reduction) for delta in line]
        exact = [float(toy.closed_form(shift)[0]) for shift in shifts]
        panels[0].plot(
            line, exact, color=COLOURS[number], marker="", label=f"closed form, {reduction}"
        )
        for decoder, face in (("ideal", COLOURS[number]), ("flow", "none")):
            some = rows[
                (rows["metric"] == "share_right")
                & (rows["reduction"] == reduction)
                & (rows["decoder"] == decoder)
            ]
            mean, half = _mean_and_half(some.set_index("delta")["value"])
            shift = 0.96 if decoder == "ideal" else 1.04
            panels[0].errorbar(
                mean.index * shift, mean, yerr=half, color=COLOURS[number], mfc=face,
                marker=MARKERS[number], linestyle="", label=f"{decoder} decoder, {reduction}",
            )  # fmt: skip
        _mode_bars(panels[1 + number], rows[rows["reduction"] == reduction], deltas)
        panels[1 + number].set_title(f"trained flow, {_REDUCTION_NAMES[reduction]}")
    panels[0].axhline(0.25, color="black", linestyle=":", marker="", label="no offset")
    panels[0].set(
        xscale="log", xlabel="budget delta", ylabel="P(+x)", ylim=(0, 1.02), title="target mode"
    )
    panels[0].xaxis.set_major_formatter(plt.FormatStrFormatter("%g"))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=3)
    figure.legend(
        *panels[1].get_legend_handles_labels(), loc="outside lower right", ncols=4, title="mode"
    )
    job.save_figure(
        "toy",
        figure,
        caption=(
            "Four equally likely modes under the best offset of each budget. Left: probability of "
            "the rewarded mode, Ncdf(m/sqrt 2)^2 with m = sqrt(16 delta) for the mean and "
            f"sqrt(delta) for the sum; points from {job.params['toy']['samples']} samples a seed, "
            "95% Student interval over seeds. Middle and right: shares of all modes. The "
            "paper's collapse at 0.1 fits the mean alone."
        ),
        source="evaluate: share_right, share_left, share_up, share_down",
    )


def _mode_bars(axes: "Axes", rows: "pd.DataFrame", deltas: list[float]) -> None:
    """Shares of the modes of the trained flow, stacked, a bar a budget."""
    below = np.zeros(len(deltas))
    flow = rows[rows["decoder"] == "flow"]
    for number, mode in enumerate(toy.MODES):
        some = flow[flow["metric"] == f"share_{mode}"]
        share = some.groupby("delta")["value"].mean().reindex(deltas).to_numpy()
        axes.bar(
            range(len(deltas)), share, bottom=below, color=COLOURS[(0, 1, 5, 4)[number]],
            edgecolor="white", label=("+x", "-x", "+y", "-y")[number],
        )  # fmt: skip
        below += share
    axes.set(xlabel="budget delta", ylabel="share of chunks", ylim=(0, 1))
    axes.set_xticks(range(len(deltas)), [f"{delta:g}" for delta in deltas])
    axes.grid(visible=False)


def _episodes(job: Job) -> None:
    """Pictures of an episode of each task, the frozen policy above the steered one."""
    import matplotlib.pyplot as plt

    told = job.load_table("evaluate", "film", "lpds", 0)
    count = told.groupby(["task", "policy"]).size().max()
    tasks = [task for task in job.params["tasks"] if task in set(told["task"])]
    height, width = job.params["film"]["height"], job.params["film"]["width"]
    tall = 9.0 / count * height / width + 0.22
    figure, grid = plt.subplots(
        2 * len(tasks), count, figsize=(9.0, 2 * len(tasks) * tall + 0.2), squeeze=False
    )
    figure.get_layout_engine().set(w_pad=0.01, h_pad=0.01, wspace=0, hspace=0)
    for row, (task, arm) in enumerate((task, arm) for task in tasks for arm in ("bc", "lpds")):
        some = told[(told["task"] == task) & (told["policy"] == arm)]
        frames = job.load_tensors("evaluate", f"film_{task}", "lpds", 0)[arm].cpu().numpy()
        for axes, frame, caption in zip(grid[row], frames, some["caption"], strict=True):
            axes.imshow(frame, interpolation="none")
            axes.set_title(caption, fontsize=7.5, pad=2)
            axes.set(xticks=[], yticks=[])
            axes.grid(visible=False)
            axes.spines[:].set_visible(False)
        score = some["score"].iloc[0]
        ended = ("success" if score else "no success") if TASKS[task].success else f"{score:.0f}"
        label = f"{TITLES[task]}\n{LOOKS[arm].label}\n{ended}"
        grid[row, 0].set_ylabel(label, fontsize=8)
    job.save_figure(
        "episodes",
        figure,
        caption=(
            "The first evaluated episode of seed 0 on each task, not a chosen one: the frozen "
            "policy above the one steered by LP-DS at the end of training, from the same start and "
            "with the same noise. Left: the episode's score. Pictures are rays cast through "
            "MuJoCo's own geometry, so that neither a display nor OpenGL is needed."
        ),
        source="evaluate: film",
    )


if __name__ == "__main__":
    main(plot)
