"""From the scores of evaluated episodes to what the claims compare, arm by arm."""

import numpy as np
import pandas as pd

BASELINES = ("dsrl", "dppo", "idql")
BEST_BASELINE = "best_baseline"
HEADROOM = (0.2, 0.75)
"""Shares of the expert's score between which a base policy leaves something to win."""
LEAST_SHARE = 0.01
"""The least score, as a share of the expert's, over which a relative gain is taken."""
_RUN = ["arm", "seed", "task", "delta", "reduction"]
_PLACE = ["task", "delta", "reduction"]


def learning_curves(episodes: pd.DataFrame) -> pd.DataFrame:
    """Mean score of each evaluation.

    Args:
        episodes: arm, seed, task, env_steps, score, expert; delta and reduction where they vary.

    Returns:
        Columns arm, seed, task, delta, reduction, env_steps, score, expert, episodes; sorted.
    """
    episodes = episodes.assign(
        **{name: episodes.get(name, pd.Series(index=episodes.index)) for name in _PLACE[1:]}
    )
    groups = episodes.groupby([*_RUN, "env_steps"], dropna=False, sort=True)
    return groups.agg(
        score=("score", "mean"), expert=("expert", "first"), episodes=("score", "size")
    ).reset_index()


def paired(curves: pd.DataFrame) -> tuple[pd.DataFrame, list[tuple[str, int]]]:
    """Without the (task, seed) that some arm of the task lacks, and which these are.

    A simulator that broke costs an arm its cell; the other arms have nothing to be paired with.
    """
    there = curves.groupby(["task", "arm"])["seed"].agg(set)
    lost = [
        (task, seed)
        for task, arms in there.groupby(level="task")
        for seed in sorted(set.union(*arms) - set.intersection(*arms))
    ]
    gone = pd.MultiIndex.from_tuples(lost, names=["task", "seed"]) if lost else []
    keys = pd.MultiIndex.from_frame(curves[["task", "seed"]])
    return curves[~keys.isin(gone)], lost


def summaries(curves: pd.DataFrame, final: int) -> pd.DataFrame:
    """One row a run: its final score and the area under its curve.

    Args:
        curves: of `learning_curves`.
        final: how many last evaluations make the final score.

    Returns:
        Columns of a run, final_score, normalised_score and auc (shares of the expert's score),
        final_episodes and episodes.

    Raises:
        ValueError: fewer evaluations than `final`, or an expert that scores nothing.
    """
    rows = []
    for key, run in curves.groupby(_RUN, dropna=False, sort=True):
        expert = run["expert"].iloc[0]
        if len(run) < max(final, 2):
            raise ValueError(f"{_name(key)} has {len(run)} evaluations; allowed: {final} or more")
        if not expert > 0:
            raise ValueError(f"{_name(key)} has an expert's score of {expert}; allowed: positive")
        steps, shares = run["env_steps"].to_numpy(float), run["score"].to_numpy(float) / expert
        last = run.tail(final)
        rows.append(
            {
                **dict(zip(_RUN, key, strict=True)),
                "final_score": last["score"].mean(),
                "normalised_score": last["score"].mean() / expert,
                "auc": np.trapezoid(shares, steps) / (steps[-1] - steps[0]),
                "final_episodes": last["episodes"].sum(),
                "episodes": run["episodes"].sum(),
            }
        )
    return pd.DataFrame(rows)


def _name(key: tuple) -> str:
    return f"arm {key[0]} with seed {key[1]} on {key[2]}"


def headroom(runs: pd.DataFrame, base: str = "bc") -> dict[str, str]:
    """Task -> met where the base policies' mean score is within `HEADROOM` of the expert's."""
    shares = runs[runs["arm"] == base].groupby("task")["normalised_score"].mean()
    low, high = HEADROOM
    return {task: "met" if low <= share <= high else "unmet" for task, share in shares.items()}


def best_baseline(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of each task's best baseline by the mean over seeds, under the arm `BEST_BASELINE`.

    Choosing it by the scores it is compared at favours the baselines.
    """
    candidates = runs[runs["arm"].isin(BASELINES)]
    means = candidates.groupby(["task", "arm"])["normalised_score"].mean()
    best = set(means.groupby("task").idxmax())
    keys = pd.MultiIndex.from_frame(candidates[["task", "arm"]])
    return candidates[keys.isin(best)].assign(arm=BEST_BASELINE)


def largest_gain(runs: pd.DataFrame, gates: dict[str, str], arm: str = "lpds") -> pd.DataFrame:
    """Relative gain over the best baseline by seed, on the task where its mean is largest.

    Gains are divided by the baseline's mean over seeds, so that their mean is the gain of means.
    Only tasks with headroom count, or all when none has any.

    Returns:
        Columns task, seed, largest_gain, arm.
    """
    counted = {task for task, gate in gates.items() if gate == "met"} or set(gates)
    pair = pd.concat([runs[runs["arm"] == arm], best_baseline(runs)])
    wide = pair[pair["task"].isin(counted)].pivot_table(
        index=["task", "seed"], columns="arm", values="normalised_score"
    )
    level = wide.groupby("task")[BEST_BASELINE].transform("mean").clip(lower=LEAST_SHARE)
    gain = ((wide[arm] - wide[BEST_BASELINE]) / level).rename("largest_gain")
    return gain.loc[[gain.groupby("task").mean().idxmax()]].reset_index().assign(arm=arm)


def steps_to_half(
    curves: pd.DataFrame, runs: pd.DataFrame, arms: set[str], base: str = "bc"
) -> pd.DataFrame:
    """Environment steps to the score half way from the base policy to the best arm, by run.

    The target is a task's, from means over seeds; curves are interpolated between evaluations. A
    run that does not reach it has all its steps and half_reached 0; where no arm is above the base
    policy there is no target.

    Args:
        curves, runs: of `learning_curves` and `summaries`.
        arms: those compared.
        base: the frozen policy's arm.

    Returns:
        Columns arm, seed, task, steps_to_half, half_reached.
    """
    means = runs[runs["arm"].isin({*arms, base})].groupby(["task", "arm"])["final_score"].mean()
    rows = []
    for task, levels in means.groupby(level="task"):
        low, high = levels[task, base], levels.max()
        if not high > low:
            continue
        some = curves[(curves["task"] == task) & curves["arm"].isin(arms)]
        for (arm, seed), run in some.groupby(["arm", "seed"], sort=True):
            steps = _crossing(run["env_steps"].to_numpy(float), run["score"], (low + high) / 2)
            reached = np.isfinite(steps)
            rows.append(
                {
                    "arm": arm,
                    "seed": seed,
                    "task": task,
                    "steps_to_half": steps if reached else run["env_steps"].max(),
                    "half_reached": float(reached),
                }
            )
    return pd.DataFrame(rows, columns=["arm", "seed", "task", "steps_to_half", "half_reached"])


def _crossing(steps: np.ndarray, scores: pd.Series, target: float) -> float:
    """The first step at which the interpolated curve is at the target; infinite for never."""
    y = scores.to_numpy(float)
    above = np.flatnonzero(y >= target)
    if len(above) == 0:
        return np.inf
    at = above[0]
    if at == 0:
        return steps[0]
    share = (target - y[at - 1]) / (y[at] - y[at - 1])
    return steps[at - 1] + share * (steps[at] - steps[at - 1])
