"""Our decoder against diffusers' scheduler around a torch module of the same weights."""

import pytest
import torch

from scripts.papers.lpds.bench import LATENT, OBSERVATION, DiffusersDecoder
from scripts.papers.lpds.decoder import Decoder, init_network


@pytest.mark.parametrize("steps", [1, 5, 10])
@pytest.mark.parametrize("scale", [1.0, 4.0])  # far from the prior, where x0 is clipped
def test_the_decoder_is_diffusers_ddim(steps: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    params = init_network(OBSERVATION, LATENT, 32, [generator])
    observation = torch.randn(7, OBSERVATION, generator=generator)
    noise = scale * torch.randn(7, LATENT, generator=generator)
    ours = Decoder.freeze("diffusion", params, steps).decode(observation[None], noise[None])[0]
    theirs = DiffusersDecoder(params, steps).decode(observation, noise)
    assert 0 < float((theirs.abs() == 1).float().mean()) < 1
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)
