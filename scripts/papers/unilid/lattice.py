"""Words as the lattices that `kernels.lattice_dp` takes, and texts scored by that kernel."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from scripts.papers.unilid import compiled, pretokens
from scripts.papers.unilid.model import Trie

if TYPE_CHECKING:
    from kernels.lattice_dp import Semiring

LONGEST = 4000  # bytes of a word; offsets of the kernel are int16, and its scratch is per offset


def lattice_edges(
    data: np.ndarray, begins: np.ndarray, ends: np.ndarray, trie: Trie
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """word_ptr int64 [words + 1]; src, dst int16 [E] and tok int32 [E], ascending in dst.

    Raises:
        ValueError: a word is longer than the kernel's offsets reach.
    """
    longest = int((ends - begins).max(initial=0))
    if longest > LONGEST:
        raise ValueError(f"words: the longest has {longest} bytes; up to {LONGEST} are allowed")
    word_ptr, src, dst, tok = compiled.lattices(data, begins, ends, trie.edges, trie.tokens)
    word = np.repeat(np.arange(len(begins)), np.diff(word_ptr))
    order = np.lexsort((src, dst, word))
    return word_ptr, src[order].astype(np.int16), dst[order].astype(np.int16), tok[order]


def kernel_scores(
    trie: Trie, log_p: np.ndarray, texts: Sequence[str], semiring: "Semiring", device: str
) -> np.ndarray:
    """Scores of texts under all labels, float64 [n, L], by the shared kernel.

    Args:
        semiring: "max" for the best segmentation of each word, "log" for the sum over all (the
            forward algorithm).
        device: where the kernel runs.
    """
    import torch

    from kernels.lattice_dp import lattice_dp

    data, starts = pretokens.encode(texts)
    offsets, first = compiled.words_of(data, starts, pretokens.kinds())
    raw = data.tobytes()
    words = [raw[a:b] for a, b in pairwise(offsets)]
    distinct, which = np.unique(np.array(words, object), return_inverse=True)
    lengths = np.array([len(word) for word in distinct], np.int64)
    ends = np.cumsum(lengths)
    joined = np.frombuffer(b"".join(distinct), np.uint8)
    edges = lattice_edges(joined, ends - lengths, ends, trie)
    on_device = [torch.from_numpy(a).to(device) for a in (np.ascontiguousarray(log_p), *edges)]
    by_word = lattice_dp(*on_device, semiring).cpu().numpy().astype(np.float64)
    out = np.zeros((len(texts), log_p.shape[1]))
    np.add.at(out, np.repeat(np.arange(len(texts)), np.diff(first)), by_word[which])
    return out
