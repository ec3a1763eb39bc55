"""Time every operation beside its peer; on a GPU also against the measured ceilings of the card.

    python -m kernels.bench          # CPU (one thread) or GPU, whichever is there
    python -m kernels.bench --aot    # rewrite results/aot.csv: registers, shared memory, spills

CPU peers: `faiss.ResidualQuantizer` with beam 1 and the same codebooks; torch's SDPA over a cache
that was dequantized beforehand, whose decoding it does not pay for. GPU peers: the definition as
eager torch code; SDPA in float16. `speedup` is peer time over ours: below 1 the peer is faster, and
such rows are printed like the others. Rows go to results/<card or cpu>/bench.parquet, or to
`--output`.
"""

import argparse
import csv
import re
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
import triton

from kernels import rq_decode_attention as attention
from kernels import rq_encode as encode
from kernels.cases import (
    ATTENTION_BENCH_CPU,
    ATTENTION_BENCH_GPU,
    ENCODE_BENCH_CPU,
    ENCODE_BENCH_GPU,
    AttentionShape,
    EncodeShape,
    variants,
)
from kernels.harness import TARGETS, aot_compile

RESULTS = Path(__file__).parent / "results"
AOT_TABLE = RESULTS / "aot.csv"
SECONDS = 0.5  # per comparison on a CPU
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--aot", action="store_true", help="rewrite the table of builds")
    parser.add_argument("--output", type=Path, help="where the rows go")
    args = parser.parse_args()
    if args.aot:
        write_aot()
        return
    import pandas as pd

    if torch.cuda.is_available():
        where = re.sub(r"\W+", "-", torch.cuda.get_device_name()).strip("-").lower()
        rows = gpu_rows()
    else:
        where, rows = "cpu", cpu_rows()
    frame = pd.DataFrame(rows)
    output = args.output or RESULTS / where / "bench.parquet"
    output.parent.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(output, index=False)
    for operation, part in frame.groupby("operation", sort=False):
        columns = part.drop(columns="operation").dropna(axis=1, how="all")
        print(f"\n{operation} on {where}")
        print(columns.to_string(index=False, float_format=lambda value: f"{value:.4g}"))


def cpu_rows() -> list[Row]:
    """Every CPU case on one thread."""
    import faiss

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    rows = [encode_on_cpu(shape) for shape in ENCODE_BENCH_CPU]
    for shape in ATTENTION_BENCH_CPU:
        rows += attend_on_cpu(shape)
    return rows


def encode_on_cpu(shape: EncodeShape) -> Row:
    """Codes only, the norms of the codebooks known, as for a cache that is written once."""
    import faiss

    x, cb = shape.inputs()
    cn = cb.square().sum(-1)
    peer = faiss.ResidualQuantizer(shape.d, shape.m, (shape.k - 1).bit_length())
    peer.max_beam_size = 1
    faiss.copy_array_to_vector(cb.numpy().ravel(), peer.codebooks)
    peer.is_trained = True
    array = x.numpy()
    ours, theirs = alternate(
        lambda: encode.rq_encode(x, cb, cn, want_xhat=False), lambda: peer.compute_codes(array)
    )
    out = encode.rq_encode(x, cb, cn)
    codes = faiss.unpack_bitstrings(
        peer.compute_codes(array), shape.m, (shape.k - 1).bit_length()
    ).astype("int64")
    decoded = attention.dequantize(torch.from_numpy(codes)[:, None], cb)
    energy = x.square().sum()
    flops, _ = encode.cost(shape.n, shape.d, shape.m, shape.k, itemsize=4)
    return {
        "operation": "rq_encode",
        "shape": f"{shape.name}: N={shape.n} d={shape.d} M={shape.m} K={shape.k}",
        "peer": "faiss, beam 1",
        "ms": ours,
        "peer_ms": theirs,
        "speedup": theirs / ours,
        "gflop_s": flops / ours / 1e6,
        "distortion": float(out.err.sum() / energy),
        "peer_distortion": float((x - decoded).square().sum() / energy),
        "same_codes": float((out.codes.numpy() == codes).mean()),
    }


def attend_on_cpu(shape: AttentionShape) -> list[Row]:
    """Against SDPA over a float32 and over a float16 cache."""
    args = shape.inputs()
    rows = []
    for dtype in (torch.float32, torch.float16):
        q, keys, values = dense(shape, args, dtype)
        ours, theirs = alternate(
            lambda: attention.rq_decode_attention(*args, shape.scale, rope=shape.rope),
            lambda q=q, k=keys, v=values: F.scaled_dot_product_attention(
                q, k, v, scale=shape.scale, enable_gqa=True
            ),
        )
        rows.append(attention_row(shape, args, ours, theirs, f"SDPA, {str(dtype)[6:]} cache", keys))
    return rows


