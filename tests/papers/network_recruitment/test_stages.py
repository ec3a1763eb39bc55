"""Errors of the stages say where a refused argument was set."""

import copy

import pytest

from scripts.papers.network_recruitment import prepare, steer, surrogate
from scripts.pipeline import params
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import ROOT
from scripts.pipeline.schema import check, load_schema

PARAMS = {
    "arms": {"tap": {"policy": "planned"}, "const_2": {"policy": "const", "each": 2}},
    "networks": {"school": {}},
    "starts": [3, 8],
    "type_models": ["earlier", "insample"],
}


SCHEMA = ROOT / "scripts/papers/network_recruitment/params.schema.yaml"


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_parameters_of_every_scale_fit_the_schema(scale: str) -> None:
    stored = params.load().paper("network_recruitment").at(scale).parameters
    check(stored, load_schema(SCHEMA), "params.yaml")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("budget", -3),
        ("discounts", [1.0]),
        ("starts", [0]),
        ("replicates", 1),
        ("past_share", 1.0),
        ("least_leaf", 0),
        ("type_models", ["later"]),
        ("networks", {}),
        ("networks", {"school": {"kind": "contacts", "least": 0}}),
        ("networks", {"sex": {"kind": "icpsr", "disease": "FLU"}}),
        ("arms", {"tap": {"policy": "planed"}}),
        ("arms", {"greedy": {"policy": "greedy", "share": 1.5}}),
        ("theory", {}),
    ],
)
def test_bad_parameters_are_refused_by_name(key: str, value: object) -> None:
    stored = copy.deepcopy(params.load().paper("network_recruitment").at("smoke").parameters)
    stored[key] = value
    with pytest.raises(PipelineError, match=key):
        check(stored, load_schema(SCHEMA), "params.yaml")


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
