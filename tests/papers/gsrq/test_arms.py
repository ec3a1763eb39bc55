"""The arms of params.yaml: equal bits at equal rates, and what each fits."""

import pytest
import torch

from scripts.papers.gsrq import arms
from scripts.pipeline import params

HEAD_DIM = {"laptop": 64, "paper": 128}


def parameters(scale: str) -> dict:
    return params.load().paper("gsrq").at(scale).parameters


def stored_bits(arm: dict, rate: dict, chosen: dict, head_dim: int) -> float:
    if arms.is_residual(arm):
        return arms.residual_rate(arm, rate["dim"], rate["stages"], chosen["codewords"], head_dim)
    books = {
        f"c{rate.get('channels')}.k.0": torch.zeros(1, 1, chosen["codewords"], 1),
        f"b{rate.get('bits')}.k.0": torch.zeros(1),
    }
    return arms.other_quantizer(arm, books, rate, head_dim)[1]


@pytest.mark.parametrize("scale", HEAD_DIM)
def test_arms_of_a_rate_store_equal_total_bits(scale: str) -> None:
    """Scales counted; the same rule that evaluate enforces."""
    chosen, seen = parameters(scale), {}
    for name, arm in arms.arm_table(chosen).items():
        for rate in arm.get("rates", []):
            bits = stored_bits(arm, rate, chosen, HEAD_DIM[scale])
            assert bits == pytest.approx(rate["rate"], rel=0.02), name
            seen.setdefault(rate["rate"], []).append(name)
    for rate in (0.5, 1.0, 2.0):
        assert {"gsrq", "km_rq_w", "vqllm"} <= set(seen[rate])


@pytest.mark.parametrize("scale", ["smoke", *HEAD_DIM])
def test_every_evaluated_codebook_is_fitted(scale: str) -> None:
    chosen, study = parameters(scale), [1]
    for name, arm in arms.arm_table(chosen).items():
        if not arms.is_residual(arm):
            continue
        for seed in (0, 1):
            fitted = {
                (dim, layer): stages
                for dim, stages, layers in arms.fits_of(arm, study, 3, seed)
                for layer in layers
            }
            for rate in arm.get("rates", []):
                if seed == 0 or not rate.get("once", False):
                    for layer in range(3):
                        assert fitted[rate["dim"], layer] >= rate["stages"], name


def test_pairs_that_are_compared_have_equal_budgets() -> None:
    """Codewords and vectors are common; rounds, starts and sizes agree within each pair."""
    table = parameters("laptop")["arms"]
    budget = ("fits", "iterations", "start_iterations")
    for one, other in (
        ("gsrq", "km_rq_w"),
        ("gs_rq", "km_rq"),
        ("gskm_described", "kmeans"),
        ("gskm_spherical_init", "kmeans_spherical_init"),
        ("gskm_released", "kmeans_spherical_init"),
    ):
        for key in budget:
            assert table[one].get(key) == table[other].get(key), (one, other, key)
    many, few = table["kmeans_30"], table["gskm_released"]
    assert many["iterations"] == few["iterations"] + few["start_iterations"]


def test_fits_are_merged_by_group_size() -> None:
    arm = {
        "fits": [
            {"dim": 64, "stages": 8, "scope": "study"},
            {"dim": 64, "stages": 8, "scope": "model_once"},
            {"dim": 32, "stages": 4, "scope": "study"},
        ]
    }
    assert arms.fits_of(arm, [2], 3, 0) == [(64, 8, [0, 1, 2]), (32, 4, [2])]
    assert arms.fits_of(arm, [2], 3, 1) == [(64, 8, [2]), (32, 4, [2])]


def test_unknown_coder_is_named() -> None:
    with pytest.raises(ValueError, match="'zip'"):
        arms.other_quantizer({"coder": "zip"}, {}, {"bits": 2}, 64)
