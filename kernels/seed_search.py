"""Seed search: for each block of weights, the seeds whose bases explain most of its energy.

    energy[i, s] = |Pi_s w_i|^2 = sum_{a<=b} w_ia w_ib P[(a,b), s]

Pi_s projects onto the span of seed s's bases; column s of `projectors` is its upper triangle, row
by row, with the off-diagonal entries doubled. So all energies are one matrix product of the
F = C(C+1)/2 features, and the search is that product with a running list of the best: the n x N
energies never reach memory. (S-Quant, ICML 2026; SeedLM, arXiv 2410.10714, solves least squares for
every seed instead.)

On a GPU a program keeps the features of a tile of blocks and streams the projectors; float16 ones
run on tensor cores, float32 ones exactly. On a CPU a chunk's energies stay in cache, and only the
groups of seeds with the largest maxima are looked into.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.rq_encode import describe

MAX_CHANNELS = 16
MAX_TOP = 64  # a list of more would leave the register file
GROUP = 32  # seeds per group on a CPU
CPU_SCORES = 2**18  # energies per chunk on a CPU: 1 MiB of float32, about one core's second cache


class SeedHits(NamedTuple):
    """index [n,top] int32 columns of `projectors`, best first; energy [n,top] float32."""

    index: torch.Tensor
    energy: torch.Tensor


@triton.jit
def features(
    w_ptr,  # [n, C] float32
    pairs_ptr,  # [2, F_ALL] int32, the two channels of each feature
    inverse,  # [BLOCK_N] factor of both channels
    rows,
    n,
    first: tl.constexpr,
    WIDTH: tl.constexpr,
    C: tl.constexpr,
    F: tl.constexpr,
    F_ALL: tl.constexpr,
):
    """Features `first` to `first + WIDTH` of the blocks, float32; zero beyond F."""
    feature = first + tl.arange(0, WIDTH)
    live = (rows < n)[:, None] & (feature < F)[None, :]
    a = tl.load(pairs_ptr + feature)
    b = tl.load(pairs_ptr + F_ALL + feature)
    w_a = tl.load(w_ptr + rows[:, None] * C + a[None, :], mask=live, other=0.0)
    w_b = tl.load(w_ptr + rows[:, None] * C + b[None, :], mask=live, other=0.0)
    return (w_a * inverse[:, None]) * (w_b * inverse[:, None])


@triton.jit
def seed_search_kernel(
    w_ptr,  # [n, C] float32
    projectors_ptr,  # [F0 + F1, n_padded], zero beyond F and N
    pairs_ptr,  # [2, F0 + F1] int32
    index_ptr,  # [n, T] int32 out
    energy_ptr,  # [n, T] float32 out
    n,
    n_seeds,
    n_padded,
    C: tl.constexpr,
    F: tl.constexpr,
    F0: tl.constexpr,
    F1: tl.constexpr,
    T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    channel = tl.arange(0, 16)
    live = (rows < n)[:, None] & (channel < C)[None, :]
    w = tl.load(w_ptr + rows[:, None] * C + channel[None, :], mask=live, other=0.0)
    # Unit blocks, so that half precision neither overflows nor vanishes; scaled back at the end.
    norm = tl.sqrt(tl.sum(w * w, 1))
    inverse = tl.where(norm > 0.0, 1.0 / tl.where(norm > 0.0, norm, 1.0), norm)
    # F = 36 as 32 + 16 and 78 as 64 + 16: the next power of two would waste up to half the work.
    F_ALL: tl.constexpr = F0 + F1
    left = features(w_ptr, pairs_ptr, inverse, rows, n, 0, F0, C, F, F_ALL)
    left = left.to(projectors_ptr.dtype.element_ty)
    if F1 > 0:
        rest = features(w_ptr, pairs_ptr, inverse, rows, n, F0, F1, C, F, F_ALL)
        rest = rest.to(projectors_ptr.dtype.element_ty)
    slots = tl.arange(0, BLOCK_T)[None, :]
    # Slots beyond T are never the worst, so that nothing enters them.
    best = tl.where(slots < T, float("-inf"), float("inf"))
    best = tl.zeros([BLOCK_N, BLOCK_T], dtype=tl.float32) + best
    found = tl.zeros([BLOCK_N, BLOCK_T], dtype=tl.int32)
    worst = tl.full([BLOCK_N], float("-inf"), dtype=tl.float32)
    for start in range(0, n_padded, BLOCK_S):
        seeds = start + tl.arange(0, BLOCK_S)
        tile = projectors_ptr + seeds[None, :]
        p = tl.load(tile + tl.arange(0, F0)[:, None] * n_padded)
        # ieee: float32 projectors promise float32 energies, which TF32 would not be.
        energy = tl.dot(left, p, input_precision="ieee")
        if F1 > 0:
            p = tl.load(tile + (F0 + tl.arange(0, F1))[:, None] * n_padded)
            energy += tl.dot(rest, p, input_precision="ieee")
        energy = tl.where((seeds < n_seeds)[None, :], energy, float("-inf"))
        top, at = tl.max(energy, 1, return_indices=True, return_indices_tie_break_left=True)
        # Rare once the list is filled: a row has about T ln(N / T) insertions in all.
        while tl.max((top > worst).to(tl.int32), 0) > 0:
            worst_slot = tl.argmin(best, 1, tie_break_left=True)
            enters = (slots == worst_slot[:, None]) & (top > worst)[:, None]
            best = tl.where(enters, top[:, None], best)
            found = tl.where(enters, (start + at)[:, None], found)
            worst = tl.min(best, 1)
            taken = tl.arange(0, BLOCK_S)[None, :] == at[:, None]
            energy = tl.where(taken, float("-inf"), energy)
            top, at = tl.max(energy, 1, return_indices=True, return_indices_tie_break_left=True)
    best = tl.where(slots < T, best, float("-inf"))
    for rank in range(T):
        top, at = tl.max(best, 1, return_indices=True, return_indices_tie_break_left=True)
        taken = slots == at[:, None]
        chosen = tl.sum(tl.where(taken, found, 0), 1)
        tl.store(index_ptr + rows * T + rank, chosen, mask=rows < n)
        tl.store(energy_ptr + rows * T + rank, top * norm * norm, mask=rows < n)
        best = tl.where(taken, float("-inf"), best)


def tile(c: int, top: int, itemsize: int) -> dict[str, int]:
    """Tile sizes and launch options: 64 blocks, the least that Hopper's tensor cores take."""
    f = c * (c + 1) // 2
    f0 = max(16, 1 << (f.bit_length() - 1))
    return {
        "F": f,
        "F0": f0,
        "F1": 0 if f <= f0 else max(16, triton.next_power_of_2(f - f0)),
        "BLOCK_N": 64,
        "BLOCK_S": 32 if itemsize == 4 and f0 == 128 else 64,  # 64 would spill
        "BLOCK_T": triton.next_power_of_2(top),
        "num_warps": 4 if itemsize == 2 and f0 < 128 else 8,
        "num_stages": 1,
    }


