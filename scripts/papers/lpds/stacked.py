"""Multilayer perceptrons of S seeds at once: weights [S, in, out], one batched product a layer."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

Params = dict[str, Tensor]


def init_linear(inputs: int, outputs: int, generators: Sequence[torch.Generator]) -> Params:
    """Weights [S, in, out] and biases [S, 1, out], uniform in +-1/sqrt(in) as torch.nn.Linear."""
    bound = inputs**-0.5
    shape = {"w": (inputs, outputs), "b": (1, outputs)}
    return {
        name: torch.stack(
            [torch.empty(size).uniform_(-bound, bound, generator=one) for one in generators]
        )
        for name, size in shape.items()
    }


def init_mlp(
    sizes: Sequence[int],
    generators: Sequence[torch.Generator],
    *,
    layer_norm: bool = False,
    zero_last: bool = False,
) -> Params:
    """Parameters of a perceptron.

    Args:
        sizes: widths, input and output included.
        generators: one a seed.
        layer_norm: normalise before each hidden activation.
        zero_last: start as the constant 0.

    Returns:
        w0, b0, w1 ... and, normalised, the gains g0 ... and shifts c0 ... [S, 1, width].
    """
    params: Params = {}
    layers = len(sizes) - 1
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        linear = init_linear(inputs, outputs, generators)
        params[f"w{index}"], params[f"b{index}"] = linear["w"], linear["b"]
        if layer_norm and index < layers - 1:
            params[f"g{index}"] = torch.ones(len(generators), 1, outputs)
            params[f"c{index}"] = torch.zeros(len(generators), 1, outputs)
    if zero_last:
        params[f"w{layers - 1}"].zero_()
        params[f"b{layers - 1}"].zero_()
    return params


def mlp(
    params: Mapping[str, Tensor], x: Tensor, activation: Callable[[Tensor], Tensor] = F.relu
) -> Tensor:
    """Outputs [S, B, out] of inputs [S, B, in]."""
    layers = sum(name.startswith("w") for name in params)
    for index in range(layers):
        x = torch.baddbmm(params[f"b{index}"], x, params[f"w{index}"])
        if index == layers - 1:
            return x
        if f"g{index}" in params:
            x = F.layer_norm(x, x.shape[-1:])
            x = torch.addcmul(params[f"c{index}"], x, params[f"g{index}"])
        x = activation(x)
    return x


def trainable(params: Params, device: str) -> Params:
    """The same parameters as leaves that collect gradients."""
    return {name: value.to(device).requires_grad_() for name, value in params.items()}


def detached(params: Mapping[str, Tensor]) -> Params:
    """The same values, through which no gradient reaches the parameters."""
    return {name: value.detach() for name, value in params.items()}


def copied(params: Mapping[str, Tensor]) -> Params:
    """A detached copy, such as a target network."""
    return {name: value.detach().clone() for name, value in params.items()}


@torch.no_grad()
def track(target: Params, source: Mapping[str, Tensor], rate: float) -> None:
    """Polyak average: target <- (1 - rate) target + rate source."""
    torch._foreach_lerp_(list(target.values()), [source[name].detach() for name in target], rate)


def adam(*groups: Mapping[str, Tensor], rate: float) -> torch.optim.Adam:
    """Adam over stacked parameters: elementwise, hence S separate ones."""
    parameters = [value for group in groups for value in group.values()]
    return torch.optim.Adam(parameters, lr=rate, fused=True)
