"""Design-space exploration: the best configuration per target rate on i.i.d. Gaussian blocks.

It never sees a model: the same Gaussian weights judge every arm's configurations, and every arm
may use registers of the same width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from scripts.papers.squant import adaptive, fixed, lfsr, scalar
from scripts.papers.squant.adaptive import AdaptiveConfig
from scripts.papers.squant.basis import Generator
from scripts.papers.squant.fixed import FixedConfig

ROW = 48  # blocks of a Gaussian row: a multiple of every group size


def snr(w: Tensor, made: Tensor) -> float:
    """Signal over squared error in dB."""
    error = (w.double() - made.double()).square().sum()
    return float(10 * torch.log10(w.double().square().sum() / error))


def fixed_configs(space: dict[str, Any], target: float) -> Iterator[FixedConfig]:
    """Configurations of the fixed coder with total bits in (target - window, target]."""
    for kind, size, count, register, b, e in product(
        space["bases"], space["sizes"], space["counts"], registers(space),
        space["coefficient_bits"], space["exponent_bits"],
    ):  # fmt: skip
        bits = (register + e + b * count) / size
        if count <= size and target - space["window"] < bits <= target:
            yield FixedConfig(Generator(kind, register, size, count), b, e)


def generators(space: dict[str, Any]) -> Iterator[Generator]:
    """Generators of the adaptive coder: k_max bases at most."""
    for kind, size, count, register in product(
        space["bases"], space["sizes"], space["max_counts"], registers(space)
    ):
        if count <= size:
            yield Generator(kind, register, size, count)


def registers(space: dict[str, Any]) -> range:
    """Register widths that an arm may use."""
    return range(min(lfsr.TAPS), space["register"] + 1)


def gaussian(blocks: int, size: int, generator: torch.Generator) -> Tensor:
    """Whole rows of at least that many blocks [n, size]."""
    return torch.randn(-(-blocks // ROW) * ROW, size, generator=generator)


def try_fixed(config: FixedConfig, w: Tensor, shortlist: int) -> dict[str, Any]:
    """What one configuration of the fixed coder reaches on blocks w."""
    codes = fixed.encode(w, config, shortlist)
    return {
        "coder": "fixed",
        **_described(config.generator),
        "coefficient_bits": config.coefficient_bits,
        "exponent_bits": config.exponent_bits,
        "bits": config.bits,
        "snr": snr(w, fixed.decode(codes, config)),
    }


def try_adaptive(
    generator: Generator, groups: Sequence[int], w: Tensor, targets: Sequence[float]
) -> list[dict[str, Any]]:
    """What a generator reaches at the target rates; one scan serves all rates, groups and counts.

    Rows of coder "adaptive" have a threshold for each target that some mean count above 2 makes.
    Rows of coder "equal" have the largest count that fits the target in every block; it need not be
    stored.
    """
    found = adaptive.scan(w, AdaptiveConfig(generator, 1))
    rows = []
    for group, target in product(groups, targets):
        config = AdaptiveConfig(generator, group)
        wanted = config.mean_count(target, ROW)
        if adaptive.FIRST < wanted < generator.count:
            threshold = adaptive.threshold_for(found, wanted)
            counts = found.counts(threshold)
            row = {"coder": "adaptive", "target": target, "threshold": threshold}
            row["bits"] = config.bits(float(counts.double().mean()), ROW)
            rows.append({**row, **_coded(found, counts, config, w)})
        fitting = [k for k in config.counts if config.published_bits(k, ROW) <= target]
        if fitting:
            row = {"coder": "equal", "target": target, "bases": fitting[-1]}
            row["bits"] = config.published_bits(fitting[-1], ROW)
            counts = torch.full((len(w),), fitting[-1], device=w.device)
            rows.append({**row, **_coded(found, counts, config, w)})
    return rows


def _coded(
    found: adaptive.Scan, counts: Tensor, config: AdaptiveConfig, w: Tensor
) -> dict[str, Any]:
    index = found.index.gather(1, counts[:, None] - adaptive.FIRST)[:, 0]
    codes = adaptive.quantize(w, index, counts, config, ROW)
    made = adaptive.decode(codes, config, ROW)
    return {**_described(config.generator), "group": config.group, "snr": snr(w, made)}


def _described(generator: Generator) -> dict[str, Any]:
    return {
        "basis": generator.kind,
        "register": generator.bits,
        "size": generator.size,
        "count": generator.count,
    }


def explore(
    space: dict[str, Any],
    targets: Sequence[float],
    blocks: dict[int, Tensor],
    shortlist: int,
) -> list[dict[str, Any]]:
    """Every configuration of the space that fits a target, with its SNR on Gaussian blocks.

    blocks: size -> blocks of that size.
    """
    rows = []
    for target in targets:
        for config in fixed_configs(space, target):
            made = try_fixed(config, blocks[config.generator.size], shortlist)
            rows.append({**made, "target": target})
    for generator in generators(space):
        rows += try_adaptive(generator, space["groups"], blocks[generator.size], targets)
    return rows


def scalar_rates(w: Tensor) -> list[dict[str, Any]]:
    """Round to nearest and NormalFloat on a Gaussian matrix, for comparison."""
    return [
        {"coder": name, "bits": made.total_bits(), "group": group, "snr": snr(w, made.decode())}
        for name, method, group in (("rtn", scalar.rtn, 128), ("nf", scalar.normal_float, 64))
        for made in (method(w, bits, group) for bits in (2, 3, 4))
    ]


def choose(rows: Sequence[dict[str, Any]], wanted: dict[str, list]) -> dict[str, Any]:
    """The row of best SNR among those whose columns have allowed values; of equals the fewest bits.

    Raises ValueError when none is allowed.
    """
    allowed = [row for row in rows if all(row.get(key) in wanted[key] for key in wanted)]
    if not allowed:
        raise ValueError(f"wanted: no configuration with {wanted}; widen the design space")
    return max(allowed, key=lambda row: (row["snr"], -row["bits"]))


def config_of(row: dict[str, Any]) -> FixedConfig | AdaptiveConfig:
    """The configuration that a row describes."""
    generator = Generator(row["basis"], int(row["register"]), int(row["size"]), int(row["count"]))
    if row["coder"] == "fixed":
        return FixedConfig(generator, int(row["coefficient_bits"]), int(row["exponent_bits"]))
    return AdaptiveConfig(generator, int(row["group"]))
