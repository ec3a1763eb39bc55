"""The loops of UniLID, compiled by numba: pre-tokens, trie, lattices, EM and Viterbi.

All compiled functions stand in this one file because numba's cache of machine code looks at the
file of a function only: were a callee elsewhere, its edits would go unnoticed.

Names used throughout:
    data: uint8 [bytes], UTF-8 texts one after another, each starting with a space;
    starts: int64 [n + 1], where each text starts in data;
    kinds: uint8 [0x110000], class of each code point: OTHER, LETTER, NUMBER or SPACE;
    edges, tokens: the trie (`trie_build`); V tokens, L labels;
    w: float32 [V, L], log-probabilities of the tokens, a row a token.
"""

import numba
import numpy as np

OTHER, LETTER, NUMBER, SPACE = 0, 1, 2, 3
MEMO_BYTES, MEMO_WAYS = 32, 4
TINY, HUGE = 1e-100, 1e100


def _jit(**options):
    """numba.njit, with the machine code kept on disk where there is a place to write it."""

    def decorate(function):
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # no writable cache folder: compile in every process
            return numba.njit(**options)(function)

    return decorate


@_jit(inline="never")
def _kind(data, at, end, kinds):
    """(class, bytes) of the code point at an offset; a broken sequence is one byte of OTHER."""
    first = data[at]
    if first < 0x80:
        return kinds[first], 1
    size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if first < 0xC2 or at + size > end:
        return np.uint8(OTHER), 1
    code = np.int64(first) & (0x7F >> size)
    for i in range(at + 1, at + size):
        code = code << 6 | (data[i] & 0x3F)
    if code >= len(kinds):
        return np.uint8(OTHER), 1
    return kinds[code], size


@_jit(inline="never")
def _word_end(data, at, end, kinds):
    """End of the pre-token at an offset, as GPT-2's pattern splits:

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+
    """
    if data[at] == 39 and at + 1 < end:  # an apostrophe
        a = data[at + 1]
        if a == 115 or a == 116 or a == 109 or a == 100:  # s t m d
            return at + 2
        if at + 2 < end:
            b = data[at + 2]
            if ((a == 114 or a == 118) and b == 101) or (a == 108 and b == 108):  # re ve ll
                return at + 3
    here = at + 1 if data[at] == 32 and at + 1 < end else at
    kind, size = _kind(data, here, end, kinds)
    if kind == SPACE:
        last, stop = at, at
        while stop < end:
            kind, size = _kind(data, stop, end, kinds)
            if kind != SPACE:
                break
            last = stop
            stop += size
        # The last white space before a word belongs to the word, if it is not all there is.
        return stop if stop == end or last == at else last
    stop = here + size
    while stop < end:
        other, size = _kind(data, stop, end, kinds)
        if other != kind:
            break
        stop += size
    return stop


@_jit()
def _hash(data, start, end):
    h = np.uint64(14695981039346656037)
    for i in range(start, end):
        h = (h ^ np.uint64(data[i])) * np.uint64(1099511628211)
    return h ^ (h >> np.uint64(29))


@_jit()
def _same(data, a, b, size):
    for i in range(size):  # noqa: SIM110 (numba)
        if data[a + i] != data[b + i]:
            return False
    return True


@_jit()
def words_of(data, starts, kinds):
    """int64 [words + 1] offsets of all pre-tokens, and int64 [n + 1] of each text's first."""
    found = np.empty(len(data) + 1, np.int64)
    first = np.empty(len(starts), np.int64)
    n = 0
    for text in range(len(starts) - 1):
        first[text] = n
        at, end = starts[text], starts[text + 1]
        while at < end:
            found[n] = at
            n += 1
            at = _word_end(data, at, end, kinds)
    first[-1] = n
    found[n] = starts[-1]
    return found[: n + 1], first


@_jit()
def distinct_words(data, offsets):
    """Distinct words in order of first sight: start, end and count of each (int64).

    Args:
        offsets: int64 [words + 1] from `words_of`.
    """
    words = len(offsets) - 1
    size = 16
    while size < 2 * words:
        size *= 2
    slots = np.full(size, -1, np.int64)
    begins, ends = np.empty(words, np.int64), np.empty(words, np.int64)
    counts = np.zeros(words, np.int64)
    n = 0
    for word in range(words):
        start, end = offsets[word], offsets[word + 1]
        slot = np.int64(_hash(data, start, end) & np.uint64(size - 1))
        while slots[slot] >= 0:
            other = begins[slots[slot]]
            if ends[slots[slot]] - other == end - start and _same(data, other, start, end - start):
                break
            slot = (slot + 1) & (size - 1)
        if slots[slot] < 0:
            slots[slot] = n
            begins[n], ends[n] = start, end
            n += 1
        counts[slots[slot]] += 1
    return begins[:n], ends[:n], counts[:n]


