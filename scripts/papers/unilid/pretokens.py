"""Texts as bytes, and the classes of characters by which words are split.

Byte level without normalisation: a text gets a leading space where it has none, and GPT-2's
pattern cuts it into words (`ByteLevel(add_prefix_space=True)` of the tokenizers library). Tokens
never cross the border of a word.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np

from scripts.papers.unilid import compiled


@cache
def kinds() -> np.ndarray:
    """uint8 [0x110000]: letter, number, white space or other, by code point.

    Asked of the regular expressions of `tokenizers` itself, whose edition of Unicode is not
    Python's.
    """
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    found = np.full(0x110000, compiled.OTHER, np.uint8)
    for first, last in ((0, 0xD800), (0xE000, 0x40000)):  # no surrogates; the rest has none of them
        every = "".join(map(chr, range(first, last)))
        for pattern, kind in (
            (r"\p{L}+", compiled.LETTER),
            (r"\p{N}+", compiled.NUMBER),
            (r"\s+", compiled.SPACE),
        ):
            mask = np.ones(last - first, bool)
            for _, (start, end) in Split(Regex(pattern), "removed").pre_tokenize_str(every):
                mask[start:end] = False
            found[first:last][mask] = kind
    return found


def encode(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Texts as bytes: (uint8 data, int64 [n + 1] starts); lone surrogates become U+FFFD."""
    joined = [_bytes(text) for text in texts]
    starts = np.zeros(len(joined) + 1, np.int64)
    np.cumsum([len(text) for text in joined], out=starts[1:])
    return np.frombuffer(b"".join(joined), np.uint8), starts


def _bytes(text: str) -> bytes:
    spaced = text if not text or text.startswith(" ") else " " + text
    try:
        return spaced.encode()
    except UnicodeEncodeError:
        return spaced.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def split(text: str) -> list[bytes]:
    """The words of one text."""
    data, starts = encode([text])
    offsets, _ = compiled.words_of(data, starts, kinds())
    raw = data.tobytes()
    return [raw[a:b] for a, b in pairwise(offsets)]
