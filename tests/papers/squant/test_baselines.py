"""Baselines against definitions and libraries; rotation; quality; matching at a rate; traffic."""

import numpy as np
import pytest
import torch

from scripts.papers.squant import calibrated, coders, rotation, scalar, traffic
from scripts.papers.squant.designs import snr
from scripts.papers.squant.matching import Point, at_target
from scripts.papers.squant.quality import Language


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def calibration(columns: int, seed: int = 3) -> dict[str, torch.Tensor]:
    """Correlated inputs with a few large channels, as a transformer has them."""
    x = gaussian(4 * columns, columns, seed=seed) @ gaussian(columns, columns, seed=9) / 4
    x[:, ::7] *= 5
    return {"gram": x.T @ x / len(x), "mean": x.abs().mean(0)}


# Round to nearest, NormalFloat, HQQ


def test_rtn_group_by_group() -> None:
    w = gaussian(3, 40)
    made = scalar.rtn(w, 3, 16)  # groups of 16, 16 and 8
    for row in range(3):
        for number, start in enumerate((0, 16, 32)):
            part = w[row, start : start + 16]
            low, high = min(0.0, float(part.min())), max(0.0, float(part.max()))
            step = float(torch.tensor((high - low) / 7).half())
            zero = np.clip(np.rint(-low / step), 0, 7)
            codes = np.clip(np.rint(part.numpy() / step + zero), 0, 7)
            np.testing.assert_allclose(
                made.decode()[row, start : start + 16].numpy(), (codes - zero) * step, rtol=1e-6
            )
            assert int(made.zero[row, number]) == zero
    assert made.total_bits() == pytest.approx(3 + 3 * (16 + 3) / 40)


def test_total_bits_include_scales_and_zeros() -> None:
    w = gaussian(4, 128)
    assert scalar.rtn(w, 4, 32).total_bits() == 4 + 20 / 32
    assert scalar.rtn(w, 4, None).total_bits() == 4 + 20 / 128
    assert scalar.normal_float(w, 4, 64).total_bits() == 4 + 16 / 64
    assert scalar.hqq(w, 4, 64).total_bits() == 4 + 32 / 64


@pytest.mark.parametrize("method", [scalar.rtn, scalar.normal_float, scalar.hqq])
@pytest.mark.parametrize(("bits", "group"), [(4, 64), (3, 50), (2, None)])
def test_stored_scalars_round_trip(method, bits: int, group: int | None) -> None:
    w = gaussian(5, 128)
    w[2] = 0
    made = method(w, bits, group)
    stored = made.tensors()
    again = scalar.Grouped.load(stored)
    assert torch.equal(again.decode(), made.decode())
    assert not made.decode()[2].abs().max() > 1e-6
    size = sum(x.nbytes for name, x in stored.items() if name != "shape")
    assert size == pytest.approx(made.total_bits() * w.numel() / 8, abs=2)
    with pytest.raises(ValueError, match="truncated"):
        scalar.Grouped.load({**stored, "codes": stored["codes"][:-1]})


def test_normal_float_levels_are_bitsandbytes() -> None:
    known = [
        -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
        0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
    ]  # fmt: skip
    np.testing.assert_allclose(scalar.normal_levels(4).numpy(), known, atol=2e-6)
    w = gaussian(4, 64)
    made = scalar.normal_float(w, 4, 64)
    x = w / made.scale.float()
    nearest = (x[..., None] - scalar.normal_levels(4)).abs().argmin(-1)
    assert torch.equal(made.codes, nearest)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_hqq_is_as_good_as_its_library(bits: int) -> None:
    quantize = pytest.importorskip("hqq.core.quantize")
    w = gaussian(64, 128) * torch.linspace(0.1, 2, 128)
    packed, meta = quantize.Quantizer.quantize(
        w, nbits=bits, group_size=64, axis=1, bitpack=False, device="cpu",
        compute_dtype=torch.float32,
    )  # fmt: skip
    theirs = ((packed.float() - meta["zero"]) * meta["scale"]).view(w.shape)
    ours = scalar.hqq(w, bits, 64).decode()
    plain = scalar.rtn(w, bits, 64).decode()

    def loss(made: torch.Tensor) -> float:  # what HQQ lowers
        return float((w - made).abs().pow(0.7).mean())

    assert loss(ours) <= 1.02 * loss(theirs)
    assert loss(ours) < loss(plain)


def test_quantizers_reach_known_ratios_on_gaussians() -> None:
    """20.0 dB at 4 bits and 13.4 dB at 3 bits in groups of 128, measured before."""
    w = gaussian(256, 1024)
    assert snr(w, scalar.rtn(w, 4, 128).decode()) == pytest.approx(20.0, abs=0.3)
    assert snr(w, scalar.rtn(w, 3, 128).decode()) == pytest.approx(13.4, abs=0.3)


# AWQ, GPTQ


