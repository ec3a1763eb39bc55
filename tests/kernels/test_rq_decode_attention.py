"""rq_decode_attention: interpreter and CPU path against float64, torch's SDPA and known values."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cases.rq_decode_attention import SHAPES, AttentionShape
from kernels.harness import assert_close
from kernels.rq_decode_attention import (
    Attended,
    Operands,
    cost,
    dequantize,
    reference,
    rotate,
    rq_decode_attention,
    rq_decode_attention_triton,
    split_count,
)

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def exact(shape: AttentionShape, args: Operands) -> Attended:
    wide = (t.double() if t.is_floating_point() else t for t in args)
    return reference(Operands(*wide), shape.scale, rope=shape.rope)


def assert_attends(actual: Attended, expected: Attended) -> None:
    """o within the tolerance of its type; lse as precise as keys rounded to it, infinity exact."""
    assert_close(actual.o, expected.o)
    assert actual.lse.dtype == torch.float32
    atol = 1e-2 if actual.o.dtype == torch.bfloat16 else 1e-3
    torch.testing.assert_close(actual.lse.double(), expected.lse.double(), rtol=0, atol=atol)


def sdpa(shape: AttentionShape, args: Operands, b: int) -> torch.Tensor:
    """torch's attention of sequence b over the dequantized cache, in q's type."""
    length = shape.lens[b]
    cos, sin = args.cos[:length], args.sin[:length]
    keys = rotate(dequantize(args.kc[b, :, :length], args.kcb.float()), cos, sin, shape.rope)
    values = dequantize(args.vc[b, :, :length], args.vcb.float())
    q = args.q[b, :, None]
    return F.scaled_dot_product_attention(
        q, keys.to(q.dtype), values.to(q.dtype), scale=shape.scale, enable_gqa=True
    )[:, 0]


@pytest.mark.interpreter
@pytest.mark.parametrize("splits", [1, 3])
@every_shape
def test_kernel_equals_the_definition(shape: AttentionShape, splits: int) -> None:
    args = shape.inputs()
    out = rq_decode_attention_triton(args, shape.scale, rope=shape.rope, splits=splits)
    assert_attends(out, exact(shape, args))


@pytest.mark.interpreter
@pytest.mark.parametrize("rope", ["half", "interleaved"])
@pytest.mark.parametrize("r", [1, 3, 4])
def test_kernel_equals_sdpa_on_the_dequantized_cache(r: int, rope: str) -> None:
    shape = AttentionShape("", (1, 67), 2, r, 2, 16, 3, 32, rope=rope)
    args = shape.inputs(seed=r)
    out = rq_decode_attention_triton(args, shape.scale, rope=rope, splits=2)
    for b in range(2):
        assert_close(out.o[b], sdpa(shape, args, b), tolerance=2e-3)


@pytest.mark.interpreter
@every_shape
def test_kernel_equals_the_cpu_path(shape: AttentionShape) -> None:
    args = shape.inputs(seed=2)
    kernel = rq_decode_attention_triton(args, shape.scale, rope=shape.rope, splits=2)
    cpu = rq_decode_attention(*args, shape.scale, rope=shape.rope)
    assert_attends(kernel, cpu)


@pytest.mark.interpreter
def test_kernel_reads_codes_that_begin_in_the_middle_of_a_word() -> None:
    shape = AttentionShape("", (20,), 1, 2, 1, 32, 4, 16)
    args = shape.inputs()
    plain = rq_decode_attention_triton(args, shape.scale, splits=1)
    shifted = torch.cat((args.kc.flatten()[:3], args.kc.flatten()))[3:].view_as(args.kc)
    assert shifted.storage_offset() == 3
    moved = rq_decode_attention_triton(args._replace(kc=shifted), shape.scale, splits=1)
    assert torch.equal(plain.o, moved.o)


@pytest.mark.interpreter
def test_kernel_ignores_what_lies_beyond_the_filled_positions() -> None:
    shape = AttentionShape("", (40, 65), 1, 3, 1, 32, 2, 256, spare=30)
    args = shape.inputs()
    before = rq_decode_attention_triton(args, shape.scale, splits=2)
    for b, length in enumerate(shape.lens):
        args.kc[b, :, length:] = 255
        args.vc[b, :, length:] = 255
        args.cos[max(shape.lens) :] = float("nan")
    after = rq_decode_attention_triton(args, shape.scale, splits=2)
    assert torch.equal(before.o, after.o) and torch.equal(before.lse, after.lse)


@every_shape
def test_cpu_path_equals_the_definition(shape: AttentionShape) -> None:
    args = shape.inputs(seed=1)
    assert_attends(rq_decode_attention(*args, shape.scale, rope=shape.rope), exact(shape, args))


@every_shape
def test_cpu_path_equals_sdpa_on_the_dequantized_cache(shape: AttentionShape) -> None:
    args = shape.inputs(seed=3)
    out = rq_decode_attention(*args, shape.scale, rope=shape.rope)
    for b, length in enumerate(shape.lens):
        if length:
            assert_close(out.o[b], sdpa(shape, args, b))


@settings(max_examples=30, deadline=None)
@given(
    lens=st.lists(st.integers(0, 40), max_size=3),
    hkv=st.integers(1, 3),
    r=st.integers(1, 4),
    g=st.integers(1, 3),
    half_d=st.integers(1, 8),
    m=st.integers(1, 3),
    k=st.integers(1, 300),
    rope=st.sampled_from(["half", "interleaved"]),
    spare=st.integers(0, 5),
)
def test_cpu_path_on_any_shape(
    lens: list[int], hkv: int, r: int, g: int, half_d: int, m: int, k: int, rope: str, spare: int
) -> None:
    shape = AttentionShape("", tuple(lens), hkv, r, g, 2 * half_d, m, k, torch.float32, rope, spare)
    args = shape.inputs(seed=k)
    out, expected = rq_decode_attention(*args, shape.scale, rope=rope), exact(shape, args)
    assert_close(out.o, expected.o, tolerance=1e-5)
    torch.testing.assert_close(out.lse.double(), expected.lse, rtol=1e-5, atol=1e-5)


def test_runs_longer_than_a_chunk_and_memory_layouts() -> None:
    shape = AttentionShape("", (5000,), 2, 2, 1, 64, 2, 16, torch.float32)  # a run has 2048
    args = shape.inputs()
    plain = rq_decode_attention(*args, shape.scale)
    assert_attends(plain, exact(shape, args))
    by_position = Operands(*(t.mT.contiguous().mT if t.ndim > 2 else t for t in args))
    assert torch.equal(rq_decode_attention(*by_position, shape.scale).o, plain.o)


def test_a_sequence_does_not_depend_on_its_batch() -> None:
    shape = AttentionShape("", (30, 12), 1, 2, 1, 16, 2, 16, torch.float32, spare=3)
    args = shape.inputs()
    both = rq_decode_attention(*args, shape.scale)
    alone = args._replace(q=args.q[1:], kc=args.kc[1:], vc=args.vc[1:], lens=args.lens[1:])
    assert torch.equal(rq_decode_attention(*alone, shape.scale).o[0], both.o[1])


def test_known_values() -> None:
    """Position 0 is not turned: scores ln 3 and 0 give weights 3/4 and 1/4, lse = ln 4."""
    codes = torch.tensor([0, 1], dtype=torch.uint8).view(1, 1, 2, 1, 1)
    kcb = torch.tensor([[[math.log(3.0), 0.0], [0.0, 0.0]]])
    vcb = torch.tensor([[[4.0, 0.0], [0.0, 8.0]]])
    cos, sin = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]])
    q, lens = torch.tensor([[[1.0, 0.0]]]), torch.tensor([2])
    out = rq_decode_attention(q, codes, codes, kcb, vcb, cos, sin, lens, 1.0)
    torch.testing.assert_close(out.o, torch.tensor([[[3.0, 2.0]]]))
    torch.testing.assert_close(out.lse, torch.tensor([[math.log(4.0)]]))


def test_rotation_is_complex_multiplication() -> None:
    x, angle = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    turn = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * turn)
    cos, sin = angle.cos(), angle.sin()
    torch.testing.assert_close(rotate(x, cos, sin, "interleaved"), pairs.flatten(-2))
    halves = x.unflatten(-1, (4, 2)).mT.flatten(-2)  # the same pairs, laid out half-split
    torch.testing.assert_close(rotate(halves, cos, sin, "half"), pairs.mT.flatten(-2))


def test_split_count() -> None:
    assert split_count(pairs=8, s=131072, block_s=64, processors=132) == 33  # two per processor
    assert split_count(pairs=512, s=131072, block_s=64, processors=132) == 1  # enough already
    assert split_count(pairs=1, s=300, block_s=64, processors=132) == 2  # four tiles each
    assert split_count(pairs=1, s=0, block_s=64, processors=132) == 1


BAD: list[tuple[dict[str, object], str]] = [
    ({"q": torch.zeros(2, 6, 16, dtype=torch.int32)}, "q: int32"),
    ({"q": torch.zeros(2, 6, 24)}, "q: D=24 with groups of d=16"),
    ({"q": torch.zeros(2, 5, 16)}, "kc: .* Hkv dividing 5"),
    ({"kc": torch.zeros(2, 2, 9, 1, 3, dtype=torch.int16)}, "kc: int16 .* torch.uint8"),
    ({"vc": torch.zeros(2, 2, 8, 1, 3, dtype=torch.uint8)}, "vc: .* alike"),
    ({"vc": torch.full((2, 2, 9, 1, 3), 16, dtype=torch.uint8)}, r"codes: 16\.\.16 found; 0\.\.15"),
    ({"vcb": torch.zeros(3, 15, 16)}, "vcb: .* alike"),
    ({"kcb": torch.zeros(3, 16, 16, dtype=torch.int32)}, "kcb: int32"),
    ({"cos": torch.zeros(8, 8)}, r"cos: .* \[9, 8\] expected"),
    ({"sin": torch.zeros(9, 8, device="meta")}, "sin: on meta"),
    ({"lens": torch.tensor([9, 10])}, r"lens: 9\.\.10; 0\.\.9"),
    ({"lens": torch.tensor([9.0, 9.0])}, "lens: float32"),
    ({"rope": "spiral"}, "rope: 'spiral'; half or interleaved"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input_is_named(change: dict[str, object], message: str) -> None:
    shape = AttentionShape("", (9, 9), 2, 3, 1, 16, 3, 16, torch.float32)
    good = shape.inputs()._asdict() | {"scale": 1.0, "rope": "half"}
    with pytest.raises(ValueError, match=message):
        rq_decode_attention(**good | change)


def test_cost_at_one_bit() -> None:
    b, hq, hkv, s, d_head = 16, 32, 8, 131072, 128
    flops, traffic = cost(b, hq, hkv, s, g=2, d=64, m=8, k=256)
    assert flops == 4 * b * hq * s * d_head + 2 * b * hkv * s * d_head * 11
    tables, dense = 4 * s * d_head, 4 * b * hkv * s * d_head
    assert 15.9 < dense / (traffic - tables) < 16  # 16 bit over 1 bit, but for the codebooks


@pytest.mark.gpu
@every_shape
def test_gpu_equals_the_definition(shape: AttentionShape) -> None:
    args = shape.inputs()
    out = rq_decode_attention(*(t.cuda() for t in args), shape.scale, rope=shape.rope)
    assert_attends(Attended(out.o.cpu(), out.lse.cpu()), exact(shape, args))
