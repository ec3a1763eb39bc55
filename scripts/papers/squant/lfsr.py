"""Linear-feedback shift registers: one cycle of 2^K - 1 states, read as a cyclic bit stream.

Fibonacci form, shifted to the right, as in SeedLM (arXiv 2410.10714): the output is the lowest bit,
the XOR of the tapped bits enters at the top. With maximal taps every non-zero state lies on one
cycle, so a seed is the same as a *position* on it, and the state at a position is the K bits of the
output stream that start there.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

TAPS: dict[int, tuple[int, ...]] = {
    8: (8, 6, 5, 4),
    9: (9, 5),
    10: (10, 7),
    11: (11, 9),
    12: (12, 6, 4, 1),
    13: (13, 12, 11, 8),
    14: (14, 5, 3, 1),
    15: (15, 14),
    16: (16, 15, 13, 4),
}
"""Register width K -> taps of a primitive polynomial; a tap t is bit K - t."""

FIRST_STATE = 1
"""The state at position 0."""


def check_taps(bits: int, taps: tuple[int, ...]) -> None:
    """Raise ValueError unless `taps` is the shipped polynomial of this width."""
    if bits not in TAPS:
        raise ValueError(f"bits: {bits}; registers of {min(TAPS)} to {max(TAPS)} bits are allowed")
    if tuple(taps) != TAPS[bits]:
        raise ValueError(
            f"taps: {tuple(taps)} is an unknown polynomial for {bits} bits; allowed: {TAPS[bits]}"
        )


def step(states: np.ndarray, bits: int, taps: tuple[int, ...]) -> np.ndarray:
    """The states (integers, any shape) one shift later."""
    feedback = np.zeros_like(states)
    for tap in taps:
        feedback ^= states >> (bits - tap)
    return (states >> 1) | ((feedback & 1) << (bits - 1))


@lru_cache(maxsize=16)
def cycle(bits: int, taps: tuple[int, ...] | None = None) -> np.ndarray:
    """States [period] int32 in order from `FIRST_STATE` until it returns; read-only.

    The period is 2^K - 1 exactly when the taps are maximal.
    """
    taps = TAPS[bits] if taps is None else taps
    leap, states = step_matrix(bits, taps), np.array([FIRST_STATE], dtype=np.int64)
    while len(states) < 1 << bits:  # double: the second half is the first, leapt by its length
        states = np.concatenate([states, apply(leap, states)])
        leap = multiply(leap, leap)
    returns = np.flatnonzero(states[1:] == FIRST_STATE)
    found = states[: returns[0] + 1 if len(returns) else None].astype(np.int32)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=16)
def positions(bits: int) -> np.ndarray:
    """Position of each state [2^K] int32 on the cycle; -1 for state 0, which is on none."""
    states = cycle(bits)
    found = np.full(1 << bits, -1, dtype=np.int32)
    found[states] = np.arange(len(states), dtype=np.int32)
    found.flags.writeable = False
    return found


def step_matrix(bits: int, taps: tuple[int, ...]) -> np.ndarray:
    """One shift as a matrix over GF(2): column i, an integer, is the image of bit i."""
    return step(np.left_shift(1, np.arange(bits, dtype=np.int64)), bits, taps)


def multiply(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Product of two matrices over GF(2): first `right`, then `left`."""
    return apply(left, right)


def power(matrix: np.ndarray, exponent: int) -> np.ndarray:
    """The leap-forward matrix: `exponent` (>= 0) steps at once."""
    result = np.left_shift(1, np.arange(len(matrix), dtype=np.int64))
    while exponent:
        if exponent & 1:
            result = multiply(matrix, result)
        matrix = multiply(matrix, matrix)
        exponent >>= 1
    return result


def apply(matrix: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Images of states (integers, any shape) under a matrix over GF(2)."""
    out = np.zeros_like(states)
    for bit, column in enumerate(matrix):
        out ^= np.where(states >> bit & 1, column, 0)
    return out


def autocorrelation(stream: np.ndarray) -> np.ndarray:
    """Cyclic autocorrelation [period] int64 of a bit stream as +-1, by the FFT, rounded."""
    spectrum = np.fft.rfft(2.0 * stream - 1.0)
    return np.rint(np.fft.irfft(np.abs(spectrum) ** 2, len(stream))).astype(np.int64)


LEAP = 37
"""Steps at once by which leap-forward is held against single steps."""


def faults(bits: int) -> dict[str, int]:
    """By enumeration of all states, what is wrong with a shipped polynomial (all 0: nothing).

    period: non-zero states that the cycle misses, and states that one shift does not carry to the
    next; balance: ones in the stream less 2^(K-1); autocorrelation: largest distance from -1 off
    the peak, for bits as +-1; leap: states that the leap-forward matrix carries elsewhere than as
    many single steps.
    """
    taps, states = TAPS[bits], cycle(bits).astype(np.int64)
    walked = states
    for _ in range(LEAP):
        walked = step(walked, bits, taps)
    missing = (1 << bits) - 1 - len(np.setdiff1d(np.unique(states), [0]))
    stray = int((step(states, bits, taps) != np.roll(states, -1)).sum())
    stream = states & 1
    return {
        "period": missing + stray,
        "balance": int(stream.sum()) - (1 << (bits - 1)),
        "autocorrelation": int(np.abs(autocorrelation(stream)[1:] + 1).max()),
        "leap": int((apply(power(step_matrix(bits, taps), LEAP), states) != walked).sum()),
    }