@pytest.mark.parametrize("bits", [3, 4])
def test_calibrated_arms_lose_less_output(bits: int) -> None:
    w, inputs = gaussian(32, 96), calibration(96)

    def loss(made: torch.Tensor) -> float:
        return float(calibrated.output_error(made - w, inputs["gram"]))

    plain = loss(scalar.rtn(w, bits, 32).decode())
    grouped, scale = calibrated.awq(w, **inputs, bits=bits, group=32)
    assert loss(grouped.decode() / scale.float()) < plain
    assert loss(calibrated.gptq(w, inputs["gram"], bits, 32).decode()) < plain


def test_gptq_is_column_by_column_least_squares() -> None:
    """Against the definition: after each column, the rest minimises the output error."""
    w, gram = gaussian(4, 12), calibration(12)["gram"].double()
    found = calibrated.gptq(w, gram.float(), 3, None)
    damped = gram + 0.01 * gram.diagonal().mean() * torch.eye(12, dtype=torch.float64)
    scale, zero = scalar.grid(w[:, None, :], 3)
    left, codes = w.double().clone(), torch.empty(4, 12)
    for column in range(12):
        code = scalar.rounded(left[:, column].float(), scale[:, 0, 0], zero[:, 0, 0], 3)
        codes[:, column] = code
        fixed_now = (code - zero[:, 0, 0]) * scale[:, 0, 0].float()
        error = left[:, column] - fixed_now.double()
        rest = slice(column + 1, 12)
        if column < 11:
            # min over the rest of (error, change) H (error, change)^T
            change = torch.linalg.solve(damped[rest, rest], damped[rest, column])
            left[:, rest] += torch.outer(error, change)
    assert (found.codes == codes.long()).double().mean() > 0.95


def test_gptq_across_batches_of_columns() -> None:
    """Lazy batches change nothing: groups that straddle a batch see the errors before them."""
    w, gram = gaussian(8, 200), calibration(200)["gram"]
    with pytest.MonkeyPatch.context() as patch:
        lazy = calibrated.gptq(w, gram, 4, 96)
        patch.setattr(calibrated, "COLUMNS", 200)
        whole = calibrated.gptq(w, gram, 4, 96)
    assert (lazy.codes == whole.codes).double().mean() > 0.99


@pytest.mark.parametrize("coder", ["rtn", "nf", "hqq", "awq", "gptq"])
def test_arms_decode_from_what_they_store(coder: str) -> None:
    w = gaussian(16, 96)
    option = {"bits": 3, "group": 32}
    calls = []

    def inputs() -> dict[str, torch.Tensor]:
        calls.append(1)
        return calibration(96)

    coded = coders.compress({"coder": coder}, w, option, 16, inputs)
    assert torch.equal(coders.decode(coded.stored), coded.made)
    assert bool(calls) == (coder in ("awq", "gptq"))
    stored = sum(x.nbytes for name, x in coded.stored.items() if name != "shape")
    assert stored == pytest.approx(coded.bits * w.numel() / 8, abs=2)


@pytest.mark.parametrize("arm", [{"coder": "fixed"}, {"coder": "fixed", "scaled": True},
                                 {"coder": "adaptive"}])  # fmt: skip
def test_seed_arms_decode_from_what_they_store(arm: dict) -> None:
    w = gaussian(16, 96)
    option = {
        "coder": arm["coder"], "basis": "state", "register": 9, "size": 8, "count": 3,
        "coefficient_bits": 4, "exponent_bits": 4, "group": 4, "target": 4.0,
    }  # fmt: skip
    coded = coders.compress(arm, w, option, 16, lambda: calibration(96))
    assert torch.equal(coders.decode(coded.stored), coded.made)
    assert snr(w, coded.made) > 5
    if arm["coder"] == "adaptive":
        assert coded.bits == pytest.approx(4.0, abs=0.05)
        assert coded.details["published_bits"] < coded.details["entropy_bits"] <= coded.bits + 0.01


# The rotation, and the trap that it removes


@pytest.fixture(scope="module")
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.normal_(1 if "norm" in name else 0, 0.3)
    return model


def test_rotation_preserves_the_model(llama) -> None:
    from copy import deepcopy

    ids = torch.randint(0, 97, (2, 20), generator=torch.Generator().manual_seed(1))
    before = llama(ids).logits
    turned, turn = deepcopy(llama), rotation.random_rotation(48, torch.Generator().manual_seed(2))
    torch.testing.assert_close(turn @ turn.T, torch.eye(48, dtype=torch.float64))
    rotation.rotate_llama(turned, turn)
    assert (turned(ids).logits - before).abs().max() < 1e-3
    old, new = llama.model.layers[1].mlp.up_proj.weight, turned.model.layers[1].mlp.up_proj.weight
    assert (old - new).abs().max() > 0.1
    gain = llama.model.layers[1].post_attention_layernorm.weight
    torch.testing.assert_close(rotation.rotated("mlp.up_proj", old, gain, turn), new)
    changed = turned.model.layers[1].self_attn.o_proj.weight
    again = rotation.rotated(
        "self_attn.o_proj", llama.model.layers[1].self_attn.o_proj.weight, None, turn
    )
    torch.testing.assert_close(again, changed)


