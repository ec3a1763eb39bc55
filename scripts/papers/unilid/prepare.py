"""Texts of both corpora, the label sets and the splits of every seed."""

import numpy as np
import pandas as pd

from scripts.papers.unilid import corpora, datasets, labels
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.stage import Job, main


def prepare(job: Job) -> None:
    try:
        udhr = corpora.read_udhr(job.asset("udhr"), job.params["fewest"])
        messages = corpora.read_catalogues(job.asset("messages"))
    except ValueError as error:
        raise PipelineError(f"unilid.{job.scale}: {error}") from error
    wanted = job.params["labels"]
    if wanted is not None:
        lacking = sorted(set(wanted) - set(udhr["label"]))
        if lacking:
            raise PipelineError(
                f"unilid.{job.scale}.labels: {lacking} are not among the "
                f"{udhr['label'].nunique()} labels of the corpus"
            )
        udhr = udhr[udhr["label"].isin(wanted)].reset_index(drop=True)
    udhr["group"] = udhr["article"]
    udhr["code"] = udhr["iso"].map(datasets.code_of_iso)
    messages["label"] = messages["locale"]
    messages["code"] = messages["locale"].map(datasets.code_of_locale)
    codes, messages["group"] = np.unique(messages["message"], return_inverse=True)
    job.save_table("udhr", udhr)
    job.save_table("messages", messages.drop(columns=["locale", "message"]))
    job.save_json("sets", _sets(job, udhr, messages))
    job.save_table("splits", _splits(job, udhr, messages, len(codes)))


def _sets(job: Job, udhr: pd.DataFrame, messages: pd.DataFrame) -> dict[str, list[str]]:
    """Labels of each experiment, sorted."""
    every = sorted(udhr["label"].unique())
    texts = udhr.groupby("label")["text"].agg(list)
    scripts = {label: labels.script_of(texts[label]) for label in every}
    dialects = [label for group in labels.DIALECTS.values() for label in group if label in scripts]
    sizes = job.params["messages"]["sizes"]
    return {
        "udhr_all": every,
        "udhr_core": labels.stratified(scripts, dialects, job.params["core_labels"]),
        "dialects_balanced": sorted(dialects),
        "dialects_imbalanced": sorted(set(sizes) & set(messages["label"])),
        "scripts": scripts,
    }


def _splits(job: Job, udhr: pd.DataFrame, messages: pd.DataFrame, keys: int) -> pd.DataFrame:
    """For every seed and row of a corpus: its part (fit, validation or test) and random rank.

    Articles, and messages, are split for all labels at once: texts that translate each other are
    never on both sides.
    """
    articles = sorted(udhr["article"].unique())
    frames = []
    for seed in job.seeds:
        rng = job.rng(f"split {seed}")
        for corpus, rows, groups, share in (
            ("udhr", udhr, articles, job.params["test_articles"] / len(articles)),
            ("messages", messages, list(range(keys)), job.params["messages"]["test_share"]),
        ):
            parts = datasets.split_groups(groups, share, rng)
            frames.append(
                pd.DataFrame(
                    {
                        "corpus": corpus,
                        "seed": seed,
                        "row": np.arange(len(rows)),
                        "part": rows["group"].map(parts).to_numpy(),
                        "rank": rng.permutation(len(rows)),
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


if __name__ == "__main__":
    main(prepare)
