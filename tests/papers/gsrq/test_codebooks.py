"""K-means and gain-shape K-means: known cases, invariances, independent libraries."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.papers.gsrq.gain_shape import fit_gain_shape, fit_gain_shape_released
from scripts.papers.gsrq.kmeans import fit_kmeans, spherical_start, unit
from scripts.papers.gsrq.lloyd import (
    nearest,
    projection_identity_error,
    repair,
    shrinkage,
    usage_entropy,
)

RAW = {"assign": "l2", "direction": "raw", "gain": "proj"}


def data(seed: int = 0, rows: int = 400, dim: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, dim, generator=g, dtype=torch.float64)
    return x, torch.rand(rows, generator=g, dtype=torch.float64) + 0.1


def orthogonal(dim: int, seed: int = 1) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(dim, dim, generator=g, dtype=torch.float64)).Q


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("iterations", range(1, 6))
def test_raw_direction_is_lloyd(seed: int, iterations: int) -> None:
    """(raw, l2, proj) gives Lloyd's codewords, dead codewords included (a duplicated start)."""
    x, w = data(seed)
    start = x[:20].clone()
    start[3] = start[4]
    lloyd = fit_kmeans(x, w, start, iterations)
    gain_shape = fit_gain_shape(x, w, start, iterations, **RAW)
    torch.testing.assert_close(gain_shape.codebook, lloyd.codebook, rtol=0, atol=1e-5)
    assert gain_shape.objective == pytest.approx(lloyd.objective, rel=1e-9)


def test_unit_direction_is_not_lloyd() -> None:
    x, w = data()
    differs = fit_gain_shape(x, w, x[:20], 5).codebook - fit_kmeans(x, w, x[:20], 5).codebook
    assert differs.abs().max() > 1e-2


FITS = {
    "kmeans": lambda x, w, start: fit_kmeans(x, w, start, 5),
    "described": lambda x, w, start: fit_gain_shape(x, w, start, 5),
    "cos": lambda x, w, start: fit_gain_shape(x, w, start, 5, assign="cos"),
    "norm": lambda x, w, start: fit_gain_shape(x, w, start, 5, gain="norm"),
}


@pytest.mark.parametrize("name", FITS)
@settings(max_examples=8, deadline=None)
@given(scale=st.sampled_from([0.25, 2.0, 1024.0]), seed=st.integers(0, 50))
def test_scale_equivariance(name: str, scale: float, seed: int) -> None:
    x, w = data(seed, rows=120)
    fit = FITS[name]
    once, scaled = fit(x, w, x[:8]), fit(scale * x, w, scale * x[:8])
    torch.testing.assert_close(scaled.codebook, scale * once.codebook, rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", FITS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 50))
def test_rotation_equivariance(name: str, seed: int) -> None:
    x, w = data(seed, rows=120)
    turn = orthogonal(x.shape[1], seed)
    fit = FITS[name]
    torch.testing.assert_close(
        fit(x @ turn, w, x[:8] @ turn).codebook, fit(x, w, x[:8]).codebook @ turn
    )


@pytest.mark.parametrize("name", FITS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 50))
def test_duplicate_is_weight_two(name: str, seed: int) -> None:
    x, _ = data(seed, rows=100)
    twice = torch.ones(100, dtype=torch.float64)
    twice[:30] = 2
    repeated = torch.cat([x, x[:30]])
    fit = FITS[name]
    torch.testing.assert_close(
        fit(repeated, torch.ones(130, dtype=torch.float64), x[40:48]).codebook,
        fit(x, twice, x[40:48]).codebook,
    )


def test_four_points_on_two_rays() -> None:
    """x = {1, 3} on each axis: u = e1, e2, g = 2 and a summed error of 4."""
    x = torch.tensor([[1.0, 0], [3, 0], [0, 1], [0, 3]], dtype=torch.float64)
    fit = fit_gain_shape(x, torch.ones(4, dtype=torch.float64), x[[0, 2]], 5)
    torch.testing.assert_close(fit.codebook, 2 * torch.eye(2, dtype=torch.float64))
    assert 4 * min(fit.objective) == pytest.approx(4)


@pytest.mark.parametrize("name", FITS)
def test_as_many_codewords_as_points(name: str) -> None:
    x, w = data(rows=30)
    assert float(FITS[name](x, w, x).residual.abs().max()) == pytest.approx(0, abs=1e-12)


def test_projected_gain_is_least_squares() -> None:
    """No other gain along the same directions codes the clusters better."""
    x, w = data()
    book = fit_gain_shape(x, w, x[:10], 1).codebook
    index = nearest(x, x[:10])
    shapes = unit(book)
    for factor in (0.9, 0.99, 1.01, 1.1):
        better = (w * (x - book[index]).square().sum(1)).sum()
        other = w * (x - factor * book.norm(dim=1)[index, None] * shapes[index]).square().sum(1)
        assert better < other.sum()


