"""Distortion on held-out vectors, KL and NLL of the quantized model, and pass-key retrieval."""

from typing import TYPE_CHECKING, Any

from scripts.papers.gsrq import arms as arms_module
from scripts.papers.gsrq.arms import KINDS, is_residual
from scripts.papers.gsrq.prepare import load_model
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.stage import Job, Run, main

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from transformers import PreTrainedModel

    from scripts.papers.gsrq.hooks import Quantizer

KL, NLL, TOP1 = "nat/token", "nat/token", "fraction of tokens"


def evaluate(job: Job) -> None:
    bench: ModelBench | None = None
    for run in job.runs():
        arm = arms_module.arm_table(job.params)[run.arm]
        books = run.load_tensors("compress", "codebooks") if _is_fitted(arm) else {}
        if arm.get("study", False):
            _distortion(job, run, arm, books)
        if arm.get("rates") or arm["coder"] in ("fp", "no_past"):
            bench = bench or ModelBench(
                job.params,
                load_model(job),
                job.load_table("prepare", "segments"),
                {"pydoc": "eval", "sklearn": "transfer"},
                job.load_table("prepare", "passkey"),
            )
            _model_metrics(bench, run, arm, books)


def _is_fitted(arm: dict[str, Any]) -> bool:
    return arm["coder"] in ("residual", "coupled", "levels")


