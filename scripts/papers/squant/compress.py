"""Compress every matrix with every arm: distortion, storage, and controls of the seed search."""

from functools import cache
from typing import TYPE_CHECKING, Any

from scripts.papers.squant.prepare import SHARED_INPUTS, rotation_of
from scripts.papers.squant.weights import (
    ENCODER,
    LANGUAGE,
    digest,
    encoder_matrices,
    language_matrices,
    random_inputs,
    sampled_rows,
)
from scripts.pipeline.stage import Job, Run, main

if TYPE_CHECKING:
    import torch

    from scripts.papers.squant.coders import Coded

CONTROLLED = ("squant_published", "fixed_count", "squant_fixed")
DB = "dB"
BITS = "bit per weight"
SECTIONS = {owner: group for group, owners in SHARED_INPUTS.items() for owner in owners}
"""Matrix -> the matrix whose input was recorded for it."""


def compress(job: Job) -> None:
    source = Source(job)
    for run in job.runs():
        arm = job.params["arms"][run.arm]
        options = options_of(job, run.arm)
        if run.seed > 0:
            _seed_distortion(job, run, arm, options, source)
            continue
        if run.arm != "fixed_count":
            _whole(job, run, arm, options, source)
            _without_data(job, run, arm, options[0], source)
        if run.arm in CONTROLLED:
            _controls(job, run, arm, options, source)
        if run.arm == "squant_published":
            _generator(run)
        if run.arm == "rtn":
            _grid(job, run, source)


def options_of(job: Job, arm: str) -> list[dict[str, Any]]:
    """What an arm is run with: its design at each target, or its settings; each with a label."""
    if "design" in job.params["arms"][arm]:
        chosen = job.load_json("prepare", "chosen")[arm]
        wanted = job.params["arms"][arm].get("targets", job.params["targets"])
        chosen = [option for option in chosen if option["target"] in wanted]
        return [{**option, "label": f"{option['target']:g}"} for option in chosen]
    settings = job.params["arms"][arm]["settings"]
    return [{**s, "label": f"{s['bits']}b-g{s['group'] or 'row'}"} for s in settings]


class Source:
    """Matrices and calibration statistics, read when first asked for; reads of data are counted."""

    def __init__(self, job: Job):
        self._job, self.reads = job, 0
        self._language = cache(self._read_language)
        self._encoder = cache(self._read_encoder)
        self._calibration = cache(lambda: job.load_tensors("prepare", "calibration"))

    def language(self, seed: int) -> "dict[str, torch.Tensor]":
        """Matrices of the language model under the seed's rotation."""
        return self._language(seed)

    def encoder(self) -> "dict[str, torch.Tensor]":
        """Matrices of the sentence encoder."""
        return self._encoder()

    def inputs(self, tensor: str) -> "dict[str, torch.Tensor]":
        """Calibration statistics of a matrix's inputs; each call is counted in `reads`."""
        self.reads += 1
        layer, module = tensor.split(".", 1)
        stored = self._calibration()
        return {key: stored[f"{layer}.{SECTIONS[module]}.{key}"] for key in ("gram", "mean")}

    def _read_language(self, seed: int) -> "dict[str, torch.Tensor]":
        import json

        folder, params = self._job.asset("language"), self._job.params
        size = json.loads((folder / "config.json").read_text(encoding="utf-8"))["hidden_size"]
        rotation = rotation_of(self._job, size, seed)
        layers = params["layers"] if seed == 0 else params["seed_layers"]
        found = language_matrices(folder, layers, rotation, params["matrices"])
        return {name: weight.to(self._job.device) for name, weight in found.items()}

    def _read_encoder(self) -> "dict[str, torch.Tensor]":
        found = encoder_matrices(self._job.asset("encoder"), self._job.params["encoder_layers"])
        return {name: weight.to(self._job.device) for name, weight in found.items()}


