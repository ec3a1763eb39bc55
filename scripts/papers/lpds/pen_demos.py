"""Build the pen's demonstrations: an expert learns to turn the pen in the Adroit hand's simulator.

    python -m scripts.papers.lpds.pen_demos FOLDER

The same seed gives the same demonstrations, bit for bit; it takes some minutes of one core (as
logs/assets/adroit-pen-demos.benchmark.tsv tells where Snakemake builds it).
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from scripts.papers.lpds.demos import Episodes
from scripts.papers.lpds.pen_expert import PenPolicy, Training, train
from scripts.papers.lpds.tasks import Simulator, make
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import write_json

SEED, EPISODES, HORIZON, MOST_ATTEMPTS = 0, 60, 60, 300
NOISE = 0.1
"""Standard deviation of the noise in the demonstrated actions, which shows how to recover."""


def build(
    folder: Path,
    episodes: int = EPISODES,
    horizon: int = HORIZON,
    settings: Training = Training(),  # noqa: B008 (frozen)
    first_seed: int = 0,
    most_attempts: int = MOST_ATTEMPTS,
) -> None:
    """Write demos.safetensors (the tensors of demos.Episodes) and build.json (seed, attempts, and
    the share of the attempts that succeed). Only successes are kept.

    Attempt i starts from environment seed first_seed + i.

    Args:
        folder: where; it exists.
        episodes: kept at the end.
        horizon: steps of an episode.
        settings: of the expert's training.
        first_seed: of the environment.
        most_attempts: after which it gives up.

    Raises:
        PipelineError: too few episodes succeed.
    """
    simulator = make("pen", horizon)
    simulator.reset(first_seed)
    policy = train(simulator, settings, SEED)
    kept, attempt = Episodes(), 0
    while len(kept.scores) < episodes:
        if attempt == most_attempts:
            raise PipelineError(
                f"lpds: of {attempt} attempts with the pen {len(kept.scores)} succeed, fewer than "
                f"{episodes}: train the expert for more iterations"
            )
        tried = play(simulator, first_seed + attempt, policy)
        attempt += 1
        if tried.scores[0]:
            _append(kept, tried)
    save_file(kept.tensors(), folder / "demos.safetensors")
    write_json(
        folder / "build.json",
        {
            "seed": SEED,
            "episodes": episodes,
            "horizon": horizon,
            "attempts": attempt,
            "success_share": episodes / attempt,
        },
    )


def play(simulator: Simulator, seed: int, policy: PenPolicy) -> Episodes:
    """The expert's episode from an environment seed, its actions with noise."""
    tried, rng = Episodes(), np.random.default_rng([SEED, seed])
    tried.add(
        simulator,
        seed,
        lambda seen: policy.act(seen) + NOISE * rng.standard_normal(simulator.spec.action),
        source=0,
    )
    return tried


def _append(kept: Episodes, tried: Episodes) -> None:
    """Add one episode to those kept."""
    tried.episodes = [len(kept.scores)] * len(tried.rewards)
    for name, rows in vars(tried).items():
        getattr(kept, name).extend(rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the pen's demonstrations.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(argv).folder
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # sums in another order would end in another expert
    build(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
