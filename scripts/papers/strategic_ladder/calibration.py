"""What real ladders say about retention, rewards and starting points."""

from pathlib import Path

import numpy as np
import pandas as pd

from scripts.papers.strategic_ladder.ladder import Array

GROUPS = ("Non- Hispanic white", "Black", "Hispanic", "Asian")
PROFILE_SCORES = (0, 15, 30, 45, 60, 75, 90)  # scores at which levels of the credit profile begin


def league_retention(folder: Path) -> tuple[float, int]:
    """AR(1) of a team's mean goal difference over consecutive Bundesliga seasons; pairs."""
    games = pd.read_csv(folder / "Bundesliga.csv")
    home = games[["Year", "HomeTeam"]].set_axis(["year", "team"], axis=1)
    away = games[["Year", "AwayTeam"]].set_axis(["year", "team"], axis=1)
    difference = games["HomeGoals"] - games["AwayGoals"]
    sides = pd.concat([home.assign(goals=difference), away.assign(goals=-difference)])
    seasons = sides.groupby(["team", "year"])["goals"].mean()
    return _autoregression(seasons)


def wage_retention(folder: Path) -> tuple[float, int]:
    """AR(1) of year-demeaned log wages of the men of the wage panel; pairs."""
    panel = pd.read_csv(folder / "Males.csv")
    panel["wage"] -= panel.groupby("year")["wage"].transform("mean")
    return _autoregression(panel.set_index(["nr", "year"])["wage"])


def _autoregression(values: pd.Series) -> tuple[float, int]:
    """Least-squares slope (with intercept) of a unit's value on that of the year before."""
    frame = values.rename("now").rename_axis(["unit", "year"]).reset_index()
    before = frame.rename(columns={"now": "before"}).assign(year=frame["year"] + 1)
    pairs = frame.merge(before, on=["unit", "year"])
    slope = np.polyfit(pairs["before"], pairs["now"], 1)[0]
    return float(slope), len(pairs)


def score_table(folder: Path) -> pd.DataFrame:
    """Attributes (score / 10) with the share of people there, in all and by group.

    Columns: x, weight, weight_<group> (each adds to 1), people (in all).
    """
    shares = pd.read_csv(folder / "transrisk_cdf_by_race_ssa.csv")
    people = pd.read_csv(folder / "totals.csv").iloc[0]
    counts = np.array([float(people[group]) for group in GROUPS])
    within = np.diff(shares[list(GROUPS)].to_numpy(float) / 100, axis=0, prepend=0.0)
    within = np.clip(within, 0.0, None)
    within /= within.sum(axis=0)
    table = pd.DataFrame({"x": shares["Score"] / 10, "weight": within @ counts / counts.sum()})
    for at, group in enumerate(GROUPS):
        table[f"weight_{group}"] = within[:, at]
    return table.assign(people=int(counts.sum()))


def reward_profile(folder: Path) -> Array:
    """Rewards of seven levels in proportion to how the default rate falls with the score.

    A real, non-linear profile: 0 at the first level, then the default rate of the first less that
    of the level, averaged over groups by their size.
    """
    rates = pd.read_csv(folder / "transrisk_performance_by_race_ssa.csv").set_index("Score")
    people = pd.read_csv(folder / "totals.csv").iloc[0]
    counts = np.array([float(people[group]) for group in GROUPS])
    default = rates[list(GROUPS)].to_numpy(float) @ counts / counts.sum()
    at = np.interp(PROFILE_SCORES, rates.index.to_numpy(float), default)
    return np.maximum.accumulate(at[0] - at)