def dense(
    shape: AttentionShape, args: attention.Operands, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [B,Hq,1,D] and the decoded, turned cache [B,Hkv,S,D] that SDPA reads."""
    keys = attention.dequantize(args.kc, args.kcb.float())
    keys = attention.rotate(keys, args.cos, args.sin, shape.rope)
    values = attention.dequantize(args.vc, args.vcb.float())
    return args.q[:, :, None].to(dtype), keys.to(dtype), values.to(dtype)


def attention_row(
    shape: AttentionShape,
    args: attention.Operands,
    ours: float,
    theirs: float,
    peer: str,
    keys: torch.Tensor,
) -> Row:
    return {
        "operation": "rq_decode_attention",
        "shape": f"{shape.name}: B={len(shape.lens)} S={shape.lens[0]} Hkv={shape.hkv} "
        f"R={shape.r} D={shape.g * shape.d} M={shape.m}",
        "peer": peer,
        "ms": ours,
        "peer_ms": theirs,
        "speedup": theirs / ours,
        "cache_mb": 2 * args.kc.nbytes / 1e6,
        "peer_cache_mb": 2 * keys.nbytes / 1e6,
    }


def alternate(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float]:
    """Median milliseconds of each, taken in turn so that a busy machine slows both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    ours(), theirs()
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until or len(times[0]) < 5:
        for call, spent in zip((ours, theirs), times, strict=True):
            start = time.perf_counter()
            call()
            spent.append(1e3 * (time.perf_counter() - start))
    return median(times[0]), median(times[1])


def gpu_rows() -> list[Row]:
    """Every GPU case: CUDA-event medians with a cold cache, and shares of measured ceilings."""
    ceilings = measure_ceilings()
    rows: list[Row] = [{"operation": "ceilings", "shape": "measured", **ceilings}]
    for shape in ENCODE_BENCH_GPU:
        x, cb = (t.cuda() for t in shape.inputs())
        cn = cb.square().sum(-1)
        row = {
            "operation": "rq_encode",
            "shape": f"{shape.name}: N={shape.n} d={shape.d} M={shape.m} K={shape.k}",
            "peer": "eager torch, float32",
            "ms": gpu_ms(lambda x=x, cb=cb, cn=cn: encode.rq_encode(x, cb, cn, want_xhat=False)),
            "peer_ms": gpu_ms(lambda x=x, cb=cb: encode.reference(x.float(), cb)),
        }
        flops, traffic = encode.cost(shape.n, shape.d, shape.m, shape.k)
        rows.append(row | roofline(row, flops, traffic, ceilings, "tflop_s_float32"))
    for shape in ATTENTION_BENCH_GPU:
        args = attention.Operands(*(t.cuda() for t in shape.inputs()))
        q, keys, values = dense(shape, args, torch.float16)
        ours = gpu_ms(lambda a=args, s=shape.scale: attention.rq_decode_attention(*a, s))
        theirs = gpu_ms(
            lambda q=q, k=keys, v=values, s=shape.scale: F.scaled_dot_product_attention(
                q, k, v, scale=s, enable_gqa=True
            )
        )
        row = attention_row(shape, args, ours, theirs, "SDPA, float16 cache", keys)
        b, length = len(shape.lens), shape.lens[0]
        hq, d = shape.hkv * shape.r, shape.d
        flops, traffic = attention.cost(b, hq, shape.hkv, length, shape.g, d, shape.m, shape.k)
        row |= roofline(row, flops, traffic, ceilings, "tflop_s_float16")
        # Codewords fetched from the caches, the real load at one bit; codes alone from memory.
        row["gather_gb_s"] = 2 * args.kc.numel() * d * args.kcb.element_size() / ours / 1e6
        row["code_gb_s"] = 2 * args.kc.nbytes / ours / 1e6
        rows.append(row)
    return rows


def roofline(row: Row, flops: int, traffic: int, ceilings: Row, arithmetic: str) -> Row:
    """Achieved rates, and the time the slower of the two ceilings would allow over ours."""
    gb_s, tflop_s = traffic / row["ms"] / 1e6, flops / row["ms"] / 1e9
    return {
        "speedup": row["peer_ms"] / row["ms"],
        "gb_s": gb_s,
        "tflop_s": tflop_s,
        "of_roofline": max(gb_s / ceilings["gb_s"], tflop_s / ceilings[arithmetic]),
    }


def measure_ceilings() -> Row:
    """What this card reaches: a copy of 1 GiB, and square matrix products."""
    source = torch.empty(2**28, device="cuda")
    target = torch.empty_like(source)
    rates: Row = {"gb_s": 2 * source.nbytes / gpu_ms(lambda: target.copy_(source)) / 1e6}
    for dtype in (torch.float16, torch.float32):  # float32 without TF32, torch's default
        a = torch.randn(8192, 8192, device="cuda", dtype=dtype)
        rates[f"tflop_s_{str(dtype)[6:]}"] = 2 * 8192**3 / gpu_ms(lambda a=a: a @ a) / 1e9
    return rates


def gpu_ms(call: Callable[[], Any]) -> float:
    """Median milliseconds by CUDA events, the second cache cleared before each call."""
    return float(triton.testing.do_bench(call, return_mode="median"))


def aot_rows() -> list[Row]:
    """What every build needs on every target, with the Triton that is installed."""
    return [
        {
            "triton": triton.__version__,
            "target": target,
            "build": variant.name,
            "warps": variant.num_warps,
            **vars(aot_compile(variant, TARGETS[target])),
        }
        for variant in variants()
        for target in TARGETS
    ]


def write_aot() -> None:
    rows = aot_rows()
    AOT_TABLE.parent.mkdir(parents=True, exist_ok=True)
    with AOT_TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(AOT_TABLE.read_text(), end="")


if __name__ == "__main__":
    main()
