"""ddim_mlp_fused: interpreter and CPU path against the float64 definition and known decoders."""

from typing import Any

import pytest
import torch

from kernels.cases.ddim_mlp_fused import BENCH_CPU, SHAPES, DecoderShape, Operands, public
from kernels.cases.perturb_ddim_step import alpha_bar
from kernels.ddim_mlp_fused import cost, ddim_mlp_fused, ddim_mlp_fused_triton, reference
from kernels.harness import TOLERANCE, assert_close
from kernels.perturb_ddim_step import ddim_coefficients

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def to(args: Operands, dtype: torch.dtype) -> Operands:
    return tuple(t.to(dtype) if isinstance(t, torch.Tensor) else t for t in args)


def assert_decoded(actual: torch.Tensor, args: Operands, tolerance: float) -> None:
    assert actual.dtype == args[0].dtype and actual.shape == args[0].shape
    assert_close(actual, reference(*to(args, torch.float64)), tolerance=tolerance)


@pytest.mark.interpreter
@every_shape
def test_kernel_equals_the_definition(shape: DecoderShape) -> None:
    """With half weights, what enters a product is rounded too, K times over."""
    args = shape.inputs()
    assert_decoded(ddim_mlp_fused_triton(*args), args, 1.5 * TOLERANCE[shape.dtype])


@pytest.mark.interpreter
@pytest.mark.parametrize("b", [15, 16, 17, 65])
@pytest.mark.parametrize("d", [15, 16, 17, 33])
def test_kernel_around_the_tile(b: int, d: int) -> None:
    args = DecoderShape("", b, d, 64, k=2).inputs()
    assert_decoded(ddim_mlp_fused_triton(*args), args, 3e-6)


@pytest.mark.interpreter
@pytest.mark.parametrize("h", [256, 512])
def test_kernel_of_many_units(h: int) -> None:
    args = DecoderShape("", 3, 20, h, k=1, dtype=torch.float16).inputs()
    assert_decoded(ddim_mlp_fused_triton(*args), args, TOLERANCE[torch.float16])


@pytest.mark.interpreter
def test_kernel_with_wide_tiles() -> None:
    """More than 2048 rows: 64 to a program."""
    args = DecoderShape("", 2049, 5, 64, k=1, dtype=torch.float16).inputs()
    assert_decoded(ddim_mlp_fused_triton(*args), args, TOLERANCE[torch.float16])


@every_shape
def test_cpu_path_equals_the_definition(shape: DecoderShape) -> None:
    """Weights are widened and nothing else is rounded: float32 whatever their type."""
    args = shape.inputs(seed=1)
    before = [t.clone() for t in args if isinstance(t, torch.Tensor)]
    assert_decoded(public(*args), args, 2e-6)
    after = [t for t in args if isinstance(t, torch.Tensor)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True) if not a.isnan().any())
    assert_decoded(public(*to(args, torch.float64)), to(args, torch.float64), 1e-12)


@pytest.mark.parametrize("shape", BENCH_CPU[:2], ids=lambda shape: shape.name)
def test_absolute_error_of_a_decoded_action(shape: DecoderShape) -> None:
    args = shape.inputs(seed=2)
    error = public(*args).double() - reference(*to(args, torch.float64))
    assert error.abs().max() < 1e-5


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.s], ids=lambda shape: shape.name)
def test_stacked_models_are_those_apart(shape: DecoderShape) -> None:
    args = shape.inputs()
    together = public(*args)
    for s in range(shape.s):
        one = [t[s] if isinstance(t, torch.Tensor) else t for t in args]
        one[9] = args[9]
        assert_close(together[s], public(*one), tolerance=1e-6)


def test_one_model_for_all_seeds_by_expansion() -> None:
    args = DecoderShape("", 4, 12, 32).inputs()
    stacked = [t.expand(3, *t.shape) if isinstance(t, torch.Tensor) else t for t in args]
    stacked[9] = args[9]
    assert_close(public(*stacked), public(*args).expand(3, 4, 12), tolerance=1e-6)


def test_no_delta_is_delta_of_zero_and_noise_is_what_they_sum_to() -> None:
    """Bit for bit: a policy that has learned nothing yet is the frozen one."""
    w, delta, *rest = DecoderShape("", 6, 12, 32).inputs()
    assert torch.equal(public(w, None, *rest), public(w, torch.zeros_like(w), *rest))
    assert torch.equal(public(w, delta, *rest), public(w + delta, None, *rest))


def oracle(d: int, steps: int, slope: float, mu: torch.Tensor) -> dict[str, Any]:
    """A network without blocks that passes x on: e = slope_k x - shift_k.

    slope is one number for all steps; what differs between steps goes through ht.
    """
    eye = torch.eye(d, dtype=torch.float64)
    return {
        "hc": torch.zeros(40, d, dtype=torch.float64),
        "Wx": slope * eye,
        "Wh": torch.zeros(0, d, d, dtype=torch.float64),
        "bh": torch.zeros(0, d, dtype=torch.float64),
        "Wo": eye,
        "bo": torch.zeros(d, dtype=torch.float64),
        "ht": torch.zeros(steps, d, dtype=torch.float64) + mu,
    }


@pytest.mark.parametrize("clip", [None, 1.0])
def test_network_that_knows_a_point_mass_returns_it(clip: float | None) -> None:
    """One step: e = (x - sqrt(abar) mu) / sqrt(1 - abar) is linear in x."""
    coef = ddim_coefficients(alpha_bar(1))
    c0, c1, *_ = coef[0].tolist()
    mu = torch.linspace(-0.8, 0.8, 5, dtype=torch.float64)
    w = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = ddim_mlp_fused(w, None, **oracle(5, 1, 1 / c0, -c1 / c0 * mu), coef=coef, clip=clip)
    assert_close(out, mu.expand(40, 5), tolerance=1e-10)


