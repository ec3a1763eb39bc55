"""From evaluated episodes to compared scores, on courses whose answers are known."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from scripts.papers.lpds import scores
from scripts.papers.lpds.draws import Draws

STEPS = (0, 100, 200, 300)


def course(arm: str, seed: int, task: str, values: list[float], expert: float = 10.0) -> list[dict]:
    """Two episodes an evaluation, 1 below and 1 above its value."""
    return [
        {"arm": arm, "seed": seed, "task": task, "env_steps": step, "score": value + off,
         "expert": expert}
        for step, value in zip(STEPS, values, strict=True)
        for off in (-1, 1)
    ]  # fmt: skip


def made(*courses: list[dict]) -> tuple[pd.DataFrame, pd.DataFrame]:
    curves = scores.learning_curves(pd.DataFrame([row for one in courses for row in one]))
    return curves, scores.summaries(curves, final=3)


def test_a_run_is_summed_up_by_hand() -> None:
    curves, runs = made(course("lpds", 0, "a", [2.0, 4.0, 6.0, 8.0]))
    assert curves["score"].tolist() == [2, 4, 6, 8]
    assert curves["episodes"].tolist() == [2, 2, 2, 2]
    (one,) = runs.to_dict("records")
    assert one["final_score"] == 6
    assert one["normalised_score"] == pytest.approx(0.6)
    assert one["auc"] == pytest.approx(0.5)
    assert (one["final_episodes"], one["episodes"]) == (6, 8)


def test_settings_of_a_sweep_stay_apart() -> None:
    rows = [
        row | {"delta": delta, "reduction": "mean"}
        for delta in (0.1, 0.5)
        for row in course("sweep", 0, "a", [delta] * 4)
    ]
    _, runs = made(rows, course("bc", 0, "a", [1.0] * 4))
    assert runs.set_index("arm").loc["sweep", "final_score"].tolist() == pytest.approx([0.1, 0.5])
    assert runs.set_index("arm").loc[["bc"], "delta"].isna().all()


@pytest.mark.parametrize(
    ("shares", "gate"), [((0.1, 0.2), "unmet"), ((0.15, 0.25), "met"), ((0.8, 0.72), "unmet")]
)
def test_the_gate_judges_the_mean_over_seeds(shares: tuple[float, float], gate: str) -> None:
    _, runs = made(
        *(course("bc", seed, "a", [10 * share] * 4) for seed, share in enumerate(shares))
    )
    assert scores.headroom(runs) == {"a": gate}


def test_the_best_baseline_is_each_tasks_own() -> None:
    _, runs = made(
        course("dsrl", 0, "a", [1.0] * 4), course("dsrl", 1, "a", [6.0] * 4),
        course("idql", 0, "a", [3.0] * 4), course("idql", 1, "a", [3.0] * 4),
        course("dsrl", 0, "b", [1.0] * 4), course("idql", 0, "b", [2.0] * 4),
        course("lpds", 0, "a", [9.0] * 4),
    )  # fmt: skip
    best = scores.best_baseline(runs)
    assert set(best["arm"]) == {"best_baseline"}
    found = best.set_index(["task", "seed"])["final_score"].to_dict()
    assert found == {("a", 0): 1, ("a", 1): 6, ("b", 0): 2}


def test_the_largest_gain_is_that_of_means_among_tasks_with_headroom() -> None:
    _, runs = made(
        *(course("dsrl", seed, task, [4.0] * 4) for task in "abc" for seed in (0, 1)),
        *(course("lpds", seed, "a", [value] * 4) for seed, value in enumerate((3.0, 7.0))),
        *(course("lpds", seed, "b", [value] * 4) for seed, value in enumerate((4.0, 4.4))),
        *(course("lpds", seed, "c", [9.0] * 4) for seed in (0, 1)),
    )
    gain = scores.largest_gain(runs, {"a": "met", "b": "met", "c": "unmet"})
    assert gain["task"].tolist() == ["a", "a"]
    assert gain["largest_gain"].tolist() == pytest.approx([-0.25, 0.75])


def test_a_baseline_that_scores_nothing_leaves_the_gain_finite() -> None:
    _, runs = made(course("dsrl", 0, "a", [0.0] * 4), course("lpds", 0, "a", [1.0] * 4))
    assert scores.largest_gain(runs, {"a": "met"})["largest_gain"].tolist() == pytest.approx([10])


def test_steps_to_half_interpolates_and_says_who_never_gets_there() -> None:
    curves, runs = made(
        course("bc", 0, "a", [2.0] * 4), course("lpds", 0, "a", [2.0, 6.0, 6.0, 6.0]),
        course("dsrl", 0, "a", [2.0, 3.0, 3.0, 5.0]), course("idql", 0, "a", [2.0] * 4),
    )  # fmt: skip
    found = scores.steps_to_half(curves, runs, {"lpds", "dsrl", "idql"}).set_index("arm")
    assert found["steps_to_half"].to_dict() == {"lpds": 50, "dsrl": 250, "idql": 300}
    assert found["half_reached"].to_dict() == {"lpds": 1, "dsrl": 1, "idql": 0}


def test_without_a_better_arm_there_is_no_half_way() -> None:
    curves, runs = made(course("bc", 0, "a", [2.0] * 4), course("lpds", 0, "a", [1.0] * 4))
    assert scores.steps_to_half(curves, runs, {"lpds"}).empty


def test_a_broken_cell_costs_its_seed_on_that_task_alone() -> None:
    cells = [(arm, seed, task) for arm in ("bc", "lpds") for seed in (0, 1) for task in "ab"]
    cells.remove(("lpds", 1, "b"))
    curves, _ = made(*(course(*cell, [1.0] * 4) for cell in cells))
    kept, lost = scores.paired(curves)
    assert lost == [("b", 1)]
    left = set(kept[["arm", "seed", "task"]].itertuples(index=False, name=None))
    assert left == {*cells} - {("bc", 1, "b")}
    whole, none = scores.paired(kept)
    assert none == []
    assert len(whole) == len(kept)


def test_too_few_evaluations_are_refused() -> None:
    curves, _ = made(course("bc", 0, "a", [1.0] * 4))
    with pytest.raises(ValueError, match="bc with seed 0 on a has 4 evaluations; allowed: 5"):
        scores.summaries(curves, final=5)


def test_an_expert_that_scores_nothing_is_refused() -> None:
    curves = scores.learning_curves(pd.DataFrame(course("bc", 3, "a", [1.0] * 4, expert=0.0)))
    with pytest.raises(ValueError, match="bc with seed 3 on a has an expert's score of 0"):
        scores.summaries(curves, final=3)


class Counting:
    """A policy whose chunks tell their state, and number the samples."""

    def act(self, observation: Tensor, draws: Draws) -> Tensor:
        number = torch.arange(observation.shape[1]).expand(observation.shape[0], -1)[..., None]
        return torch.cat([observation[..., :1], number, 9 + 0 * number], dim=-1)


def test_first_actions_stay_with_their_states_and_are_clipped() -> None:
    from scripts.papers.lpds.evaluate import first_actions

    states = torch.tensor([[[0.1], [0.2]], [[0.3], [0.4]]])
    found = first_actions(Counting(), states, 3, 2, Draws([torch.Generator()] * 2))
    assert found.shape == (2, 2, 3, 2)
    np.testing.assert_allclose(found[:, :, :, 0], states.expand(-1, -1, 3))
    assert found[0, :, :, 1].tolist() == [[0, 1, 1], [1, 1, 1]]
