"""Fitting and encoding beside faiss at equal codewords, stages, dimension and rounds, one thread.

    python -m scripts.papers.gsrq.bench [--output rows.parquet]

Goals: encode at least 0.8 times as fast as faiss.ResidualQuantizer, fit in at most 1.25 times the
time of faiss.Kmeans, and no more held-out error than either. A fit here also assigns the vectors to
the codebook, as the next stage needs it; faiss.Kmeans is timed without and with its assignment.
Times are medians of interleaved runs.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    import torch

ROUNDS, REPEATS = 8, 21
CASES = ((4096, 64, 256, 8), (4096, 32, 256, 4))  # vectors, dimension, codewords, stages


def bench() -> "pd.DataFrame":
    """One row per case and program: fit and encode seconds, held-out relative squared error."""
    import pandas as pd

    return pd.DataFrame([row for case in CASES for row in _case(*case)])


def _case(rows: int, dim: int, codewords: int, stages: int) -> list[dict[str, object]]:
    import faiss
    import torch

    from kernels.rq_encode import rq_encode
    from scripts.papers.gsrq.gain_shape import fit_gain_shape
    from scripts.papers.gsrq.kmeans import fit_kmeans
    from scripts.papers.gsrq.residual import draw_orders, fit_residual, stage_fit

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    # A decaying spectrum, as keys and values have; isotropic noise would hide every difference.
    spectrum = torch.arange(1, dim + 1) ** -0.5
    x, new = (torch.randn(2, rows, dim, generator=torch.Generator().manual_seed(0)) * spectrum)[:2]
    weight = torch.ones(rows)
    orders = draw_orders(rows, stages, torch.Generator().manual_seed(1))
    first = x[orders[0, :codewords]]

    def faiss_fit(assign: bool) -> None:
        kmeans = faiss.Kmeans(dim, codewords, niter=ROUNDS, max_points_per_centroid=rows)
        kmeans.cp.min_points_per_centroid = 1
        kmeans.train(x.numpy(), init_centroids=first.numpy())
        if assign:
            kmeans.assign(x.numpy())

    peer = faiss.ResidualQuantizer(dim, stages, codewords.bit_length() - 1)
    peer.max_beam_size = 1
    peer.train_type = faiss.ResidualQuantizer.Train_default
    peer.cp.niter = ROUNDS
    peer.cp.min_points_per_centroid = 1
    peer.train(x.numpy())
    books = {
        name: fit_residual(
            x, weight, orders, codewords, stage_fit(method, ROUNDS // 2, ROUNDS // 2)
        )[0]
        for name, method in (("K-means", "kmeans"), ("GSKM", "gain_shape"))
    }
    fits = _times(
        {
            "faiss": lambda: faiss_fit(assign=False),
            "faiss and assignment": lambda: faiss_fit(assign=True),
            "K-means": lambda: fit_kmeans(x, weight, first, ROUNDS),
            "GSKM": lambda: fit_gain_shape(x, weight, first, ROUNDS),
        }
    )
    encodes = _times(
        {
            "faiss": lambda: peer.compute_codes(new.numpy()),
            **{name: lambda book=book: rq_encode(new, book) for name, book in books.items()},
        }
    )
    errors = {name: _relative(new, rq_encode(new, book).xhat) for name, book in books.items()}
    decoded = peer.decode(peer.compute_codes(new.numpy()))
    errors["faiss"] = _relative(new, torch.from_numpy(decoded))
    return [
        {
            "vectors": rows, "d": dim, "K": codewords, "M": stages, "program": name,
            "fit_s": fits[name], "fit_vs_faiss": fits[name] / fits["faiss"],
            "fit_vs_faiss_and_assignment": fits[name] / fits["faiss and assignment"],
            "encode_s": encodes[name], "encode_speed_vs_faiss": encodes["faiss"] / encodes[name],
            "held_out_error": errors[name],
        }
        for name in ("faiss", "K-means", "GSKM")
    ]  # fmt: skip


def _times(programs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median processor seconds of each program; runs are interleaved, the first is not counted."""
    found: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(REPEATS + 1):
        for name, program in programs.items():
            start = time.process_time()
            program()
            found[name].append(time.process_time() - start)
    return {name: median(values[1:]) for name, values in found.items()}


def _relative(x: "torch.Tensor", xhat: "torch.Tensor") -> float:
    return float((x - xhat).double().square().sum() / x.double().square().sum())


def main() -> None:
    """Print the table, and write it where `--output` says."""
    from pathlib import Path

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="where the rows go, as parquet")
    args = parser.parse_args()
    rows = bench()
    print(rows.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        rows.to_parquet(args.output, index=False)


if __name__ == "__main__":
    main()
