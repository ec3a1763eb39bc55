"""Compare the open switches on the dev topics at the main rate, for GSKM and K-means alike.

    python -m scripts.papers.gsrq.choose --scale laptop

Prints the mean KL of each choice; params.yaml holds what was chosen. The eval text is not read.
"""

import argparse
from typing import Any

HALVES = {"start_iterations": 4, "iterations": 4}  # as many rounds in all as from points
CHOICES: dict[str, dict[str, Any]] = {
    "kmeans, points": {"method": "kmeans"},
    "kmeans, spherical start": {"method": "kmeans", **HALVES},
    "gskm l2, points": {"method": "gain_shape"},
    "gskm l2, spherical start": {"method": "gain_shape", **HALVES},
    "gskm cos, points": {"method": "gain_shape", "options": {"assign": "cos"}},
}


def main() -> None:
    import torch

    from scripts.papers.gsrq import capture, weights
    from scripts.papers.gsrq.compress import residual_books
    from scripts.papers.gsrq.evaluate import ModelBench, quantizer_at
    from scripts.pipeline import files, params
    from scripts.pipeline.assets import verified
    from scripts.pipeline.models import load_causal_lm
    from scripts.pipeline.stage import seed_of

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="laptop")
    parser.add_argument("--seeds", default=3, type=int)
    parser.add_argument("--weights", nargs="+", default=["fisher", "attn"])
    parser.add_argument("--vectors", type=int, help="calibration vectors; default: params.yaml")
    parser.add_argument("--root", default=files.ROOT, type=type(files.ROOT))
    args = parser.parse_args()
    torch.set_num_threads(1)
    settings = params.load(args.root / "params.yaml").paper("gsrq").at(args.scale)
    chosen = settings.parameters
    if args.vectors:
        chosen = {**chosen, "vectors": args.vectors}
    table = files.read_table(
        args.root / "data" / args.scale / "gsrq" / "segments.parquet", "stage prepare"
    )
    model = load_causal_lm(verified(args.root, settings.assets["model"]))
    bench = ModelBench(chosen, model, table, {"pydoc": "dev"})
    pieces = [torch.tensor(ids) for ids in table[table["split"] == "calibration"]["ids"]]
    kinds = {
        "fisher": (capture.gradient_weights, weights.log_smoothed),
        "attn": (capture.output_weights, weights.clipped),
    }
    for weight in args.weights:
        measure, tame = kinds[weight]
        found = [measure(model, ids) for ids in pieces]
        calibration = {}
        for layer, kind in found[0][0]:
            parts = [(vectors[layer, kind], raw[layer, kind]) for vectors, raw in found]
            calibration[f"{kind}.{layer}"] = torch.cat([x for x, _ in parts])
            calibration[f"w.{kind}.{layer}"] = tame(torch.cat([w for _, w in parts]))
        for name, switches in CHOICES.items():
            arm = {"coder": "residual", "weighted": True, **switches}
            arm["fits"] = [{"dim": 64, "stages": 8, "scope": "model"}]
            kls = []
            for seed in range(args.seeds):

                def stream(name: str, seed: int = seed) -> torch.Generator:
                    return torch.Generator().manual_seed(seed_of("choose", seed, name))

                books, _ = residual_books(chosen, arm, calibration, 0, stream)
                quantizer, bits = quantizer_at(bench, arm, books, {"dim": 64, "stages": 8})
                scores = bench.scores("pydoc", quantizer)
                kls.append(sum(row["kl"] for row in scores) / len(scores))
            each = " ".join(f"{kl:.4f}" for kl in kls)
            mean = sum(kls) / len(kls)
            print(f"{weight}; {name}: {mean:.4f} nat/token at {bits:g} bits ({each})", flush=True)


if __name__ == "__main__":
    main()
