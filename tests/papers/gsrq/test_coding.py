"""Residual coding, the baselines' coders, bits and bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.rq_encode import rq_encode
from scripts.papers.gsrq import scalar
from scripts.papers.gsrq.bits import code_bits, codebook_bits, residual_bits, total_bits
from scripts.papers.gsrq.coder import HeadCoder, join_groups, split_groups, token_scale
from scripts.papers.gsrq.coupled import fit_coupled, quantize_coupled
from scripts.papers.gsrq.packing import pack, unpack
from scripts.papers.gsrq.residual import decode, draw_orders, fit_residual, stage_fit, usable
from scripts.papers.gsrq.vqllm import fit_vqllm

METHODS = {
    "kmeans": stage_fit("kmeans", 4),
    "kmeans_spherical": stage_fit("kmeans", 3, 3),
    "gain_shape": stage_fit("gain_shape", 4),
    "released": stage_fit("released", 3, 3),
}


def vectors(rows: int = 600, dim: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


def orders(rows: int, stages: int = 4) -> torch.Tensor:
    return draw_orders(rows, stages, torch.Generator().manual_seed(1))


def test_initial_points_are_distinct_and_not_zero() -> None:
    x = torch.tensor([[0.0], [1], [0], [2], [3]])
    assert usable(x, torch.tensor([2, 4, 0, 1, 3]), 3).tolist() == [4, 1, 3]
    assert usable(x, torch.arange(5), 4).tolist() == [1, 3, 4, 0]


@pytest.mark.parametrize("method", METHODS)
def test_error_falls_with_every_stage(method: str) -> None:
    x = vectors()
    books, log = fit_residual(x, torch.ones(600), orders(600), 16, METHODS[method])
    errors = [float(rq_encode(x, books[:m]).err.mean()) for m in range(1, 5)]
    assert errors == sorted(errors, reverse=True)
    assert all(entry["usage"] <= 4 for entry in log)


def test_codes_of_a_prefix_are_the_prefix_of_the_codes() -> None:
    x = vectors()
    books, _ = fit_residual(x, torch.ones(600), orders(600), 16, METHODS["gain_shape"])
    every = rq_encode(x, books)
    torch.testing.assert_close(every.codes[:, :2], rq_encode(x, books[:2]).codes)
    torch.testing.assert_close(decode(every.codes, books), every.xhat)


def test_stage_fit_refuses_unknown_methods() -> None:
    with pytest.raises(ValueError, match="median"):
        stage_fit("median", 1)


def test_residual_fit_competes_with_faiss() -> None:
    """Held-out distortion within 5% of faiss.ResidualQuantizer without beam search."""
    import faiss

    x, new = vectors(4000, 16), vectors(1000, 16, 9)
    books, _ = fit_residual(x, torch.ones(4000), orders(4000, 3), 16, stage_fit("kmeans", 20))
    theirs = faiss.ResidualQuantizer(16, 3, 4)
    theirs.max_beam_size = 1
    theirs.train_type = faiss.ResidualQuantizer.Train_default
    theirs.train(x.numpy())
    back = theirs.decode(theirs.compute_codes(new.numpy()))
    ours = float(rq_encode(new, books).err.sum())
    assert ours < 1.05 * float(np.square(back - new.numpy()).sum())


@given(st.sampled_from([4, 8, 16]), st.booleans())
def test_groups_round_trip(dim: int, strided: bool) -> None:
    x = torch.arange(64.0).reshape(2, 2, 16)
    groups = split_groups(x, dim, strided)
    assert groups.shape == (2, 2, 16 // dim, dim)
    torch.testing.assert_close(join_groups(groups, strided), x)


def test_strided_groups_take_every_gth_channel() -> None:
    assert split_groups(torch.arange(8.0), 4, strided=True).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_group_must_divide_the_head() -> None:
    with pytest.raises(ValueError, match="does not divide"):
        split_groups(torch.zeros(10), 4)


@pytest.mark.parametrize("scaled", [False, True])
def test_head_coder_equals_its_codes(scaled: bool) -> None:
    """Quantizing in the model and decoding stored codes are the same numbers."""
    x = vectors(40, 2 * 16).reshape(20, 2, 2, 16) * 3
    centre = x.mean((0, 1))
    coder = HeadCoder(torch.randn(3, 8, 8), scaled=scaled, strided=scaled, centre=centre)
    codes, scale = coder.encode(x)
    assert codes.shape == (20, 2, 2, 2, 3)
    torch.testing.assert_close(coder.decode(codes, scale), coder(x))
    assert (scale is not None) == scaled


def test_scale_is_stored_in_sixteen_bits() -> None:
    scale = token_scale(vectors(5, 64))
    torch.testing.assert_close(scale.half().float(), scale, rtol=0, atol=0)
    assert (token_scale(torch.zeros(2, 8)) > 0).all()


def test_vqllm_without_passes_is_kmeans() -> None:
    x = vectors()
    g = torch.Generator().manual_seed(0)
    books, _ = fit_vqllm(x, orders(600), 16, 4, 0, 100, g)
    plain, _ = fit_residual(x, torch.ones(600), orders(600), 16, METHODS["kmeans"])
    torch.testing.assert_close(books, plain)


def test_vqllm_passes_keep_centroids_near_their_members() -> None:
    x = vectors()
    g = torch.Generator().manual_seed(0)
    books, _ = fit_vqllm(x, orders(600), 16, 8, 2, 100, g)
    plain, _ = fit_residual(x, torch.ones(600), orders(600), 16, stage_fit("kmeans", 8))
    assert not torch.equal(books, plain)
    ratio = float(rq_encode(x, books).err.sum() / rq_encode(x, plain).err.sum())
    assert ratio == pytest.approx(1, abs=0.05)


def test_coupled_with_every_vector_a_codeword_is_exact() -> None:
    x = vectors(12, 2 * 8).reshape(12, 2, 8)
    books = fit_coupled(x, torch.ones(12, 2), 4, torch.arange(12), 2)
    assert books.shape == (2, 2, 12, 4)
    torch.testing.assert_close(quantize_coupled(x, books), x)


def test_round_to_nearest_is_exact_on_its_own_grid() -> None:
    x = torch.tensor([[0.0, 1, 2, 3], [5, 5, 5, 5], [-1, 0, 1, 2]])
    torch.testing.assert_close(scalar.round_groups(x, 2), x)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 4))
def test_round_to_nearest_is_within_half_a_step(seed: int, bits: int) -> None:
    x = vectors(6, 32, seed)
    step = (x.amax(1) - x.amin(1)) / (2**bits - 1)
    assert ((scalar.round_groups(x, bits) - x).abs().amax(1) <= step * 0.51 + 0.005).all()


def test_kivi_groups_tokens_for_keys_and_channels_for_values() -> None:
    """A channel that is constant over a group of tokens is exact in keys, not in values."""
    x = vectors(1, 4 * 10 * 16).reshape(1, 10, 4, 16)
    x[..., 3] = 7.0
    keys = scalar.kivi(x, "k", 2, 4)
    assert keys.shape == x.shape
    torch.testing.assert_close(keys[..., 3], x[..., 3])
    values = scalar.kivi(x, "v", 2, 8)
    torch.testing.assert_close(values, scalar.per_token(x.unflatten(-1, (2, 8)), 2).flatten(-2))


def test_sign_scale_keeps_sign_and_mean_magnitude() -> None:
    x = torch.tensor([[1.0, -3.0, 2.0, -2.0]])
    assert scalar.sign_scale(x).tolist() == [[2, -2, 2, -2]]


def test_levels_are_lloyd_max() -> None:
    """Two levels per channel agree with scikit-learn's weighted 2-means in one dimension."""
    from sklearn.cluster import KMeans

    x = vectors(300, 3).reshape(300, 1, 3)
    weight = torch.rand(300, 1, generator=torch.Generator().manual_seed(2)) + 0.1
    levels = scalar.fit_levels(x, weight, 1, 100)
    for channel in range(3):
        column = x[:, 0, channel, None].numpy()
        theirs = KMeans(2, n_init=4, random_state=0).fit(column, sample_weight=weight[:, 0])
        np.testing.assert_allclose(
            levels[0, channel], np.sort(theirs.cluster_centers_[:, 0]), atol=0.03
        )


