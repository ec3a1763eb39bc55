"""UniLID models of every experiment, and what is chosen on validation texts."""

import numpy as np
import pandas as pd
import torch

from scripts.papers.unilid import baselines, calibration, scores, vocabulary
from scripts.papers.unilid.datasets import Prepared, TextSet
from scripts.papers.unilid.model import Model, Trie, fit_label
from scripts.pipeline.stage import Job, Run, main

SHARED = "udhr_core"  # the set on which systems trained on equal samples are compared


def train(job: Job) -> None:
    prepared = Prepared(job)
    for run in job.runs():
        if run.arm == "models":
            _models(job, run, prepared)
        else:
            _choices(job, run, prepared)


def model_name(dataset: str, k: int | None) -> str:
    return dataset if k is None else f"{dataset}_{k}"


def most(job: Job) -> int:
    """The largest number of samples per label."""
    return max(job.params["samples"])


def _models(job: Job, run: Run, prepared: Prepared) -> None:
    """A model for each label set and number of samples.

    A vocabulary is learned from the fewest samples that a set is used with, and never from a text
    that a model of that many samples has not.
    """
    fewest = min(job.params["samples"])
    counted: dict[str, int] = {}
    sets = [
        ("udhr_all", [fewest, None]),
        (SHARED, job.params["samples"]),
        ("dialects_balanced", [None]),
        ("dialects_imbalanced", [None]),
    ]
    for dataset, samples in sets:
        first = prepared.text_set(dataset, run.seed, min(samples, key=lambda k: k or np.inf))
        words = vocabulary.train(first.train_texts, job.params["vocabulary"])
        for k in samples:
            texts = prepared.text_set(dataset, run.seed, k)
            name = model_name(dataset, k)
            counted[name] = _fit(job, run, name, words, texts)
    last = prepared.text_set(SHARED, run.seed, most(job))
    if run.seed == 0:
        words = vocabulary.of_tokenizer(job.asset("tokenizer"))
        _fit(job, run, "borrowed_vocabulary", words, last)
    counted["added"] = _added(job, run, prepared, last)
    run.save_table("operations", pd.DataFrame(counted.items(), columns=["model", "operations"]))


def _fit(job: Job, run: Run, name: str, words: list[bytes], texts: TextSet) -> int:
    """Fit and save a model; returns the multiply-adds that EM took.

    The curve is the cross-entropy of the labels' training texts by EM round.
    """
    rounds = job.params["rounds"]
    trie = Trie.of(words)
    fits = [fit_label(trie, own, rounds) for own in texts.train.values()]
    log_p = np.stack([fit.log_p for fit in fits], axis=1)
    _save(run, name, Model(tuple(words), texts.labels, log_p))
    run.metric("vocabulary", len(words), unit="tokens", n=len(fits), dataset=name)
    if name == model_name(SHARED, most(job)):
        bytes_ = np.array([sum(len(x.encode()) for x in own) for own in texts.train.values()])
        for step in range(rounds):
            reached = [fit.likelihood[min(step, len(fit.likelihood) - 1)] for fit in fits]
            run.log(step, nats_per_byte=float(np.mean(-np.array(reached) / bytes_)))
    return sum(fit.operations for fit in fits)


def _save(run: Run, name: str, model: Model) -> None:
    run.save_tensors(name, {key: torch.from_numpy(x) for key, x in model.arrays().items()})


def _added(job: Job, run: Run, prepared: Prepared, joint: TextSet) -> int:
    """A model of all but some labels, to which those are added one by one afterwards; returns the
    multiply-adds of adding them.
    """
    rounds = job.params["rounds"]
    new = new_labels(job, run.seed, joint.labels)
    old = [label for label in joint.labels if label not in new]
    few = prepared.text_set(SHARED, run.seed, min(job.params["samples"]))
    known = [text for label in old for text in few.train[label]]
    words = vocabulary.train(known, job.params["vocabulary"])
    model = Model.fit(words, {label: joint.train[label] for label in old}, rounds)
    before, operations = model.log_p, 0
    for label in new:
        model = model.with_label(label, joint.train[label], rounds)
        operations += fit_label(model.trie, joint.train[label], rounds).operations
    changed = (model.log_p[:, : len(old)].view(np.int32) != before.view(np.int32)).any(0)
    run.metric("changed_columns", int(changed.sum()), unit="columns", n=len(old), dataset="added")
    _save(run, "added", model)
    return operations


