"""seed_gemv: interpreter and CPU path against the float64 definition, known values, bad input."""

import pytest
import torch

from kernels.cases.seed_gemv import (
    BASE_EXP,
    SHAPES,
    E,
    SeedShape,
    dense,
    int4,
    int4_mm,
    pack,
    stream_of,
    to_bits,
)
from kernels.harness import assert_close, rms_ratio
from kernels.seed_format import SeedFormat, stream_values
from kernels.seed_gemv import cost, reference, seed_gemv, seed_gemv_ragged

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def exact(shape: SeedShape, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The definition in float64."""
    x = args[0].double()
    if not shape.ragged:
        return reference(x, *args[1:], shape.form, BASE_EXP, E)
    return x @ ragged_weights(shape, args).T


def ragged_weights(shape: SeedShape, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Block by block, coefficient by coefficient."""
    _, heads, coefs, row_start, scales, stream = args
    form, values = shape.form, stream_values(stream, shape.form.basis, shape.form.K).tolist()
    bits, coefs, rows = shape.record_bits, coefs.tolist(), []
    for o, words in enumerate(heads.tolist()):
        stored = sum((word & 0xFFFFFFFF) << (32 * i) for i, word in enumerate(words))
        at, row = int(row_start[o]), []
        for j in range(shape.blocks):
            head = stored >> (j * bits)
            position = head % 2**form.K
            count = (head >> form.K) % 2**shape.count_bits + 2
            q, at = coefs[at : at + count], at + count
            for c in range(form.C):
                entries = (values[position + (i * form.C + c) * form.step] for i in range(count))
                total = sum(a * v for a, v in zip(q, entries, strict=True))
                row.append(total * float(scales[o, j // 8]) * shape.unit)
        assert at == int(row_start[o + 1])
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64).view(shape.n_out, shape.inputs_count)


@pytest.mark.interpreter
@every_shape
def test_kernel_equals_the_definition(shape: SeedShape) -> None:
    args = shape.inputs()
    out = shape.run_triton(args)
    assert out.dtype == shape.dtype
    assert_close(out, exact(shape, args))


@every_shape
def test_cpu_path_equals_the_definition(shape: SeedShape) -> None:
    args = shape.inputs(seed=1)
    assert_close(shape.run(args), exact(shape, args))


def test_a_row_of_x_does_not_depend_on_the_others() -> None:
    shape = SeedShape("", 5, 30, 12, SeedFormat(8, 4, 8, 3, "sign"), dtype=torch.float32)
    x, *rest = shape.inputs()
    assert_close(shape.run((x[2:3], *rest)), shape.run((x, *rest))[2:3])


def test_known_values() -> None:
    """K=4, taps (4, 3): the stream begins 1 0 0 0 1 0 0 1 1 0 1 0 1 1 1 and repeats."""
    form = SeedFormat(4, 2, 4, 3, "sign")
    stream = stream_of(form)
    bits = (stream_values(stream, "sign", 4) + 1) // 2
    assert bits[:20].tolist() == [1, 0, 0, 0, 1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0, 0, 0, 1]
    # position 1, field 3, q = (3, -4): 3 (- - - +) - 4 (- - + +), times 2^(1 - 3)
    fields = ((1, 4), (3, 4), (3, 3), (4, 3))
    record = torch.cat([to_bits(torch.tensor(value), width) for value, width in fields])
    x = torch.eye(4)
    y = seed_gemv(x, pack(record[None]), stream, base_exp=1, e=4, **vars(form))
    assert y[:, 0].tolist() == [0.25, 0.25, -1.75, -0.25]


@pytest.mark.parametrize("ragged", [False, True])
def test_peers_multiply_the_same_weights(ragged: bool) -> None:
    form = SeedFormat(8, 4, 8, 8 if ragged else 3, "state" if ragged else "sign")
    shape = SeedShape("", 1, 32, 16, form, ragged, torch.bfloat16)
    args = shape.inputs()
    weights = dense(shape, args)
    assert_close(args[0].double() @ weights.double().T, exact(shape, args), dtype=torch.bfloat16)
    four_bits = int4_mm((args[0], *int4(weights)))
    assert rms_ratio(four_bits, exact(shape, args)) < 0.3


GOOD = SHAPES[0]
BAD = [
    ({"x": torch.zeros(1, 95)}, "Kin: 95; a multiple of C=8"),
    ({"x": torch.zeros(17, 96)}, "x: 17 rows; at most 16"),
    ({"x": torch.zeros(1, 96, dtype=torch.int32)}, "x: int32"),
    ({"records": torch.zeros(64, 2, dtype=torch.int32)}, "records: rows of 2 words; 12 records"),
    ({"records": torch.zeros(64, 16)}, "records: float32"),
    ({"stream": torch.zeros(3, dtype=torch.int32)}, r"stream: .* at least \d+ words"),
    ({"stream": torch.zeros(30, dtype=torch.int32, device="meta")}, "stream: on meta"),
    ({"C": 6}, "C: 6; 4 to 16 in steps of 4"),
    ({"K": 17}, "K: 17; 2 to 16"),
    ({"b": 9}, "b: 9; 2 to 8"),
    ({"b": 8, "P": 16}, "record: 140 bits"),
    ({"basis": "noise"}, "basis: 'noise'; sign, state, word"),
    ({"base_exp": 128}, "base_exp: 128; -111 to 127"),
    ({"base_exp": -112}, "base_exp: -112"),
    ({"e": 0}, "e: 0"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input_is_named(change: dict[str, object], message: str) -> None:
    x, records, stream = GOOD.inputs()
    good = {"x": x, "records": records, "stream": stream, "base_exp": 0, "e": E, **vars(GOOD.form)}
    with pytest.raises(ValueError, match=message):
        seed_gemv(**good | change)


def test_a_position_beyond_the_period_is_named() -> None:
    x, records, stream = GOOD.inputs()
    records[3, 0] |= 0xFF
    with pytest.raises(ValueError, match="position: 255 found; 0 to 254"):
        seed_gemv(x, records, stream, base_exp=0, e=E, **vars(GOOD.form))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"coefs": torch.zeros(5, dtype=torch.int8)}, "coefs: 5 values; the counts ask for"),
        ({"coefs": torch.zeros(5)}, "coefs: float32"),
        ({"scales": torch.zeros(33, 4, dtype=torch.float16)}, r"scales: .* \[33, 3\] expected"),
        ({"row_start": torch.zeros(33, dtype=torch.int64)}, r"row_start: .* \[34\] expected"),
        ({"k_max": 3}, "heads: a count of 5; at most k_max=3"),
        ({"kb": 5}, "kb: 5"),
        ({"G": 0}, "G: 0"),
    ],
)
def test_bad_ragged_input_is_named(change: dict[str, object], message: str) -> None:
    shape = next(shape for shape in SHAPES if shape.name == "ragged rows")
    names = ("x", "heads", "coefs", "row_start", "scales", "stream")
    good: dict[str, object] = dict(zip(names, shape.inputs(), strict=True))
    good |= {"unit": shape.unit, "C": 8, "K": 8, "G": 8, "kb": 2, "basis": "state"}
    seed_gemv_ragged(**good)
    with pytest.raises(ValueError, match=message):
        seed_gemv_ragged(**good | change)


def test_cost_at_four_bits() -> None:
    form = SeedFormat(8, 5, 16, 3, "sign")
    flops, traffic = cost(1, 4096, 4096, form, 32)
    assert flops == 2 * 4096 * 4096 * 6
    assert 4096 * 4096 // 2 < traffic < 1.01 * 4096 * 4096 // 2


@pytest.mark.gpu
@every_shape
def test_gpu_equals_the_definition(shape: SeedShape) -> None:
    args = shape.inputs()
    assert_close(shape.run(tuple(t.cuda() for t in args)).cpu(), exact(shape, args))