def seed_search(w: torch.Tensor, projectors: torch.Tensor, top: int) -> SeedHits:
    """Find the `top` seeds of largest projected energy for every block.

    Args:
        w: [n, C] float32 blocks of weights, C <= 16; n may be 0.
        projectors: [C(C+1)/2, N] float32 or float16, one seed per column, entries (a, b) in the
            order of `torch.triu_indices(C, C)`, off-diagonal ones doubled. float16 is for a GPU's
            tensor cores: energies to about 1e-3 of |w|^2, enough for a list that is rescored.
        top: how many, 1 <= top <= N (and <= 64 on a GPU).

    Returns:
        `SeedHits(index, energy)`, best first. Equal energies come in any order, but in the same one
        on every run.

    Raises:
        ValueError: an argument has another type, shape or device; or, on a CPU, w is not finite.
            (On a GPU that check would wait for the device: the row's energies are not finite.)
    """
    _check(w, projectors, top)
    run = seed_search_triton if w.is_cuda else seed_search_torch
    return run(w.detach(), projectors.detach(), top)


def seed_search_triton(w: torch.Tensor, projectors: torch.Tensor, top: int) -> SeedHits:
    """The Triton path of `seed_search` (checked arguments; a GPU, or Triton's interpreter)."""
    if top > MAX_TOP:
        raise ValueError(f"top: {top}; the GPU kernel allows 1 to {MAX_TOP}")
    (n, c), seeds = w.shape, projectors.shape[1]
    options = tile(c, top, projectors.element_size())
    f, rows = options["F"], options["F0"] + options["F1"]
    # Whole tiles and aligned rows, so that the projectors are read 16 bytes at a time.
    padded = triton.cdiv(seeds, 64) * 64
    table = projectors.new_zeros(rows, padded)
    table[:f, :seeds] = projectors
    pairs = torch.zeros(2, rows, dtype=torch.int32, device=w.device)
    pairs[:, :f] = torch.triu_indices(c, c, device=w.device)
    index = torch.empty(n, top, dtype=torch.int32, device=w.device)
    energy = torch.empty(n, top, dtype=torch.float32, device=w.device)
    if n:
        grid = (triton.cdiv(n, options["BLOCK_N"]),)
        with torch.cuda.device_of(w):  # Triton launches on the current device, not on w's
            seed_search_kernel[grid](
                w.contiguous(), table, pairs, index, energy, n, seeds, padded,
                C=c, T=top, **options,
            )  # fmt: skip
    return SeedHits(index, energy)


