"""Fit every arm's codebooks on the calibration vectors, and the arms' controls on Gaussians."""

from typing import TYPE_CHECKING, Any

from scripts.papers.gsrq.arms import (
    KINDS,
    arm_table,
    codebook_name,
    fits_of,
    is_residual,
    sample_rows,
)
from scripts.pipeline.stage import Job, Run, main

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def compress(job: Job) -> None:
    calibration = job.load_tensors("prepare", "calib_kv")
    for run in job.runs():
        arm = arm_table(job.params)[run.arm]
        if is_residual(arm):
            books, logs = residual_books(job.params, arm, calibration, run.seed, run.generator)
            _report_fits(job, run, logs)
        else:
            books = other_books(job.params, arm, calibration, run.generator)
        # Stored as a cache would hold them; every arm is judged with the rounded codebooks.
        run.save_tensors("codebooks", {name: book.half() for name, book in books.items()})
        if arm.get("controls", False):
            _gaussians(job, run, arm)
            _drop_in(job, run, arm, calibration, books)


def residual_books(
    params: dict[str, Any],
    arm: dict[str, Any],
    calibration: "dict[str, torch.Tensor]",
    seed: int,
    generator: "Callable[[str], torch.Generator]",
) -> "tuple[dict[str, torch.Tensor], dict[tuple[int, int, str], list[dict[str, Any]]]]":
    """Residual codebooks [M, K, d] of an arm by name; the log of each fit by (dim, layer, kind).

    generator: named random streams of the seed, the same for every arm, so that all arms fit the
    same vectors from the same initial points.
    """
    import torch

    from scripts.papers.gsrq.coder import HeadCoder
    from scripts.papers.gsrq.residual import draw_orders

    layers = count_layers(calibration)
    books, logs = {}, {}
    for dim, stages, wanted in fits_of(arm, params["study"]["layers"], layers, seed):
        for layer in wanted:
            for kind in KINDS:
                x = calibration[f"{kind}.{layer}"].float()
                scaled = arm.get("scaled", False)
                centre = x.mean(0) if arm.get("centred", False) else None
                if centre is not None:
                    books[f"centre.{kind}.{layer}"] = centre
                shape = HeadCoder(torch.empty(0, 0, dim), scaled, scaled and kind == "k", centre)
                groups, _ = shape.vectors(x)
                weight = x.new_ones(x.shape[:2])
                if arm.get("weighted", False):
                    weight = calibration[f"w.{kind}.{layer}"]
                weight = weight[..., None].expand(groups.shape[:-1]).flatten()
                vectors, name = groups.flatten(0, -2), f"{kind}-{layer}-{dim}"
                chosen = sample_rows(len(vectors), params["vectors"], generator(f"rows-{name}"))
                orders = draw_orders(len(chosen), stages, generator(f"orders-{name}"))
                check = arm.get("identity", False) and layer in params["study"]["layers"]
                book, log = _fit(
                    arm, params, vectors[chosen], weight[chosen], orders, generator("ema"), check
                )
                books[codebook_name(dim, layer, kind)] = book
                logs[dim, layer, kind] = log
    return books, logs


def _fit(
    arm: dict[str, Any],
    params: dict[str, Any],
    x: "torch.Tensor",
    weight: "torch.Tensor",
    orders: "torch.Tensor",
    generator: "torch.Generator",
    identity: bool,
) -> "tuple[torch.Tensor, list[dict[str, Any]]]":
    from scripts.papers.gsrq.residual import fit_residual, stage_fit
    from scripts.papers.gsrq.vqllm import fit_vqllm

    iterations = arm.get("iterations", params["iterations"])
    if arm["method"] == "vqllm":
        ema = params["ema"]
        return fit_vqllm(
            x, orders, params["codewords"], iterations, ema["passes"], ema["batch"], generator
        )
    fit = stage_fit(arm["method"], iterations, arm.get("start_iterations", 0), arm.get("options"))
    return fit_residual(x, weight, orders, params["codewords"], fit, identity)


def _report_fits(
    job: Job, run: Run, logs: dict[tuple[int, int, str], list[dict[str, Any]]]
) -> None:
    """Metrics of the study layers' fits; the last one's first stage as a curve."""
    study = job.params["study"]
    rows = []
    for (dim, layer, kind), log in logs.items():
        if layer in study["layers"]:
            rows += _fit_rows(log, dim, layer, kind, job.params["vectors"])
        if dim == study["dims"][0] and layer == study["layers"][-1]:
            for step, value in enumerate(log[0]["objective"]):
                run.log(step=step, **{f"objective_{kind}": value})
    run.metrics(rows)


def _fit_rows(
    log: list[dict[str, Any]], dim: int, layer: int, kind: str, n: int
) -> list[dict[str, Any]]:
    rows = []
    for stage, entry in enumerate(log, start=1):
        where = {"n": n, "dataset": "calibration", "dim": dim, "layer": layer, "tensor": kind}
        where |= {"stages": stage}
        rows += [
            {"metric": "rho", "value": entry["rho"], "unit": "fraction of norm", **where},
            {"metric": "usage_entropy", "value": entry["usage"], "unit": "bit", **where},
        ]
        if "identity" in entry:
            row = {"metric": "identity_error", "value": entry["identity"]}
            rows.append({**row, "unit": "relative error", **where})
    return rows


