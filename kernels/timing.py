"""Clocks for `kernels.bench`: each times contenders on the same operands, one row's worth at once.

On a GPU what counts is device time with cold caches: two CUDA events around the call, the operands
changed from call to call, the second cache overwritten before each. A spin of half a millisecond
goes ahead, so that the host has queued the whole call before its first kernel starts; what the host
needs to queue it is reported beside.
"""

import math
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple, Protocol

import torch
from triton.errors import TritonError

from kernels.operation import Contender

COPIES = 3  # of the operands, taken in turn
GPU_SECONDS = 0.25  # per contender, after the first call, which compiles
GPU_CALLS = (10, 100)  # at least, at most
LEAD_CYCLES = 1_000_000  # about half a millisecond
CPU_SECONDS = 0.5  # per comparison
CPU_CALLS = 5


class Timing(NamedTuple):
    """Median milliseconds of the work, and of the host that starts it (None: the same).

    `error`: why there are none (NaN).
    """

    ms: float
    host_ms: float | None = None
    error: str | None = None


class Clock(Protocol):
    """Operands: the same, from different seeds."""

    copies: int

    def measure(self, contenders: Sequence[Contender], operands: Sequence[Any]) -> list[Timing]: ...


class CpuClock:
    """Contenders in turn, so that a busy machine slows all of them alike."""

    copies = 1

    def measure(self, contenders: Sequence[Contender], operands: Sequence[Any]) -> list[Timing]:
        ready = [[c.prepare(args) for args in operands] for c in contenders]
        for contender, inputs in zip(contenders, ready, strict=True):
            contender.call(inputs[0])
        spent: list[list[float]] = [[] for _ in contenders]
        until = time.perf_counter() + CPU_SECONDS * len(contenders) / 2
        while time.perf_counter() < until or len(spent[0]) < CPU_CALLS:
            turn = len(spent[0]) % len(operands)
            for contender, inputs, times in zip(contenders, ready, spent, strict=True):
                start = time.perf_counter()
                contender.call(inputs[turn])
                times.append(1e3 * (time.perf_counter() - start))
        return [Timing(median(times)) for times in spent]


class GpuClock:
    """CUDA events, one contender after the other: a dense cache need not fit twice."""

    copies = COPIES

    def __init__(self) -> None:
        cache = torch.cuda.get_device_properties().L2_cache_size
        self.scratch = torch.empty(2 * cache, dtype=torch.uint8, device="cuda")

    def measure(self, contenders: Sequence[Contender], operands: Sequence[Any]) -> list[Timing]:
        timings = []
        for contender in contenders:
            try:
                timings.append(self.one(contender, operands))
            except (RuntimeError, TritonError) as error:
                # Out of memory, or not for this card: the other contenders still count.
                timings.append(Timing(math.nan, math.nan, f"{type(error).__name__}: {error}"))
        return timings

    def one(self, contender: Contender, operands: Sequence[Any]) -> Timing:
        inputs = [contender.prepare(args) for args in operands]
        for args in inputs:
            contender.call(args)
        first = self.once(contender, inputs[0])[0]
        least, most = GPU_CALLS
        calls = max(least, min(most, int(1e3 * GPU_SECONDS / first)))
        times = [self.once(contender, inputs[i % len(inputs)]) for i in range(calls)]
        return Timing(*(median(part) for part in zip(*times, strict=True)))

    def once(self, contender: Contender, args: Any) -> tuple[float, float]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.scratch.zero_()
        torch.cuda._sleep(LEAD_CYCLES)
        begin.record()
        start = time.perf_counter()
        contender.call(args)
        host_ms = 1e3 * (time.perf_counter() - start)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end), host_ms


class Rehearsal:
    """Each contender once per copy. Times of an interpreter mean nothing; that it ran does."""

    copies = 2

    def measure(self, contenders: Sequence[Contender], operands: Sequence[Any]) -> list[Timing]:
        timings = []
        for contender in contenders:
            start = time.perf_counter()
            for args in operands:
                contender.call(contender.prepare(args))
            timings.append(Timing(1e3 * (time.perf_counter() - start), 0.0))
        return timings
