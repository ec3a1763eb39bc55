"""Designs chosen on Gaussian blocks, text for evaluation, and calibration for AWQ and GPTQ."""

import re
from typing import TYPE_CHECKING, Any

from scripts.pipeline.errors import PipelineError
from scripts.pipeline.stage import Job, main

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def prepare(job: Job) -> None:
    _designs(job)
    segments = _text(job)
    _calibration(job, segments["calibration"])


def rotation_of(job: Job, size: int, seed: int) -> "torch.Tensor | None":
    """The seed's rotation, the same in every stage; None where the model stays as it is."""
    from scripts.papers.squant.rotation import random_rotation

    if not job.params["rotate"]:
        return None
    return random_rotation(size, job.generator(f"rotation-{seed}")).to(job.device)


def load_language(job: Job, seed: int) -> "PreTrainedModel":
    """The language model with its first `keep_layers` layers (all when null), rotated."""
    import torch

    from scripts.papers.squant.rotation import rotate_llama
    from scripts.pipeline.models import load_causal_lm

    dtype = torch.bfloat16 if job.device == "cuda" else torch.float32
    model = load_causal_lm(job.asset("language"), job.device, dtype)
    if job.params["keep_layers"] is not None:
        model.model.layers = model.model.layers[: job.params["keep_layers"]]
        model.config.num_hidden_layers = len(model.model.layers)
    rotation = rotation_of(job, model.config.hidden_size, seed)
    if rotation is not None:
        rotate_llama(model, rotation)
    return model


def _designs(job: Job) -> None:
    """designs.parquet: all that were tried; chosen.json: arm -> its design at each target."""
    import pandas as pd
    import torch

    from scripts.papers.squant import designs

    params = job.params
    limits = {key: params[key] for key in ("register", "window")}
    space, targets = {**params["space"], **limits}, params["targets"]
    blocks = {
        size: designs.gaussian(
            params["gaussian_blocks"], size, job.generator(f"gaussian-{size}")
        ).to(job.device)
        for size in space["sizes"]
    }
    rows = designs.explore(space, targets, blocks, params["shortlist"])
    try:
        chosen = {
            name: [
                designs.choose(rows, {**arm["design"], "target": [target]}) for target in targets
            ]
            for name, arm in params["arms"].items()
            if "design" in arm
        }
    except ValueError as error:
        raise PipelineError(f"squant.{job.scale}.space: {error}") from error
    matrix = torch.randn(512, 1536, generator=job.generator("gaussian-matrix"))
    rows += designs.scalar_rates(matrix.to(job.device))
    job.save_table("designs", pd.DataFrame(rows))
    job.save_json("chosen", chosen)


def _text(job: Job) -> dict[str, list[list[int]]]:
    """segments.parquet and sentences.json; token ids of the segments by split."""
    import pandas as pd

    from scripts.pipeline import text
    from scripts.pipeline.models import load_tokenizer

    tokenizer = load_tokenizer(job.asset("language"))
    try:
        documents = text.documents(job.asset("text"))
        pieces = {
            split: text.segments(tokenizer, documents[split], size["tokens"], size["count"])
            for split, size in job.params["segments"].items()
        }
    except (ValueError, FileNotFoundError) as error:
        raise PipelineError(f"squant.{job.scale}.segments: {error}; lower the counts") from error
    ids = {split: [tokens for _, tokens in found] for split, found in pieces.items()}
    shared = text.shared_ngrams(ids["calibration"], ids["eval"])
    if shared:
        raise PipelineError(
            f"squant.{job.scale}.segments: {shared} token 24-grams of eval are in the calibration "
            "text; 0 are allowed: fewer segments, or fix text.split_topics"
        )
    rows = [
        {"split": split, "segment": number, "ids": tokens}
        for split, found in ids.items()
        for number, tokens in enumerate(found)
    ]
    job.save_table("segments", pd.DataFrame(rows))
    found = sentences(documents["eval"], job.params["sentences"])
    if len(found) < job.params["sentences"]:
        raise PipelineError(
            f"squant.{job.scale}.sentences: {job.params['sentences']} wanted, {len(found)} in the "
            "eval text; lower the count"
        )
    job.save_json("sentences", found)
    return ids


def sentences(documents: dict[str, str], count: int) -> list[str]:
    """The first sentences of 40 to 200 characters, document by document in the order of names."""
    found: dict[str, None] = {}
    for name in sorted(documents):
        for piece in re.split(r"(?<=[.!?])\s+|\n\s*\n", documents[name]):
            plain = " ".join(piece.split())
            if 40 <= len(plain) <= 200 and plain[0].isupper():
                found[plain] = None
    return list(found)[:count]


def _calibration(job: Job, pieces: list[list[int]]) -> None:
    """calibration.safetensors: <layer>.<input>.gram [C, C] and .mean [C] of the rotated model."""
    import torch

    model = load_language(job, seed=0)
    wanted = job.params["layers"]
    model.model.layers = model.model.layers[: max(wanted) + 1]  # later layers change nothing here
    sums: dict[str, torch.Tensor] = {}
    handles = []
    for layer in wanted:
        for module in SHARED_INPUTS:

            def hook(_: Any, inputs: tuple, name: str = f"{layer}.{module}") -> None:
                x = inputs[0].flatten(0, -2).float()
                for key, value in (("gram", x.T @ x), ("mean", x.abs().sum(0))):
                    sums[f"{name}.{key}"] = sums.get(f"{name}.{key}", 0) + value

            place = model.model.layers[layer].get_submodule(module)
            handles.append(place.register_forward_pre_hook(hook))
    with torch.no_grad():
        for ids in pieces:
            model.model(torch.tensor([ids], device=model.device), use_cache=False)
    for handle in handles:
        handle.remove()
    tokens = sum(map(len, pieces))
    job.save_tensors("calibration", {name: value / tokens for name, value in sums.items()})


SHARED_INPUTS = {
    "self_attn.q_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": ("self_attn.o_proj",),
    "mlp.gate_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj": ("mlp.down_proj",),
}
"""Matrix whose input is recorded -> matrices that read the same input."""


if __name__ == "__main__":
    main(prepare)
