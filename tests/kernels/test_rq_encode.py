"""rq_encode: interpreter and CPU path against the float64 definition, faiss, and known values."""

import faiss
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cases.rq_encode import SHAPES, EncodeShape
from kernels.harness import assert_close
from kernels.rq_decode_attention import dequantize
from kernels.rq_encode import (
    Encoded,
    code_dtype,
    cost,
    first_argmax,
    reference,
    rq_encode,
    rq_encode_torch,
    rq_encode_triton,
)

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def norms(cb: torch.Tensor) -> torch.Tensor:
    return cb.square().sum(-1)


def assert_encodes(actual: Encoded, x: torch.Tensor, cb: torch.Tensor) -> None:
    """Codes bit for bit as the float64 definition; xhat and err to float32 accuracy."""
    expected = reference(x.double(), cb.double())
    assert actual.codes.dtype == code_dtype(cb.shape[1])
    assert torch.equal(actual.codes.long(), expected.codes)
    assert_close(actual.xhat, expected.xhat)
    assert_close(actual.err, expected.err)


def tied() -> tuple[torch.Tensor, torch.Tensor]:
    """Small integers, so that all sums are exact, and every codeword twice, 100 apart."""
    g = torch.Generator().manual_seed(1)
    half = torch.randint(-2, 3, (3, 100, 12), generator=g).float()
    x = torch.randint(-4, 5, (50, 12), generator=g).float()
    return x, torch.cat((half, half), 1)


@pytest.mark.interpreter
@every_shape
def test_kernel_equals_the_definition(shape: EncodeShape) -> None:
    x, cb = shape.inputs()
    assert_encodes(rq_encode_triton(x, cb, norms(cb)), x, cb)


@pytest.mark.interpreter
@every_shape
def test_kernel_equals_the_cpu_path(shape: EncodeShape) -> None:
    x, cb = shape.inputs(seed=2)
    kernel, cpu = rq_encode_triton(x, cb, norms(cb)), rq_encode(x, cb)
    assert torch.equal(kernel.codes, cpu.codes)
    assert torch.equal(kernel.xhat, cpu.xhat)  # the same additions in the same order
    assert_close(kernel.err, cpu.err)


@pytest.mark.interpreter
def test_kernel_with_large_tiles_and_without_xhat() -> None:
    x, cb = EncodeShape("large N", 2049, 64, 1, 40).inputs()
    out = rq_encode_triton(x, cb, norms(cb), want_xhat=False)
    assert out.xhat is None
    assert torch.equal(out.codes.long(), reference(x.double(), cb.double()).codes)


@pytest.mark.interpreter
def test_kernel_breaks_ties_to_the_lowest_index() -> None:
    x, cb = tied()
    codes = rq_encode_triton(x, cb, norms(cb)).codes
    assert torch.equal(codes.long(), reference(x.double(), cb.double()).codes)
    assert int(codes.max()) < 100


@pytest.mark.interpreter
def test_kernel_reports_nan_rows_and_keeps_their_codes_in_range() -> None:
    x, cb = EncodeShape("", 20, 8, 2, 5).inputs()
    x[3, 1] = float("nan")
    out = rq_encode_triton(x, cb, norms(cb))
    assert out.err.isnan().nonzero().tolist() == [[3]]
    assert int(out.codes.max()) < 5


@every_shape
def test_cpu_path_equals_the_definition(shape: EncodeShape) -> None:
    x, cb = shape.inputs(seed=1)
    assert_encodes(rq_encode(x, cb), x, cb)


@pytest.mark.parametrize("rows", [1, 50], ids=["argmax", "ranks"])
def test_cpu_path_breaks_ties_to_the_lowest_index(rows: int) -> None:
    x, cb = tied()
    x = x.repeat(rows, 1)  # 50 * 200 and 2500 * 200 scores: both branches of first_argmax
    assert_encodes(rq_encode(x, cb), x, cb)
    assert int(rq_encode(x, cb).codes.max()) < 100


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(0, 300),
    d=st.integers(1, 40),
    m=st.integers(1, 4),
    k=st.integers(1, 400),
    step=st.integers(1, 3),
    seed=st.integers(0, 2**20),
)
def test_cpu_path_on_any_shape(n: int, d: int, m: int, k: int, step: int, seed: int) -> None:
    x, cb = EncodeShape("", n, d, m, k, step=step).inputs(seed)
    out = rq_encode(x, cb)
    # Scores that float32 cannot tell apart may fall either way: compare what the choice costs.
    expected = reference(x.double(), cb.double())
    agree = (out.codes.long() == expected.codes).all(1)
    assert agree.sum() >= 0.99 * n - 1
    digits = {"rtol": 1e-5, "atol": 1e-5 * float(x.square().sum(1).max()) if n else 0.0}
    torch.testing.assert_close(out.err[agree].double(), expected.err[agree], **digits)
    torch.testing.assert_close(out.err, (x - out.xhat).square().sum(1), **digits)
    assert_close(out.xhat, dequantize(out.codes[:, None], cb))
    assert int(out.codes.long().max() if n else 0) < k


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 300), k=st.integers(1, 300), levels=st.integers(1, 5))
def test_first_argmax_is_the_first_of_the_largest(n: int, k: int, levels: int) -> None:
    g = torch.Generator().manual_seed(n * 300 + k)
    score = torch.randint(levels, (n, k), generator=g).float()
    rank = torch.arange(k, 0, -1, dtype=torch.float32)
    first = [row.index(max(row)) for row in score.tolist()]
    assert first_argmax(score, rank, torch.empty_like(score)).tolist() == first
    assert score.argmax(1).tolist() == first


