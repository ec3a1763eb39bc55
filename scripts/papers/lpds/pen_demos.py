"""Build the pen's demonstrations: a planner turns the pen in the Adroit hand's simulator.

    python -m scripts.papers.lpds.pen_demos FOLDER

The same seed gives the same demonstrations, bit for bit; it takes some minutes of one core (as
logs/assets/adroit-pen-demos.benchmark.tsv tells where Snakemake builds it).
"""

import argparse
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from scripts.papers.lpds.demos import Episodes
from scripts.papers.lpds.mppi import Mppi, Planner
from scripts.papers.lpds.tasks import Simulator, make, score
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import write_json

SEED, EPISODES, HORIZON, MOST_ATTEMPTS = 0, 60, 60, 300
DROPPED = 0.1
"""Metres above the ground below which the pen has left the hand."""
NEAR_SUCCESS = np.cos(np.radians(30))
"""An episode that ends with the pen in the hand, at most this far from its direction, is kept."""
SUCCESS, NEARLY = 0, 1
"""Sources: episodes that succeed, and near-successes."""


def build(
    folder: Path,
    episodes: int = EPISODES,
    horizon: int = HORIZON,
    settings: Mppi = Mppi(),  # noqa: B008 (frozen)
    first_seed: int = 0,
    most_attempts: int = MOST_ATTEMPTS,
) -> None:
    """Write demos.safetensors (the tensors of demos.Episodes) and build.json (seed, attempts, the
    share of the attempts that succeed, and of the kept episodes that do).

    Attempt i starts from environment seed first_seed + i. Successes and near-successes are kept;
    an attempt ends where the pen is dropped.

    Args:
        folder: where; it exists.
        episodes: kept at the end.
        horizon: steps of an episode.
        settings: of the planner.
        first_seed: of the environment.
        most_attempts: after which it gives up.

    Raises:
        PipelineError: too few episodes are worth keeping.
    """
    kept, succeeded, attempt = Episodes(), 0, 0
    simulator = make("pen", horizon)
    while len(kept.scores) < episodes:
        if attempt == most_attempts:
            raise PipelineError(
                f"lpds: of {attempt} attempts with the pen {len(kept.scores)} are worth keeping, "
                f"fewer than {episodes}: give the planner more samples, or a longer horizon"
            )
        tried = play(simulator, first_seed + attempt, settings)
        attempt += 1
        if tried is not None:
            succeeded += int(tried.scores[0])
            _append(kept, tried)
    kept_share = float(np.mean(kept.scores))
    save_file(kept.tensors(), folder / "demos.safetensors")
    write_json(
        folder / "build.json",
        {
            "seed": SEED,
            "episodes": episodes,
            "horizon": horizon,
            "attempts": attempt,
            "success_share": succeeded / attempt,
            "kept_success_share": kept_share,
        },
    )


def play(simulator: Simulator, seed: int, settings: Mppi) -> Episodes | None:
    """The planner's episode from an environment seed, None where it is not worth keeping."""
    tried, horizon = Episodes(), simulator.horizon
    observation = simulator.reset(seed)
    planner = Planner(simulator, settings, np.random.default_rng([SEED, seed]))
    for _ in range(horizon):
        action = planner.act().astype(np.float32)
        step = simulator.step(action)
        tried.observations.append(observation)
        tried.actions.append(action)
        tried.rewards.append(step.reward)
        tried.successes.append(step.success)
        observation = step.observation
        if observation[26] < DROPPED:
            return None
    tried.scores.append(score("pen", tried.rewards, tried.successes))
    alike = float(observation[33:36] @ observation[36:39])
    if not tried.scores[0] and alike < NEAR_SUCCESS:
        return None
    tried.episodes = [0] * horizon
    tried.sources = [SUCCESS if tried.scores[0] else NEARLY] * horizon
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
    build(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