def new_labels(job: Job, seed: int, labels: tuple[str, ...]) -> list[str]:
    """The labels that are added later, drawn once a seed."""
    drawn = job.rng(f"new labels {seed}").permutation(len(labels))[: job.params["new_labels"]]
    return sorted(labels[i] for i in drawn)


def _choices(job: Job, run: Run, prepared: Prepared) -> None:
    """fastText's settings, naive Bayes' smoothing and the floor of unseen tokens, by accuracy (the
    floor by macro F1) on validation articles of seed 0; the test articles of seed 0 are untouched.
    """
    found = []
    tuned = [(SHARED, k) for k in (min(job.params["samples"]), most(job))]
    tuned += [("dialects_balanced", None), ("dialects_imbalanced", None)]
    for dataset, k in tuned:
        texts = prepared.text_set(dataset, 0, k, tuning=True)
        where = {"dataset": dataset, "k": -1 if k is None else k, "n": len(texts.texts)}
        for number, settings in enumerate(job.params["fasttext"]["grid"]):
            reached = _fasttext_accuracy(job, settings, texts)
            found.append({**where, "system": "fasttext", "choice": number, "reached": reached})
        bayes = baselines.NaiveBayes(texts.train, job.params["alphas"][0])
        for number, alpha in enumerate(job.params["alphas"]):
            bayes.smooth(alpha)
            reached = _accuracy(bayes, texts)
            found.append({**where, "system": "nb", "choice": number, "reached": reached})
        if k is None:
            words = vocabulary.train(texts.train_texts, job.params["vocabulary"])
            model = Model.fit(words, texts.train, job.params["rounds"])
            for number, floor in enumerate(job.params["floors"]):
                lifted = calibration.with_floor(model, floor).scorer().predict(texts.texts)
                reached = _macro_f1(lifted.label, texts)
                found.append({**where, "system": "floor", "choice": number, "reached": reached})
    frame = pd.DataFrame(found)
    run.save_table("choices", frame)
    for row in frame.itertuples():
        run.metric(
            f"validation_{row.system}", row.reached, n=row.n, dataset=row.dataset,
            setting=row.choice, unit="macro F1" if row.system == "floor" else scores.ACCURACY,
            **({} if row.k < 0 else {"k": row.k}),
        )  # fmt: skip


def fasttext_settings(job: Job, chosen: dict[str, float]) -> dict[str, float]:
    return {**job.params["fasttext"]["fixed"], **chosen}


def _fasttext_accuracy(job: Job, settings: dict[str, float], texts: TextSet) -> float:
    """0 where training diverges. In a function, so that no two models of 500 MB are held."""
    try:
        return _accuracy(baselines.FastText(texts.train, fasttext_settings(job, settings)), texts)
    except baselines.Diverged:
        return 0.0


def _accuracy(model: "baselines.FastText | baselines.NaiveBayes", texts: TextSet) -> float:
    return float((model.predict(texts.texts) == texts.truth_index).mean())


def _macro_f1(found: np.ndarray, texts: TextSet) -> float:
    by_label = scores.per_label(texts.truth_index, found, len(texts.labels))
    return float(by_label["f1"][by_label["support"] > 0].mean())


def chosen(choices: pd.DataFrame, system: str, dataset: str, k: int | None) -> int:
    """The best choice's number; the first of equal ones. A k that was not tuned takes the
    nearest smaller one's."""
    own = choices[(choices["system"] == system) & (choices["dataset"] == dataset)]
    if k is not None:
        own = own[own["k"] == own.loc[own["k"] <= k, "k"].max()]
    best = own.sort_values(["reached", "choice"], ascending=[False, True])
    return int(best["choice"].iloc[0])


if __name__ == "__main__":
    main(train)