def test_codes_are_those_of_faiss() -> None:
    x, cb = EncodeShape("", 3000, 32, 4, 64).inputs()
    peer = faiss.ResidualQuantizer(32, 4, 6)
    peer.max_beam_size = 1
    faiss.copy_array_to_vector(cb.numpy().ravel(), peer.codebooks)
    peer.is_trained = True
    codes = torch.from_numpy(faiss.unpack_bitstrings(peer.compute_codes(x.numpy()), 4, 6))
    assert torch.equal(rq_encode(x, cb).codes.long(), codes.long())


def test_known_values() -> None:
    cb = torch.tensor([[[4.0, 0.0], [0.0, 4.0]], [[0.0, 0.0], [1.0, 0.0]]])
    out = rq_encode(torch.tensor([[5.0, 0.0], [0.0, 7.0], [2.0, 2.0]]), cb)
    assert out.codes.tolist() == [[0, 1], [1, 0], [0, 0]]  # the last is a tie at stage one
    assert out.xhat.tolist() == [[5.0, 0.0], [0.0, 4.0], [4.0, 0.0]]
    assert out.err.tolist() == [0.0, 9.0, 8.0]


def test_codewords_encode_themselves_without_error() -> None:
    cb = EncodeShape("", 0, 16, 1, 90).inputs()[1]
    out = rq_encode(cb[0], cb)
    assert out.codes[:, 0].tolist() == list(range(90))
    assert not out.err.any()


def test_more_rows_than_a_chunk_and_memory_layouts() -> None:
    x, cb = EncodeShape("", 2500, 12, 2, 200).inputs()  # a chunk has 2^18 / 200 = 1310 rows
    assert_encodes(rq_encode(x, cb), x, cb)
    plain = rq_encode(x, cb)
    turned = rq_encode(x.T.contiguous().T, cb.mT.contiguous().mT, norms(cb))
    assert all(torch.equal(a, b) for a, b in zip(plain, turned, strict=True))
    assert rq_encode(x.requires_grad_(), cb, want_xhat=False).xhat is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(3, 8, dtype=torch.int64)}, "x: int64 of shape"),
        ({"x": torch.zeros(8)}, r"x: float32 of shape \[8\]"),
        ({"x": torch.full((3, 8), float("nan"))}, "x: row 0"),
        ({"x": torch.full((3, 8), 1e30)}, "x: row 0"),
        ({"cb": torch.zeros(2, 4, 7)}, "cb: codewords of 7 dims for x of 8"),
        ({"cb": torch.zeros(2, 4, 8).double()}, "cb: float64"),
        ({"cb": torch.zeros(1, 1, 8).expand(1, 32769, 8)}, "K=32769; .* 32768"),
        ({"cb": torch.zeros(0, 4, 8)}, "M=0"),
        ({"cb": torch.zeros(2, 0, 8)}, "K=0"),
        ({"cb": torch.full((2, 4, 8), float("inf"))}, "cb: values .* not finite"),
        ({"cn": torch.zeros(2, 5)}, r"cn: .* shape \[2, 4\] expected"),
        ({"cb": torch.zeros(2, 4, 8, device="meta")}, "cb: on meta"),
    ],
)
def test_bad_input_is_named(change: dict[str, torch.Tensor], message: str) -> None:
    good = {"x": torch.zeros(3, 8), "cb": torch.zeros(2, 4, 8)}
    with pytest.raises(ValueError, match=message):
        rq_encode(**good | change)


@pytest.mark.interpreter
def test_kernel_refuses_dims_beyond_the_register_file() -> None:
    cb = torch.zeros(1, 2, 513)
    with pytest.raises(ValueError, match="d is 513"):
        rq_encode_triton(torch.zeros(1, 513), cb, norms(cb))


def test_cost_of_the_published_example() -> None:
    flops, traffic = cost(8192 * 8, 128, 8, 256)
    assert flops == 2 * 65536 * 8 * 256 * 128  # 34 GF
    assert traffic == 65536 * 128 * 2 + 8 * 256 * 129 * 4 + 65536 * 8 + 65536 * 4


@pytest.mark.gpu
@every_shape
def test_gpu_equals_the_definition(shape: EncodeShape) -> None:
    x, cb = shape.inputs()
    out = rq_encode(x.cuda(), cb.cuda())
    assert_encodes(Encoded(*(part.cpu() for part in out)), x, cb)


@pytest.mark.gpu
def test_gpu_with_many_rows() -> None:
    x, cb = EncodeShape("", 5000, 64, 8, 256, torch.float16).inputs()
    out = rq_encode(x.cuda(), cb.cuda(), want_xhat=False)
    agree = out.codes.cpu() == rq_encode_torch(x, cb, norms(cb)).codes
    assert agree.all(1).float().mean() > 0.999
