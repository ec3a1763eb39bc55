"""The frozen policy as a decoder a = Phi(s, w) from noise to an action chunk: diffusion or flow.

The network follows the public code of DPPO (irom-princeton/dppo): input [x, time embedding,
observation], a residual perceptron with one block of two pre-activated layers, cosine schedule,
DDIM without noise on "leading" time steps, x0 clipped to [-1, 1] and the noise recomputed from it.
Since the first layer is linear, its observation part is computed once a call and its time part is
tabulated once a model (`kernels.ddim_mlp_fused` takes both).
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.ddim_mlp_fused import ddim_mlp_fused
from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.stacked import Params, init_linear

TRAINING_STEPS = 20
TIME_WIDTH = 16
KINDS = ("diffusion", "flow")


def cosine_schedule(steps: int = TRAINING_STEPS, offset: float = 0.008) -> Tensor:
    """Cumulative signal shares abar [steps], float64 (Nichol and Dhariwal, as in DPPO)."""
    grid = torch.linspace(0, steps + 1, steps + 1, dtype=torch.float64) / (steps + 1)
    curve = torch.cos((grid + offset) / (1 + offset) * math.pi / 2) ** 2
    curve = curve / curve[0]
    betas = (1 - curve[1:] / curve[:-1]).clamp(0, 0.999)
    return torch.cumprod(1 - betas, dim=0)


def ddim_times(steps: int, training_steps: int = TRAINING_STEPS) -> list[int]:
    """Leading time steps in the order of denoising: 16, 12, 8, 4, 0 for 5 of 20.

    Raises:
        ValueError: a number of steps that does not divide the training steps.
    """
    if steps < 1 or training_steps % steps:
        raise ValueError(
            f"steps is {steps}; allowed: a divisor of the {training_steps} training steps"
        )
    return list(range(0, training_steps, training_steps // steps))[::-1]


def ddim_coefficients(abar: Tensor, times: Sequence[int]) -> Tensor:
    """Rows (sqrt(1-abar), sqrt(abar), sqrt(abar_prev), sqrt(1-abar_prev)), [K, 4]; the last
    step's abar_prev is 1."""
    now = abar[list(times)]
    then = torch.cat([abar[list(times[1:])], abar.new_ones(1)])
    return torch.stack([(1 - now).sqrt(), now.sqrt(), then.sqrt(), (1 - then).sqrt()], dim=1)


def flow_coefficients(steps: int) -> Tensor:
    """Rows (0, 0, 1, dt) of Euler steps, [K, 4]."""
    row = torch.tensor([0.0, 0.0, 1.0, 1.0 / steps], dtype=torch.float64)
    return row.repeat(steps, 1)


def init_network(
    observation: int, latent: int, width: int, generators: Sequence[torch.Generator]
) -> Params:
    """Trainable parameters of S denoising networks, torch.nn.Linear's initial values."""
    entry = init_linear(latent + TIME_WIDTH + observation, width, generators)
    weights = entry["w"]
    params = {
        "wx": weights[:, :latent].contiguous(),
        "wt": weights[:, latent : latent + TIME_WIDTH].contiguous(),
        "wc": weights[:, latent + TIME_WIDTH :].contiguous(),
        "bc": entry["b"],
    }
    for index, (inputs, outputs) in enumerate([(TIME_WIDTH, 32), (32, TIME_WIDTH)]):
        linear = init_linear(inputs, outputs, generators)
        params[f"time_w{index}"], params[f"time_b{index}"] = linear["w"], linear["b"]
    blocks = [init_linear(width, width, generators) for _ in range(2)]
    params["wh"] = torch.stack([block["w"] for block in blocks], dim=1)
    params["bh"] = torch.stack([block["b"][:, 0] for block in blocks], dim=1)
    last = init_linear(width, latent, generators)
    params["wo"], params["bo"] = last["w"], last["b"][:, 0]
    return params


def time_embedding(params: Mapping[str, Tensor], times: Tensor) -> Tensor:
    """The first layer's share of the time, [S, B, H], for times [S, B] (or [1, B]) in steps."""
    half = TIME_WIDTH // 2
    rates = torch.exp(
        torch.arange(half, dtype=torch.float32, device=times.device)
        * (-math.log(10000) / (half - 1))
    )
    angles = times.float()[..., None] * rates
    waves = torch.cat([angles.sin(), angles.cos()], dim=-1)
    waves = waves.expand(params["wt"].shape[0], -1, -1)
    hidden = F.mish(torch.baddbmm(params["time_b0"], waves, params["time_w0"]))
    embedded = torch.baddbmm(params["time_b1"], hidden, params["time_w1"])
    return torch.bmm(embedded, params["wt"])


def condition(params: Mapping[str, Tensor], observation: Tensor) -> Tensor:
    """The first layer's share of the observation, [S, B, H]."""
    return torch.baddbmm(params["bc"], observation, params["wc"])


def network(params: Mapping[str, Tensor], x: Tensor, first: Tensor) -> Tensor:
    """Predicted noise (diffusion) or velocity (flow) [S, B, D].

    Args:
        params: of `init_network`, or a decoder's weights.
        x: noisy chunks [S, B, D].
        first: condition plus time embedding [S, B, H].
    """
    hidden = torch.baddbmm(first, x, params["wx"])
    for index in range(0, params["wh"].shape[1], 2):
        inner = F.relu(hidden)
        inner = torch.baddbmm(params["bh"][:, index, None], inner, params["wh"][:, index])
        inner = F.relu(inner)
        hidden = hidden + torch.baddbmm(
            params["bh"][:, index + 1, None], inner, params["wh"][:, index + 1]
        )
    return torch.baddbmm(params["bo"][:, None], hidden, params["wo"])


