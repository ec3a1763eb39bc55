"""Time per text beside fastText, CLD3, lingua, py3langid and lid.176; training, memory and loading.

    python -m scripts.papers.unilid.bench [--output rows.parquet]

One process, one thread, the same texts for all: 5,000 paragraphs of the declaration (held-out
articles), 5,000 messages of software, both in many languages, and lines of an English manual, where
words repeat. Each system is given all texts at once, warm; the best of three passes counts. UniLID
runs without the word memo, with a memo that starts each pass empty, and with one that starts each
pass with the words of the training text. lingua, being slow, is given 500 texts of each kind.
Goals: at most 1.5 times fastText's time at 160 labels; faster than CLD3 and lingua at any number;
training at least 3 times faster than fastText.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from scripts.papers.unilid.model import Model

LABELS = (20, 80, 160, 443)
TEXTS, FEW, PASSES, SAMPLES, VOCABULARY, ROUNDS = 5000, 500, 3, 25, 16000, 20
FASTTEXT = {"dim": 64, "minn": 2, "maxn": 5, "minCount": 1, "lr": 0.8}
EPOCHS = 100
"""Of the training that is timed; predictions take equally long after one."""


def bench() -> "pd.DataFrame":
    """A row per system, number of labels and kind of text."""
    import pandas as pd

    udhr, texts = corpora()
    rows: list[dict[str, Any]] = []
    names = sorted(udhr["label"].unique())
    order = np.random.default_rng(0).permutation(len(names))
    for count in LABELS:
        chosen = sorted(names[i] for i in order[:count])
        train = {label: udhr[udhr["label"] == label]["text"].tolist() for label in chosen}
        model, seconds = unilid(train)
        rows += speeds(model, train, texts)
        rows += fasttext_speeds(train, texts)
        if count == 160:
            rows += training(train, seconds)
    rows += pretrained_speeds(texts)
    rows += [loading(system) for system in LOADERS]
    return pd.DataFrame(rows)


def corpora() -> "tuple[pd.DataFrame, dict[str, list[str]]]":
    """Training samples (label, text), and the texts asked by kind."""
    from scripts.papers.unilid.corpora import read_catalogues, read_udhr
    from scripts.pipeline.assets import verified
    from scripts.pipeline.files import ROOT

    rng = np.random.default_rng(0)
    udhr = read_udhr(verified(ROOT, "udhr"), 45)
    udhr = udhr.iloc[rng.permutation(len(udhr))]
    test = set(rng.permutation(31)[:12])
    held = udhr[udhr["article"].isin(test)]["text"].tolist()[:TEXTS]
    known = udhr[~udhr["article"].isin(test)].groupby("label").head(SAMPLES)
    messages = read_catalogues(verified(ROOT, "django-translations"))["text"]
    drawn = messages.iloc[rng.permutation(len(messages))[:TEXTS]].tolist()
    topics = json.loads((verified(ROOT, "python-topics") / "topics.json").read_text())
    lines = [" ".join(line.split()) for topic in topics.values() for line in topic.splitlines()]
    manual = [line for line in lines if len(line) >= 20][:TEXTS]
    return known, {"declaration": held, "messages": drawn, "manual": manual}


def unilid(train: dict[str, list[str]]) -> "tuple[Model, dict[str, float]]":
    """A model, and the processor seconds of its parts."""
    from scripts.papers.unilid import vocabulary
    from scripts.papers.unilid.model import Model

    first = [text for own in train.values() for text in own[:5]]
    start = time.process_time()
    words = vocabulary.train(first, VOCABULARY)
    middle = time.process_time()
    Model.fit(words, {"warm": first[:1]}, 1)  # numba loads its machine code
    warm = time.process_time()
    model = Model.fit(words, train, ROUNDS)
    return model, {"vocabulary": middle - start, "em": time.process_time() - warm}


def speeds(
    model: "Model", train: dict[str, list[str]], texts: dict[str, list[str]]
) -> list[dict[str, Any]]:
    known = [text for own in train.values() for text in own]
    plain, kept = model.scorer(0), model.scorer()
    plain.predict(known[:1])
    rows = []
    for kind, asked in texts.items():

        def learn() -> None:
            kept.forget()
            kept.predict(known)

        for system, scorer, before in (
            ("UniLID, no memo", plain, lambda: None),
            ("UniLID, memo empty", kept, kept.forget),
            ("UniLID, memo of training text", kept, learn),
        ):
            seconds = best(lambda s=scorer, a=asked: s.predict(a), before)
            rows.append(row(system, kind, len(model.labels), seconds, len(asked)))
        one = model.scorer()
        learn_one = best(lambda a=asked, s=one: [s.predict([text]) for text in a[:1000]])
        rows.append(row("UniLID, a call per text", kind, len(model.labels), learn_one, 1000))
    return rows


def fasttext_speeds(
    train: dict[str, list[str]], texts: dict[str, list[str]]
) -> list[dict[str, Any]]:
    from scripts.papers.unilid.baselines import FastText

    model = FastText(train, {**FASTTEXT, "epoch": 1})
    rows = []
    for kind, asked in texts.items():
        seconds = best(lambda a=asked: model.predict(a))
        rows.append(row("fastText", kind, len(train), seconds, len(asked)))
    return rows


def training(train: dict[str, list[str]], seconds: dict[str, float]) -> list[dict[str, Any]]:
    from scripts.papers.unilid.baselines import FastText

    start = time.process_time()
    FastText(train, {**FASTTEXT, "epoch": EPOCHS})
    ours = sum(seconds.values())
    return [
        {"system": "UniLID", "labels": len(train), "train_s": ours, **seconds},
        {"system": "fastText", "labels": len(train), "train_s": time.process_time() - start},
    ]


def pretrained_speeds(texts: dict[str, list[str]]) -> list[dict[str, Any]]:
    rows = []
    for system, load in LOADERS.items():
        if system == "UniLID":
            continue
        model = load()
        for kind, asked in texts.items():
            asked = asked[: FEW if system == "lingua" else None]
            allowed = model.languages
            model.predict(asked[:50], allowed)
            if system == "lingua":
                seconds = lingua_seconds(asked)
            else:
                seconds = best(lambda a=asked, m=model, x=allowed: m.predict(a, x))
            rows.append(row(system, kind, len(model.languages), seconds, len(asked)))
    return rows


def lingua_seconds(asked: list[str]) -> float:
    """lingua with its models loaded, which `Lingua` does anew in each call."""
    from lingua import LanguageDetectorBuilder

    detector = LanguageDetectorBuilder.from_all_languages().build()
    for text in asked[:50]:
        detector.detect_language_of(text)
    return best(lambda: [detector.detect_language_of(text) for text in asked])


def best(call: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> float:
    """Processor seconds of the fastest pass."""
    found = []
    for _ in range(PASSES):
        before()
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


def row(system: str, kind: str, labels: int, seconds: float, texts: int) -> dict[str, Any]:
    return {
        "system": system,
        "text": kind,
        "labels": labels,
        "us_per_text": 1e6 * seconds / texts,
        "texts": texts,
    }


def _load_unilid() -> Any:
    from scripts.papers.unilid.identify import DEFAULT, NAME, load_model
    from scripts.pipeline.files import ROOT

    scorer = load_model(ROOT / DEFAULT / NAME).scorer()
    scorer.predict(["warm"])
    return scorer


def _load_lid176() -> Any:
    from scripts.papers.unilid.baselines import Lid176
    from scripts.pipeline.assets import verified
    from scripts.pipeline.files import ROOT

    return Lid176(verified(ROOT, "lid-176") / "lid.176.ftz")


def _load(name: str) -> Any:
    from scripts.papers.unilid import baselines

    model = getattr(baselines, name)()
    model.predict(["warm"], model.languages)
    return model


LOADERS: dict[str, Callable[[], Any]] = {
    "UniLID": _load_unilid,
    "lid.176": _load_lid176,
    "CLD3": lambda: _load("Cld3"),
    "lingua": lambda: _load("Lingua"),
    "py3langid": lambda: _load("Py3Langid"),
}


def loading(system: str) -> dict[str, Any]:
    """Seconds to load and memory (resident set) that a fresh process needs for one system."""
    command = [sys.executable, "-m", "scripts.papers.unilid.bench", "--load", system]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"system": system, "note": done.stderr.strip().splitlines()[-1]}
    return {"system": system, **json.loads(done.stdout.splitlines()[-1])}


def _print_load(system: str) -> None:
    import psutil

    process = psutil.Process(os.getpid())
    before, start = process.memory_info().rss, time.process_time()
    kept = LOADERS[system]()
    seconds = time.process_time() - start
    grown = (process.memory_info().rss - before) / 2**20
    print(json.dumps({"load_s": seconds, "memory_mib": grown}))
    del kept


def main() -> None:
    """Print the tables, and write the rows where `--output` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="where the rows go, as parquet")
    parser.add_argument("--load", choices=sorted(LOADERS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        _print_load(args.load)
        return
    rows = bench()
    timed = rows[rows["us_per_text"].notna()]
    speed = timed.pivot_table(index=["text", "labels", "system"], values="us_per_text")
    print(speed.to_string(float_format=lambda value: f"{value:.1f}"))
    rest = rows[rows["us_per_text"].isna()].dropna(axis=1, how="all")
    print(rest.to_string(index=False, float_format=lambda value: f"{value:.2f}"))
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        rows.to_parquet(args.output, index=False)


if __name__ == "__main__":
    main()
