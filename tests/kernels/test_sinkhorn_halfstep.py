"""sinkhorn_halfstep: interpreter and CPU path against the float64 definition and known values."""

import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cases.sinkhorn_halfstep import SHAPES, HalfstepShape
from kernels.harness import assert_close
from kernels.sinkhorn_halfstep import (
    cost,
    reference,
    sinkhorn_halfstep,
    sinkhorn_halfstep_triton,
)

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def assert_halfstep(actual: torch.Tensor, args: tuple[torch.Tensor, ...]) -> None:
    """As the float64 definition: +inf in the same places, the rest within the type's tolerance."""
    expected = reference(*(t.double() for t in args))
    assert actual.dtype == args[0].dtype
    assert torch.equal(actual.isposinf(), expected.isposinf())
    finite = expected.isfinite()
    assert_close(actual[finite], expected[finite])


@pytest.mark.interpreter
@every_shape
def test_kernel_equals_the_definition(shape: HalfstepShape) -> None:
    args = shape.inputs()
    assert_halfstep(sinkhorn_halfstep_triton(*args), args)


@every_shape
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_cpu_path_equals_the_definition(shape: HalfstepShape, dtype: torch.dtype) -> None:
    args = tuple(t.to(dtype) for t in shape.inputs(seed=1))
    assert_halfstep(sinkhorn_halfstep(*args), args)


def test_cpu_path_in_chunks() -> None:
    args = HalfstepShape("more columns than a chunk holds", 2, 7, 70_000, 1).inputs()
    assert_halfstep(sinkhorn_halfstep(*args), args)


@pytest.mark.interpreter
def test_kernel_far_from_the_origin() -> None:
    """Unshifted, |x|^2 + |y|^2 - 2xy would keep no digit of costs near 1 beside 10^6."""
    x, y, h, eps = HalfstepShape("", 1, 40, 40, 20).inputs()
    args = (x + 1000, y + 1000, h, eps)
    assert_close(
        sinkhorn_halfstep_triton(*args), reference(*(t.double() for t in args)), tolerance=1e-3
    )


def test_alternating_half_steps_solve_entropic_transport() -> None:
    """Potentials that have converged give the plan of POT."""
    x, y, _, _ = HalfstepShape("", 1, 12, 15, 2, dtype=torch.float64).inputs()
    a, b = (torch.full((1, k), 1 / k, dtype=torch.float64) for k in (12, 15))
    eps = torch.tensor([3.0], dtype=torch.float64)
    g = torch.zeros(1, 15, dtype=torch.float64)
    for _ in range(300):
        f = sinkhorn_halfstep(x, y, b.log() + g / eps, eps)
        g = sinkhorn_halfstep(y, x, a.log() + f / eps, eps)
    costs = torch.cdist(x, y)[0].square() / 2
    plan = torch.exp((f[0, :, None] + g[0, None] - costs) / eps) * a[0, :, None] * b[0, None]
    theirs = ot.sinkhorn(a[0].numpy(), b[0].numpy(), costs.numpy(), 3.0, stopThr=1e-13)
    assert_close(plan, torch.from_numpy(theirs), tolerance=1e-9)


def test_the_residual_of_a_row_is_what_its_potential_moves() -> None:
    x, y, h, eps = HalfstepShape("", 2, 9, 11, 3, dtype=torch.float64).inputs()
    before = torch.randn(2, 9, generator=torch.Generator().manual_seed(2)).double()
    after = sinkhorn_halfstep(x, y, h, eps)
    costs = torch.cdist(x, y).square() / 2
    mass = ((before[..., None] - costs) / eps[:, None, None] + h[:, None]).exp().sum(2)
    assert_close(((before - after) / eps[:, None]).exp(), mass, tolerance=1e-12)


def test_one_point_of_all_mass_gives_the_cost() -> None:
    x = torch.tensor([[[0.0, 0.0], [3.0, 4.0]]])
    y = torch.tensor([[[0.0, 0.0], [9.0, 9.0]]])
    h = torch.tensor([[0.0, -torch.inf]])
    f = sinkhorn_halfstep(x, y, h, torch.tensor([0.5]))
    assert f.tolist() == [[0.0, 12.5]]


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(0, 20),
    m=st.integers(1, 20),
    d=st.integers(1, 30),
    shift=st.floats(-5, 5),
    seed=st.integers(0, 2**20),
)
def test_invariances(n: int, m: int, d: int, shift: float, seed: int) -> None:
    x, y, h, eps = HalfstepShape("", 2, n, m, d, dtype=torch.float64).inputs(seed)
    f = sinkhorn_halfstep(x, y, h, eps)
    order = torch.randperm(m, generator=torch.Generator().manual_seed(seed))
    assert_close(sinkhorn_halfstep(x, y[:, order], h[:, order], eps), f, tolerance=1e-12)
    assert_close(sinkhorn_halfstep(x + shift, y + shift, h, eps), f, tolerance=1e-11)
    lifted = sinkhorn_halfstep(x, y, h + shift, eps)
    assert_close(lifted + shift * eps[:, None], f, tolerance=1e-11)


BAD = {
    "x of two dims": ({"x": torch.zeros(3, 2)}, "x: float32 of shape"),
    "points of no dims": ({"x": torch.zeros(2, 3, 0)}, "x: float32 of shape"),
    "half": ({"x": torch.zeros(2, 3, 2).half()}, "x: float16 of shape"),
    "other dims": ({"y": torch.zeros(2, 4, 3)}, r"y: float32 of shape \[2, 4, 3\]"),
    "other batch": ({"h": torch.zeros(3, 4)}, "h: float32 of shape"),
    "other type": ({"h": torch.zeros(2, 4).double()}, "h: float64"),
    "one eps for all": ({"eps": torch.tensor(1.0)}, "eps: float32 of shape"),
    "eps of 0": ({"eps": torch.tensor([1.0, 0.0])}, "eps: .*values > 0"),
    "eps of NaN": ({"eps": torch.tensor([1.0, torch.nan])}, "eps: .*values > 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_named(case: str) -> None:
    changes, message = BAD[case]
    args = {
        "x": torch.zeros(2, 3, 2),
        "y": torch.zeros(2, 4, 2),
        "h": torch.zeros(2, 4),
        "eps": torch.ones(2),
    }
    with pytest.raises(ValueError, match=message):
        sinkhorn_halfstep(**(args | changes))


def test_cost_counts_what_is_read_and_written_once() -> None:
    flops, traffic = cost(64, 1024, 1024, 10)
    assert flops == 64 * 1024 * 1024 * 28
    assert traffic == 4 * 64 * (2048 * 10 + 2048 + 1)


@pytest.mark.gpu
@every_shape
def test_gpu_equals_the_definition(shape: HalfstepShape) -> None:
    args = tuple(t.cuda() for t in shape.inputs())
    assert_halfstep(sinkhorn_halfstep(*args), args)
    assert torch.equal(sinkhorn_halfstep(*args), sinkhorn_halfstep(*args))
