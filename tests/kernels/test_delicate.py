"""Where kernels go wrong: offsets beyond 2^31, ragged ends of tiles, runs that differ.

Offsets are tested on views of sparse memory: an anonymous mapping of many gigabytes of which only
the pages that are written exist. Each view lies so far inside that an offset that wrapped around at
2^31 would read zeros of the same mapping, hence give wrong values rather than a crash.
"""

import mmap
from pathlib import Path

import pytest
import torch
from triton.runtime import interpreter

import kernels
from kernels.cases import operations
from kernels.cases.rq_decode_attention import AttentionShape
from kernels.cases.rq_encode import EncodeShape
from kernels.cases.seed_dequant import DequantShape
from kernels.cases.seed_gemv import SeedShape
from kernels.cases.seed_search import SearchShape
from kernels.harness import assert_close
from kernels.rq_decode_attention import reference as attend
from kernels.rq_decode_attention import rq_decode_attention_triton
from kernels.rq_encode import reference, rq_encode_triton
from kernels.seed_format import SeedFormat
from kernels.seed_search import seed_search, seed_search_triton

FAR = 2**31
NO_RESERVE = 0x4000  # Linux; mmap.MAP_NORESERVE from Python 3.13


def sparse(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A view of zeros that begins FAR elements into a mapping."""
    span = FAR + 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    memory = torch.frombuffer(mmap.mmap(-1, span * dtype.itemsize, flags=flags), dtype=dtype)
    return memory.as_strided(shape, stride, FAR)


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter copies each argument's whole storage back; on a CPU, onto itself."""
    monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *args: None)


@pytest.mark.interpreter
def test_encoder_reaches_rows_beyond_2_31_elements(in_place: None) -> None:
    values, cb = EncodeShape("", 18, 16, 2, 20, torch.float16).inputs()
    x = sparse((18, 16), (2**27, 1), torch.float16)  # row 16 begins at 2^31
    x.copy_(values)
    out = rq_encode_triton(x, cb, cb.square().sum(-1))
    assert torch.equal(out.codes.long(), reference(values.double(), cb.double()).codes)


@pytest.mark.interpreter
def test_attention_reaches_caches_beyond_2_31_codes(in_place: None) -> None:
    lens = tuple(5 if b in (0, 17) else 0 for b in range(18))
    args = AttentionShape("", lens, 1, 1, 1, 2, 1, 16).inputs()
    spare = 2**27  # positions per sequence: sequence 16 begins at 2^31
    shape, stride = (18, 1, spare, 1, 1), (spare, spare, 1, 1, 1)
    far = {"kc": sparse(shape, stride, torch.uint8), "vc": sparse(shape, stride, torch.uint8)}
    for name in ("cos", "sin"):
        far[name] = sparse((spare, 1), (1, 1), torch.float32)
        far[name][:5] = getattr(args, name)
    for name in ("kc", "vc"):
        far[name][:, :, :5] = getattr(args, name)
    out = rq_decode_attention_triton(args._replace(**far), 1.0, splits=1)
    wide = (t.double() if t.is_floating_point() else t for t in args)
    assert_close(out.o, attend(type(args)(*wide), 1.0).o)


@pytest.mark.interpreter
@pytest.mark.parametrize("dequant", [False, True], ids=["gemv", "dequant"])
def test_seed_kernels_reach_records_beyond_2_31_words(in_place: None, dequant: bool) -> None:
    form = SeedFormat(8, 2, 8, 3, "sign")
    shape = DequantShape("", 34, 3, form) if dequant else SeedShape("", 1, 34, 3, form)
    *x, near, stream = shape.inputs()
    records = sparse((34, 2**26), (2**26, 1), torch.int32)  # row 32 begins at 2^31
    records[:, : near.shape[1]] = near
    out = shape.run_triton((*x, records, stream))
    assert torch.equal(out, shape.run_triton((*x, near, stream)))
    assert_close(out[..., 32:], shape.run((*x, near, stream))[..., 32:])


@pytest.mark.interpreter
@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 129])
def test_lengths_around_the_tile(length: int) -> None:
    """Positions, vectors, blocks and seeds that do not fill their last tile."""
    attention = AttentionShape("", (length,), 1, 1, 1, 16, 2, 16, torch.float32)
    args = attention.inputs()
    wide = type(args)(*(t.double() if t.is_floating_point() else t for t in args))
    for splits in (1, 2):
        out = rq_decode_attention_triton(args, 0.25, splits=splits)
        assert_close(out.o, attend(wide, 0.25).o)
    x, cb = EncodeShape("", length, 5, 1, length).inputs()
    out = rq_encode_triton(x, cb, cb.square().sum(-1))
    assert torch.equal(out.codes.long(), reference(x.double(), cb.double()).codes)
    w, projectors = SearchShape("", 3, 4, length, 1, p=2).inputs()
    hits, expected = seed_search_triton(w, projectors, 1), seed_search(w, projectors, 1)
    assert_close(hits.energy, expected.energy)
    gemv = SeedShape("", 1, 3, length, SeedFormat(4, 2, 8, 3, "sign"))
    assert_close(gemv.run_triton(gemv.inputs()), gemv.run(gemv.inputs()))


@pytest.mark.interpreter
@pytest.mark.parametrize("operation", operations(), ids=lambda operation: operation.name)
def test_a_second_run_gives_the_same_bits(operation: object) -> None:
    for shape in operation.rehearse:
        comparison = operation.on_gpu(shape, torch.device("cpu"))
        runs = [comparison.ours.call(comparison.operands(3)) for _ in range(2)]
        first, second = (run if isinstance(run, tuple) else (run,) for run in runs)
        for a, b in zip(first, second, strict=True):
            assert a is b is None or torch.equal(a, b)


def test_nothing_is_tuned_at_run_time() -> None:
    """Tiles follow from shapes alone (`tile`): a timing cannot change the order of a sum."""
    sources = [path.read_text() for path in Path(*kernels.__path__).glob("*.py")]
    assert not any("autotune" in source or "atomic_" in source for source in sources)
