"""Every operation brings what tests, inspection and benchmark expect of it."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

from kernels.cases import operations
from kernels.operation import Operation

KERNELS = Path(inspect.getfile(operations)).parents[1]
each = pytest.mark.parametrize("operation", operations(), ids=lambda operation: operation.name)


def test_every_kernel_file_is_registered() -> None:
    with_kernels = {
        path.stem
        for path in KERNELS.glob("*.py")
        if re.search(r"def \w+_kernel\(", path.read_text())
    }
    assert with_kernels == {operation.name for operation in operations()}


@each
def test_an_operation_is_whole(operation: Operation) -> None:
    module = import_module(f"kernels.{operation.name}")
    for name in (operation.name, f"{operation.name}_triton", "reference", "cost"):
        assert callable(getattr(module, name)), f"kernels/{operation.name}.py has no {name}"
        assert getattr(module, name).__doc__
    assert (Path(__file__).parent / f"test_{operation.name}.py").is_file()


@each
def test_cases_are_named_apart_and_there(operation: Operation) -> None:
    names = [shape.name for shape in operation.shapes]
    assert len(set(names)) == len(names) >= 5
    assert operation.bench_cpu and operation.bench_gpu and operation.rehearse
    builds = [variant.name for variant in operation.variants()]
    assert len(set(builds)) == len(builds) > 0


@each
def test_inputs_are_fresh_for_every_seed(operation: Operation) -> None:
    shape = operation.rehearse[0]
    first, again, other = shape.inputs(1), shape.inputs(1), shape.inputs(2)
    tensors = [isinstance(value, torch.Tensor) for value in first]
    assert all(
        torch.equal(a, b)
        for a, b, is_tensor in zip(first, again, tensors, strict=True)
        if is_tensor
    )
    assert not all(
        torch.equal(a, b)
        for a, b, is_tensor in zip(first, other, tensors, strict=True)
        if is_tensor
    )
