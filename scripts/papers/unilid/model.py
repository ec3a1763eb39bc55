"""The UniLID model: a shared vocabulary, a column of log-probabilities per label, and scoring."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scripts.papers.unilid import compiled, pretokens

FLOOR = 1e-12
LANES = 16  # labels are padded to a multiple: one AVX-512 register of float32


@dataclass(frozen=True)
class Trie:
    """A vocabulary as the compiled loops use it."""

    edges: np.ndarray
    tokens: np.ndarray
    size: int
    reach: int
    """Bytes of the longest token."""

    @staticmethod
    def of(vocabulary: Sequence[bytes]) -> "Trie":
        """
        Raises:
            ValueError: a token is empty or stands twice, or a byte is missing.
        """
        missing = {bytes([byte]) for byte in range(256)} - set(vocabulary)
        if missing:
            raise ValueError(f"vocabulary: lacks {len(missing)} of 256 bytes; all are needed")
        if len(set(vocabulary)) < len(vocabulary) or b"" in vocabulary:
            raise ValueError("vocabulary: has an empty or repeated token; distinct ones allowed")
        offsets = np.zeros(len(vocabulary) + 1, np.int64)
        np.cumsum([len(token) for token in vocabulary], out=offsets[1:])
        data = np.frombuffer(b"".join(vocabulary), np.uint8)
        edges, tokens = compiled.trie_build(data, offsets)
        return Trie(edges, tokens, len(vocabulary), max(map(len, vocabulary)))


@dataclass(frozen=True)
class Fit:
    """A label's fitted distribution.

    log_p: float32 [V]; likelihood: log-likelihood before each EM round, nats;
    operations: multiply-adds of all rounds, three for a lattice edge (alpha, beta, count).
    """

    log_p: np.ndarray
    likelihood: np.ndarray
    operations: int


def fit_label(trie: Trie, texts: Sequence[str], rounds: int, tolerance: float = 1e-6) -> Fit:
    """EM of one label's UnigramLM over the shared vocabulary (UniLID, section 3).

    Starts from the uniform distribution and ends with a floor of 1e-12, renormalised.

    Raises:
        ValueError: no text, or fewer than one round.
    """
    data, starts = pretokens.encode(texts)
    if not len(data):
        raise ValueError(f"texts: {len(texts)} texts, none with a character; one is needed")
    if rounds < 1:
        raise ValueError(f"rounds: {rounds}; at least 1 is allowed")
    offsets, _ = compiled.words_of(data, starts, pretokens.kinds())
    begins, ends, counts = compiled.distinct_words(data, offsets)
    p, likelihood, edges = compiled.fit_unigram(
        data, begins, ends, counts, trie.edges, trie.tokens, trie.size, trie.reach, rounds,
        tolerance,
    )  # fmt: skip
    p = np.maximum(p, FLOOR)
    log_p = np.log(p / p.sum()).astype(np.float32)
    return Fit(log_p, likelihood, 3 * edges * len(likelihood))


@dataclass(frozen=True)
class Prediction:
    """Best labels of n texts.

    label: int [n] column, the lowest of equal ones; score: float64 [n], nats; margin: float64 [n],
    nats to the second label (0: a tie, infinite with one label); ties: int [n], labels with the
    best score.
    """

    label: np.ndarray
    score: np.ndarray
    margin: np.ndarray
    ties: np.ndarray


class Scorer:
    """Scores texts under the labels of a model, with a bounded memo of word scores.

    The score is a sum over words, so the memo changes no bit of it.

    Args:
        trie: the vocabulary.
        log_p: float32 [V, L].
        memo: words kept, rounded up to a power of two; 0 switches it off.
    """

    def __init__(self, trie: Trie, log_p: np.ndarray, memo: int = 1 << 15):
        self.trie, self.labels = trie, log_p.shape[1]
        wide = -(-self.labels // LANES) * LANES
        self._w = np.zeros((trie.size, wide), np.float32)
        self._w[:, : self.labels] = log_p
        rows = 1 << int(trie.reach).bit_length()
        self._scratch = np.empty((rows, wide), np.float32)
        size = 0 if memo <= 0 else max(compiled.MEMO_WAYS, 1 << (memo - 1).bit_length())
        self._memo = (
            np.zeros((size, compiled.MEMO_BYTES), np.uint8),
            np.zeros(size, np.uint8),
            np.zeros(size, np.uint64),
            np.zeros(size, np.int64),
            np.empty((size, wide), np.float32),
        )
        self._clock = np.zeros(4, np.int64)

    def forget(self) -> None:
        """Empty the memo."""
        for part in self._memo[:4]:
            part[:] = 0

    @property
    def counted(self) -> dict[str, int]:
        """So far: memo look-ups and hits, words and lattice edges."""
        return dict(zip(("lookups", "hits", "words", "edges"), map(int, self._clock), strict=True))

    def scores(self, texts: Sequence[str]) -> np.ndarray:
        """float64 [n, L]: log-probability of each text's best segmentation under each label."""
        data, starts = pretokens.encode(texts)
        return self.score_bytes(data, starts)

    def score_bytes(self, data: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """`scores` of texts that are encoded already."""
        out = compiled.score_texts(
            data, starts, pretokens.kinds(), self.trie.edges, self.trie.tokens, self._w,
            self._scratch, *self._memo, self._clock,
        )  # fmt: skip
        return out[:, : self.labels]

    def predict(self, texts: Sequence[str]) -> Prediction:
        """Best label, its score and its margin, for each text."""
        return decide(self.scores(texts))


def decide(scores: np.ndarray) -> Prediction:
    """Best labels from scores [n, L], ties going to the lowest index."""
    label = scores.argmax(1)
    best = scores[np.arange(len(scores)), label]
    if scores.shape[1] > 1:
        margin = best - np.partition(scores, -2, axis=1)[:, -2]
    else:
        margin = np.full(len(scores), np.inf)
    return Prediction(label, best, margin, (scores == best[:, None]).sum(1))


@dataclass(frozen=True)
class Model:
    """Vocabulary (V tokens), labels (L names) and float32 [V, L] log-probabilities."""

    vocabulary: tuple[bytes, ...]
    labels: tuple[str, ...]
    log_p: np.ndarray

    @cached_property
    def trie(self) -> Trie:
        return Trie.of(self.vocabulary)

    @staticmethod
    def fit(
        vocabulary: Sequence[bytes], texts: Mapping[str, Sequence[str]], rounds: int
    ) -> "Model":
        """Fit a column for each label; a label's column depends on its own texts alone."""
        trie = Trie.of(vocabulary)
        columns = [fit_label(trie, own, rounds).log_p for own in texts.values()]
        stacked = np.ascontiguousarray(np.stack(columns, axis=1))
        return Model(tuple(vocabulary), tuple(texts), stacked)

    def with_label(self, name: str, texts: Sequence[str], rounds: int) -> "Model":
        """The model with one more column; the others keep every bit.

        Raises:
            ValueError: the label is there already, or is no name, or has no text.
        """
        if name in self.labels:
            raise ValueError(f"label: {name!r} is in the model already; new names are allowed")
        if not name or not name.isprintable() or "\t" in name:
            raise ValueError(f"label: {name!r}; a name without control characters is allowed")
        column = fit_label(self.trie, texts, rounds).log_p
        wide = np.concatenate([self.log_p, column[:, None]], axis=1)
        return Model(self.vocabulary, (*self.labels, name), wide)

    def only(self, labels: Sequence[str]) -> "Model":
        """The model restricted to some labels."""
        columns = [self.labels.index(label) for label in labels]
        return Model(self.vocabulary, tuple(labels), self.log_p[:, columns])

    def scorer(self, memo: int = 1 << 15) -> Scorer:
        return Scorer(self.trie, self.log_p, memo)

    def arrays(self) -> dict[str, np.ndarray]:
        """For safetensors: each column as its floor and the tokens above it, label by label, and
        the names of tokens and labels as bytes. What one label adds stands after the others'.
        """
        floors = self.log_p.min(0)
        label, token = np.nonzero((self.log_p > floors).T)
        arrays = {
            "floors": floors,
            "seen": np.bincount(label, minlength=len(self.labels)).astype(np.int64),
            "tokens": token.astype(np.int32),
            "values": self.log_p[token, label],
            "token_lengths": np.array([len(token) for token in self.vocabulary], np.int64),
            "token_bytes": np.frombuffer(b"".join(self.vocabulary), np.uint8).copy(),
            "labels": np.frombuffer(json.dumps(self.labels).encode(), np.uint8).copy(),
        }
        return {name: np.ascontiguousarray(a) for name, a in arrays.items()}

    @staticmethod
    def of_arrays(a: Mapping[str, np.ndarray]) -> "Model":
        """The model that `arrays` wrote, bit for bit.

        Raises:
            ValueError: arrays are missing or do not fit together.
        """
        needed = {"floors", "seen", "tokens", "values", "token_lengths", "token_bytes", "labels"}
        if not needed <= a.keys():
            raise ValueError(f"arrays: lack {', '.join(sorted(needed - a.keys()))}")
        ends = np.cumsum(a["token_lengths"])
        joined = a["token_bytes"].tobytes()
        begins = ends - a["token_lengths"]
        vocabulary = tuple(joined[i:j] for i, j in zip(begins, ends, strict=True))
        labels = tuple(json.loads(a["labels"].tobytes()))
        fits = (
            len(labels) == len(a["floors"]) == len(a["seen"])
            and len(a["tokens"]) == len(a["values"]) == a["seen"].sum()
            and len(joined) == (ends[-1] if len(ends) else 0)
            and bool(((a["tokens"] >= 0) & (a["tokens"] < len(vocabulary))).all())
        )
        if not fits:
            raise ValueError(
                f"arrays: {len(labels)} labels, {len(vocabulary)} tokens and "
                f"{len(a['values'])} values do not fit together"
            )
        log_p = np.tile(a["floors"], (len(vocabulary), 1))
        log_p[a["tokens"], np.repeat(np.arange(len(labels)), a["seen"])] = a["values"]
        return Model(vocabulary, labels, log_p)
