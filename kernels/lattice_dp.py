"""Best or total score of all segmentations of words, under the token scores of many labels.

    S[0, l] = 0;   S[j, l] = (+) over edges (i -> j, token t) of S[i, l] + W[t, l]
    out[l] = S[end, l]

A word is a lattice over its byte offsets 0..end; an edge is a vocabulary token that spells the
bytes between two offsets. In the semiring "max" (+) is the maximum (Viterbi: the best
segmentation), in "log" it is log-sum-exp (the total over all segmentations). Source: UnigramLM
language identification as in UniLID (arXiv 2602.17655).

Labels are the vector axis: an edge reads one contiguous piece of a row of W. On a GPU a program
takes a word and a piece of the labels and keeps S in a scratch column of its own; one add and one
maximum per value of W read make it memory bound. On a CPU it is the same loop, compiled by numba.
"""

from functools import cache
from typing import Literal

import torch
import triton
import triton.language as tl

Semiring = Literal["max", "log"]
SEMIRINGS = ("max", "log")


@triton.jit
def lattice_dp_kernel(
    w_ptr,  # [V, L] float16 or float32, rows w_stride apart
    word_ptr,  # [n_words + 1] int64 offsets into the edges
    src_ptr,  # [E] int16, ascending in dst within a word
    dst_ptr,  # [E] int16
    tok_ptr,  # [E] int32
    scratch_ptr,  # [n_words, length, L] float32
    out_ptr,  # [n_words, L] float32
    w_stride,
    length,
    L,
    LOG: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    word = tl.program_id(0).to(tl.int64)  # word * length * L passes 2^31
    labels = tl.program_id(1) * BLOCK_L + tl.arange(0, BLOCK_L)
    live = labels < L
    scratch = scratch_ptr + word * length * L + labels
    acc = tl.zeros([BLOCK_L], dtype=tl.float32)  # S[0]; of an empty word also the result
    at = 0
    for edge in range(tl.load(word_ptr + word), tl.load(word_ptr + word + 1)):
        dst = tl.load(dst_ptr + edge).to(tl.int32)
        if dst != at:
            tl.store(scratch + at * L, acc, mask=live)
            acc = tl.full([BLOCK_L], float("-inf"), dtype=tl.float32)
            for unreached in range(at + 1, dst):
                tl.store(scratch + unreached * L, acc, mask=live)
            tl.debug_barrier()  # a thread may read below what another has just written
            at = dst
        src = tl.load(src_ptr + edge).to(tl.int32)
        token = tl.load(tok_ptr + edge).to(tl.int64)  # token * L passes 2^31
        score = tl.load(w_ptr + token * w_stride + labels, mask=live, other=0.0).to(tl.float32)
        score += tl.load(scratch + src * L, mask=live, other=0.0)
        if LOG:
            top = tl.maximum(acc, score)
            shift = tl.where(top == float("-inf"), 0.0, top)  # -inf - -inf would be NaN
            acc = shift + tl.log(tl.exp(acc - shift) + tl.exp(score - shift))
        else:
            acc = tl.maximum(acc, score)
    tl.store(out_ptr + word * L + labels, acc, mask=live)


def tile(labels: int) -> dict[str, int]:
    """Block of labels and launch options: short rows of W should not idle most of a program."""
    block = min(256, max(32, triton.next_power_of_2(labels)))
    return {"BLOCK_L": block, "num_warps": max(1, block // 128), "num_stages": 1}


def lattice_dp(
    w: torch.Tensor,
    word_ptr: torch.Tensor,
    edge_src: torch.Tensor,
    edge_dst: torch.Tensor,
    edge_tok: torch.Tensor,
    semiring: Semiring = "max",
) -> torch.Tensor:
    """Score of every word under every label.

    Args:
        w: [V, L] float16 or float32 token scores (log-probabilities; -inf allowed, not +inf or
            NaN), labels contiguous.
        word_ptr: [n_words + 1] int64; word i has the edges word_ptr[i] .. word_ptr[i + 1].
        edge_src, edge_dst: [E] int16 byte offsets, src < dst; a word's edges ascend in dst.
        edge_tok: [E] int32 rows of w.
        semiring: "max" for the best segmentation, "log" for the log of the sum over all.

    Returns:
        [n_words, L] float32; 0 for a word without edges (the empty string), -inf where no path
        reaches the last offset.

    Raises:
        ValueError: an argument has another type, shape or device; or, on a CPU, edges that do not
            ascend, leave the lattice or name a token that w does not have. (On a GPU that check
            would wait for the device.)
    """
    _check(w, word_ptr, edge_src, edge_dst, edge_tok, semiring)
    run = lattice_dp_triton if w.is_cuda else lattice_dp_numba
    return run(w.detach(), word_ptr, edge_src, edge_dst, edge_tok, semiring)


def lattice_dp_triton(
    w: torch.Tensor,
    word_ptr: torch.Tensor,
    edge_src: torch.Tensor,
    edge_dst: torch.Tensor,
    edge_tok: torch.Tensor,
    semiring: Semiring = "max",
) -> torch.Tensor:
    """The Triton path of `lattice_dp` (checked arguments; a GPU, or Triton's interpreter)."""
    words, labels = len(word_ptr) - 1, w.shape[1]
    out = torch.empty(words, labels, dtype=torch.float32, device=w.device)
    if words and labels:
        length = int(edge_dst.max()) if len(edge_dst) else 1  # the last offset is never read
        scratch = torch.empty(words, length, labels, dtype=torch.float32, device=w.device)
        options = tile(labels)
        grid = (words, triton.cdiv(labels, options["BLOCK_L"]))
        with torch.cuda.device_of(w):  # Triton launches on the current device, not on w's
            lattice_dp_kernel[grid](
                w, word_ptr, edge_src, edge_dst, edge_tok, scratch, out,
                w.stride(0), length, labels, LOG=semiring == "log", **options,
            )  # fmt: skip
    return out


def lattice_dp_numba(
    w: torch.Tensor,
    word_ptr: torch.Tensor,
    edge_src: torch.Tensor,
    edge_dst: torch.Tensor,
    edge_tok: torch.Tensor,
    semiring: Semiring = "max",
) -> torch.Tensor:
    """The CPU path of `lattice_dp`."""
    edges = len(edge_src)
    starts = torch.zeros(edges, dtype=torch.bool)
    starts[word_ptr[:-1][word_ptr[:-1] < edges]] = True
    before = torch.where(starts, 0, edge_dst.roll(1))
    broken = (edge_src < 0) | (edge_src >= edge_dst) | (edge_dst < before)
    broken |= (edge_tok < 0) | (edge_tok >= len(w))
    if broken.any():
        edge = int(broken.nonzero()[0])
        raise ValueError(
            f"edges: edge {edge} is {int(edge_src[edge])} -> {int(edge_dst[edge])}, token "
            f"{int(edge_tok[edge])}; 0 <= src < dst, dst not falling within a word and tokens "
            f"below {len(w)} are allowed"
        )
    out = torch.empty(len(word_ptr) - 1, w.shape[1])
    arrays = (word_ptr, edge_src, edge_dst, edge_tok)
    length = int(edge_dst.max()) if edges else 0
    _compiled()(
        w.float().numpy(), *(a.numpy() for a in arrays), length, semiring == "log", out.numpy()
    )
    return out


@cache
def _compiled():
    """The loop, compiled at its first use; importing numba takes half a second."""
    import numba
    import numpy as np

    @numba.njit  # plain loops: array expressions would take seconds more to compile
    def run(w, word_ptr, edge_src, edge_dst, edge_tok, length, log, out):
        labels = w.shape[1]
        s = np.empty((length + 1, labels), np.float32)
        for word in range(len(word_ptr) - 1):
            at = 0
            for label in range(labels):
                s[0, label] = 0
            for edge in range(word_ptr[word], word_ptr[word + 1]):
                if edge_dst[edge] != at:
                    # Offsets between that no edge reaches stay unreachable.
                    for unreached in range(at + 1, edge_dst[edge] + 1):
                        for label in range(labels):
                            s[unreached, label] = -np.inf
                    at = edge_dst[edge]
                row, source, target = w[edge_tok[edge]], s[edge_src[edge]], s[at]
                if log:
                    for label in range(labels):
                        score = source[label] + row[label]
                        high = max(target[label], score)
                        low = min(target[label], score)
                        if low > -np.inf:
                            high += np.log1p(np.exp(low - high))
                        target[label] = high
                else:
                    for label in range(labels):
                        target[label] = max(target[label], source[label] + row[label])
            for label in range(labels):
                out[word, label] = s[at, label]

    return run


def reference(
    w: torch.Tensor,
    word_ptr: torch.Tensor,
    edge_src: torch.Tensor,
    edge_dst: torch.Tensor,
    edge_tok: torch.Tensor,
    semiring: Semiring = "max",
) -> torch.Tensor:
    """The definition, edge by edge, in the floating type of w (float64 for tests)."""
    combine = torch.maximum if semiring == "max" else torch.logaddexp
    out = []
    for word in range(len(word_ptr) - 1):
        s = {0: w.new_zeros(w.shape[1])}
        unreached = torch.full_like(s[0], float("-inf"))
        last = 0
        for edge in range(int(word_ptr[word]), int(word_ptr[word + 1])):
            src, last, token = (int(a[edge]) for a in (edge_src, edge_dst, edge_tok))
            score = s.get(src, unreached) + w[token]
            s[last] = combine(s.get(last, unreached), score)
        out.append(s[last])
    return torch.stack(out) if out else w.new_empty(0, w.shape[1])


def cost(words: int, edges: int, labels: int, *, itemsize: int = 2) -> tuple[int, int]:
    """(floating point operations, bytes): every edge reads its row of W, perhaps from a cache."""
    traffic = edges * (labels * itemsize + 8) + (words + 1) * 8 + words * labels * 4
    return 2 * edges * labels, traffic


def _check(
    w: torch.Tensor,
    word_ptr: torch.Tensor,
    edge_src: torch.Tensor,
    edge_dst: torch.Tensor,
    edge_tok: torch.Tensor,
    semiring: Semiring,
) -> None:
    if semiring not in SEMIRINGS:
        raise ValueError(f"semiring: {semiring!r}; 'max' or 'log' expected")
    if w.ndim != 2 or w.dtype not in (torch.float16, torch.float32):
        raise ValueError(f"w: {_describe(w)}; float16 or float32 of shape [V, L] expected")
    if w.shape[1] > 1 and w.stride(1) != 1:
        raise ValueError(f"w: strides {w.stride()}; contiguous labels (stride 1) expected")
    kinds = {"edge_src": torch.int16, "edge_dst": torch.int16, "edge_tok": torch.int32}
    values = {"edge_src": edge_src, "edge_dst": edge_dst, "edge_tok": edge_tok}
    for name, value in ({"word_ptr": word_ptr} | values).items():
        kind = kinds.get(name, torch.int64)
        if value.ndim != 1 or value.dtype != kind or not value.is_contiguous():
            wanted = f"contiguous {str(kind).removeprefix('torch.')} of one dimension"
            raise ValueError(f"{name}: {_describe(value)}; {wanted} expected")
        if value.device != w.device:
            raise ValueError(f"{name}: on {value.device} with w on {w.device}; one device allowed")
        if name in kinds and len(value) != len(edge_src):
            raise ValueError(f"{name}: {len(value)} values for {len(edge_src)} edges")
    if len(word_ptr) == 0:
        raise ValueError("word_ptr: empty; n_words + 1 offsets expected")
    if not w.is_cuda and (
        int(word_ptr[0]) != 0
        or int(word_ptr[-1]) != len(edge_src)
        or bool((word_ptr.diff() < 0).any())
    ):
        raise ValueError(
            f"word_ptr: from {int(word_ptr[0])} to {int(word_ptr[-1])} for {len(edge_src)} edges; "
            "offsets that do not fall, from 0 to the number of edges, are allowed"
        )


def _describe(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')} of shape {list(t.shape)}"