def cloning_loss(
    kind: str, params: Mapping[str, Tensor], observation: Tensor, chunk: Tensor, draws: Draws
) -> Tensor:
    """Mean squared error of the prediction, a seed: [S].

    Diffusion predicts the noise at a uniform training step; flow predicts chunk - noise on the
    straight line between them at a uniform time.
    """
    count = chunk.shape[1]
    noise = draws.normal(count, chunk.shape[2])
    if kind == "diffusion":
        step = draws.integers(TRAINING_STEPS, count)
        abar = cosine_schedule().float().to(chunk.device)[step][..., None]
        noisy, wanted = abar.sqrt() * chunk + (1 - abar).sqrt() * noise, noise
        times = step
    else:
        time = draws.uniform(count)
        noisy = torch.lerp(noise, chunk, time[..., None])
        wanted, times = chunk - noise, time * TRAINING_STEPS
    first = condition(params, observation) + time_embedding(params, times)
    return (network(params, noisy, first) - wanted).square().mean(dim=(1, 2))


@dataclass(frozen=True)
class Decoder:
    """S frozen policies.

    `weights`: wx [S,D,H], wc [S,O,H], bc [S,1,H], wh [S,L,H,H], bh [S,L,H], wo [S,H,D], bo [S,D]
    and ht, the time embeddings: of all 20 training steps for diffusion, of the Euler steps for
    flow.
    """

    kind: str
    weights: dict[str, Tensor]
    steps: int

    @classmethod
    def freeze(cls, kind: str, params: Mapping[str, Tensor], steps: int) -> "Decoder":
        """A decoder of trained parameters.

        Raises:
            ValueError: an unknown kind.
        """
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}; allowed: {', '.join(KINDS)}")
        with torch.no_grad():
            times = torch.arange(TRAINING_STEPS)
            if kind == "flow":
                times = torch.arange(steps) * (TRAINING_STEPS / steps)
            device = params["wx"].device
            table = time_embedding(params, times[None].to(device))
        kept = ("wx", "wc", "bc", "wh", "bh", "wo", "bo")
        weights = {name: params[name].detach().clone() for name in kept}
        return cls(kind, {**weights, "ht": table}, steps)

    def __post_init__(self) -> None:
        if self.kind == "diffusion":
            times = ddim_times(self.steps)
            coefficients = ddim_coefficients(cosine_schedule(), times)
            table = self.weights["ht"][:, times].contiguous()
        else:
            coefficients, table = flow_coefficients(self.steps), self.weights["ht"]
        device = self.weights["wx"].device
        object.__setattr__(self, "_coefficients", coefficients.float().to(device))
        object.__setattr__(self, "_table", table)

    @property
    def latent(self) -> int:
        """Numbers in a noise vector, and in a chunk."""
        return self.weights["wx"].shape[1]

    @property
    def parameters(self) -> int:
        """Numbers in the weights of one seed."""
        return sum(value[0].numel() for value in self.weights.values())

    @torch.no_grad()
    def decode(self, observation: Tensor, noise: Tensor, offset: Tensor | None = None) -> Tensor:
        """Chunks in [-1, 1], [S, B, D], of observations [S, B, O] and noise + offset [S, B, D].

        Raises:
            ValueError: shapes that do not fit the weights.
        """
        weights = self.weights
        if observation.shape[-1] != weights["wc"].shape[1]:
            raise ValueError(
                f"observation has {observation.shape[-1]} numbers; this decoder was trained on "
                f"{weights['wc'].shape[1]}"
            )
        if noise.shape[-1] != self.latent:
            raise ValueError(f"noise has {noise.shape[-1]} numbers; allowed: {self.latent}")
        diffusion = self.kind == "diffusion"
        chunk = ddim_mlp_fused(
            noise, offset, condition(weights, observation), weights["wx"], self._table,
            weights["wh"], weights["bh"], weights["wo"], weights["bo"], self._coefficients,
            clip=1.0 if diffusion else None, flow=not diffusion,
        )  # fmt: skip
        return chunk.clamp(-1, 1)

    def repeated(self, times: int) -> "Decoder":
        """Each seed's weights `times` times."""
        weights = {name: value.repeat_interleave(times, 0) for name, value in self.weights.items()}
        return Decoder(self.kind, weights, self.steps)

    def hashes(self) -> list[str]:
        """SHA-256 of each seed's weights."""
        found = []
        for seed in range(self.weights["wx"].shape[0]):
            digest = hashlib.sha256()
            for name in sorted(self.weights):
                digest.update(name.encode())
                digest.update(self.weights[name][seed].cpu().contiguous().numpy().tobytes())
            found.append(digest.hexdigest())
        return found


class PriorPolicy:
    """The frozen policy itself: w ~ N(0, I)."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def act(self, observation: Tensor, draws: Draws) -> Tensor:
        """Chunks [S, B, D]."""
        return self.decoder.decode(observation, self.latent(observation, draws))

    def latent(self, observation: Tensor, draws: Draws) -> Tensor:
        """Noise vectors w [S, B, D]."""
        return draws.normal(observation.shape[1], self.decoder.latent)
