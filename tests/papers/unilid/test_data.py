"""Corpora, splits, label sets, scores, calibration and baselines."""

import gettext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scripts.papers.unilid import baselines, calibration, corpora, datasets, labels, scores
from scripts.papers.unilid.model import Model, decide

PAGE = """<html data-iso6393="abc"><body><h1>Title that is long enough to be text</h1>
<header><h2>Preamble heading, long enough</h2><p>Whereas recognition &amp;
 of   the inherent</p></header>
<article data-number="1"><h3>Article 1 heading long enough</h3><p>All human beings are born free</p>
<ol><li>Everyone has the <b>right</b> to life.</li><li>short</li></ol></article>
<p>A paragraph outside of any article stands here</p></body></html>"""


def test_a_declaration_is_read_by_article() -> None:
    iso, found = corpora.declaration(PAGE)
    assert iso == "abc"
    assert found == [
        (0, "Whereas recognition & of the inherent"),
        (1, "All human beings are born free"),
        (1, "Everyone has the right to life."),
    ]


def test_near_copies_and_short_declarations_leave_the_corpus(tmp_path: Path) -> None:
    def page(words: list[str]) -> str:
        text = "".join(f"<p>a paragraph about {word} and more</p>" for word in words)
        return f'<html data-iso6393="abc"><article data-number="1">{text}</article></html>'

    (tmp_path / "aaa.html").write_text(page(["one", "two", "three"]))
    (tmp_path / "bbb.html").write_text(page(["one", "four", "five"]))  # a third is the same
    (tmp_path / "ccc.html").write_text(page(["six", "seven", "eight"]))
    (tmp_path / "ddd.html").write_text(page(["nine"]))
    (tmp_path / "007.html").write_text(page(["ten", "eleven", "twelve"]))
    found = corpora.read_udhr(tmp_path, 3)
    assert sorted(found["label"].unique()) == ["aaa", "ccc"]
    with pytest.raises(ValueError, match="no declaration of 9 paragraphs"):
        corpora.read_udhr(tmp_path, 9)


def test_placeholders_and_markup_leave_messages(monkeypatch, tmp_path: Path) -> None:
    path = tmp_path / "conf" / "xx" / "LC_MESSAGES" / "django.mo"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    catalogue = {
        "source": "Bitte %(name)s geben Sie <b>%d</b> einen {wert:.2f} Namen&nbsp;ein",
        "untranslated message of the source": "untranslated message of the source",
        "two": "eine Zeile\nund noch eine andere Zeile",
        "three": "%(a)s %(b)s kurz",
        ("plural", 0): "Geben Sie bitte mindestens ein Zeichen ein",
    }

    class Fake:
        def __init__(self, _: object):
            self._catalog = catalogue

    monkeypatch.setattr(gettext, "GNUTranslations", Fake)
    found = corpora.read_catalogues(tmp_path)
    assert found["text"].tolist() == [
        "Geben Sie bitte mindestens ein Zeichen ein",
        "Bitte geben Sie einen Namen ein",
    ]
    assert set(found["locale"]) == {"xx"}


def test_articles_are_on_one_side_and_samples_are_nested() -> None:
    parts = datasets.split_groups(list(range(31)), 12 / 31, np.random.default_rng(0))
    counts = pd.Series(parts).value_counts()
    assert counts.to_dict() == {"fit": 13, "test": 12, "validation": 6}
    rows = pd.DataFrame(
        [(label, f"{label} {i}", i, parts[i]) for label in "ab" for i in range(31)]
        + [("a", "the same", 0, "test"), ("b", "the same", 0, "test")],
        columns=["label", "text", "group", "part"],
    )
    rows["rank"] = np.random.default_rng(1).permutation(len(rows))
    small, large = (datasets.text_set(rows, ["a", "b"], k) for k in (3, 7))
    assert all(large.train[x][:3] == small.train[x] for x in "ab")
    assert "the same" not in small.texts
    assert len(small.texts) == 24
    assert not set(small.texts) & set(large.train_texts)
    tuning = datasets.text_set(rows, ["a", "b"], None, tuning=True)
    assert {parts[int(text.split()[1])] for text in tuning.texts} == {"validation"}
    assert {parts[int(text.split()[1])] for text in tuning.train_texts} == {"fit"}


