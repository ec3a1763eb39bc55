"""seed_search: interpreter and CPU path against the float64 definition and against projections."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cases.seed_search import SHAPES, SearchShape
from kernels.harness import assert_close
from kernels.seed_search import SeedHits, cost, reference, seed_search, seed_search_triton

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def assert_finds(actual: SeedHits, w: torch.Tensor, projectors: torch.Tensor) -> None:
    """Best first, and each as good as the definition's at its rank: near ties may swap places."""
    n, top = actual.index.shape
    half = projectors.dtype == torch.float16
    w, projectors = w.double().cpu(), projectors.double().cpu()
    index, energy = actual.index.long().cpu(), actual.energy.double().cpu()
    assert actual.index.dtype == torch.int32 and actual.energy.dtype == torch.float32
    expected = reference(w, projectors, top)
    assert all(len(set(row)) == top for row in index.tolist())
    a, b = torch.triu_indices(w.shape[1], w.shape[1])
    chosen = ((w[:, a] * w[:, b]) @ projectors).gather(1, index)
    limit = (1e-3 if half else 2e-6) * w.square().sum(1, keepdim=True).expand(n, top)
    assert ((energy - chosen).abs() <= limit).all()  # the energy reported is that of the seed
    assert ((chosen - expected.energy).abs() <= 2 * limit).all()  # and the seed is as good
    assert (energy[:, 1:] <= energy[:, :-1]).all()
    if not half:
        assert_close(actual.energy.cpu(), expected.energy)


@pytest.mark.interpreter
@every_shape
def test_kernel_equals_the_definition(shape: SearchShape) -> None:
    w, projectors = shape.inputs()
    assert_finds(seed_search_triton(w, projectors, shape.top), w, projectors)


@every_shape
def test_cpu_path_equals_the_definition(shape: SearchShape) -> None:
    w, projectors = shape.inputs(seed=1)
    assert_finds(seed_search(w, projectors, shape.top), w, projectors)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(0, 60), c=st.integers(1, 16), seeds=st.integers(1, 300), data=st.data())
def test_cpu_path_on_any_shape(n: int, c: int, seeds: int, data: st.DataObject) -> None:
    top = data.draw(st.integers(1, seeds))
    w, projectors = SearchShape("", n, c, seeds, top, p=data.draw(st.integers(1, c))).inputs(seeds)
    assert_finds(seed_search(w, projectors, top), w, projectors)


def test_chunks_and_memory_layouts_do_not_matter() -> None:
    w, projectors = SearchShape("", 1100, 4, 600, 7, p=2).inputs()  # a chunk has 431 rows
    plain = seed_search(w, projectors, 7)
    assert_finds(plain, w, projectors)
    turned = seed_search(w.T.contiguous().T, projectors.T.contiguous().T, 7)
    assert all(torch.equal(a, b) for a, b in zip(plain, turned, strict=True))
    again = seed_search(w, projectors, 7)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_energies_are_those_of_projections() -> None:
    """A block in the span of seed 5 loses nothing there; elsewhere it does."""
    g = torch.Generator().manual_seed(0)
    u = torch.randn(40, 8, 3, generator=g)
    q = torch.linalg.qr(u).Q
    a, b = torch.triu_indices(8, 8)
    projectors = ((q @ q.mT)[:, a, b] * torch.where(a == b, 1.0, 2.0)).T.contiguous()
    w = (u[5] @ torch.tensor([2.0, -1.0, 0.5]))[None]
    hits = seed_search(w, projectors, 40)
    assert int(hits.index[0, 0]) == 5
    torch.testing.assert_close(hits.energy[0, 0], w.square().sum())
    projected = torch.linalg.vector_norm(q.mT @ w[0], dim=1).square()
    torch.testing.assert_close(hits.energy[0], projected[hits.index[0].long()])


@pytest.mark.interpreter
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_half_precision_does_not_depend_on_the_scale_of_the_weights(scale: float) -> None:
    w, projectors = SearchShape("", 20, 8, 100, 4, dtype=torch.float16).inputs()
    assert_finds(seed_search_triton(w * scale, projectors, 4), w * scale, projectors)


@pytest.mark.interpreter
def test_kernel_on_zeros_ties_and_nan() -> None:
    w, projectors = SearchShape("", 4, 4, 70, 5, p=2).inputs()
    w[1] = 0.0
    w[2, 3] = float("nan")
    hits = seed_search_triton(w, projectors, 5)
    assert hits.energy[1].tolist() == [0.0] * 5
    assert len(set(hits.index[1].tolist())) == 5
    assert not hits.energy[2].isfinite().any()
    assert int(hits.index.min()) >= 0 and int(hits.index.max()) < 70
    assert_finds(SeedHits(hits.index[::3], hits.energy[::3]), w[::3], projectors)
    again = seed_search_triton(w, projectors, 5)
    assert torch.equal(hits.index, again.index)


@pytest.mark.interpreter
def test_kernel_refuses_lists_beyond_the_register_file() -> None:
    with pytest.raises(ValueError, match="top: 65"):
        seed_search_triton(torch.zeros(1, 2), torch.zeros(3, 80), 65)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": torch.zeros(3, 4).double()}, "w: float64"),
        ({"w": torch.zeros(3, 17)}, "C <= 16"),
        ({"w": torch.full((3, 4), float("inf"))}, "w: row 0"),
        ({"projectors": torch.zeros(9, 20)}, r"projectors: .* \[10, N\] expected"),
        ({"projectors": torch.zeros(10, 20, dtype=torch.int32)}, "projectors: int32"),
        ({"projectors": torch.zeros(10, 20, device="meta")}, "projectors: on meta"),
        ({"top": 0}, "top: 0; 1 to 20"),
        ({"top": 21}, "top: 21; 1 to 20"),
    ],
)
def test_bad_input_is_named(change: dict[str, object], message: str) -> None:
    good = {"w": torch.zeros(3, 4), "projectors": torch.zeros(10, 20), "top": 2}
    with pytest.raises(ValueError, match=message):
        seed_search(**good | change)


def test_cost_of_the_papers_search() -> None:
    flops, traffic = cost(1000, 8, 65535, 16)
    assert flops == 2 * 1000 * 36 * 65535
    assert traffic == 1000 * 32 + 36 * 65535 * 4 + 1000 * 16 * 8


@pytest.mark.gpu
@every_shape
def test_gpu_equals_the_definition(shape: SearchShape) -> None:
    w, projectors = shape.inputs()
    assert_finds(seed_search(w.cuda(), projectors.cuda(), shape.top), w, projectors)
