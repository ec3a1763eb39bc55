"""Speed of the seed search, and compress time beside HQQ's library and GPTQ, on one thread.

    python -m scripts.papers.squant.bench [--output rows.parquet]

Goals: at K = 12 and C = 8 the search (shortlist of 16, rescoring included) codes at least 150 000
weights a second, and loses less than 0.05 dB against all seeds on a sample. Times are processor
seconds, the best of interleaved runs. Seeds cost far more time than rounding: the table says so.
"""

import argparse
import platform
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    import torch

ROWS, COLUMNS = 384, 1536
SAMPLE = 512  # blocks on which the shortlist is held against all seeds
REPEATS = 3


def bench() -> "pd.DataFrame":
    """One row per program: time per million weights, weights/s, bits, SNR on Gaussian weights."""
    import pandas as pd
    import torch

    from scripts.papers.squant import adaptive, calibrated, fixed, scalar
    from scripts.papers.squant.adaptive import AdaptiveConfig
    from scripts.papers.squant.basis import Generator
    from scripts.papers.squant.designs import snr
    from scripts.papers.squant.fixed import FixedConfig
    from scripts.papers.squant.packing import blocks_of

    torch.set_num_threads(1)
    w = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    x = torch.randn(4096, COLUMNS, generator=torch.Generator().manual_seed(1))
    gram = x.T @ x / len(x)
    coders: dict[str, FixedConfig] = {
        "our variant, K=12 C=8 P=4 b=4 sign": FixedConfig(Generator("sign", 12, 8, 4), 4, 4),
        "our variant, K=12 C=12 P=7 b=3 sign": FixedConfig(Generator("sign", 12, 12, 7), 3, 3),
        "SeedLM, K=12 C=8 P=4 b=4 word": FixedConfig(Generator("word", 12, 8, 4), 4, 4),
    }
    published = AdaptiveConfig(Generator("state", 12, 8, 3), 8)
    per_row = COLUMNS // 8
    programs: dict[str, Callable[[], Any]] = {
        name: lambda c=config: _fixed(fixed, blocks_of(w, c.generator.size), c)
        for name, config in coders.items()
    }
    programs["S-Quant published, K=12 B=8 k<=3"] = lambda: _adaptive(
        adaptive, w, published, per_row
    )
    programs["RTN-4, groups of 128"] = lambda: _grouped(scalar.rtn(w, 4, 128))
    programs["our HQQ-4, groups of 64"] = lambda: _grouped(scalar.hqq(w, 4, 64))
    if find_spec("hqq"):
        programs["hqq library, 4 bits, groups of 64"] = lambda: _hqq_library(w)
    else:
        print("hqq is not installed, its row is left out: pip install hqq==0.2.8.post1")
    programs["our GPTQ-4, groups of 128"] = lambda: _grouped(calibrated.gptq(w, gram, 4, 128))
    seconds, made = _times(programs), {name: program() for name, program in programs.items()}
    decoding = _times({name: _decoder(w, config) for name, config in coders.items()})
    reference = seconds["our HQQ-4, groups of 64"]
    rows = []
    for name in programs:
        again, bits = made[name]
        rows.append(
            {
                "program": name,
                "bits": bits,
                "snr_db": snr(w.flatten(), again.flatten()),
                "s_per_million_weights": seconds[name] / w.numel() * 1e6,
                "weights_per_s": w.numel() / seconds[name],
                "time_over_our_hqq": seconds[name] / reference,
                "decode_s_per_million": decoding[name] / w.numel() * 1e6
                if name in coders
                else None,
                "exhaustive_loss_db": _loss(coders[name], w) if name in coders else None,
                "machine": machine(),
            }
        )
    return pd.DataFrame(rows)


def _fixed(fixed: Any, blocks: "torch.Tensor", config: Any) -> "tuple[torch.Tensor, float]":
    return fixed.decode(fixed.encode(blocks, config), config), config.bits


def _decoder(w: "torch.Tensor", config: Any) -> Callable[[], Any]:
    """Decodes the packed matrix with the kernel package, in the layout that a GPU reads."""
    import torch

    from kernels.seed_dequant import seed_dequant
    from scripts.papers.squant import fixed
    from scripts.papers.squant.packing import blocks_of, kernel_operands, pack_matrix

    codes = fixed.encode(blocks_of(w, config.generator.size), config)
    records, stream, options = kernel_operands(pack_matrix(codes, config, w.shape[1]))
    return lambda: seed_dequant(records, stream, Kin=w.shape[1], dtype=torch.float32, **options)


def _adaptive(
    adaptive: Any, w: "torch.Tensor", config: Any, per_row: int
) -> "tuple[torch.Tensor, float]":
    from scripts.papers.squant.coders import RATE_SAMPLE
    from scripts.papers.squant.packing import blocks_of

    blocks = blocks_of(w, config.generator.size)
    sample = adaptive.scan(blocks[:: max(1, len(blocks) // RATE_SAMPLE)], config)
    threshold = adaptive.threshold_for(sample, config.mean_count(4.0, per_row))
    codes, _ = adaptive.encode(blocks, config, threshold, per_row)
    bits = config.bits(float(codes.count.double().mean()), per_row)
    return adaptive.decode(codes, config, per_row), bits


def _grouped(made: Any) -> "tuple[torch.Tensor, float]":
    return made.decode(), made.total_bits()


def _hqq_library(w: "torch.Tensor") -> "tuple[torch.Tensor, float]":
    import torch
    from hqq.core.quantize import Quantizer

    codes, meta = Quantizer.quantize(
        w, nbits=4, group_size=64, axis=1, bitpack=False, device="cpu", compute_dtype=torch.float32
    )
    return ((codes.float() - meta["zero"]) * meta["scale"]).view(w.shape), 4 + 32 / 64


def _loss(config: Any, w: "torch.Tensor") -> float:
    from scripts.papers.squant.controls import exhaustive_loss

    return exhaustive_loss([w], config, 16, SAMPLE)[0]


def _times(programs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Least processor seconds of each program over interleaved runs, the first not counted."""
    found: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(REPEATS + 1):
        for name, program in programs.items():
            start = time.process_time()
            program()
            found[name].append(time.process_time() - start)
    return {name: min(values[1:]) for name, values in found.items()}


def machine() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    """Print the table, and write it where `--output` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="where the rows go, as parquet")
    args = parser.parse_args()
    rows = bench()
    print(f"one thread of {rows['machine'].iloc[0]}")
    shown = rows.drop(columns="machine")
    print(shown.to_string(index=False, float_format=lambda value: f"{value:.4g}", na_rep=""))
    search = rows.iloc[0]
    print(
        f"seed search: {search['weights_per_s'] / 1e3:.0f} k weights/s (goal 150 k), "
        f"{search['exhaustive_loss_db']:.3f} dB below all seeds (goal 0.05); "
        f"it takes {search['time_over_our_hqq']:.0f} times as long as our HQQ"
    )
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        rows.to_parquet(args.output, index=False)


if __name__ == "__main__":
    main()