def other_books(
    params: dict[str, Any],
    arm: dict[str, Any],
    calibration: "dict[str, torch.Tensor]",
    generator: "Callable[[str], torch.Generator]",
) -> "dict[str, torch.Tensor]":
    """Coupled codebooks or per-channel levels, weighted as the residual arms are."""
    from scripts.papers.gsrq.coupled import fit_coupled
    from scripts.papers.gsrq.scalar import fit_levels

    books = {}
    for layer in range(count_layers(calibration)):
        for kind in KINDS:
            x, weight = calibration[f"{kind}.{layer}"].float(), calibration[f"w.{kind}.{layer}"]
            for option in arm["rates"]:
                if arm["coder"] == "coupled":
                    rows = sample_rows(
                        len(x), params["codewords"], generator(f"coupled-{kind}-{layer}")
                    )
                    books[f"c{option['channels']}.{kind}.{layer}"] = fit_coupled(
                        x, weight, option["channels"], rows, params["iterations"]
                    )
                else:
                    name = f"b{option['bits']}.{kind}.{layer}"
                    # A few levels per channel need no more than every second token.
                    books[name] = fit_levels(
                        x[::2], weight[::2], option["bits"], params["iterations"]
                    )
    return books


def count_layers(calibration: "dict[str, torch.Tensor]") -> int:
    """Layers in calib_kv."""
    return sum(name.startswith("k.") for name in calibration)


def _gaussians(job: Job, run: Run, arm: dict[str, Any]) -> None:
    """One stage on i.i.d. Gaussian vectors over dimensions and codebook sizes (in sample)."""
    import torch

    from scripts.papers.gsrq.lloyd import shrinkage, usage_entropy
    from scripts.papers.gsrq.residual import draw_orders, stage_fit

    wanted = job.params["gaussian"]
    fit = stage_fit(arm["method"], job.params["iterations"], options=arm.get("options"))
    for dim, codewords in wanted["sweep"]:
        name = f"gaussian-{dim}"
        x = torch.randn(wanted["vectors"], dim, generator=run.generator(name))
        order = draw_orders(len(x), 1, run.generator(f"{name}-{codewords}"))[0]
        result = fit(x, x.new_ones(len(x)), x[order[:codewords]])
        xhat = result.codebook[result.index]
        cosine = torch.nn.functional.cosine_similarity(x, xhat, dim=1).double().mean()
        distortion = result.residual.double().square().sum() / x.double().square().sum()
        where = {"n": len(x), "dataset": "gaussian", "dim": dim, "codewords": codewords}
        run.metrics(
            [
                {"metric": name, "value": float(value), "unit": unit, **where}
                for name, value, unit in (
                    ("rho", shrinkage(x, result.codebook, result.index), "fraction of norm"),
                    ("usage_entropy", usage_entropy(result.index, codewords), "bit"),
                    ("cosine", cosine, "cosine"),
                    ("distortion", distortion, "relative squared error"),
                )
            ]
        )


def _drop_in(
    job: Job,
    run: Run,
    arm: dict[str, Any],
    calibration: "dict[str, torch.Tensor]",
    books: "dict[str, torch.Tensor]",
) -> None:
    """What it costs to put this arm in K-means' place (claim C4)."""
    from scripts.papers.gsrq.bits import code_bits
    from scripts.papers.gsrq.gain_shape import round_operations

    params = job.params
    layer, rows = params["study"]["layers"][-1], []
    for dim in params["study"]["dims"]:
        book = books[codebook_name(dim, layer, "v")].half()
        stages, codewords, _ = book.shape
        head_dim = calibration[f"v.{layer}"].shape[-1]
        per_vector = stages * code_bits(codewords) * (head_dim // dim) / 8
        operations = round_operations(arm["method"], params["vectors"], codewords, dim)
        rows += [
            {"metric": name, "value": value, "unit": unit, "n": n, "dim": dim, "quantity": what}
            for name, what, value, unit, n in (
                ("stored_bytes", "codebook", book.nbytes, "byte", 1),
                ("stored_bytes", "code", per_vector, "byte", 1),
                ("round_operations", None, operations, "operation", params["vectors"]),
            )
        ]
    run.metrics(rows)
    if arm["method"] == "gain_shape":
        difference, n = _lloyd_difference(params, run, calibration[f"v.{layer}"].double())
        run.metric("lloyd_difference", difference, unit="share of the largest norm", n=n)


def _lloyd_difference(params: dict[str, Any], run: Run, x: "torch.Tensor") -> tuple[float, int]:
    """Largest distance between codewords of GSKM with raw directions and of Lloyd, 5 rounds."""
    from scripts.papers.gsrq.gain_shape import fit_gain_shape
    from scripts.papers.gsrq.kmeans import fit_kmeans

    x = x.flatten(0, -2)
    x = x[sample_rows(len(x), params["vectors"], run.generator("lloyd"))]
    start, weight = x[: params["codewords"]], x.new_ones(len(x))
    raw = fit_gain_shape(x, weight, start, 5, direction="raw").codebook
    lloyd = fit_kmeans(x, weight, start, 5).codebook
    return float((raw - lloyd).norm(dim=1).max() / lloyd.norm(dim=1).max()), len(x)


if __name__ == "__main__":
    main(compress)
