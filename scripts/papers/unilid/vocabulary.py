"""The shared vocabulary: byte-level pieces that UnigramLM training or a BPE tokenizer found."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

MAX_PIECE = 50  # bytes


def byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level tokenizers write for each byte -> the byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


def to_bytes(pieces: Iterable[str]) -> list[bytes]:
    """Byte-level pieces as bytes, without those that are not byte-level (special tokens)."""
    alphabet = byte_alphabet()
    return [bytes(alphabet[c] for c in piece) for piece in pieces if set(piece) <= alphabet.keys()]


def canonical(pieces: Iterable[bytes]) -> list[bytes]:
    """The distinct pieces and all 256 bytes (so that every text has a segmentation), sorted."""
    return sorted({*pieces, *(bytes([byte]) for byte in range(256))} - {b""})


def train(texts: Sequence[str], size: int) -> list[bytes]:
    """A vocabulary of about `size` pieces by the UnigramLM trainer of `tokenizers`.

    Args:
        texts: the texts of all labels together.
        size: pieces wanted; fewer come where the texts are small.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread, and sums in one order
    from tokenizers import Tokenizer
    from tokenizers.models import Unigram
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import UnigramTrainer

    tokenizer = Tokenizer(Unigram())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=True, use_regex=True)
    trainer = UnigramTrainer(
        vocab_size=size,
        initial_alphabet=sorted(byte_alphabet()),
        max_piece_length=MAX_PIECE,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return canonical(to_bytes(tokenizer.get_vocab()))


def of_tokenizer(folder: Path) -> list[bytes]:
    """The pieces of a byte-level BPE tokenizer's tokenizer.json.

    Raises:
        ValueError: the file holds no byte-level vocabulary.
    """
    path = folder / "tokenizer.json"
    found = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
    special = {item["content"] for item in json.loads(path.read_text())["added_tokens"]}
    pieces = to_bytes(piece for piece in found if piece not in special)
    if len(pieces) < 256:
        raise ValueError(
            f"{path}: {len(pieces)} byte-level pieces; a byte-level tokenizer has 256 or more"
        )
    return canonical(pieces)
