"""perturb_ddim_step: interpreter and CPU path against the definition and diffusers; oracles."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cases.perturb_ddim_step import (
    SHAPES,
    STEPS,
    Operands,
    StepShape,
    alpha_bar,
    coefficients,
    public,
    scheduler,
)
from kernels.harness import assert_close
from kernels.perturb_ddim_step import (
    cost,
    ddim_coefficients,
    perturb_ddim_step,
    perturb_ddim_step_triton,
    reference,
)

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def wide(args: Operands) -> Operands:
    return tuple(t.double() if isinstance(t, torch.Tensor) else t for t in args)


def assert_step(actual: torch.Tensor, args: Operands) -> None:
    assert actual.dtype == args[0].dtype
    assert_close(actual, reference(*wide(args)))


@pytest.mark.interpreter
@every_shape
def test_kernel_equals_the_definition(shape: StepShape) -> None:
    args = shape.inputs()
    assert_step(perturb_ddim_step_triton(*args), args)


@every_shape
def test_cpu_path_equals_the_definition(shape: StepShape) -> None:
    args = shape.inputs(seed=1)
    before = [t.clone() for t in args if isinstance(t, torch.Tensor)]
    assert_step(public(*args), args)
    after = [t for t in args if isinstance(t, torch.Tensor)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True) if not a.isnan().any())
    assert_step(public(*wide(args)), wide(args))


def test_cpu_path_in_chunks() -> None:
    args = StepShape("more than a chunk", (3, 50_001), shift=True).inputs()
    assert_step(public(*args), args)


def test_step_of_diffusers() -> None:
    """The same schedule, the same step, noise recomputed from the clipped x0."""
    pytest.importorskip("diffusers")
    for clip in (1.0, 0.7, None):
        ddim = scheduler(clip)
        x, e, *_ = StepShape("", (4, 9)).inputs()
        for k, coef in enumerate(coefficients(STEPS, False)):
            theirs = ddim.step(e, ddim.timesteps[k], x, use_clipped_model_output=True)
            assert_close(perturb_ddim_step(x, e, coef, clip), theirs.prev_sample, tolerance=1e-5)


def sample(x: torch.Tensor, coef: torch.Tensor, clip: float | None, noise: object) -> torch.Tensor:
    for row in coef:
        x = perturb_ddim_step(x, noise(x, row), row, clip)
    return x


@pytest.mark.parametrize("steps", [1, 5, 20])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_oracle_of_a_point_mass_returns_it_for_every_noise(steps: int, clip: float | None) -> None:
    """All data at mu: e = (x - sqrt(abar) mu) / sqrt(1 - abar)."""
    w = 3 * torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mu = torch.linspace(-0.9, 0.9, 6, dtype=torch.float64)
    coef = ddim_coefficients(alpha_bar(steps))
    end = sample(w, coef, clip, lambda x, row: (x - row[1] * mu) / row[0])
    assert_close(end, mu.expand(50, 6), tolerance=1e-10)


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_oracle_of_gaussian_data_scales_by_cosines(steps: int) -> None:
    """Data N(0, I): e = sqrt(1 - abar) x and, abar = cos^2 theta, each step scales by the cosine
    of the angle it goes."""
    w = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shares = alpha_bar(steps)
    end = sample(w, ddim_coefficients(shares), None, lambda x, row: row[0] * x)
    angle = shares.sqrt().arccos()
    assert_close(end, w * (angle[:-1] - angle[1:]).cos().prod(), tolerance=1e-12)


def test_no_noise_left_gives_the_clipped_data() -> None:
    """At the last step alpha_bar' = 1: x' = x0, which is never beyond the bound."""
    args = StepShape("", (8, 30), clip=0.25, step=STEPS - 1).inputs()
    out = public(*args)
    assert out.abs().max() <= 0.25 + 1e-6
    assert (out.abs() - 0.25).abs().min() < 1e-6


@settings(max_examples=40, deadline=None)
@given(
    shares=st.tuples(st.floats(0.01, 0.98), st.floats(0.01, 1.0)),
    clip=st.one_of(st.none(), st.floats(0.1, 3.0)),
    seed=st.integers(0, 2**20),
)
def test_any_pair_of_times(shares: tuple[float, float], clip: float | None, seed: int) -> None:
    """Towards data or towards noise; and back without a bound is the identity."""
    coef = ddim_coefficients(torch.tensor(shares, dtype=torch.float64))[0]
    x, e, *_ = wide(StepShape("", (3, 5)).inputs(seed))
    out = perturb_ddim_step(x, e, coef, clip)
    assert_close(out, reference(x, e, coef, clip), tolerance=1e-10)
    if shares[1] < 0.98:
        there = perturb_ddim_step(x, e, coef)
        back = ddim_coefficients(torch.tensor(shares[::-1], dtype=torch.float64))[0]
        assert_close(perturb_ddim_step(there, e, back), x, tolerance=1e-9)


@pytest.mark.interpreter
def test_channels_last_stays_so() -> None:
    """Images in that layout are not copied; values come out where they belong."""
    shape = next(s for s in SHAPES if s.name == "channels last")
    x, e, coef, *_ = shape.inputs()
    out = perturb_ddim_step_triton(x, e, coef)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(out, perturb_ddim_step_triton(x.contiguous(), e, coef))


BAD = {
    "other shape of e": (
        {"e": torch.zeros(3, 5)},
        r"e: float32 of shape \[3, 5\].*x's shape \[3, 4\]",
    ),
    "other shape of delta": ({"delta": torch.zeros(4)}, "delta: float32 of shape"),
    "integers": ({"x": torch.zeros(3, 4, dtype=torch.int32)}, "x: int32 of shape"),
    "integer noise": ({"e": torch.zeros(3, 4, dtype=torch.int32)}, "e: int32 of shape"),
    "three coefficients": ({"coef": torch.ones(3)}, r"coef: float32 of shape \[3\]"),
    "half coefficients": ({"coef": torch.ones(4).half()}, "coef: float16"),
    "clip of 0": ({"clip": 0.0}, "clip: 0.0; a finite number > 0 or None"),
    "clip of NaN": ({"clip": float("nan")}, "clip: nan"),
    "clip of a flow": ({"clip": 1.0, "flow": True}, "clip: 1.0 with flow"),
    "no noise at the start": ({"coef": torch.tensor([0.0, 1, 1, 0])}, "coef: .*= 0, 1; > 0"),
    "nothing but noise": ({"coef": torch.tensor([1.0, 0, 1, 0])}, "coef: .*= 1, 0; > 0"),
    "NaN": ({"coef": torch.full((4,), torch.nan)}, "coef: .*nan"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_named(case: str) -> None:
    changes, message = BAD[case]
    args = {"x": torch.zeros(3, 4), "e": torch.zeros(3, 4), "coef": torch.full((4,), 0.5)}
    with pytest.raises(ValueError, match=message):
        perturb_ddim_step(**(args | changes))


def test_cost_counts_what_is_read_and_written_once() -> None:
    assert cost(1000, itemsize=2) == (6000, 6000)
    assert cost(1000, delta=True) == (7000, 16_000)


@pytest.mark.gpu
@every_shape
def test_gpu_equals_the_definition(shape: StepShape) -> None:
    args = tuple(t.cuda() if isinstance(t, torch.Tensor) else t for t in shape.inputs())
    assert_step(public(*args), args)
    assert torch.equal(public(*args), public(*args))