def test_a_grid_looks_lossless_until_it_is_rotated() -> None:
    """The trap: Q4_1 weights are 16 even levels per 32, which 4-bit quantizers reproduce."""
    levels = torch.randint(0, 16, (48, 3, 32), generator=torch.Generator().manual_seed(0)).float()
    levels[..., 0], levels[..., 1] = 0, 15  # a Q4_1 group reaches both ends
    w = (levels * 0.01 + gaussian(48, 3, 1) * 0.05).flatten(1)
    assert scalar.affine_error(w) < 1e-12
    turn = rotation.random_rotation(48, torch.Generator().manual_seed(2))
    turned = rotation.rotated("mlp.down_proj", w, None, turn)
    assert scalar.affine_error(turned) > 1e-4


def test_the_real_model_lies_on_that_grid(asset) -> None:
    from scripts.papers.squant.weights import language_matrices

    folder = asset("smollm2-135m-instruct")
    turn = rotation.random_rotation(576, torch.Generator().manual_seed(0))
    for rotated, low, high in ((None, 0, 1e-10), (turn, 1e-4, 1)):
        found = language_matrices(folder, [5], rotated, ["self_attn.k_proj", "mlp.down_proj"])
        assert len(found) == 2
        for weight in found.values():
            assert low <= scalar.affine_error(weight) <= high


# Quality, matching, traffic


def test_language_scores_skip_what_does_not_change(llama) -> None:
    ids = torch.randint(0, 97, (6, 15), generator=torch.Generator().manual_seed(4))
    language = Language(llama, ids, changed=1)
    full = llama(ids).logits[:, :-1].log_softmax(-1)
    rows = language.scores()
    nll = -full.gather(2, ids[:, 1:, None]).mean((1, 2))
    for row, expected in zip(rows, nll, strict=True):
        assert row["kl"] == pytest.approx(0, abs=1e-6)
        assert row["nll"] == pytest.approx(float(expected), rel=1e-4)
    weight = language.matrix("1.mlp.up_proj")
    kept = weight.clone()
    weight += 0.1 * gaussian(*weight.shape)
    changed = llama(ids).logits[:, :-1].log_softmax(-1)
    kl = (full.exp() * (full - changed)).sum(-1).mean(1)
    for row, expected in zip(language.scores(), kl, strict=True):
        assert row["kl"] == pytest.approx(float(expected), rel=1e-3, abs=1e-6)
    assert language.foreign_changes(["1.mlp.up_proj"])[0] == 0
    assert language.foreign_changes(["1.mlp.down_proj"])[0] == 1
    weight.copy_(kept)


def test_matching_interpolates_between_neighbours() -> None:
    def point(label: str, family: str, bits: float, kl: float) -> Point:
        return Point(label, family, bits, np.array([kl, 2 * kl]))

    points = [point("3", "g128", 3.0, 0.4), point("4", "g128", 5.0, 0.1)]
    found = at_target(points, 4.0, 0.05)
    np.testing.assert_allclose(found["kl"], [0.2, 0.4])
    assert found["setting"] == "3~4" and found["bits"] == 4.0
    direct = at_target([*points, point("row", "row", 4.03, 0.15)], 4.0, 0.05)
    assert direct["setting"] == "row"
    assert at_target(points, 2.5, 0.05) is None
    # Nothing is extrapolated: above all settings the best of them counts.
    assert at_target(points, 6.0, 0.05)["setting"] == "4"


def test_traffic_of_llama_7b_by_hand() -> None:
    shape = {"layers": 32, "hidden": 4096, "intermediate": 11008, "heads": 32, "kv_heads": 32,
             "vocabulary": 32000, "context": 2048}  # fmt: skip
    chip = {"bandwidth": 1e11, "clock": 1e9, "adders": 16384, "multipliers": 2048}
    weights = traffic.linear_weights(shape)
    assert weights == 32 * (4 * 4096**2 + 3 * 4096 * 11008) == 6_476_005_376
    step = traffic.decode_step(shape, 4, chip, size=8, bases=4)
    assert step.weight_bytes == weights / 2
    cache = 2 * 2 * 32 * 2048 * 4096
    assert step.other_bytes > cache + 2 * 32000 * 4096
    assert step.other_bytes < 1.01 * (cache + 2 * 32000 * 4096)
    assert step.add_s == pytest.approx(weights * 4 / (16384 * 1e9))
    assert step.multiply_s == pytest.approx(weights / 8 * 4 / (2048 * 1e9))
    found = traffic.summary(shape, 4, chip, 8, 4)
    assert found["weight_traffic_ratio"] == 4
    assert 2.5 < found["traffic_ratio"] < 4
    assert found["compute_over_memory"] < 1
