"""Numerical agreement, for tests: tolerances by type, errors as a ratio of root mean squares."""

import torch

TRITON_NAME: dict[torch.dtype, str] = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.uint8: "u8",
    torch.int16: "i16",
}

# Root-mean-square error over root-mean-square value. Half types: a few units in the last place of
# the inputs and of the one rounding of the output; float32: a sum of a few thousand terms.
TOLERANCE: dict[torch.dtype, float] = {
    torch.float64: 1e-12,
    torch.float32: 2e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


def rms_ratio(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """|actual - expected| over |expected|, both root mean square, in float64. 0 for empty input.

    An all-zero `expected` is compared absolutely. NaN in `actual` gives NaN.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"shapes differ: {tuple(actual.shape)} and {tuple(expected.shape)}")
    if expected.numel() == 0:
        return 0.0
    want = expected.detach().double().cpu()
    error = (actual.detach().double().cpu() - want).square().mean().sqrt()
    size = want.square().mean().sqrt()
    return float(error / size) if size > 0 else float(error)


def assert_close(
    actual: torch.Tensor,
    expected: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    tolerance: float | None = None,
) -> None:
    """Assert that `rms_ratio` is within the tolerance of `dtype` (default: that of `actual`)."""
    limit = TOLERANCE[dtype or actual.dtype] if tolerance is None else tolerance
    ratio = rms_ratio(actual, expected)
    # `not <=` rather than `>`: NaN must fail.
    if not ratio <= limit:
        raise AssertionError(f"RMS error ratio {ratio:.3g} exceeds {limit:.3g}")