def test_labels_are_stratified_by_script() -> None:
    scripts = {f"l{i}": "LATIN" for i in range(8)} | {f"c{i}": "CYRILLIC" for i in range(4)}
    found = labels.stratified(scripts, ["l7"], 7)
    assert found == ["c0", "c1", "l0", "l1", "l2", "l3", "l7"]
    assert labels.script_of(["Привет мир", "x"]) == "CYRILLIC"
    assert labels.script_of(["1 2"]) == "UNKNOWN"
    assert labels.language_of_system("zh-Latn") == "zh"
    assert labels.language_of_system("iw") == "he"


def test_f1_and_false_positives_equal_sklearn() -> None:
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(0)
    truth, found = rng.integers(0, 5, 200), rng.integers(0, 6, 200)
    own = scores.per_label(truth, found, 6)
    expected = f1_score(truth, found, labels=range(6), average=None, zero_division=0)
    np.testing.assert_allclose(own["f1"], expected)
    assert own["fpr"][5] == pytest.approx((found == 5).mean())


def test_ties_count_in_part() -> None:
    tied = np.array([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0], [3.0, 3.0, 3.0], [1.0, 1.0, 0.0]])
    credit = scores.credit(np.array([1, 1, 2, 2]), tied)
    np.testing.assert_allclose(credit, [0.5, 1, 1 / 3, 0])


def test_the_floor_moves_unseen_tokens_alone() -> None:
    words = sorted([*(bytes([b]) for b in range(256)), b"ab"])
    model = Model.fit(words, {"x": ["ab ab"], "y": ["cc c"]}, 20)
    lifted = calibration.with_floor(model, -14)
    unseen = model.log_p < -27
    assert (lifted.log_p[unseen] == -14).all()
    assert np.array_equal(lifted.log_p[~unseen], np.maximum(model.log_p[~unseen], -14))


def test_the_second_look_moves_narrow_wins_of_small_labels() -> None:
    sizes = np.array([10, 200, 200, 10])
    train = np.array([[-10.0, -11, -12, -90]] * 20)
    look = calibration.SecondLook.fit([train] * 4, sizes, small=100, large=150, within=5.0)
    assert look.thresholds[0] == pytest.approx(1.0)
    asked = np.array(
        [
            [-10.0, -10.5, -11, -90],  # narrow: to the best large label
            [-10.0, -12.0, -13, -90],  # wide: stays
            [-10.0, -90.0, -91, -10.1],  # narrow, but no large label is near
            [-12.0, -10.0, -10.1, -90],  # a large winner
        ]
    )
    assert look.decide(asked).label.tolist() == [1, 0, 0, 1]
    assert decide(asked).label.tolist() == [0, 0, 0, 1]


def test_baselines_learn_and_fasttext_is_the_same_each_time() -> None:
    train = {
        "eng": ["the king and the thing", "the singing ring of the king"] * 5,
        "deu": ["der Hund und die Zeitung", "und der Mann der Stadt"] * 5,
    }
    asked = ["the ring and the king", "die Stadt und der Hund"]
    settings = {"dim": 16, "minn": 2, "maxn": 3, "minCount": 1, "lr": 0.5, "epoch": 20}
    first = baselines.FastText(train, settings)
    assert first.predict(asked).tolist() == [0, 1]
    again = baselines.FastText(train, settings)
    odd = ["xyzzy plugh", "königin", "the der und and", "stadt king"]
    assert np.array_equal(first.predict(odd), again.predict(odd))
    assert first.training_operations() > 0
    assert baselines.NaiveBayes(train, 0.01).predict(asked).tolist() == [0, 1]


def test_pretrained_systems_stay_among_the_allowed_languages() -> None:
    asked = ["Questo è un testo in italiano", "Das ist ein deutscher Satz"]
    system = baselines.Py3Langid()
    assert {"de", "it", "nb", "he"} <= system.languages
    assert system.predict(asked, {"de", "fr"})[1] == "de"
    assert set(system.predict(asked, {"de", "fr"})) <= {"de", "fr"}
    assert baselines.Cld3().predict(asked, {"de"}) == ["it", "de"]
    assert baselines.Cld3.languages >= {"he", "nb", "tl"}