def test_levels_quantize_to_the_nearest() -> None:
    levels = torch.tensor([[[-1.0, 0, 3]]])
    x = torch.tensor([-5.0, -0.4, 1.4, 1.6]).reshape(4, 1, 1)
    assert scalar.quantize_levels(x, levels).flatten().tolist() == [-1, 0, 0, 3]


@settings(max_examples=50, deadline=None)
@given(
    bits=st.integers(1, 15),
    shape=st.tuples(st.integers(0, 7), st.integers(1, 5), st.integers(1, 3)),
    seed=st.integers(0, 99),
)
def test_packing_round_trip(bits: int, shape: tuple[int, int, int], seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 2**bits, shape, generator=g)
    data = pack(codes, bits)
    assert data.nbytes == -(-codes.numel() * bits // 8)
    assert torch.equal(unpack(data, bits, shape), codes)


def test_packing_refuses_large_codes() -> None:
    with pytest.raises(ValueError, match="16 does not fit 4 bits"):
        pack(torch.tensor([3, 16]), 4)


def test_bits_of_the_spec() -> None:
    """K=256, d=64, M=8 is 64 bits per 64 numbers; VQLLM pays 16 more for its scale."""
    assert code_bits(256) == 8 and code_bits(2048) == 11 and code_bits(2) == 1
    assert residual_bits(8, 256, 64) * 64 == 64
    assert total_bits(residual_bits(6, 256, 64), 64, 16) == 1.0
    assert total_bits(residual_bits(7, 256, 32), 64, 16) == 2.0
    assert total_bits(1.0, 64, fp_tokens=4, context=128) == pytest.approx(124 / 128 + 16 * 4 / 128)
    assert codebook_bits(8 * 256 * 64, 32768 * 8 * 128) == pytest.approx(0.0625)


def test_packed_bytes_are_the_reported_bits() -> None:
    coder = HeadCoder(torch.randn(8, 256, 64))
    codes, _ = coder.encode(vectors(3 * 10, 64).reshape(10, 3, 64))
    assert pack(codes, 8).nbytes * 8 / (10 * 3 * 64) == residual_bits(8, 256, 64)
