"""Online steering of five seeds, and decoding, beside the libraries a user would pick.

    python -m scripts.papers.lpds.bench [--output rows.parquet]

Steering: our stacked seeds against sequential runs of stable-baselines3's SAC on HalfCheetah whose
actions are the noise of a frozen decoder (the DSRL-SAC recipe). Widths, batch, decoder and updates
a decision are the same; LP-DS and DSRL-NA learn a second critic and decode two prior chunks a
decision more. Decoding: our decoder against diffusers' DDIMScheduler around a torch module of the
same weights. Goals: at least 3 times the decisions a second, and twice as fast a decision. One
thread; processor seconds.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from scripts.papers.lpds.decoder import (
    TIME_WIDTH,
    TRAINING_STEPS,
    Decoder,
    PriorPolicy,
    cosine_schedule,
    init_network,
)
from scripts.papers.lpds.stacked import Params

if TYPE_CHECKING:
    import gymnasium
    import pandas as pd

    from scripts.papers.lpds.interaction import Norm

TASK, HORIZON, CHUNK, OBSERVATION, ACTION = "halfcheetah", 500, 8, 17, 6
LATENT, STEPS, HIDDEN, BATCH, BOUND = CHUNK * ACTION, 5, (128, 128), 64, 1.5
SEEDS, WARM_UP, DECISIONS = 5, 64, 150
BATCHES = (1, 64, 1024)


class Denoiser(nn.Module):
    """The decoder's network as one would write it: [x, time embedding, observation] through a
    residual perceptron, each step anew."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        observation, width = params["wc"].shape[1:]
        latent = params["wx"].shape[1]
        self.time = nn.Sequential(nn.Linear(TIME_WIDTH, 32), nn.Mish(), nn.Linear(32, TIME_WIDTH))
        self.entry = nn.Linear(latent + TIME_WIDTH + observation, width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.last = nn.Linear(width, latent)
        half = TIME_WIDTH // 2
        rates = torch.exp(torch.arange(half) * (-np.log(10000) / (half - 1)))
        self.register_buffer("rates", rates.float())
        entry = torch.cat([params["wx"][0], params["wt"][0], params["wc"][0]])
        for layer, weight, bias in (
            (self.time[0], params["time_w0"][0], params["time_b0"][0, 0]),
            (self.time[2], params["time_w1"][0], params["time_b1"][0, 0]),
            (self.entry, entry, params["bc"][0, 0]),
            (self.first, params["wh"][0, 0], params["bh"][0, 0]),
            (self.second, params["wh"][0, 1], params["bh"][0, 1]),
            (self.last, params["wo"][0], params["bo"][0]),
        ):
            layer.weight.data, layer.bias.data = weight.T.contiguous(), bias.clone()

    def forward(self, x: Tensor, time: Tensor, observation: Tensor) -> Tensor:
        """Predicted noise [B, D] of noisy chunks [B, D] at times [B] and observations [B, O]."""
        angles = time[:, None] * self.rates
        embedded = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        hidden = self.entry(torch.cat([x, embedded, observation], dim=-1))
        inner = self.second(torch.relu(self.first(torch.relu(hidden))))
        return self.last(hidden + inner)


class DiffusersDecoder:
    """The same policy by diffusers' scheduler, with the betas of DPPO's schedule."""

    def __init__(self, params: Params, steps: int) -> None:
        from diffusers import DDIMScheduler

        abar = cosine_schedule()
        betas = 1 - abar / torch.cat([abar.new_ones(1), abar[:-1]])
        self.scheduler = DDIMScheduler(
            num_train_timesteps=TRAINING_STEPS, trained_betas=betas.numpy(), clip_sample=True,
            set_alpha_to_one=True, steps_offset=0, timestep_spacing="leading",
        )  # fmt: skip
        self.scheduler.set_timesteps(steps)
        self.network = Denoiser(params)

    @torch.no_grad()
    def decode(self, observation: Tensor, noise: Tensor) -> Tensor:
        """Chunks [B, D] of observations [B, O] and noise [B, D]."""
        x = noise
        for time_step in self.scheduler.timesteps:
            predicted = self.network(x, time_step.expand(len(x)), observation)
            x = self.scheduler.step(
                predicted, time_step, x, eta=0.0, use_clipped_model_output=True
            ).prev_sample
        return x.clamp(-1, 1)


def bench() -> "pd.DataFrame":
    """One row per program: what it did, processor seconds, and how many times ours it takes."""
    import pandas as pd

    torch.set_num_threads(1)
    return pd.DataFrame([*_decoding(), *_steering()])


def _network(seeds: int) -> Params:
    generators = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
    return init_network(OBSERVATION, LATENT, HIDDEN[0], generators)


def _decoding() -> list[dict[str, object]]:
    params = _network(1)
    ours, theirs = Decoder.freeze("diffusion", params, STEPS), DiffusersDecoder(params, STEPS)
    rows = []
    for batch in BATCHES:
        generator = torch.Generator().manual_seed(batch)
        observation = torch.randn(1, batch, OBSERVATION, generator=generator)
        noise = torch.randn(1, batch, LATENT, generator=generator)
        programs: dict[str, Callable[[], Tensor]] = {
            "ours": lambda o=observation, w=noise: ours.decode(o, w)[0],
            "diffusers DDIMScheduler": lambda o=observation, w=noise: theirs.decode(o[0], w[0]),
        }
        made = [program() for program in programs.values()]
        difference = float((made[0] - made[1]).abs().max())
        seconds = _interleaved(programs, calls=max(3, 200 // batch))
        rows += [
            {"what": f"decode, B={batch}", "program": name, "seconds": seconds[name],
             "per_second": batch / seconds[name], "times_ours": seconds[name] / seconds["ours"],
             "difference": difference}
            for name in programs
        ]  # fmt: skip
    return rows


def _interleaved(programs: dict[str, Callable[[], Any]], calls: int) -> dict[str, float]:
    """Median processor seconds a call over rounds that take turns."""
    found: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(15):
        for name, program in programs.items():
            start = time.process_time()
            for _ in range(calls):
                program()
            found[name].append((time.process_time() - start) / calls)
    return {name: float(np.median(times)) for name, times in found.items()}


def _steering() -> list[dict[str, object]]:
    programs: dict[str, Callable[[], float]] = {
        "LP-DS, five seeds stacked": lambda: _ours("lagrangian", SEEDS),
        "LP-DS, five seeds one by one": lambda: SEEDS * _ours("lagrangian", 1),
        "DSRL-NA, five seeds stacked": lambda: _ours("noise_actor", SEEDS),
        "stable-baselines3 SAC, diffusers decoder, one by one": lambda: SEEDS * _sac(False),
        "stable-baselines3 SAC, our decoder, one by one": lambda: SEEDS * _sac(True),
    }
    seconds = {name: min(program() for _ in range(2)) for name, program in programs.items()}
    ours = next(iter(seconds.values()))
    return [
        {"what": f"steer {SEEDS} seeds, {DECISIONS} decisions each", "program": name,
         "seconds": taken, "per_second": SEEDS * DECISIONS / taken, "times_ours": taken / ours}
        for name, taken in seconds.items()
    ]  # fmt: skip


def _norm() -> "Norm":
    from scripts.papers.lpds.interaction import Norm

    return Norm(
        {
            "observation_low": torch.full((OBSERVATION,), -5.0),
            "observation_high": torch.full((OBSERVATION,), 5.0),
            "action_low": -torch.ones(ACTION),
            "action_high": torch.ones(ACTION),
            "reward_scale": torch.ones(1),
        }
    )


def _ours(learner: str, seeds: int) -> float:
    """Processor seconds of the decisions with updates."""
    from scripts.papers.lpds.draws import Draws
    from scripts.papers.lpds.interaction import Fleet
    from scripts.papers.lpds.learning import Learning
    from scripts.papers.lpds.policies import make_learner
    from scripts.papers.lpds.steering import Schedule, steer_off_policy, warm_up

    plan = Schedule(WARM_UP, DECISIONS, BATCH, bank=4, evaluations=4, episodes=1)
    generators = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
    draws = Draws(generators)
    decoder = Decoder.freeze("diffusion", _network(seeds), STEPS)
    fleet = Fleet(TASK, HORIZON, _norm(), range(seeds), first_episode=0)
    replay = warm_up(PriorPolicy(decoder), decoder, fleet, plan, draws)
    settings = {
        "learner": learner, "bound": BOUND, "multiplier": 0.1, "multiplier_rate": 0.1,
        "temperature": 1.0,
    }  # fmt: skip
    learning = Learning(rate=3e-4, hidden=HIDDEN, discount=0.99, follow=0.005)
    budget = torch.full((seeds,), 0.35)
    steered = make_learner(settings, decoder, learning, generators, budget)
    start = time.process_time()
    steer_off_policy(steered, decoder, replay, fleet, plan, draws, lambda *_: None, lambda *_: None)
    return time.process_time() - start


def _sac(our_decoder: bool) -> float:
    """Processor seconds of one seed's decisions with updates."""
    from stable_baselines3 import SAC

    model = SAC(
        "MlpPolicy", _noise_env(our_decoder), learning_rate=3e-4, buffer_size=10_000,
        learning_starts=WARM_UP, batch_size=BATCH, tau=0.005, gamma=0.99, train_freq=1,
        gradient_steps=1, policy_kwargs={"net_arch": list(HIDDEN)}, seed=0, device="cpu",
    )  # fmt: skip
    model.learn(WARM_UP + 1)
    start = time.process_time()
    model.learn(DECISIONS, reset_num_timesteps=False)
    return time.process_time() - start


def _noise_env(our_decoder: bool) -> "gymnasium.Env":
    """HalfCheetah whose action is noise, decoded by the frozen policy and played as a chunk."""
    import gymnasium
    from gymnasium.spaces import Box

    from scripts.papers.lpds.tasks import make

    params, norm = _network(1), _norm()
    ours, theirs = Decoder.freeze("diffusion", params, STEPS), DiffusersDecoder(params, STEPS)

    class NoiseEnv(gymnasium.Env):
        observation_space = Box(-5, 5, (OBSERVATION,), np.float32)
        action_space = Box(-BOUND, BOUND, (LATENT,), np.float32)

        def __init__(self) -> None:
            self.simulator = make(TASK, HORIZON)
            self.episodes = 0

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
            self.episodes += 1
            return self.seen(self.simulator.reset(self.episodes)), {}

        def seen(self, raw: np.ndarray) -> np.ndarray:
            self.observation = norm.observation(torch.from_numpy(raw))
            return self.observation.numpy()

        def step(self, action: np.ndarray) -> tuple:
            observation, noise = self.observation[None], torch.from_numpy(action)[None]
            if our_decoder:
                chunk = ours.decode(observation[None], noise[None])[0, 0]
            else:
                chunk = theirs.decode(observation, noise)[0]
            reward = 0.0
            for one in norm.steps_of(chunk):
                step = self.simulator.step(one)
                reward += step.reward
                if step.terminated or step.truncated:
                    break
            return self.seen(step.observation), reward, step.terminated, step.truncated, {}

    return NoiseEnv()


def main() -> None:
    """Print the table, and write it where `--output` says."""
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
