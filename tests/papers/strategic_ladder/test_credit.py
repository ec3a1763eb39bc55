"""The credit ladder and what is read from real ladders."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scripts.papers.strategic_ladder import calibration, credit


def scores() -> credit.Scores:
    return credit.Scores(np.array([1.0, 5.0]), np.array([0.5, 0.5]), {}, 2)


def test_objective_of_a_design_that_changes_nothing_is_forgetting_alone() -> None:
    """No reward: attributes decay to nothing, apart from the leg-up of automatic promotion."""
    point = np.array([[0.0, 1.0]])
    found = credit.evaluate("I", point, 2, scores(), 50, 201)
    x = np.array([1.0, 5.0]) * 0.8 ** np.arange(50)[:, None]
    expected = 0.95 ** np.arange(50) @ x @ [0.5, 0.5]
    assert found.objective[0] == pytest.approx(expected)
    assert found.gaming_share[0] == 1.0


def test_case_iv_is_the_one_below_the_incentive_bound() -> None:
    for case, (honest, gaming) in credit.CASES.items():
        assert (gaming < (1 - credit.BETA * credit.GAMMA) * honest) == (case == "IV")


def test_a_batch_of_designs_is_evaluated_as_one_by_one() -> None:
    points = np.random.default_rng(0).uniform(size=(4, 3))
    together = credit.evaluate("II", points, 3, scores(), 30, 101)
    for at, point in enumerate(points):
        alone = credit.evaluate("II", point[None], 3, scores(), 30, 101)
        assert together.objective[at] == pytest.approx(alone.objective[0])
        assert together.gaming_share[at] == pytest.approx(alone.gaming_share[0])


def test_search_of_the_principal_is_the_same_each_time_and_can_be_polished() -> None:
    first, second = (credit.design("I", 2, scores(), 24, 5, 30, 101) for _ in range(2))
    np.testing.assert_array_equal(first.objective, second.objective)
    at = int(np.argmax(first.objective))
    _, value = credit.polish("I", first.designs[at], scores(), 20, 30, 101)
    assert value >= first.objective[at] - 1e-9


def test_bad_designs_and_cases_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="designs: found 2 numbers"):
        credit.unpack(np.array([0.5, 0.5]), 3)
    with pytest.raises(ValueError, match="case: found 'V'"):
        credit.borrowers("V", np.ones(1), [np.array([0.0, 1.0])])


def test_retention_of_a_league_is_its_autoregression(tmp_path: Path) -> None:
    """Two teams whose goal difference halves from season to season."""
    games = [
        {"Year": 2000 + year, "HomeTeam": "A", "AwayTeam": "B", "HomeGoals": goals, "AwayGoals": 0}
        for year, goals in enumerate((8, 4, 2, 1))
    ]
    pd.DataFrame(games).to_csv(tmp_path / "Bundesliga.csv")
    slope, pairs = calibration.league_retention(tmp_path)
    assert slope == pytest.approx(0.5)
    assert pairs == 6


def test_wages_are_compared_within_a_year(tmp_path: Path) -> None:
    rows = [
        {"nr": man, "year": 1980 + year, "wage": 0.1 * year + sign * 0.5**year}
        for man, sign in ((1, 1), (2, -1))
        for year in range(3)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "Males.csv")
    slope, pairs = calibration.wage_retention(tmp_path)
    assert slope == pytest.approx(0.5)
    assert pairs == 4


def test_scores_are_weighted_by_group_size(tmp_path: Path) -> None:
    groups = list(calibration.GROUPS)
    cdf = pd.DataFrame({"Score": [0.0, 50.0, 100.0], **{g: [0.0, 50.0, 100.0] for g in groups}})
    cdf[groups[0]] = [0.0, 0.0, 100.0]
    cdf.to_csv(tmp_path / "transrisk_cdf_by_race_ssa.csv", index=False)
    totals = {"Kind": ["SSA"], groups[0]: [300], **{g: [100] for g in groups[1:]}}
    pd.DataFrame(totals).to_csv(tmp_path / "totals.csv", index=False)
    table = calibration.score_table(tmp_path)
    np.testing.assert_allclose(table["weight"], [0.0, 0.25, 0.75])
    assert table["people"].iloc[0] == 600
    rates = pd.DataFrame({"Score": [0.0, 90.0], **{g: [90.0, 0.0] for g in groups}})
    rates.to_csv(tmp_path / "transrisk_performance_by_race_ssa.csv", index=False)
    np.testing.assert_allclose(calibration.reward_profile(tmp_path), [0, 15, 30, 45, 60, 75, 90])