def _whole(
    job: Job, run: Run, arm: dict[str, Any], options: list[dict[str, Any]], source: Source
) -> None:
    """All matrices of both models; what is stored goes to <dataset>-<label>.safetensors."""
    import numpy as np
    import pandas as pd

    from scripts.papers.squant.coders import compress

    table, rows = [], []
    source.reads = 0
    for option in options:
        for dataset, whole in _datasets(arm, option):
            matrices = source.language(0) if dataset == LANGUAGE else source.encoder()
            stored, ratios = {}, []
            for tensor, weight in matrices.items():
                part = weight if whole else sampled_rows(weight, job.params["sample_rows"])
                coded = compress(
                    arm, part, option, job.params["shortlist"], lambda t=tensor: source.inputs(t)
                )
                found = _distortion_rows(coded, part, option, dataset, tensor)
                rows += found
                ratios.append(found[0]["value"])
                if whole:
                    stored |= {f"{tensor}/{part}": x for part, x in coded.stored.items()}
                    table.append(
                        {
                            "dataset": dataset, "label": option["label"],
                            "target": option.get("target"), "tensor": tensor,
                            "bits": coded.bits, "weights": weight.numel(),
                            "bases": coded.details.get("mean_count", option.get("count")),
                            "sha256": digest(coded.made),
                        }
                    )  # fmt: skip
            if whole:
                run.save_tensors(f"{dataset}-{option['label']}", stored)
            if "design" in arm:
                low, high = np.percentile(ratios, [25, 75])
                where = {"dataset": dataset, "target": option["target"], "n": len(ratios)}
                rows.append({"metric": "snr_iqr", "value": high - low, "unit": DB, **where})
    run.save_table("coded", pd.DataFrame(table))
    run.metrics(rows)
    run.metric("calibration_reads", source.reads, unit="read", n=len(table))


def _datasets(arm: dict[str, Any], option: dict[str, Any]) -> list[tuple[str, bool]]:
    """(dataset, whether whole) that an option is run on; calibration exists for LANGUAGE only."""
    found = [(LANGUAGE, True)]
    if "target" in option and not arm.get("scaled", False):
        found.append((ENCODER, option["target"] in arm.get("encoder_whole", [])))
    elif option.get("encoder", False):
        found.append((ENCODER, True))
    return found


def _distortion_rows(
    coded: "Coded", weight: "torch.Tensor", option: dict[str, Any], dataset: str, tensor: str
) -> list[dict[str, Any]]:
    """SNR first, then what the coder tells of the matrix."""
    from scripts.papers.squant.designs import snr

    where = {"dataset": dataset, "tensor": tensor, "n": weight.numel()}
    where |= {"target": option["target"]} if "target" in option else {"setting": option["label"]}
    rows = [
        {"metric": "snr", "value": snr(weight, coded.made), "unit": DB, **where},
        {"metric": "total_bits", "value": coded.bits, "unit": BITS, **where},
    ]
    if "formula" in coded.details:
        size = coded.stored["bytes"].numel()
        error = size / (2 * weight.numel()) / (coded.details["formula"] / 16) - 1
        rows.append({"metric": "storage_error", "value": error, "unit": "relative", **where})
    for name, unit in (
        ("published_bits", BITS),
        ("entropy_bits", BITS),
        ("mean_count", "bases per block"),
        ("threshold", "share of energy"),
        ("unreached", "share of blocks"),
    ):
        if name in coded.details:
            rows.append({"metric": name, "value": coded.details[name], "unit": unit, **where})
    return rows


def _seed_distortion(
    job: Job, run: Run, arm: dict[str, Any], options: list[dict[str, Any]], source: Source
) -> None:
    """SNR under another rotation, on some layers and rows."""
    from scripts.papers.squant.coders import compress

    rows = []
    for tensor, weight in source.language(run.seed).items():
        part = sampled_rows(weight, job.params["sample_rows"])
        for option in options:
            coded = compress(
                arm, part, option, job.params["shortlist"], lambda t=tensor: source.inputs(t)
            )
            rows += _distortion_rows(coded, part, option, LANGUAGE, tensor)[:2]
    run.metrics(rows)