def test_zero_rows_are_harmless() -> None:
    x, w = data()
    x[:50] = 0
    fit = fit_gain_shape(x, w, x[60:70], 4)
    assert fit.codebook.isfinite().all()


def test_best_iterate_is_kept() -> None:
    x, w = data(dim=20)
    fit = fit_gain_shape(x, w, x[:30], 12)
    left = (w * fit.residual.square().sum(1)).sum() / w.sum()
    assert float(left) == pytest.approx(min(fit.objective), rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), clusters=st.integers(1, 30))
def test_projection_identity(seed: int, clusters: int) -> None:
    """|c| = mean |x| cos(x, c) for every cluster and its mean (claim C1 a)."""
    x, _ = data(seed, rows=150)
    index = nearest(x, x[:clusters])
    assert projection_identity_error(x, index, clusters) < 1e-6


def test_kmeans_agrees_with_scikit_learn() -> None:
    from sklearn.cluster import KMeans

    x, w = data(3)
    ours = fit_kmeans(x, w, x[:12], 300)
    theirs = KMeans(12, init=x[:12].numpy(), n_init=1, max_iter=300, tol=0, algorithm="lloyd")
    theirs.fit(x.numpy(), sample_weight=w.numpy())
    torch.testing.assert_close(ours.codebook, torch.from_numpy(theirs.cluster_centers_))


def test_spherical_start_agrees_with_faiss() -> None:
    """Unit K-means from the same unit points: as good as faiss' spherical K-means within 3%."""
    import faiss

    x, _ = data(5, rows=2000, dim=8)
    shapes, gains = spherical_start(x, x.new_ones(len(x)), x[:32], 20)
    assert torch.allclose(shapes.norm(dim=1), torch.ones(32, dtype=torch.float64))
    theirs = faiss.Kmeans(8, 32, niter=20, spherical=True, seed=1, max_points_per_centroid=4096)
    directions = unit(x).float().numpy()
    theirs.train(directions)
    ours = (unit(x) @ shapes.T).amax(1).mean()
    assert float(ours) == pytest.approx((directions @ theirs.centroids.T).max(1).mean(), rel=0.03)
    index = fit_kmeans(unit(x), x.new_ones(len(x)), unit(x[:32]), 20).index
    members = x.norm(dim=1)[index == 7]
    assert float(gains[7]) == pytest.approx(float(members.mean()))


def test_released_update_ends_where_lloyd_stays() -> None:
    """A fixed point of the released update is one of Lloyd's: raw means, projected gains."""
    x, _ = data(7, rows=300, dim=3)
    released = fit_gain_shape_released(x, x.new_ones(300), x[:6], 20, 200)
    again = fit_kmeans(x, x.new_ones(300), released.codebook, 1)
    torch.testing.assert_close(again.codebook, released.codebook, rtol=0, atol=2e-2)


def test_released_keeps_empty_clusters() -> None:
    x = torch.tensor([[1.0, 0], [2, 0], [0, 1], [0, 2]], dtype=torch.float64)
    points = torch.tensor([[1.0, 0], [0, 1], [-1, -1]], dtype=torch.float64)
    fit = fit_gain_shape_released(x, x.new_ones(4), points, 1, 3)
    assert fit.codebook.isfinite().all() and len(fit.objective) == 4


def test_repair_takes_distinct_worst_points() -> None:
    x = torch.arange(5.0)[:, None]
    cost = torch.tensor([0.0, 5, 1, 4, 2])
    book = repair(torch.full((3, 1), -1.0), torch.tensor([0.0, 1, 0]), x, cost)
    assert book.flatten().tolist() == [1, -1, 3]


def test_nearest_prefers_the_lowest_index() -> None:
    book = torch.tensor([[1.0], [0], [1]])
    assert nearest(torch.tensor([[2.0], [0.5]]), book).tolist() == [0, 0]


def test_nearest_over_chunks_is_brute_force() -> None:
    x, _ = data(rows=1300)
    book = x[:17] * 0.7
    assert torch.equal(nearest(x, book), torch.cdist(x, book).argmin(1))


def test_usage_entropy_and_shrinkage() -> None:
    assert usage_entropy(torch.tensor([0, 1, 2, 3]), 4) == pytest.approx(2)
    assert usage_entropy(torch.tensor([1, 1]), 4) == 0
    x = torch.tensor([[2.0, 0], [0, 2]])
    assert shrinkage(x, torch.tensor([[1.0, 0]]), torch.tensor([0, 0])) == pytest.approx(0.5)


def test_means_of_gaussians_shrink_with_dimension() -> None:
    rho = []
    for dim in (4, 16, 64):
        x = torch.from_numpy(np.random.default_rng(0).normal(size=(1024, dim)))
        fit = fit_kmeans(x, x.new_ones(1024), x[:32], 5)
        rho.append(shrinkage(x, fit.codebook, fit.index))
    assert rho[0] > rho[1] > rho[2]