@torch.no_grad()
def seed_search_torch(w: torch.Tensor, projectors: torch.Tensor, top: int) -> SeedHits:
    """The CPU path: the best seeds lie in the groups of the best maxima; only those are sorted."""
    (n, c), seeds = w.shape, projectors.shape[1]
    if not w.isfinite().all():
        row = int(w.isfinite().logical_not().any(1).nonzero()[0])
        raise ValueError(f"w: row {row} has a value that is not finite; finite float32 allowed")
    projectors = projectors.float().contiguous()
    a, b = torch.triu_indices(c, c)
    groups = triton.cdiv(seeds, GROUP)
    chosen = min(top, groups)
    rows = max(16, min(n, CPU_SCORES // (groups * GROUP)))
    index = torch.empty(n, top, dtype=torch.int32)
    energy = torch.empty(n, top, dtype=torch.float32)
    # Seeds congruent modulo `groups` form a group: maxima over them are taken lane by lane.
    scores = torch.full((rows, groups * GROUP), float("-inf"))
    for start in range(0, n, rows):
        block = w[start : start + rows]
        score = scores[: len(block)]
        torch.mm(block[:, a] * block[:, b], projectors, out=score[:, :seeds])
        grouped = score.view(-1, GROUP, groups)
        if chosen == 1:
            kept = grouped.amax(1).argmax(1, keepdim=True)
        else:
            kept = grouped.amax(1).topk(chosen, 1, sorted=False).indices
        members = kept[:, None, :].expand(-1, GROUP, -1)
        values, at = grouped.gather(2, members).flatten(1).topk(top, 1)
        energy[start : start + rows] = values
        index[start : start + rows] = kept.gather(1, at % chosen) + (at // chosen) * groups
    return SeedHits(index, energy)


def reference(w: torch.Tensor, projectors: torch.Tensor, top: int) -> SeedHits:
    """The definition, in the floating type of the arguments (float64 for tests); int64 indices."""
    a, b = torch.triu_indices(w.shape[1], w.shape[1])
    energy, index = ((w[:, a] * w[:, b]) @ projectors).topk(top, 1)
    return SeedHits(index, energy)


def cost(n: int, c: int, seeds: int, top: int, *, itemsize: int = 4) -> tuple[int, int]:
    """(floating point operations, compulsory bytes): the product; w, projectors once, the lists.

    The projectors count once: programs share them in the second cache. Keeping the lists takes
    about 4 more operations per energy, on the plain units.
    """
    f = c * (c + 1) // 2
    return 2 * n * f * seeds, n * c * 4 + f * seeds * itemsize + n * top * 8


def _check(w: torch.Tensor, projectors: torch.Tensor, top: int) -> None:
    if w.ndim != 2 or w.dtype != torch.float32 or not 1 <= w.shape[1] <= MAX_CHANNELS:
        raise ValueError(
            f"w: {describe(w)}; float32 of shape [n, C], C <= {MAX_CHANNELS}, expected"
        )
    f = w.shape[1] * (w.shape[1] + 1) // 2
    if (
        projectors.ndim != 2
        or projectors.shape[0] != f
        or projectors.dtype not in (torch.float32, torch.float16)
    ):
        raise ValueError(
            f"projectors: {describe(projectors)}; float32 or float16 of shape [{f}, N] expected"
        )
    if not 1 <= top <= projectors.shape[1]:
        raise ValueError(f"top: {top}; 1 to {projectors.shape[1]}, the number of seeds, allowed")
    if projectors.device != w.device:
        raise ValueError(
            f"projectors: on {projectors.device} with w on {w.device}; one device allowed"
        )
