"""Training and test texts of every experiment, by seed, from the tables of prepare."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scripts.papers.unilid.labels import CODES, language_of_locale

if TYPE_CHECKING:
    import pandas as pd

    from scripts.pipeline.stage import Job

FIT, VALIDATION, TEST = "fit", "validation", "test"


@dataclass(frozen=True)
class TextSet:
    """train: label -> its texts; texts, truth (label) and group (article or message) of the test.

    A test text that stands under two labels has no one answer and is left out.
    """

    labels: tuple[str, ...]
    train: dict[str, list[str]]
    texts: list[str]
    truth: np.ndarray
    group: np.ndarray

    @property
    def train_texts(self) -> list[str]:
        return [text for own in self.train.values() for text in own]

    @property
    def truth_index(self) -> np.ndarray:
        places = {label: i for i, label in enumerate(self.labels)}
        return np.array([places[label] for label in self.truth], int)


def split_groups(groups: Sequence, test: float, rng: np.random.Generator) -> dict:
    """Group -> part: a share `test` is test, a third of the rest validation, the rest fit."""
    order = rng.permutation(len(groups))
    tests = round(test * len(groups))
    held = tests + round((len(groups) - tests) / 3)
    parts = [TEST] * tests + [VALIDATION] * (held - tests) + [FIT] * (len(groups) - held)
    return {groups[place]: part for place, part in zip(order, parts, strict=True)}


def text_set(
    rows: "pd.DataFrame",
    labels: Sequence[str],
    sizes: dict[str, int] | int | None = None,
    tuning: bool = False,
) -> TextSet:
    """The texts of some labels.

    Args:
        rows: label, text, group, part, rank (the random order in which samples are drawn).
        sizes: training texts of each label, or of all; None: all there are.
        tuning: train on fit and test on validation, instead of both on test.
    """
    rows = rows[rows["label"].isin(labels)].sort_values("rank", kind="stable")
    known = rows[rows["part"] == FIT] if tuning else rows[rows["part"] != TEST]
    asked = rows[rows["part"] == (VALIDATION if tuning else TEST)].sort_index()
    owners = rows.groupby("text")["label"].nunique()
    asked = asked[asked["text"].map(owners) == 1]
    train = {}
    for label in labels:
        own = known.loc[known["label"] == label, "text"].tolist()
        size = sizes.get(label) if isinstance(sizes, dict) else sizes
        train[label] = own[:size]
    return TextSet(
        tuple(labels),
        train,
        asked["text"].tolist(),
        asked["label"].to_numpy(),
        asked["group"].to_numpy(),
    )


def languages(rows: "pd.DataFrame", code: str, per_language: int) -> "pd.DataFrame":
    """At most so many test texts of each language, in random order: code, text, group.

    Args:
        rows: test rows with a column `code` (None: a language that not both corpora have).
    """
    known = rows[rows[code].notna()].sort_values("rank", kind="stable")
    owners = known.groupby("text")[code].nunique()
    return known[known["text"].map(owners) == 1].groupby(code).head(per_language).sort_index()


def code_of_iso(iso: str) -> str | None:
    return CODES.get(iso)


def code_of_locale(locale: str) -> str | None:
    code = language_of_locale(locale)
    return code if code in CODES.values() else None


class Prepared:
    """The tables of prepare, and the text sets of a seed made from them."""

    def __init__(self, job: "Job"):
        self.params = job.params
        self.sets = job.load_json("prepare", "sets")
        self._corpora = {name: job.load_table("prepare", name) for name in ("udhr", "messages")}
        self._splits = job.load_table("prepare", "splits")

    def rows(self, corpus: str, seed: int) -> "pd.DataFrame":
        """A corpus with the part and rank of each row under a seed."""
        splits = self._splits
        own = splits[(splits["corpus"] == corpus) & (splits["seed"] == seed)]
        parts = own.set_index("row")[["part", "rank"]]
        return self._corpora[corpus].join(parts)

    def text_set(self, name: str, seed: int, k: int | None = None, tuning: bool = False) -> TextSet:
        """A label set's texts; k: samples of each label (None: all there are).

        Samples are nested: those of a smaller k are the first of a larger one.
        """
        imbalanced = name == "dialects_imbalanced"
        sizes = self.params["messages"]["sizes"] if imbalanced else k
        rows = self.rows("messages" if imbalanced else "udhr", seed)
        return text_set(rows, self.sets[name], sizes, tuning)

    def languages(self, dataset: str, seed: int) -> "pd.DataFrame":
        """Test texts by language (columns code, text, group) of "django" or "udhr_languages".

        No UniLID model of the declaration has seen a message, so all messages can be asked.
        """
        per_language = self.params["messages"]["per_language"]
        other, own = self._corpora["messages"], self._corpora["udhr"]
        both = set(other["code"].dropna()) & set(own["code"].dropna())
        rows = self.rows("messages" if dataset == "django" else "udhr", seed)
        if dataset != "django":
            rows = rows[rows["part"] == TEST]
        return languages(rows[rows["code"].isin(both)], "code", per_language)

    def label_codes(self) -> dict[str, str]:
        """Label of the declaration -> language code, where it has one."""
        own = self._corpora["udhr"][["label", "code"]].drop_duplicates().dropna()
        return dict(zip(own["label"], own["code"], strict=True))