def test_network_that_knows_gaussian_data_scales_by_a_cosine() -> None:
    """Data N(0, I): e = sqrt(1 - abar) x; equal alpha_bar at all steps but the last."""
    share = torch.tensor([0.4, 0.4, 0.4, 1.0], dtype=torch.float64)
    coef = ddim_coefficients(share)
    w = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    zero = torch.zeros(5, dtype=torch.float64)
    out = ddim_mlp_fused(w, None, **oracle(5, 3, 0.6**0.5, zero), coef=coef)
    assert_close(out, w * 0.4**0.5, tolerance=1e-12)


def test_constant_velocity_of_a_flow_moves_by_its_time() -> None:
    coef = torch.full((8, 4), torch.nan, dtype=torch.float64)
    coef[:, 3] = 1 / 8
    shift = torch.linspace(-2, 2, 5, dtype=torch.float64)
    w = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = ddim_mlp_fused(w, None, **oracle(5, 8, 0.0, shift), coef=coef, flow=True)
    assert_close(out, w + shift, tolerance=1e-12)


BAD = {
    "one axis": ({"w": torch.zeros(6)}, r"w: float32 of shape \[6\]; .*\[B, D\] or \[S, B, D\]"),
    "half state": ({"w": torch.zeros(2, 6).half()}, "w: float16 of shape"),
    "no dims": ({"w": torch.zeros(2, 0)}, r"w: float32 of shape \[2, 0\]"),
    "other delta": ({"delta": torch.zeros(2, 5)}, r"delta: .*\[2, 5\].*\[2, 6\]"),
    "other rows of hc": ({"hc": torch.zeros(3, 8)}, r"hc: .*\[3, 8\].*\[2, 8\]"),
    "Wx of nn.Linear": ({"Wx": torch.zeros(8, 6)}, r"Wx: .*\[8, 6\].*\[6, 6\]"),
    "integer weights": ({"Wx": torch.zeros(6, 8).int()}, "Wx: int32"),
    "odd L": ({"Wh": torch.zeros(3, 8, 8), "bh": torch.zeros(3, 8)}, r"Wh: .*\[3, 8, 8\].*even L"),
    "one matrix": ({"Wh": torch.zeros(8, 8)}, "Wh: .*even L"),
    "other biases": ({"bh": torch.zeros(4, 8)}, r"bh: .*\[4, 8\].*\[2, 8\]"),
    "types of weights": ({"Wo": torch.zeros(8, 6).half()}, "Wo: float16.*float32 of shape"),
    "other bo": ({"bo": torch.zeros(8)}, r"bo: .*\[8\].*\[6\]"),
    "steps of ht": ({"ht": torch.zeros(4, 8)}, r"ht: .*\[4, 8\].*\[3, 8\].*K=3"),
    "three coefficients": ({"coef": torch.full((3, 3), 0.5)}, r"coef: .*\[3, 3\].*\[3, 4\]"),
    "one row of coefficients": ({"coef": torch.full((4,), 0.5)}, r"coef: .*\[4\]; shape \[K, 4\]"),
    "float64 coefficients": ({"coef": torch.full((3, 4), 0.5).double()}, "coef: float64"),
    "alpha_bar of 1": ({"coef": torch.zeros(3, 4)}, "coef: .*= 0, 0; > 0"),
    "clip below 0": ({"clip": -1.0}, "clip: -1.0; a finite number > 0 or None"),
    "clip of a flow": ({"clip": 1.0, "flow": True}, "clip: 1.0 with flow"),
    "stacked noise only": ({"w": torch.zeros(3, 2, 6)}, r"Wx: .*\[6, 8\].*\[3, 6, 8\]"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_named(case: str) -> None:
    changes, message = BAD[case]
    args = {
        "w": torch.zeros(2, 6),
        "delta": None,
        "hc": torch.zeros(2, 8),
        "Wx": torch.zeros(6, 8),
        "ht": torch.zeros(3, 8),
        "Wh": torch.zeros(2, 8, 8),
        "bh": torch.zeros(2, 8),
        "Wo": torch.zeros(8, 6),
        "bo": torch.zeros(6),
        "coef": torch.full((3, 4), 0.5),
    }
    assert ddim_mlp_fused(**args).shape == (2, 6)
    with pytest.raises(ValueError, match=message):
        ddim_mlp_fused(**(args | changes))


def test_cost_counts_what_is_read_and_written_once() -> None:
    flops, traffic = cost(1024, 48, 512, 2, 5, itemsize=2)
    assert flops == 2 * 1024 * 5 * (2 * 48 * 512 + 2 * 512 * 512)
    weights = 2 * 48 * 512 + 48 + 2 * (512 * 512 + 512)
    assert traffic == 2 * weights + 4 * (2 * 1024 * 48 + 1024 * 512 + 5 * 512)
    assert cost(1, 4, 8, 2, 3, s=7) == tuple(7 * part for part in cost(1, 4, 8, 2, 3))


@pytest.mark.gpu
@every_shape
def test_gpu_equals_the_definition(shape: DecoderShape) -> None:
    args = tuple(t.cuda() if isinstance(t, torch.Tensor) else t for t in shape.inputs())
    assert_decoded(public(*args), args, 1.5 * TOLERANCE[shape.dtype])
    assert torch.equal(public(*args), public(*args))


@pytest.mark.gpu
def test_gpu_takes_multiples_of_64_units() -> None:
    args = tuple(
        t.cuda() if isinstance(t, torch.Tensor) else t for t in DecoderShape("", 2, 12, 40).inputs()
    )
    with pytest.raises(ValueError, match="Wx: H is 40"):
        public(*args)
