"""seed_dequant: interpreter and CPU path are the definition, bit for bit in float32."""

import pytest
import torch

from kernels.cases.seed_dequant import SHAPES, DequantShape, eager
from kernels.cases.seed_gemv import BASE_EXP, E, SeedShape
from kernels.harness import assert_close
from kernels.seed_dequant import cost, reference, seed_dequant
from kernels.seed_format import SeedFormat
from kernels.seed_gemv import seed_gemv

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def assert_decodes(
    actual: torch.Tensor, shape: DequantShape, args: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """As float64 to rounding, and exactly the stated float32 arithmetic, rounded once."""
    expected = reference(*args, shape.form, shape.inputs_count, BASE_EXP, E)
    assert actual.dtype == shape.dtype
    assert_close(actual, expected)
    assert torch.equal(actual, eager(shape, args))


@pytest.mark.interpreter
@every_shape
def test_kernel_equals_the_definition(shape: DequantShape) -> None:
    args = shape.inputs()
    assert_decodes(shape.run_triton(args), shape, args)


@every_shape
def test_cpu_path_equals_the_definition(shape: DequantShape) -> None:
    args = shape.inputs(seed=1)
    assert_decodes(shape.run(args), shape, args)


def test_rows_of_the_identity_are_the_weights() -> None:
    """Two decoders, one by lanes and one by channels, of the same bytes."""
    form = SeedFormat(8, 4, 8, 3, "sign")
    shape = SeedShape("", 1, 30, 2, form)
    _, records, stream = shape.inputs()
    options = {"base_exp": -3, "e": E, **vars(form)}
    weights = seed_dequant(records, stream, Kin=16, dtype=torch.float32, **options)
    assert torch.equal(seed_gemv(torch.eye(16), records, stream, **options).T, weights)


def test_exponents_scale_by_powers_of_two() -> None:
    shape = SHAPES[0]
    args = shape.inputs()
    options = {"Kin": shape.inputs_count, "e": E, **vars(shape.form), "dtype": torch.float32}
    low, high = (seed_dequant(*args, base_exp=exponent, **options) for exponent in (-100, 20))
    assert torch.equal(low.double() * 2.0**120, high.double())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Kin": 97}, "Kin: 97; a multiple of C=8"),
        ({"Kin": 8000}, "records: rows of 64 words; 1000 records"),
        ({"dtype": torch.int8}, "dtype: torch.int8"),
        ({"stream": torch.zeros(40, dtype=torch.int32, device="meta")}, "stream: .* on meta"),
        ({"stream": torch.zeros(40)}, "stream: float32"),
        ({"b": 8, "P": 16}, "record: 140 bits"),
        ({"base_exp": 200}, "base_exp: 200"),
    ],
)
def test_bad_input_is_named(change: dict[str, object], message: str) -> None:
    shape = SHAPES[0]
    records, stream = shape.inputs()
    good = {"records": records, "stream": stream, "Kin": shape.inputs_count, "base_exp": 0, "e": E}
    with pytest.raises(ValueError, match=message):
        seed_dequant(**good | vars(shape.form) | change)


def test_cost_is_that_of_writing_the_weights() -> None:
    form = SeedFormat(8, 4, 16, 3, "sign")
    _, traffic = cost(4096, 4096, form, 32)
    assert 4096 * 4096 * 5 // 2 < traffic < 1.01 * 4096 * 4096 * 5 // 2


@pytest.mark.gpu
@every_shape
def test_gpu_equals_the_definition(shape: DequantShape) -> None:
    args = shape.inputs()
    assert_decodes(shape.run(tuple(t.cuda() for t in args)).cpu(), shape, args)
