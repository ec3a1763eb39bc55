"""The systems UniLID is measured against, behind one shape: texts in, label indices out."""

import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.papers.unilid.labels import language_of_system

PREFIX = "__label__"
CLD3_LANGUAGES = (
    "af am ar az be bg bn bs ca ceb co cs cy da de el en eo es et eu fa fi fil fr fy ga gd gl gu "
    "ha haw hi hmn hr ht hu hy id ig is it iw ja jv ka kk km kn ko ku ky la lb lo lt lv mg mi mk "
    "ml mn mr ms mt my ne nl no ny pa pl ps pt ro ru sd si sk sl sm sn so sq sr st su sv sw ta te "
    "tg th tr uk ur uz vi xh yi yo zh zu"
)
"""The languages of CLD3's released network, which its Python module does not list."""


class Diverged(ValueError):
    """Training met a number that is none; the learning rate is too high."""


class FastText:
    """A fastText classifier trained on one thread.

    With one thread fastText draws random values for a tenth of its input matrix and leaves the rest
    as the allocator gave it. Its matrix of 2,000,000 buckets is so large that the allocator gives
    fresh, zeroed pages; a smaller `bucket` would start from leftovers and differ between runs.

    Args:
        train: label -> texts.
        settings: dim, minn, maxn, minCount, lr, epoch.

    Raises:
        Diverged: fastText gave up.
    """

    def __init__(self, train: Mapping[str, Sequence[str]], settings: Mapping[str, Any]):
        import fasttext

        fasttext.FastText.eprint = lambda *_: None  # its only message is a notice of an old API
        self._places = {PREFIX + label: i for i, label in enumerate(train)}
        # Labels take turns: in blocks of one label, stochastic gradient steps would forget.
        longest = max(map(len, train.values()))
        lines = [
            f"{PREFIX}{label} {' '.join(own[i].split())}\n"
            for i in range(longest)
            for label, own in train.items()
            if i < len(own)
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "train.txt")
            path.write_text("".join(lines), encoding="utf-8")
            try:
                self._model = fasttext.train_supervised(
                    str(path), thread=1, verbose=0, loss="softmax", **settings
                )
            except RuntimeError as error:
                raise Diverged(f"settings: {dict(settings)}: {error}") from error
        self.settings, self.lines = settings, lines

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """int [n] indices of the labels given for training."""
        found, _ = self._model.predict([" ".join(text.split()) for text in texts])
        return np.array([self._places[best[0]] for best in found], int)

    def training_operations(self) -> int:
        """Multiply-adds of training: the inputs of a line are summed and updated (2 dim each), the
        output layer is read once and written twice (3 dim for each label).
        """
        inputs = 0
        sizes: dict[str, int] = {}
        for line in self.lines:
            for word in (*line.split()[1:], "</s>"):
                if word not in sizes:
                    sizes[word] = len(self._model.get_subwords(word)[1])
                inputs += sizes[word]
        dim, labels = self.settings["dim"], len(self._places)
        per_epoch = 2 * dim * inputs + 3 * dim * labels * len(self.lines)
        return self.settings["epoch"] * per_epoch


class NaiveBayes:
    """Multinomial naive Bayes on character 1- to 4-grams within words (scikit-learn)."""

    def __init__(self, train: Mapping[str, Sequence[str]], alpha: float):
        from sklearn.feature_extraction.text import CountVectorizer

        self._counter = CountVectorizer(analyzer="char_wb", ngram_range=(1, 4), lowercase=False)
        self._x = self._counter.fit_transform([text for own in train.values() for text in own])
        self._y = np.repeat(np.arange(len(train)), [len(own) for own in train.values()])
        self.smooth(alpha)

    def smooth(self, alpha: float) -> None:
        """Fit anew with another smoothing, on the same counts."""
        from sklearn.naive_bayes import MultinomialNB

        self._model = MultinomialNB(alpha=alpha, fit_prior=False).fit(self._x, self._y)

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """int [n] indices of the labels given for training."""
        return self._model.predict(self._counter.transform(texts)).astype(int)


class Lid176:
    """fastText's released model of 176 languages, from its file."""

    def __init__(self, path: Path):
        import fasttext

        fasttext.FastText.eprint = lambda *_: None
        self._model = fasttext.load_model(str(path))
        self._codes = {x: language_of_system(x[len(PREFIX) :]) for x in self._model.labels}
        self.languages = frozenset(self._codes.values())

    def predict(self, texts: Sequence[str], allowed: Collection[str]) -> list[str]:
        """The language of each text, the most likely one of those allowed."""
        found, _ = self._model.predict([" ".join(text.split()) for text in texts], k=-1)
        return [next(self._codes[x] for x in row if self._codes[x] in allowed) for row in found]


class Cld3:
    """Google's CLD3. It cannot be restricted: it may answer with a language not allowed."""

    languages = frozenset(map(language_of_system, CLD3_LANGUAGES.split()))

    def __init__(self) -> None:
        import gcld3

        self._model = gcld3.NNetLanguageIdentifier(min_num_bytes=0, max_num_bytes=4000)

    def predict(self, texts: Sequence[str], allowed: Collection[str]) -> list[str]:
        """The language of each text."""
        return [language_of_system(self._model.FindLanguage(text=text).language) for text in texts]


class Lingua:
    """lingua's statistical models, in the high accuracy mode."""

    def __init__(self) -> None:
        from lingua import Language

        codes = {lang: language_of_system(lang.iso_code_639_1.name) for lang in Language.all()}
        self._codes, self.languages = codes, frozenset(codes.values())

    def predict(self, texts: Sequence[str], allowed: Collection[str]) -> list[str]:
        """The language of each text among those allowed; "" where lingua gives none."""
        from lingua import LanguageDetectorBuilder

        wanted = sorted(lang for lang, code in self._codes.items() if code in allowed)
        model = LanguageDetectorBuilder.from_languages(*wanted).build()
        found = [model.detect_language_of(text) for text in texts]
        return ["" if lang is None else self._codes[lang] for lang in found]


class Py3Langid:
    """py3langid's naive Bayes on byte n-grams."""

    def __init__(self) -> None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        self._model = LanguageIdentifier.from_model_file(MODEL_FILE)
        self._own = list(dict.fromkeys(self._model.labels))
        self.languages = frozenset(map(language_of_system, self._own))

    def predict(self, texts: Sequence[str], allowed: Collection[str]) -> list[str]:
        """The language of each text among those allowed."""
        self._model.set_languages([x for x in self._own if language_of_system(x) in allowed])
        return [language_of_system(self._model.classify(text)[0]) for text in texts]