def _without_data(
    job: Job, run: Run, arm: dict[str, Any], option: dict[str, Any], source: Source
) -> None:
    """Stored bytes that change when the calibration data are replaced by noise (claim C6)."""
    import torch

    from scripts.papers.squant.coders import compress

    tensor, weight = min(source.language(0).items(), key=lambda item: item[1].numel())
    noise = random_inputs(weight.shape[1], run.generator("calibration"))
    noise = {name: value.to(job.device) for name, value in noise.items()}
    bytes_of = []
    for inputs in (lambda: source.inputs(tensor), lambda: noise):
        stored = compress(arm, weight, option, job.params["shortlist"], inputs).stored
        parts = [part.cpu().contiguous().view(torch.uint8).flatten() for part in stored.values()]
        bytes_of.append(torch.cat(parts))
    changed = int((bytes_of[0] != bytes_of[1]).sum())
    run.metric("changed_bytes", changed, unit="byte", n=len(bytes_of[0]), tensor=tensor)


def _controls(
    job: Job, run: Run, arm: dict[str, Any], options: list[dict[str, Any]], source: Source
) -> None:
    """SNR on the same rows of every matrix: adaptive or equal counts, early or late seeds."""
    from scripts.papers.squant import controls
    from scripts.papers.squant.designs import config_of

    rival = {o["target"]: o for o in job.load_json("prepare", "chosen")["fixed_count"]}
    matrices = {(LANGUAGE, name): w for name, w in source.language(0).items()}
    matrices |= {(ENCODER, name): w for name, w in source.encoder().items()}
    rows = []
    for option in options:
        config, target = config_of(option), option["target"]
        for (dataset, tensor), weight in matrices.items():
            part = sampled_rows(weight, job.params["control_rows"])
            where = {"dataset": dataset, "tensor": tensor, "target": target, "n": part.numel()}
            if arm["coder"] == "fixed":
                found = controls.shortlists(part, config, (1, job.params["shortlist"]))
            elif option["coder"] == "equal":
                found = [controls.equal_counts(part, config, int(option["bases"]))]
            else:
                other = rival[target]
                found = [controls.at_rate_of(part, config, config_of(other), int(other["bases"]))]
            for row in found:
                bits = {"metric": "control_bits", "value": row.pop("bits"), "unit": BITS}
                length = {"shortlist": row.get("shortlist")}
                rows.append({"metric": "snr_control", "unit": DB, **where, **row})
                rows.append({**bits, **where, **length})
        if arm["coder"] == "fixed":
            count = job.params["exhaustive_blocks"]
            loss, n = controls.exhaustive_loss(
                list(source.language(0).values()), config, job.params["shortlist"], count
            )
            where = {"dataset": LANGUAGE, "target": target, "shortlist": job.params["shortlist"]}
            rows.append({"metric": "exhaustive_loss", "value": loss, "unit": DB, "n": n, **where})
    run.metrics(rows)


def _generator(run: Run) -> None:
    """Faults of the shift registers (claim C2)."""
    from scripts.papers.squant import lfsr

    units = {"period": "state", "balance": "bit", "autocorrelation": "bit", "leap": "state"}
    for bits in lfsr.TAPS:
        for name, value in lfsr.faults(bits).items():
            run.metric(f"{name}_error", value, unit=units[name], n=(1 << bits) - 1, register=bits)


def _grid(job: Job, run: Run, source: Source) -> None:
    """Error of 16 even levels per 32 weights, before and after the rotation: 0 betrays a grid."""
    from scripts.papers.squant.scalar import affine_error

    params = job.params
    plain = language_matrices(job.asset("language"), params["layers"], None, params["matrices"])
    turned = [("yes", source.language(0))] if params["rotate"] else []
    for rotated, matrices in (("no", plain), *turned):
        for tensor, weight in matrices.items():
            where = {"dataset": LANGUAGE, "tensor": tensor, "rotated": rotated}
            error = affine_error(weight)
            run.metric("grid_error", error, unit="relative", n=weight.numel(), **where)


if __name__ == "__main__":
    main(compress)
