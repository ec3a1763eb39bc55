"""Predictions of every system on the test texts, and their accuracy, F1 and false positives."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from scripts.papers.unilid import baselines, calibration, lattice, scores
from scripts.papers.unilid.datasets import Prepared, TextSet
from scripts.papers.unilid.model import Model, Scorer, decide
from scripts.papers.unilid.train import (
    SHARED,
    chosen,
    fasttext_settings,
    model_name,
    most,
    new_labels,
)
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.stage import Job, Run, main

DIALECTS = ("dialects_balanced", "dialects_imbalanced")
LANGUAGES = ("django", "udhr_languages")
SYSTEMS = ("lid176", "cld3", "lingua", "py3langid")


def evaluate(job: Job) -> None:
    stage = Evaluation(job)
    for run in job.runs():
        frames = getattr(stage, f"_{run.arm}" if run.arm not in SYSTEMS else "_pretrained")(run)
        run.save_table("predictions", pd.concat(frames, ignore_index=True))


class Evaluation:
    """The arms, by name. Each takes a cell, records metrics and returns its predictions."""

    def __init__(self, job: Job):
        self.job, self.params = job, job.params
        self.prepared = Prepared(job)
        self.choices = job.load_table("train", "choices", "tuning", 0)
        self._systems: dict[str, Any] = {}

    def _model(self, run: Run, dataset: str, k: int | None = None) -> Model:
        tensors = run.load_tensors("train", model_name(dataset, k), "models")
        return Model.of_arrays({name: tensor.cpu().numpy() for name, tensor in tensors.items()})

    def _record(
        self,
        run: Run,
        texts: TextSet,
        found: np.ndarray,
        credits: np.ndarray | None = None,
        **where: Any,
    ) -> pd.DataFrame:
        truth = texts.truth_index
        where = {key: value for key, value in where.items() if value is not None}
        run.metrics(scores.rows(truth, found, texts.labels, texts.group, credits, **where))
        names = np.array(texts.labels)
        return pd.DataFrame({"truth": texts.truth, "found": names[found], **where})

    def _unilid(self, run: Run) -> list[pd.DataFrame]:
        samples = self.params["samples"]
        tasks = [("udhr_all", min(samples)), ("udhr_all", None)]
        tasks += [(SHARED, k) for k in samples] + [(dataset, None) for dataset in DIALECTS]
        frames = []
        for dataset, k in tasks:
            texts = self.prepared.text_set(dataset, run.seed, k)
            by_label = self._model(run, dataset, k).scorer().scores(texts.texts)
            credits = scores.credit(texts.truth_index, by_label)
            found = decide(by_label).label
            frames.append(self._record(run, texts, found, credits, dataset=dataset, k=k))
            if (dataset, k) == (SHARED, max(samples)):
                self._new_labels(run, texts, found)
        run.metric(
            "training_operations", self._operations(run, model_name(SHARED, max(samples))),
            unit="multiply-adds", n=len(texts.labels), dataset=SHARED,
        )  # fmt: skip
        if run.seed == 0:
            frames += self._languages(run)
        return frames

    def _languages(self, run: Run) -> list[pd.DataFrame]:
        """By language, restricted to the languages that a pretrained system knows too."""
        model, codes = self._model(run, "udhr_all"), self.prepared.label_codes()
        frames = []
        for system in SYSTEMS:
            known = self._system(system).languages
            labels = [label for label in model.labels if codes.get(label) in known]
            scorer = model.only(labels).scorer()
            for dataset in LANGUAGES:
                asked = self._asked(dataset, run.seed, known)
                best = scorer.predict(asked["text"].tolist()).label
                found = [codes[labels[i]] for i in best]
                frames.append(self._by_language(run, asked, found, dataset, system))
        return frames

    def _asked(self, dataset: str, seed: int, known: frozenset[str]) -> pd.DataFrame:
        asked = self.prepared.languages(dataset, seed)
        return asked[asked["code"].isin(known)]

    def _by_language(
        self, run: Run, asked: pd.DataFrame, found: Sequence[str], dataset: str, system: str
    ) -> pd.DataFrame:
        names = tuple(sorted(asked["code"].unique()))
        places = {name: i for i, name in enumerate(names)}
        truth = asked["code"].map(places).to_numpy()
        given = np.array([places.get(code, -1) for code in found])
        where = {"dataset": dataset, "against": system}
        group = asked["group"].to_numpy()
        run.metrics(scores.rows(truth, given, names, group, **where))
        return pd.DataFrame({"truth": asked["code"].to_numpy(), "found": list(found), **where})

    def _system(self, name: str) -> Any:
        if name not in self._systems:
            self._systems[name] = {
                "lid176": lambda: baselines.Lid176(self.job.asset("lid") / "lid.176.ftz"),
                "cld3": baselines.Cld3,
                "lingua": baselines.Lingua,
                "py3langid": baselines.Py3Langid,
            }[name]()
        return self._systems[name]

    def _pretrained(self, run: Run) -> list[pd.DataFrame]:
        system = self._system(run.arm)
        frames = []
        for dataset in LANGUAGES:
            asked = self._asked(dataset, run.seed, system.languages)
            if asked.empty:
                raise PipelineError(f"unilid: {run.arm} knows no language of {dataset}")
            found = system.predict(asked["text"].tolist(), set(asked["code"]))
            frames.append(self._by_language(run, asked, found, dataset, run.arm))
        return frames

    def _operations(self, run: Run, model: str) -> int:
        """Multiply-adds that EM took, as train counted them."""
        table = run.load_table("train", "operations", "models")
        return int(table.loc[table["model"] == model, "operations"].iloc[0])

    def _new_labels(self, run: Run, texts: TextSet, found: np.ndarray) -> None:
        """F1 of the labels that another arm adds later, among all labels."""
        by_label = scores.per_label(texts.truth_index, found, len(texts.labels))
        for label in new_labels(self.job, run.seed, texts.labels):
            i = texts.labels.index(label)
            if by_label["support"][i]:
                run.metric(
                    "f1", by_label["f1"][i], unit=scores.F1, n=int(by_label["support"][i]),
                    dataset="added", label=label,
                )  # fmt: skip

    def _unilid_added(self, run: Run) -> list[pd.DataFrame]:
        texts = self.prepared.text_set(SHARED, run.seed, most(self.job))
        model = self._model(run, "added").only(texts.labels)
        found = model.scorer().predict(texts.texts).label
        self._new_labels(run, texts, found)
        run.metric(
            "training_operations", self._operations(run, "added"), unit="multiply-adds",
            n=self.params["new_labels"], dataset="added",
        )  # fmt: skip
        return [pd.DataFrame({"truth": texts.truth, "found": np.array(texts.labels)[found]})]

    def _unilid_x(self, run: Run) -> list[pd.DataFrame]:
        k = most(self.job)
        texts = self.prepared.text_set(SHARED, run.seed, k)
        found = self._model(run, "borrowed_vocabulary").scorer().predict(texts.texts).label
        return [self._record(run, texts, found, dataset=SHARED, k=k)]

    def _unilid_floor(self, run: Run) -> list[pd.DataFrame]:
        frames = []
        for dataset in DIALECTS:
            number = chosen(self.choices, "floor", dataset, None)
            model = calibration.with_floor(self._model(run, dataset), self.params["floors"][number])
            texts = self.prepared.text_set(dataset, run.seed)
            found = model.scorer().predict(texts.texts).label
            frames.append(self._record(run, texts, found, dataset=dataset))
        return frames

    def _unilid_calibrated(self, run: Run) -> list[pd.DataFrame]:
        frames = []
        for dataset in DIALECTS:
            model = calibration.with_floor(self._model(run, dataset), calibration.SHARED_FLOOR)
            texts = self.prepared.text_set(dataset, run.seed)
            scorer = model.scorer()
            own = [scorer.scores(texts.train[label]) for label in texts.labels]
            sizes = np.array([len(x) for x in own])
            look = calibration.SecondLook.fit(own, sizes, **self.params["second_look"])
            found = look.decide(scorer.scores(texts.texts)).label
            frames.append(self._record(run, texts, found, dataset=dataset))
        return frames

    def _unilid_forward(self, run: Run) -> list[pd.DataFrame]:
        """The sum over all segmentations instead of the best one, on a sample of the texts."""
        k = most(self.job)
        texts = self.prepared.text_set(SHARED, run.seed, k)
        count = min(len(texts.texts), self.params["forward_texts"])
        drawn = np.sort(run.rng("forward").permutation(len(texts.texts))[:count])
        asked = [texts.texts[i] for i in drawn]
        model = self._model(run, SHARED, k)
        best = Scorer(model.trie, model.log_p).scores(asked).argmax(1)
        total = lattice.kernel_scores(model.trie, model.log_p, asked, "log", self.job.device)
        found, truth = total.argmax(1), texts.truth_index[drawn]
        for metric, value in (
            ("agreement", float((found == best).mean())),
            ("accuracy_change", float(abs((found == truth).mean() - (best == truth).mean()))),
        ):
            run.metric(metric, value, unit=scores.ACCURACY, n=count, dataset=SHARED, k=k)
        names = np.array(texts.labels)
        return [pd.DataFrame({"truth": texts.truth[drawn], "found": names[found]})]

    def _fasttext_paper(self, run: Run) -> list[pd.DataFrame]:
        settings = fasttext_settings(self.job, self.params["fasttext"]["paper"])
        return self._trained(run, lambda *_: settings, datasets=())

    def _fasttext_tuned(self, run: Run) -> list[pd.DataFrame]:
        def settings(dataset: str, k: int | None) -> dict[str, float]:
            number = chosen(self.choices, "fasttext", dataset, k)
            return fasttext_settings(self.job, self.params["fasttext"]["grid"][number])

        return self._trained(run, settings, datasets=DIALECTS)

    def _trained(self, run: Run, settings: Any, datasets: Sequence[str]) -> list[pd.DataFrame]:
        frames = []
        last = most(self.job)
        for dataset, k in [(SHARED, k) for k in self.params["samples"]] + [
            (dataset, None) for dataset in datasets
        ]:
            texts = self.prepared.text_set(dataset, run.seed, k)
            model = baselines.FastText(texts.train, settings(dataset, k))
            found = model.predict(texts.texts)
            frames.append(self._record(run, texts, found, dataset=dataset, k=k))
            if (dataset, k) == (SHARED, last):
                for name in (SHARED, "added"):  # a new label means to train all of it anew
                    run.metric(
                        "training_operations", model.training_operations(),
                        unit="multiply-adds", n=len(texts.labels), dataset=name,
                    )  # fmt: skip
        return frames

    def _nb(self, run: Run) -> list[pd.DataFrame]:
        frames = []
        for dataset, k in [(SHARED, k) for k in self.params["samples"]] + [
            (dataset, None) for dataset in DIALECTS
        ]:
            texts = self.prepared.text_set(dataset, run.seed, k)
            alpha = self.params["alphas"][chosen(self.choices, "nb", dataset, k)]
            found = baselines.NaiveBayes(texts.train, alpha).predict(texts.texts)
            frames.append(self._record(run, texts, found, dataset=dataset, k=k))
        return frames


if __name__ == "__main__":
    main(evaluate)