def _distortion(job: Job, run: Run, arm: dict[str, Any], books: "dict[str, torch.Tensor]") -> None:
    """Relative l2 error and cosine of held-out vectors for every stage prefix under study."""
    import torch

    from scripts.papers.gsrq.coder import split_groups

    held_out = job.load_tensors("prepare", "heldout_kv")
    study = job.params["study"]
    rows = []
    for dim in study["dims"]:
        for layer in study["layers"]:
            for kind in KINDS:
                if arms_module.codebook_name(dim, layer, kind) not in books:
                    continue
                coder = arms_module.coder_of(arm, books, dim, layer, kind)
                x = held_out[f"{kind}.{layer}"].float()
                codes, scale = coder.encode(x)
                flat = split_groups(x, dim).reshape(-1, dim)
                large = flat.norm(dim=1).topk(max(1, len(flat) // 100)).indices
                for stages in [m for m in study["stages"] if m <= coder.stages]:
                    decoded = coder.prefix(stages).decode(codes[..., :stages], scale)
                    xhat = split_groups(decoded, dim).reshape(-1, dim)
                    error, norm = (flat - xhat).square().sum(1).double(), flat.square().sum(1)
                    cosine = torch.nn.functional.cosine_similarity(flat, xhat, dim=1)
                    where = {"dataset": "pydoc", "dim": dim, "layer": layer, "tensor": kind}
                    where |= {"stages": stages}
                    squared = "relative squared error"
                    rows += [
                        {"metric": name, "value": float(value), "unit": unit, "n": n, **where}
                        for name, value, unit, n in (
                            ("distortion", error.sum() / norm.sum(), squared, len(flat)),
                            ("cosine", cosine.double().mean(), "cosine", len(flat)),
                            (
                                "distortion_large",
                                error[large].sum() / norm[large].sum(),
                                squared,
                                len(large),
                            ),
                        )
                    ]
    run.metrics(rows)


class ModelBench:
    """The model with its texts and full-precision predictions, loaded once per job.

    texts: dataset -> split of the segments table; prompts: the pass-key table.
    """

    def __init__(
        self,
        params: dict[str, Any],
        model: "PreTrainedModel",
        segments: "pd.DataFrame",
        texts: dict[str, str],
        prompts: "pd.DataFrame | None" = None,
    ):
        import numpy as np
        import torch

        self.params, self.model, self.prompts = params, model, prompts
        self.layers = len(model.model.layers)
        self.head_dim = model.config.head_dim
        self.ids = {
            dataset: torch.from_numpy(np.stack(segments[segments["split"] == split]["ids"])).to(
                model.device
            )
            for dataset, split in texts.items()
        }
        self._reference: dict[str, torch.Tensor] = {}

    def scores(
        self,
        dataset: str,
        quantizer: "Quantizer | None",
        sink: int = 0,
        count: int | None = None,
        mask: "torch.Tensor | None" = None,
    ) -> list[dict[str, float]]:
        """kl, nll and top1 of each of the first `count` segments under a quantizer."""
        from scripts.pipeline.scoring import compare

        ids = self.ids[dataset]
        if dataset not in self._reference:
            self._reference[dataset] = self._predict(ids, None, 0, None)
        reference = self._reference[dataset][:count]
        plain = quantizer is None and mask is None
        found = reference if plain else self._predict(ids[:count], quantizer, sink, mask)
        return compare(reference, found, ids[:count, self.params["score_from"] :])

    def _predict(
        self,
        ids: "torch.Tensor",
        quantizer: "Quantizer | None",
        sink: int,
        mask: "torch.Tensor | None",
    ) -> "torch.Tensor":
        """Log-probabilities of the tokens from position `score_from` on."""
        from scripts.papers.gsrq.hooks import keep_first, projections
        from scripts.papers.gsrq.scoring import log_probs

        first = self.params["score_from"]
        if quantizer is None:
            return log_probs(self.model, ids, first, mask)
        with projections(self.model, keep_first(quantizer, sink)):
            return log_probs(self.model, ids, first, mask)

    def passkeys(self, quantizer: "Quantizer") -> list[tuple[float, float]]:
        """(accuracy, nll) of every prompt under a quantizer."""
        from scripts.papers.gsrq.hooks import projections
        from scripts.papers.gsrq.scoring import score_prompts

        with projections(self.model, quantizer):
            return score_prompts(
                self.model,
                self.prompts["ids"].tolist(),
                self.prompts["digits"].tolist(),
                list(self.prompts["digit_tokens"].iloc[0]),
            )


def _model_metrics(
    bench: ModelBench, run: Run, arm: dict[str, Any], books: "dict[str, torch.Tensor]"
) -> None:
    from scripts.papers.gsrq.scoring import no_past_mask

    if arm["coder"] == "fp":
        for dataset in bench.ids:
            _record(bench, run, bench.scores(dataset, None), dataset=dataset)
        return
    if arm["coder"] == "no_past":
        ids = bench.ids["pydoc"]
        mask = no_past_mask(ids.shape[1], bench.model.dtype).to(ids.device)
        scores = bench.scores("pydoc", None, mask=mask)
        _record(bench, run, scores)
        _record(bench, run, scores[: bench.params["side_segments"]], protocol="nested")
        return
    whole: dict[int, list[dict[str, float]]] = {}
    for rate in arm["rates"]:
        if rate.get("once", False) and run.seed != 0:
            continue
        quantizer, bits = quantizer_at(bench, arm, books, rate)
        _check_bits(bench, run, rate, bits)
        where = {"rate": rate["rate"]}
        if is_residual(arm):
            where |= {"dim": rate["dim"], "stages": rate["stages"]}
        scores = bench.scores("pydoc", quantizer)
        _record(bench, run, scores, bits=bits, **where)
        if rate.get("dim") == bench.params["nested"]["dim"]:
            whole[rate["stages"]] = scores
        main_rate = rate["rate"] == bench.params["main_rate"]
        if main_rate and arm.get("main", False) and run.seed == 0:
            _side_protocols(bench, run, quantizer, bits, where)
    if arm.get("nested", False):
        _nested(bench, run, arm, books, whole)


def quantizer_at(
    bench: ModelBench, arm: dict[str, Any], books: "dict[str, torch.Tensor]", rate: dict[str, Any]
) -> "tuple[Quantizer, float]":
    """The quantizer of an arm at one of its rates, and its total bits per element."""
    if not is_residual(arm):
        return arms_module.other_quantizer(arm, books, rate, bench.head_dim)
    dim, stages = rate["dim"], rate["stages"]
    quantizer = arms_module.residual_quantizer(arm, books, dim, stages, bench.layers)
    codewords = bench.params["codewords"]
    return quantizer, arms_module.residual_rate(arm, dim, stages, codewords, bench.head_dim)


def _check_bits(bench: ModelBench, run: Run, rate: dict[str, Any], bits: float) -> None:
    """Rates are compared by name, so the bits behind the name must agree within 2%."""
    if bench.params["match_bits"]:
        wanted = rate["rate"]
        if abs(bits - wanted) > 0.02 * wanted:
            raise PipelineError(
                f"gsrq evaluate {run.arm}: rate {wanted} stores {bits:.4g} bits per element; at "
                "most 2% off is allowed: change its stages or dim"
            )


def _side_protocols(
    bench: ModelBench, run: Run, quantizer: "Quantizer", bits: float, where: dict[str, Any]
) -> None:
    """At the main rate: sinks kept in full precision, another domain, and pass keys."""
    from scripts.papers.gsrq.bits import total_bits
    from scripts.papers.gsrq.passkey import retained

    sink, count = bench.params["sink_fp"], bench.params["side_segments"]
    length = bench.ids["pydoc"].shape[1]
    with_sink = total_bits(bits, bench.head_dim, fp_tokens=sink, context=length)
    scores = bench.scores("pydoc", quantizer, sink=sink, count=count)
    _record(bench, run, scores, bits=with_sink, protocol=f"sink{sink}", **where)
    scores = bench.scores("sklearn", quantizer)
    _record(bench, run, scores, dataset="sklearn", bits=bits, **where)
    rows = []
    full = bench.prompts["fp_accuracy"]
    for number, (fp, (accuracy, nll)) in enumerate(
        zip(full, bench.passkeys(quantizer), strict=True)
    ):
        at = {"n": 5, "dataset": "passkey", "prompt": str(number), "bits": bits, **where}
        rows += [
            {"metric": "passkey_retained", "value": retained(accuracy, fp), **at}
            | {"unit": "share of full precision above chance"},
            {"metric": "passkey_nll", "value": nll, "unit": "nat/digit", **at},
        ]
    run.metrics(rows)


def _nested(
    bench: ModelBench,
    run: Run,
    arm: dict[str, Any],
    books: "dict[str, torch.Tensor]",
    whole: dict[int, list[dict[str, float]]],
) -> None:
    """NLL and stored bits over stage prefixes of one codebook (claim C7).

    whole: stages -> scores of all segments, where a rate of the arm has already run them.
    """
    from scripts.papers.gsrq.bits import code_bits
    from scripts.papers.gsrq.capture import keys_values
    from scripts.papers.gsrq.packing import pack

    dim, count = bench.params["nested"]["dim"], bench.params["side_segments"]
    keys = keys_values(bench.model, bench.ids["pydoc"][:1])[0, "k"]
    for stages in bench.params["nested"]["stages"]:
        quantizer, bits = quantizer_at(bench, arm, books, {"dim": dim, "stages": stages})
        scores = whole[stages][:count] if stages in whole else None
        scores = scores or bench.scores("pydoc", quantizer, count=count)
        where = {"dim": dim, "stages": stages}
        _record(bench, run, scores, bits=bits, protocol="nested", **where)
        codes, _ = arms_module.coder_of(arm, books, dim, 0, "k").prefix(stages).encode(keys)
        stored = pack(codes, code_bits(bench.params["codewords"])).nbytes * 8 / keys.numel()
        unit = "bit per element"
        run.metric("unreported_bits", stored - bits, unit=unit, n=keys.numel(), **where)


def _record(
    bench: ModelBench,
    run: Run,
    scores: list[dict[str, float]],
    dataset: str = "pydoc",
    protocol: str = "all",
    **where: Any,
) -> None:
    """One row per metric and segment."""
    tokens = bench.ids[dataset].shape[1] - bench.params["score_from"]
    at = {"n": tokens, "dataset": dataset, "protocol": protocol, **where}
    run.metrics(
        [
            {"metric": name, "value": row[name], "unit": unit, "segment": str(number), **at}
            for number, row in enumerate(scores)
            for name, unit in (("kl", KL), ("nll", NLL), ("top1", TOP1))
        ]
    )


if __name__ == "__main__":
    main(evaluate)
