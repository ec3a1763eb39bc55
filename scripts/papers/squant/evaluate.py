"""Decode every arm from its bytes, put it into the models, and measure what they lose."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

from scripts.papers.squant.prepare import load_language
from scripts.papers.squant.weights import ENCODER, LANGUAGE, digest
from scripts.pipeline.stage import Job, Run, main

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from scripts.papers.squant.quality import Encoder, Language

SCORES = (("kl", "nat/token"), ("nll", "nat/token"), ("top1", "fraction of tokens"))
EMBEDDING = (
    ("cosine", "cosine"),
    ("similarity_rank", "Spearman correlation"),
    ("neighbours_kept", "share of 10 neighbours"),
)


def evaluate(job: Job) -> None:
    models = Models(job)
    for run in job.runs():
        if run.seed > 0:  # other seeds compress for distortion only
            continue
        if run.arm == "fp":
            _score(models.language, run, {"setting": "16 bit", "bits": 16.0})
            continue
        _arm(job, run, models)
        if "design" in job.params["arms"][run.arm]:
            _traffic(job, run)


class Models:
    """The full models, loaded when first used."""

    def __init__(self, job: Job):
        self._job = job

    @cached_property
    def language(self) -> "Language":
        import numpy as np
        import torch

        from scripts.papers.squant.quality import Language

        table = self._job.load_table("prepare", "segments")
        ids = torch.from_numpy(np.stack(table[table["split"] == "eval"]["ids"]))
        model = load_language(self._job, seed=0)
        return Language(model, ids.to(model.device), min(self._job.params["layers"]))

    @cached_property
    def encoder(self) -> "Encoder":
        import torch
        from transformers import AutoModel

        from scripts.papers.squant.quality import Encoder
        from scripts.pipeline.models import load_tokenizer

        folder = self._job.asset("encoder")
        model = AutoModel.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, local_files_only=True,
            trust_remote_code=False,
        )  # fmt: skip
        model = model.to(self._job.device).eval().requires_grad_(False)
        sentences = self._job.load_json("prepare", "sentences")
        return Encoder(model, load_tokenizer(folder), sentences)


def _arm(job: Job, run: Run, models: Models) -> None:
    """Scores of each setting, then of each target rate; decoded tensors against the encoder's."""
    import numpy as np

    from scripts.papers.squant.matching import Point, at_target

    coded = run.load_table("compress", "coded")
    points, wrong = [], 0
    for (dataset, label), rows in coded.groupby(["dataset", "label"], sort=False):
        decoded = _decode(run, dataset, label, rows)
        wrong += sum(
            digest(decoded[tensor]) != sha
            for tensor, sha in zip(rows["tensor"], rows["sha256"], strict=True)
        )
        bits = float(np.average(rows["bits"], weights=rows["weights"]))
        target = rows["target"].iloc[0]
        where = {"setting": label, "bits": bits, "target": target}
        if dataset == LANGUAGE:
            with Installed(models.language, decoded):
                scores = _score(models.language, run, where)
                if run.arm in ("squant_published", "squant_fixed") and not points:
                    changed, n = models.language.foreign_changes(decoded)
                    unit = "parameter tensor"
                    run.metric("foreign_changes", changed, unit=unit, n=n, dataset=LANGUAGE)
            kl = np.array([row["kl"] for row in scores])
            points.append(Point(label, label.partition("-")[2], bits, kl))
        else:
            with Installed(models.encoder, decoded):
                found = models.encoder.scores()
            run.metrics(
                [
                    {"metric": name, "value": found[name], "unit": unit}
                    | {"n": job.params["sentences"], "dataset": ENCODER, **where}
                    for name, unit in EMBEDDING
                ]
            )
    run.metric("decode_mismatch", wrong, unit="tensor", n=len(coded))
    own = "design" in job.params["arms"][run.arm]
    for target in job.params["targets"]:
        usable = [p for p in points if not own or p.label == f"{target:g}"]
        best = at_target(usable, target, job.params["tolerance"])
        if best is not None:
            _matched(run, best, target, models.language.ids.shape[1] - 1)


def _decode(run: Run, dataset: str, label: str, rows: "pd.DataFrame") -> "dict[str, torch.Tensor]":
    """Matrices by name, from the stored bytes alone."""
    from scripts.papers.squant.coders import decode

    stored = run.load_tensors("compress", f"{dataset}-{label}")
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in stored.items():
        tensor, _, part = name.rpartition("/")
        parts.setdefault(tensor, {})[part] = value
    return {tensor: decode(parts[tensor]) for tensor in rows["tensor"]}


class Installed:
    """Within the context the decoded matrices stand in the model; afterwards its own again."""

    def __init__(self, place: "Language | Encoder", decoded: "dict[str, torch.Tensor]"):
        self._place, self._decoded = place, decoded
        self._kept: dict[str, torch.Tensor] = {}

    def __enter__(self) -> None:
        for tensor, weight in self._decoded.items():
            own = self._place.matrix(tensor)
            self._kept[tensor] = own.clone()
            own.copy_(weight)

    def __exit__(self, *_: object) -> None:
        for tensor, weight in self._kept.items():
            self._place.matrix(tensor).copy_(weight)


def _score(language: "Language", run: Run, where: dict[str, Any]) -> list[dict[str, float]]:
    scores = language.scores()
    tokens = language.ids.shape[1] - 1
    run.metrics(
        [
            {"metric": name, "value": row[name], "unit": unit, "segment": str(number)}
            | {"n": tokens, "dataset": LANGUAGE, **where}
            for number, row in enumerate(scores)
            for name, unit in SCORES
        ]
    )
    return scores


def _matched(run: Run, best: dict[str, Any], target: float, tokens: int) -> None:
    """The arm at a target rate."""
    where = {"dataset": LANGUAGE, "target": target}
    bits = {"value": best["bits"], "unit": "bit per weight", "setting": best["setting"]}
    run.metrics([{"metric": "matched_bits", "n": len(best["kl"]), **bits, **where}])
    where |= {"n": tokens, "unit": "nat/token"}
    run.metrics(
        [
            {"metric": "kl_matched", "value": value, "segment": str(number), **where}
            for number, value in enumerate(best["kl"])
        ]
    )


def _traffic(job: Job, run: Run) -> None:
    """Traffic and accelerator model of a decode step at the measured bits (claim C7)."""
    import numpy as np

    from scripts.papers.squant.compress import options_of
    from scripts.papers.squant.traffic import summary

    coded = run.load_table("compress", "coded")
    coded = coded[coded["dataset"] == LANGUAGE]
    units = {
        "full_bytes": "byte per token",
        "token_bytes": "byte per token",
        "full_memory_s": "second per token, modelled",
        "memory_s": "second per token, modelled",
        "compute_s": "second per token, modelled",
        "traffic_ratio": "ratio of bytes",
        "weight_traffic_ratio": "ratio of bytes",
        "time_ratio": "ratio of modelled times",
        "compute_over_memory": "ratio of modelled times",
        "break_even_adders": "adders per byte/s",
    }
    for option in options_of(job, run.arm):
        target = option["target"]
        rows = coded[coded["target"] == target]
        bits, bases = (
            float(np.average(rows[column], weights=rows["weights"])) for column in ("bits", "bases")
        )
        for name, shape in job.params["shapes"].items():
            found = summary(shape, bits, job.params["accelerator"], int(option["size"]), bases)
            for metric, value in found.items():
                run.metric(metric, value, unit=units[metric], n=1, target=target, shape=name)


if __name__ == "__main__":
    main(evaluate)
