"""Errors of the stages say where a refused argument was set."""

import pytest

from scripts.papers.network_recruitment import prepare, steer, surrogate
from scripts.pipeline.errors import PipelineError

PARAMS = {
    "arms": {"tap": {"policy": "planned"}, "const_2": {"policy": "const", "each": 2}},
    "networks": {"school": {}},
    "starts": [3, 8],
    "type_models": ["earlier", "insample"],
}


def test_unknown_policies_are_refused() -> None:
    assert steer.policy_arm(PARAMS, "const_2") == {"policy": "const", "each": 2}
    with pytest.raises(PipelineError, match="unknown policy 'taps'; allowed: tap, const_2"):
        steer.policy_arm(PARAMS, "taps")


def test_refused_arguments_are_placed() -> None:
    with (
        pytest.raises(PipelineError, match=r"network_recruitment.laptop: budget is -3"),
        prepare.named("network_recruitment.laptop"),
    ):
        surrogate.solve([0.5, 0.5], -3, 0.5)


def test_settings_are_the_model_with_judged_types_and_the_graph_with_all() -> None:
    found = [(s.mode, s.types, s.start) for s in steer.settings(PARAMS)]
    expected = [("model", "earlier"), ("graph", "earlier"), ("graph", "insample")]
    assert found == [(*pair, start) for start in (3, 8) for pair in expected]
