"""Text assets, split by document, cut into token segments."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPLITS = ("calibration", "dev", "eval")
_BOUND = {**dict.fromkeys(range(6), "calibration"), 6: "dev", **dict.fromkeys((7, 8, 9), "eval")}


def documents(folder: Path) -> dict[str, dict[str, str]]:
    """Documents by split of a text asset: python-topics, scikit-learn descriptions or wikitext.

    Wikitext keeps its own splits (train, validation, test); the others are split by topic.

    Raises FileNotFoundError when the folder holds none of them.
    """
    if (folder / "topics.json").exists():
        return split_topics(json.loads((folder / "topics.json").read_text(encoding="utf-8")))
    if rst := sorted(folder.rglob("*.rst")):
        return {"eval": {path.name: path.read_text(encoding="utf-8") for path in rst}}
    own = {"train": "calibration", "validation": "dev", "test": "eval"}
    found: dict[str, dict[str, str]] = {}
    for name, split in own.items():
        for path in sorted(folder.rglob(f"{name}-*.parquet")):
            found.setdefault(split, {}).update(_articles(path))
    if not found:
        raise FileNotFoundError(f"{folder}: no topics.json, *.rst or <split>-*.parquet")
    return found


def _articles(path: Path) -> dict[str, str]:
    """Articles of a wikitext parquet file by title; a line " = Title = " starts one."""
    import pandas as pd

    lines = pd.read_parquet(path, columns=["text"])["text"]
    articles: dict[str, list[str]] = {}
    title = "start"
    for line in lines:
        if re.fullmatch(r" = [^=].*[^=] = \n?", line):
            title = line.strip(" =\n")
        articles.setdefault(title, []).append(line)
    return {title: "".join(parts) for title, parts in articles.items()}


def split_of(topic: str) -> str:
    """Split of a topic: SHA-256 of its name modulo 10; 0-5 calibration, 6 dev, 7-9 eval."""
    return _BOUND[int(hashlib.sha256(topic.encode()).hexdigest(), 16) % 10]


def split_topics(topics: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Topics per split, with shared paragraphs removed from the later splits.

    Topics of the reference quote whole sections of each other, so disjoint names are not enough:
    a paragraph of dev or eval that stands in an earlier split (spacing ignored) is dropped.
    """
    parts: dict[str, dict[str, str]] = {split: {} for split in SPLITS}
    for name in sorted(topics):
        parts[split_of(name)][name] = topics[name]
    seen: set[str] = set()
    for split in SPLITS:
        own: set[str] = set()
        for name, text in parts[split].items():
            paragraphs = [p for p in re.split(r"\n\s*\n", text) if _key(p) not in seen]
            own.update(map(_key, paragraphs))
            parts[split][name] = "\n\n".join(paragraphs)
        seen |= own
    return parts


def segments(
    tokenizer: PreTrainedTokenizerBase, topics: Mapping[str, str], length: int, count: int
) -> list[tuple[str, list[int]]]:
    """`count` segments of `length` tokens as (topic, ids), one per topic in turn, topics by hash.

    Raises ValueError when the topics hold fewer segments.
    """
    order = sorted(topics, key=lambda name: hashlib.sha256(b"order" + name.encode()).digest())
    ids: dict[str, list[int]] = {}
    found: list[tuple[str, list[int]]] = []
    turn, before = 0, -1
    while len(found) > before:
        before = len(found)
        for name in order:
            if name not in ids:
                ids[name] = tokenizer(topics[name], add_special_tokens=False).input_ids
            piece = ids[name][turn * length : (turn + 1) * length]
            if len(piece) == length:
                found.append((name, piece))
                if len(found) == count:
                    return found
        turn += 1
    raise ValueError(f"{len(found)} segments of {length} tokens in the text, {count} wanted")


def shared_ngrams(a: list[list[int]], b: list[list[int]], size: int = 24) -> int:
    """Number of token n-grams of the segments b that occur in the segments a."""
    seen = {tuple(s[i : i + size]) for s in a for i in range(len(s) - size + 1)}
    return sum(tuple(s[i : i + size]) in seen for s in b for i in range(len(s) - size + 1))


def _key(paragraph: str) -> str:
    return " ".join(paragraph.split())
