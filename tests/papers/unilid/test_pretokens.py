"""Words against the byte-level splitter of `tokenizers`."""

import argparse
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from scripts.papers.unilid import compiled, pretokens
from scripts.papers.unilid.vocabulary import byte_alphabet, canonical, to_bytes, train

SPLITTER = ByteLevel(add_prefix_space=True, use_regex=True)
TRICKY = [*" '\n\t\u00a0\u3000\x1c\x85strvelmd19٣½.,_€ßЖ中ไ\u0301\U0001f600", "'ll", "'re", "'S"]


def by_tokenizers(text: str) -> list[bytes]:
    return to_bytes(word for word, _ in SPLITTER.pre_tokenize_str(text))


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(TRICKY)).map("".join)))
def test_words_equal_those_of_tokenizers(text: str) -> None:
    assert pretokens.split(text) == by_tokenizers(text)


def test_words_of_all_scripts_equal_those_of_tokenizers() -> None:
    """Every eighth code point of every plane, among letters, digits and spaces."""
    points = [chr(c) for c in range(0, 0x110000, 8) if not 0xD800 <= c < 0xE000]
    draw = random.Random(0)
    draw.shuffle(points)
    for i in range(0, len(points), 64):
        text = "".join(c + draw.choice(["", " ", "a", "1", "."]) for c in points[i : i + 64])
        assert pretokens.split(text) == by_tokenizers(text)


def test_no_plane_beyond_the_third_has_letters_numbers_or_spaces() -> None:
    text = "".join(map(chr, range(0x40000, 0x110000, 7)))
    assert len(pretokens.split("a" + text)) == len(by_tokenizers("a" + text)) == 2


def test_texts_are_told_apart() -> None:
    data, starts = pretokens.encode(["ab c", "", " d"])
    _, first = compiled.words_of(data, starts, pretokens.kinds())
    assert first.tolist() == [0, 2, 2, 3]
    assert data.tobytes() == b" ab c d"
    begins, ends, counts = compiled.distinct_words(*words("x x y x"))
    assert counts.tolist() == [3, 1]
    assert (ends - begins).tolist() == [2, 2]


def words(text: str) -> tuple[np.ndarray, np.ndarray]:
    data, starts = pretokens.encode([text])
    return data, compiled.words_of(data, starts, pretokens.kinds())[0]


def test_lone_surrogates_become_replacement_characters() -> None:
    assert pretokens.encode(["a\ud800b"])[0].tobytes() == " a\ufffdb".encode()


@pytest.mark.parametrize(
    "raw", [b"\xff", b"\xc3", b"\xf0\x9f", b"\x80a", b"\xf7\xbf\xbf\xbf", b"\xc0\x80"]
)
def test_broken_utf8_is_cut_without_reading_past_the_end(raw: bytes) -> None:
    data = np.frombuffer(b" " + raw, np.uint8)
    offsets, _ = compiled.words_of(data, np.array([0, len(data)], np.int64), pretokens.kinds())
    assert offsets[0] == 0
    assert offsets[-1] == len(data)
    assert (np.diff(offsets) > 0).all()


def test_a_trained_vocabulary_spells_everything_and_is_the_same_each_time() -> None:
    texts = [*argparse.__doc__.splitlines(), *random.__doc__.splitlines(), "заяц", "Matte saß"]
    found = train(texts, 400)
    assert {bytes([byte]) for byte in range(256)} < set(found)
    assert b" the" in found
    assert found == train(texts, 400) == canonical(reversed(found))


def test_the_byte_alphabet_is_that_of_tokenizers() -> None:
    assert sorted(byte_alphabet()) == sorted(ByteLevel.alphabet())
