"""Text segments, pass-key prompts and the keys and values that codebooks are fitted to."""

from typing import TYPE_CHECKING

from scripts.pipeline import text
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.stage import Job, main

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_model(job: Job) -> "PreTrainedModel":
    """The model with its first `layers` layers (all when null), float32 on a CPU."""
    import torch

    from scripts.pipeline.models import load_causal_lm

    dtype = torch.bfloat16 if job.device == "cuda" else torch.float32
    model = load_causal_lm(job.asset("model"), job.device, dtype)
    if job.params["layers"] is not None:
        model.model.layers = model.model.layers[: job.params["layers"]]
        model.config.num_hidden_layers = len(model.model.layers)
    return model


def prepare(job: Job) -> None:
    from scripts.pipeline.models import load_tokenizer

    tokenizer = load_tokenizer(job.asset("model"))
    pieces = _segments(job, tokenizer)
    model = load_model(job)
    _calibration(job, model, pieces["calibration"])
    _held_out(job, model, pieces["eval"])
    _passkeys(job, model, tokenizer)


def _segments(
    job: Job, tokenizer: "PreTrainedTokenizerBase"
) -> dict[str, list[tuple[str, list[int]]]]:
    """Cut the text, check that the splits share nothing, save segments.parquet."""
    import pandas as pd

    wanted = job.params["segments"]
    try:
        splits = text.documents(job.asset("text"))
        splits["transfer"] = text.documents(job.asset("transfer"))["eval"]
        pieces = {
            split: text.segments(tokenizer, splits[split], size["tokens"], size["count"])
            for split, size in wanted.items()
        }
    except (ValueError, FileNotFoundError) as error:
        raise PipelineError(f"gsrq.{job.scale}.segments: {error}; lower the counts") from error
    calibration = [ids for _, ids in pieces["calibration"]]
    for split in ("dev", "eval", "transfer"):
        shared = text.shared_ngrams(calibration, [ids for _, ids in pieces[split]])
        if shared:
            raise PipelineError(
                f"gsrq.{job.scale}.segments: {shared} token 24-grams of {split} are in the "
                "calibration text; 0 are allowed: fewer segments, or fix text.split_topics"
            )
    rows = [
        {"split": split, "segment": number, "topic": topic, "ids": ids}
        for split, found in pieces.items()
        for number, (topic, ids) in enumerate(found)
    ]
    job.save_table("segments", pd.DataFrame(rows))
    return pieces


def _calibration(job: Job, model: "PreTrainedModel", pieces: list[tuple[str, list[int]]]) -> None:
    """calib_kv.safetensors: k.<layer>, v.<layer> [T, H, D] and w.<k|v>.<layer> [T, H]."""
    import torch

    from scripts.papers.gsrq import capture, weights

    by_gradient = job.params["weight"] == "fisher"
    measure = capture.gradient_weights if by_gradient else capture.output_weights
    tame = weights.log_smoothed if by_gradient else weights.clipped
    parts: dict[str, list[torch.Tensor]] = {}
    for _, ids in pieces:
        vectors, raw = measure(model, torch.tensor(ids, device=model.device))
        for (layer, kind), x in vectors.items():
            # A cache holds 16-bit numbers; so does the calibration file.
            parts.setdefault(f"{kind}.{layer}", []).append(x.half().cpu())
            parts.setdefault(f"w.{kind}.{layer}", []).append(raw[layer, kind].float().cpu())
    tensors = {name: torch.cat(values) for name, values in parts.items()}
    job.save_tensors(
        "calib_kv", {n: tame(x) if n.startswith("w.") else x for n, x in tensors.items()}
    )


def _held_out(job: Job, model: "PreTrainedModel", pieces: list[tuple[str, list[int]]]) -> None:
    """heldout_kv.safetensors: <k|v>.<layer> [T, H, D] of the study layers on eval text."""
    import torch

    from scripts.papers.gsrq.capture import keys_values

    ids = torch.tensor([ids for _, ids in pieces], device=model.device)
    vectors = keys_values(model, ids)
    job.save_tensors(
        "heldout_kv",
        {
            f"{kind}.{layer}": vectors[layer, kind].flatten(0, 1).half()
            for layer in job.params["study"]["layers"]
            for kind in ("k", "v")
        },
    )


def _passkeys(job: Job, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> None:
    """passkey.parquet: prompts that the full-precision model solves, with its score."""
    import pandas as pd

    from scripts.papers.gsrq import passkey
    from scripts.papers.gsrq.scoring import score_prompts

    wanted = job.params["passkey"]
    rng = job.rng("passkey")
    source = text.documents(job.asset("text"))["eval"]
    filler = text.segments(tokenizer, source, wanted["tokens"], wanted["candidates"])
    prompts = [passkey.make_prompt(tokenizer, ids, rng) for _, ids in filler]
    digits = passkey.digit_tokens(tokenizer)
    scores = score_prompts(model, [p.ids for p in prompts], [p.digits for p in prompts], digits)
    rows = [
        {"prompt": number, "ids": p.ids, "digits": p.digits, "key": p.key, "depth": p.depth}
        | {"digit_tokens": digits, "fp_accuracy": accuracy, "fp_nll": nll}
        for number, (p, (accuracy, nll)) in enumerate(zip(prompts, scores, strict=True))
    ]
    frame = pd.DataFrame(rows)
    if wanted["only_solved"]:
        frame = frame[frame["fp_accuracy"] == 1.0]
    if frame.empty:
        raise PipelineError(
            f"gsrq.{job.scale}.passkey: the model solves none of {len(rows)} prompts in full "
            "precision; shorten passkey.tokens or set only_solved: false"
        )
    job.save_table("passkey", frame.head(wanted["count"]))


if __name__ == "__main__":
    main(prepare)
