"""Parameters, arms and records of the stages."""

import copy

import numpy as np
import pytest
import torch

from scripts.papers.lpds import steer
from scripts.papers.lpds.decoder import Decoder, init_network
from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.learning import Learning
from scripts.papers.lpds.policies import make_learner, restored
from scripts.papers.lpds.steering import Course
from scripts.pipeline import params
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import ROOT
from scripts.pipeline.schema import check, load_schema

SCHEMA = ROOT / "scripts/papers/lpds/params.schema.yaml"


def stored(scale: str) -> dict:
    return copy.deepcopy(params.load().paper("lpds").at(scale).parameters)


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_parameters_of_every_scale_fit_the_schema(scale: str) -> None:
    found = stored(scale)
    check(found, load_schema(SCHEMA), "params.yaml")
    for task in found["tasks"]:
        for arm in found["arms"]:
            share = found["arms"][arm].get("share", 1)
            schedule = dict(found["tasks"][task]["schedule"])
            schedule["decisions"] = round(schedule["decisions"] * share)
            steer.Schedule(**schedule)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["tasks", "hopper"], {}),
        (["tasks", "halfcheetah", "delta"], -0.1),
        (["tasks", "halfcheetah", "demos", "noise"], -1),
        (["tasks", "halfcheetah", "schedule", "evaluations"], 2),
        (["decoders", "diffusion", "steps"], 3),
        (["cloning", "width"], 100),
        (["arms", "lpds", "learner"], "sac"),
        (["arms", "lpds", "acts_on"], "states"),
        (["arms", "sweep", "deltas"], [0.1, 0.0]),
        (["learning", "discount"], 1.5),
        (["entropy", "jitter"], 0),
    ],
)
def test_bad_parameters_are_refused_by_name(place: list[str], value: object) -> None:
    found = stored("smoke")
    inner = found
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(PipelineError, match=place[-1]):
        check(found, load_schema(SCHEMA), "params.yaml")


def test_an_arm_without_settings_is_refused() -> None:
    found = stored("smoke")
    assert steer.arm_settings(found, "dppo")["tasks"] == ["halfcheetah"]
    assert steer.arm_settings(found, "lpds")["tasks"] == list(found["tasks"])
    with pytest.raises(PipelineError, match="unknown arm 'ldps'; allowed: bc, lpds"):
        steer.arm_settings(found, "ldps")


@pytest.mark.parametrize(
    "arm", ["bc", "lpds", "dsrl", "dsrl_unbounded", "dppo", "idql", "action_residual"]
)
def test_a_saved_policy_acts_as_the_learner_did(arm: str) -> None:
    settings = stored("smoke")["arms"][arm]
    generators = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    frozen = Decoder.freeze("diffusion", init_network(5, 8, 128, generators), 5)
    learning = Learning(3e-4, (16, 16), 0.99, 0.005)
    learner = make_learner(settings, frozen, learning, generators, torch.full((2,), 0.35))
    observation = torch.randn(2, 3, 5)
    parameters = {} if learner is None else learner.parameters
    policy = restored(settings, frozen, parameters)

    def draws() -> Draws:
        return Draws([torch.Generator().manual_seed(seed) for seed in (5, 6)])

    acted = policy.act(observation, draws())
    assert acted.shape == (2, 3, 8) and acted.abs().max() <= 1
    if learner is not None:
        assert torch.equal(acted, learner.policy.act(observation, draws()))


def test_an_unbounded_noise_actor_starts_at_the_priors_size() -> None:
    settings = stored("smoke")["arms"]["dsrl_unbounded"]
    generators = [torch.Generator().manual_seed(0)]
    frozen = Decoder.freeze("diffusion", init_network(5, 8, 128, generators), 5)
    learning = Learning(3e-4, (64, 64), 0.99, 0.005)
    learner = make_learner(settings, frozen, learning, generators, torch.ones(1))
    latent = learner.policy.latent(torch.randn(1, 4000, 5), Draws(generators))
    assert 0.5 < latent.std() < 2 and settings["bound"] == 100


def test_the_trust_region_is_judged_at_the_end_of_training() -> None:
    """Twenty notes, of which the last fifth has twice the budget in the second column."""
    used = [np.array([0.1, 0.1 if index < 16 else 0.4]) for index in range(20)]
    points = [(float(index), value) for index, value in enumerate(used)]
    course = Course(diagnostics={"delta_sq": points, "slackness": points, "alpha": points})
    found = steer.Steered(course, [0.2, 0.2], {}, torch.zeros(0), set(), [False, False], 0.1)
    ratios = [
        next(value for name, value, *_ in steer.trust_region(found, column)
             if name == "constraint_ratio")
        for column in (0, 1)
    ]  # fmt: skip
    assert ratios == pytest.approx([0.5, 2.0])


def test_a_seed_that_broke_has_no_rows() -> None:
    class Untouched:
        def metrics(self, rows: object) -> None:
            raise AssertionError("a broken seed was recorded")

    course = Course([0.0, 1.0], [np.ones((2, 3))] * 2, [np.ones(2)] * 2)
    found = steer.Steered(course, [0.2] * 2, {}, torch.zeros(0), {1}, [False] * 2, 0.1)
    assert steer.record(None, Untouched(), found, 1, {"task": "pen"}) == []
