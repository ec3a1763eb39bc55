"""Lattices, Viterbi and EM against enumeration of all segmentations."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.lattice_dp import lattice_dp
from scripts.papers.unilid import compiled, pretokens
from scripts.papers.unilid.lattice import kernel_scores, lattice_edges
from scripts.papers.unilid.model import Model, Scorer, Trie, decide, fit_label

BYTES = [bytes([byte]) for byte in range(256)]
TOY = sorted([*BYTES, b" a", b"ab", b"ba", b"aba", b"bb", b" ab", b"abab", b"bab"])


def segmentations(word: bytes, vocabulary: set[bytes]) -> list[list[bytes]]:
    """All ways to cut a word into tokens."""
    if not word:
        return [[]]
    return [
        [word[:cut], *rest]
        for cut in range(1, len(word) + 1)
        if word[:cut] in vocabulary
        for rest in segmentations(word[cut:], vocabulary)
    ]


def toy_scores(labels: int, seed: int = 0) -> np.ndarray:
    p = np.random.default_rng(seed).dirichlet(np.full(len(TOY), 0.3), size=labels).T
    return np.ascontiguousarray(np.log(np.maximum(p, 1e-12)), np.float32)


@pytest.mark.parametrize("memo", [0, 4, 1024])
def test_viterbi_is_the_best_of_all_segmentations(memo: int) -> None:
    trie, w = Trie.of(TOY), toy_scores(3)
    row = {token: w[i].astype(np.float64) for i, token in enumerate(TOY)}
    texts = ["".join(c) for n in range(1, 8) for c in itertools.product("ab", repeat=n)]
    expected = np.array(
        [
            np.max(
                [sum(row[t] for t in cut) for cut in segmentations(b" " + x.encode(), set(TOY))], 0
            )
            for x in texts
        ]
    )
    found = Scorer(trie, w, memo).scores(texts)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_expected_counts_and_likelihood_equal_enumeration() -> None:
    """One EM round from the uniform start, against the posterior over all segmentations."""
    trie = Trie.of(TOY)
    texts = ["abab", "bab", "ab", "ab", "abba"]
    share = 1 / len(TOY)
    counts, likelihood = np.zeros(len(TOY)), 0.0
    for text in texts:
        cuts = segmentations(b" " + text.encode(), set(TOY))
        weights = np.array([share ** len(cut) for cut in cuts])
        likelihood += math.log(weights.sum())
        for cut, weight in zip(cuts, weights / weights.sum(), strict=True):
            for token in cut:
                counts[TOY.index(token)] += weight
    data, starts = pretokens.encode(texts)
    offsets, _ = compiled.words_of(data, starts, pretokens.kinds())
    begins, ends, times = compiled.distinct_words(data, offsets)
    p, found, _ = compiled.fit_unigram(
        data, begins, ends, times, trie.edges, trie.tokens, trie.size, trie.reach, 1, 0.0
    )
    np.testing.assert_allclose(p, counts / counts.sum(), rtol=1e-12)
    assert found[0] == pytest.approx(likelihood, rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text("ab c", min_size=1, max_size=12), min_size=1, max_size=8))
def test_likelihood_never_falls(texts: list[str]) -> None:
    likelihood = fit_label(Trie.of(TOY), texts, 20).likelihood
    assert (np.diff(likelihood) >= -1e-9 * np.abs(likelihood[1:])).all()


def test_em_recovers_a_known_distribution() -> None:
    """Every word is one of ten two-byte tokens, which no cut but into bytes can spell."""
    tokens = [b" " + bytes([byte]) for byte in b"cdefghijkl"]
    vocabulary = sorted([*BYTES, *tokens])
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(len(tokens)))
    drawn = rng.choice([token.decode() for token in tokens], size=100_000, p=p)
    fit = fit_label(Trie.of(vocabulary), ["".join(drawn)], 20)
    found = np.exp(fit.log_p[[vocabulary.index(token) for token in tokens]])
    assert 0.5 * np.abs(found - p).sum() < 0.02


def test_em_of_a_word_of_40_kilobytes_neither_underflows_nor_overflows() -> None:
    """Against logarithms: alternating cheap and dear stretches, 40,000 bytes without a space."""
    text = "ab" * 5000 + "b" * 5000 + "aba" * 5000 + "a" * 10000
    trie = Trie.of(TOY)
    data, starts = pretokens.encode([text])
    offsets, _ = compiled.words_of(data, starts, pretokens.kinds())
    begins, ends, times = compiled.distinct_words(data, offsets)
    args = (data, begins, ends, times, trie.edges, trie.tokens, trie.size, trie.reach)
    p, likelihood, _ = compiled.fit_unigram(*args, 3, 0.0)
    assert np.isfinite(p).all()
    assert p.sum() == pytest.approx(1)
    assert (np.diff(likelihood) > 0).all()
    q, _, _ = compiled.fit_unigram(*args, 2, 0.0)
    word = b" " + text.encode()
    alpha = np.full(len(word) + 1, -np.inf)
    alpha[0] = 0
    with np.errstate(divide="ignore"):
        log_q = {token: np.log(q[i]) for i, token in enumerate(TOY)}
    for end in range(1, len(word) + 1):
        for size in range(1, min(4, end) + 1):
            token = word[end - size : end]
            if token in log_q:
                alpha[end] = np.logaddexp(alpha[end], alpha[end - size] + log_q[token])
    assert likelihood[2] == pytest.approx(alpha[-1], rel=1e-9)


def test_both_semirings_equal_the_shared_kernel() -> None:
    """`kernels.lattice_dp` on the CSR of the same words: the maximum here, the sum in EM."""
    trie, w = Trie.of(TOY), toy_scores(5)
    texts = ["abab", "bab", "b", "abbaab"]
    data, starts = pretokens.encode(texts)
    csr = [torch.from_numpy(a) for a in lattice_edges(data, starts[:-1], starts[1:], trie)]
    best = lattice_dp(torch.from_numpy(w), *csr, "max").numpy()
    np.testing.assert_allclose(Scorer(trie, w).scores(texts), best, rtol=0, atol=1e-4)
    sentences = ["ab ba abab", "", "bb ab"]
    by_kernel = kernel_scores(trie, w, sentences, "max", "cpu")
    np.testing.assert_allclose(Scorer(trie, w).scores(sentences), by_kernel, rtol=0, atol=1e-4)
    total = lattice_dp(torch.from_numpy(w), *csr, "log").numpy()
    for text, row in zip(texts, total, strict=True):
        cuts = segmentations(b" " + text.encode(), set(TOY))
        each = [sum(w[TOY.index(t)].astype(np.float64) for t in cut) for cut in cuts]
        np.testing.assert_allclose(row, np.logaddexp.reduce(each), rtol=0, atol=1e-3)


def test_em_with_a_token_longer_than_the_range_of_floats() -> None:
    """A window of 200 bytes spans more than 1e-308 to 1; the posterior stays a distribution."""
    vocabulary = sorted([*BYTES, b"x" * 200, b"ab"])
    text = "abc" * 100
    data, _ = pretokens.encode([text])
    trie = Trie.of(vocabulary)
    begins, ends, times = compiled.distinct_words(data, np.array([0, len(data)], np.int64))
    args = (data, begins, ends, times, trie.edges, trie.tokens, trie.size, trie.reach)
    p, _, _ = compiled.fit_unigram(*args, 1, 0.0)
    # One way to cut it into bytes costs 1 / V for each token saved, so "ab" beats "a", "b" by V.
    share = len(vocabulary) / (len(vocabulary) + 1)
    counts = {b" ": 1, b"c": 100, b"ab": 100 * share, b"a": 100 * (1 - share)}
    total = counts[b" "] + counts[b"c"] + counts[b"ab"] + 2 * counts[b"a"]
    for token, count in counts.items():
        assert p[vocabulary.index(token)] == pytest.approx(count / total, rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text("ab ß中'1\n", max_size=60), max_size=30), st.sampled_from([1, 4, 16, 4096]))
def test_the_memo_changes_no_bit(texts: list[str], memo: int) -> None:
    trie, w = Trie.of(TOY), toy_scores(5)
    with_memo = Scorer(trie, w, memo)
    plain = Scorer(trie, w, 0).scores(texts)
    for _ in range(2):
        assert np.array_equal(with_memo.scores(texts), plain)


def test_ties_go_to_the_lowest_index_and_are_counted() -> None:
    model = Model.fit(TOY, {"x": ["abab ba"], "y": ["abab ba"], "z": ["bb bb"]}, 20)
    found = model.scorer().predict(["abab", "bb"])
    assert found.label.tolist() == [0, 2]
    assert found.ties.tolist() == [2, 1]
    assert found.margin[0] == 0 < found.margin[1]


def test_labels_permute_and_swap() -> None:
    texts = {"x": ["abab ba ab"], "y": ["bb b bb"], "z": ["a aa aaa"]}
    asked = ["abab", "bbb", "aa", "ba ba"]
    model = Model.fit(TOY, texts, 20)
    scores = model.scorer().scores(asked)
    order = ["z", "x", "y"]
    moved = Model.fit(TOY, {name: texts[name] for name in order}, 20)
    assert np.array_equal(moved.scorer().scores(asked), scores[:, [2, 0, 1]])
    swapped = Model.fit(TOY, {"x": texts["y"], "y": texts["x"], "z": texts["z"]}, 20)
    before, after = decide(scores).label, swapped.scorer().predict(asked).label
    assert after.tolist() == [{0: 1, 1: 0, 2: 2}[label] for label in before.tolist()]


def test_an_added_label_leaves_the_other_columns_as_they_are() -> None:
    model = Model.fit(TOY, {"x": ["abab ba"], "y": ["bb b"]}, 20)
    more = model.with_label("z", ["a a"], 20)
    assert more.log_p[:, :2].tobytes() == model.log_p.tobytes()
    joint = Model.fit(TOY, {"x": ["abab ba"], "y": ["bb b"], "z": ["a a"]}, 20)
    assert np.array_equal(joint.log_p, more.log_p)
    with pytest.raises(ValueError, match="'z' is in the model already"):
        more.with_label("z", ["a"], 20)
    with pytest.raises(ValueError, match="none with a character"):
        model.with_label("q", [""], 20)


def test_a_long_word_uses_a_ring_of_rows() -> None:
    """A megabyte without a space: the score is the sum that the single token allows."""
    w = np.full((len(TOY), 2), -30.0, np.float32)
    w[TOY.index(b"a")] = [-1, -2]
    w[TOY.index(b" a")] = [-3, -1]
    found = Scorer(Trie.of(TOY), w).scores(["a" * 1_000_000])
    assert found[0, 1] == pytest.approx(-1 - 2 * 999_999, rel=1e-6)


def test_bad_vocabularies_are_named() -> None:
    with pytest.raises(ValueError, match="lacks 255 of 256 bytes"):
        Trie.of([b"a"])
    with pytest.raises(ValueError, match="repeated token"):
        Trie.of([*BYTES, b"ab", b"ab"])


def test_a_model_survives_its_arrays() -> None:
    model = Model.fit(TOY, {"x": ["abab"], "ÿ": ["bb"]}, 20)
    again = Model.of_arrays(model.arrays())
    assert (again.vocabulary, again.labels) == (model.vocabulary, model.labels)
    assert np.array_equal(again.log_p, model.log_p)
    with pytest.raises(ValueError, match="lack labels"):
        Model.of_arrays({k: v for k, v in model.arrays().items() if k != "labels"})