@_jit(inline="always")
def _slot(key, mask):
    return np.int64((key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask


@_jit()
def _child(edges, state, byte):
    """The state after one more byte, or -1."""
    mask = len(edges) - 1
    key = np.uint64(state) << np.uint64(8) | np.uint64(byte)
    slot = _slot(key, mask)
    while True:
        entry = edges[slot]
        if entry == 0:
            return -1
        if entry >> np.uint64(32) == key:
            return np.int64(entry & np.uint64(0xFFFFFFFF))
        slot = (slot + 1) & mask


@_jit()
def trie_build(data, offsets):
    """A hash trie of a vocabulary: state 0 is the empty string.

    Args:
        data: uint8, the tokens' bytes one after another; offsets: int64 [V + 1].

    Returns:
        edges: uint64, open addressing; an entry is (state << 8 | byte) << 32 | next state;
        tokens: int32 [states], the token a state spells, or -1.
    """
    size = 512
    while size < 2 * len(data):  # at most a state for each byte
        size *= 2
    edges = np.zeros(size, np.uint64)
    tokens = np.full(len(data) + 1, -1, np.int32)
    states = 1
    for token in range(len(offsets) - 1):
        state = 0
        for i in range(offsets[token], offsets[token + 1]):
            after = _child(edges, state, data[i])
            if after < 0:
                key = np.uint64(state) << np.uint64(8) | np.uint64(data[i])
                slot = _slot(key, size - 1)
                while edges[slot] != 0:
                    slot = (slot + 1) & (size - 1)
                edges[slot] = key << np.uint64(32) | np.uint64(states)
                after = states
                states += 1
            state = after
        tokens[state] = token
    return edges, tokens[:states]


@_jit()
def lattices(data, begins, ends, edges, tokens):
    """Lattice edges of words, as `kernels.lattice_dp` takes them but ascending in src.

    Args:
        begins, ends: int64 [words], where each word lies in data.

    Returns:
        word_ptr int64 [words + 1]; src, dst int32 [E]; tok int32 [E].
    """
    word_ptr = np.zeros(len(begins) + 1, np.int64)
    src, dst, tok = np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32)
    for fill in range(2):  # count, then write
        n = 0
        for word in range(len(begins)):
            for i in range(begins[word], ends[word]):
                state = 0
                for j in range(i, ends[word]):
                    state = _child(edges, state, data[j])
                    if state < 0:
                        break
                    if tokens[state] >= 0:
                        if fill:
                            src[n] = i - begins[word]
                            dst[n] = j + 1 - begins[word]
                            tok[n] = tokens[state]
                        n += 1
            word_ptr[word + 1] = n
        if not fill:
            src, dst, tok = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    return word_ptr, src, dst, tok


@_jit()
def _rescaled(values, first, last):
    """Multiply values[first:last] by HUGE where all are below TINY; whether it was done."""
    for i in range(first, last):
        if values[i] >= TINY:
            return False
    for i in range(first, last):
        values[i] *= HUGE
    return True


@_jit()
def _product(a, b, scale):
    """a b HUGE^scale, which is in range though HUGE^scale may not be."""
    for _ in range(scale):
        if a < b:
            a *= HUGE
        else:
            b *= HUGE
    return a * b


@_jit()
def _expected_counts(word_ptr, src, dst, tok, lengths, counts, reach, p, expected, alpha, beta, ca):
    """E step: adds count * alpha p beta / Z of every edge to `expected`; the log-likelihood.

    alpha[i] TINY^ca[i] is the forward value: values not yet read share a scale, which is raised
    where they all are tiny. beta[i] holds beta / (Z TINY^-ca[i]), so that alpha[i] beta[i] is the
    chance that a token ends at i. So neither underflows in words of any length.
    """
    total = 0.0
    for word in range(len(lengths)):
        n = lengths[word]
        for i in range(n + 1):
            alpha[i] = beta[i] = 0.0
        alpha[0] = 1.0
        first, last = word_ptr[word], word_ptr[word + 1]
        edge, scale = first, 0
        for i in range(n + 1):
            if alpha[i] < TINY and _rescaled(alpha, i, min(n, i + reach) + 1):
                scale += 1
            ca[i] = scale
            while edge < last and src[edge] == i:
                alpha[dst[edge]] += alpha[i] * p[tok[edge]]
                edge += 1
        z = alpha[n]
        total += counts[word] * (np.log(z) + scale * np.log(TINY))
        beta[n] = 1.0 / z
        edge = last - 1
        for i in range(n - 1, -1, -1):
            while edge >= first and src[edge] == i:
                j = dst[edge]
                flow = _product(p[tok[edge]], beta[j], ca[j] - ca[i])
                beta[i] += flow
                expected[tok[edge]] += counts[word] * alpha[i] * flow
                edge -= 1
    return total


@_jit()
def fit_unigram(data, begins, ends, counts, edges, tokens, vocabulary, reach, rounds, tolerance):
    """EM of a UnigramLM on distinct words with counts, from the uniform distribution.

    Args:
        begins, ends, counts: int64 [words].
        vocabulary: V; reach: bytes of the longest token.
        rounds: at most so many; tolerance: stop when p moves less in total variation.

    Returns:
        p float64 [V]; log-likelihood before each round, float64 [rounds done]; lattice edges.
    """
    word_ptr, src, dst, tok = lattices(data, begins, ends, edges, tokens)
    lengths = ends - begins
    room = 1
    for length in lengths:
        room = max(room, length + 1)
    alpha, beta, ca = np.empty(room), np.empty(room), np.empty(room, np.int64)
    p = np.empty(vocabulary)
    p[:] = 1.0 / vocabulary
    likelihood = np.empty(rounds)
    done = 0
    for _ in range(rounds):
        expected = np.zeros(vocabulary)
        likelihood[done] = _expected_counts(
            word_ptr, src, dst, tok, lengths, counts, reach, p, expected, alpha, beta, ca
        )
        done += 1
        total, moved = 0.0, 0.0
        for token in range(vocabulary):
            total += expected[token]
        for token in range(vocabulary):
            share = expected[token] / total
            moved += 0.5 * abs(share - p[token])
            p[token] = share
        if moved < tolerance:
            break
    return p, likelihood[:done], len(src)


@_jit(error_model="numpy")
def _viterbi(data, begin, end, edges, tokens, w, s):
    """Best score of a word under all labels into a row of s; (row, lattice edges).

    s: float32 [R, L], a ring of rows for the last offsets; R exceeds the longest token.
    """
    labels, ring = w.shape[1], len(s) - 1
    high, visited = 0, 0
    s[0] = 0.0
    for i in range(end - begin):
        source = s[i & ring]
        state = 0
        for j in range(begin + i, end):
            state = _child(edges, state, data[j])
            if state < 0:
                break
            if tokens[state] < 0:
                continue
            visited += 1
            row = w[tokens[state]]
            to = j + 1 - begin
            target = s[to & ring]
            if to > high:
                for skipped in range(high + 1, to):
                    s[skipped & ring] = -np.inf
                high = to
                for label in range(labels):
                    target[label] = source[label] + row[label]
            else:
                for label in range(labels):
                    score = source[label] + row[label]
                    target[label] = score if score > target[label] else target[label]
    return (end - begin) & ring, visited


@_jit(error_model="numpy")
def score_texts(data, starts, kinds, edges, tokens, w, s, keys, sizes, tags, used, values, clock):
    """Scores of texts under all labels: float64 [n, L], sums over the words of each.

    The memo is a cache of word scores in sets of MEMO_WAYS, the least recently used of a set
    leaving first; with no sets it is off. It changes no bit of the result.

    Args:
        s: float32 [R, L] scratch.
        keys: uint8 [memo, MEMO_BYTES]; sizes: uint8 [memo]; tags: uint64 [memo]; used: int64
            [memo]; values: float32 [memo, L]; clock: int64 [4], of which this counts
            0 look-ups, 1 hits, 2 words, 3 lattice edges.

    Returns:
        float64 [n, L].
    """
    labels = w.shape[1]
    out = np.zeros((len(starts) - 1, labels))
    sets = len(keys) // MEMO_WAYS
    for text in range(len(starts) - 1):
        total = out[text]
        at, end = starts[text], starts[text + 1]
        while at < end:
            stop = _word_end(data, at, end, kinds)
            size = stop - at
            clock[2] += 1
            if sets == 0 or size > MEMO_BYTES:
                row, visited = _viterbi(data, at, stop, edges, tokens, w, s)
                clock[3] += visited
                for label in range(labels):
                    total[label] += s[row, label]
                at = stop
                continue
            clock[0] += 1
            tag = _hash(data, at, stop)
            base = np.int64(tag & np.uint64(sets - 1)) * MEMO_WAYS
            place, oldest, hit = base, clock[0], False
            for way in range(base, base + MEMO_WAYS):
                if tags[way] == tag and sizes[way] == size:
                    hit = True
                    for i in range(size):
                        if keys[way, i] != data[at + i]:
                            hit = False
                            break
                    if hit:
                        place = way
                        break
                if used[way] < oldest:
                    place, oldest = way, used[way]
            used[place] = clock[0]
            if hit:
                clock[1] += 1
            else:
                row, visited = _viterbi(data, at, stop, edges, tokens, w, s)
                clock[3] += visited
                tags[place], sizes[place] = tag, size
                for i in range(size):
                    keys[place, i] = data[at + i]
                for label in range(labels):
                    values[place, label] = s[row, label]
            for label in range(labels):
                total[label] += values[place, label]
            at = stop
    return out
