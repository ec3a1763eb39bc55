"""TAP beside the other policies: the best fixed rule in hindsight, paired leads with intervals."""

import numpy as np
import pandas as pd

from scripts.pipeline import stats

SETTING = ["network", "mode", "types", "gamma", "start"]


def best_in_hindsight(runs: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Per setting the policy with the highest mean reward over all replicates.

    Args:
        runs: policy -> a row per setting, seed and replicate.

    Returns:
        the chosen policy's rows, with its name in the column `policy`.
    """
    table = pd.concat([frame.assign(policy=name) for name, frame in runs.items()])
    means = table.groupby([*SETTING, "policy"], sort=False)["reward"].mean().reset_index()
    first = means.sort_values("reward", ascending=False, kind="stable").drop_duplicates(SETTING)
    return table.merge(first[[*SETTING, "policy"]], on=[*SETTING, "policy"])


def leads(tap: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Mean paired lead of TAP per setting, its 95% interval and smallest detectable size.

    Only replicates that both have are compared.
    """
    keys = [*SETTING, "seed", "replicate"]
    both = tap[[*keys, "reward"]].merge(other[[*keys, "reward"]], on=keys, suffixes=("", "_other"))
    rows = []
    for setting, part in both.groupby(SETTING, sort=False):
        gains = (part["reward"] - part["reward_other"]).to_numpy()
        interval = stats.mean_interval(gains)
        rows.append(
            dict(zip(SETTING, setting, strict=True))
            | {
                "lead": stats.mean(gains),
                "low": interval.low,
                "high": interval.high,
                "detectable": stats.smallest_detectable(gains),
                "share": stats.mean(gains) / float(np.mean(part["reward_other"])),
                "n": len(gains),
            }
        )
    return pd.DataFrame(rows)
