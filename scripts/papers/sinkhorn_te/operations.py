"""Counts of the floating-point operations that the array code really executes.

Seconds differ between runs; counts do not, so that the growth of the cost with n can be judged.
An array of type `Counted` passes its type on through every numpy call and adds up multiply-adds of
products, factorizations and solves, and one operation per element of everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from scripts.papers.sinkhorn_te import effect, nuisance
from scripts.papers.sinkhorn_te.sinkhorn import Array

# Leading terms for an n x n matrix and k right-hand sides, LU, Cholesky and symmetric QR.
_FACTORIZATIONS: dict[str, Callable[[int, int], float]] = {
    "solve": lambda n, k: 2 / 3 * n**3 + 2 * n**2 * k,
    "cholesky": lambda n, k: 1 / 3 * n**3,
    "inv": lambda n, k: 2 * n**3,
    "cond": lambda n, k: 2 * n**3,
    "eigh": lambda n, k: 9 * n**3,
}


class Counted(np.ndarray):
    """An array whose operations are counted in `Counted.total`."""

    total = 0.0

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        plain = [_plain(value) for value in inputs]
        if out is not None:
            options["out"] = tuple(_plain(value) for value in out)
        result = getattr(ufunc, method)(*plain, **options)
        if ufunc is np.matmul:
            Counted.total += 2.0 * np.size(result) * plain[0].shape[-1]
        else:
            Counted.total += max(np.size(result), *(np.size(value) for value in plain))
        return result.view(Counted) if isinstance(result, np.ndarray) else result

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        result = function(*_plain(inputs), **{k: _plain(v) for k, v in options.items()})
        operations = _FACTORIZATIONS.get(function.__name__)
        if operations is not None:
            shape = inputs[0].shape
            columns = inputs[1].shape[-1] if len(inputs) > 1 and np.ndim(inputs[1]) else 0
            Counted.total += prod(shape[:-2]) * operations(shape[-1], columns)
        return _counted(result)


def _plain(value: Any) -> Any:
    if isinstance(value, Counted):
        return value.view(np.ndarray)
    return type(value)(_plain(part) for part in value) if type(value) in (list, tuple) else value


def _counted(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.view(Counted)
    if isinstance(value, tuple):  # named tuples of factorizations too
        parts = [_counted(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def count_operations(
    rows: nuisance.Half, train: nuisance.Half, eps: float, bandwidth: float, dense: bool
) -> tuple[float, Array]:
    """Operations of the Sinkhorn effect with both influence functions, and its statistic [R]."""
    fitted = nuisance.adjusted(train, rows.x, bandwidth)
    halves = [nuisance.Half(half.x, half.a, half.y.view(Counted)) for half in (rows, train)]
    Counted.total = 0.0
    geometry = effect.Geometry(halves[0], halves[1].y, eps)
    counted = nuisance.Nuisance(fitted.propensity, fitted.weights.view(Counted), fitted.treated)
    laws = effect.transports(geometry, counted)
    factor = None if dense else effect.second_order_factor(geometry, laws)
    signed = effect.signed_rows(halves[0], counted)
    found = effect.sinkhorn_effect(geometry, counted, signed, laws, factor)
    return Counted.total, np.asarray(found.statistic)
