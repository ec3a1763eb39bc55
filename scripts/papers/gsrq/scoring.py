"""Scores of a (quantized) model: KL and NLL per text segment, pass-key digits per prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scripts.papers.gsrq.passkey import score

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def log_probs(
    model: PreTrainedModel, ids: Tensor, first: int, mask: Tensor | None = None
) -> Tensor:
    """Log-probabilities [B, T - first, V], float32, of the tokens at positions first..T-1 (>= 1).

    Two segments at a time: larger batches are no faster on a CPU and take more memory.
    """
    parts = []
    for batch in ids.split(2):
        hidden = model.model(batch, attention_mask=mask, use_cache=False).last_hidden_state
        parts.append(model.lm_head(hidden[:, first - 1 : -1]).float().log_softmax(-1))
    return torch.cat(parts)


def no_past_mask(length: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Additive attention mask [1, 1, T, T]: each token sees itself and the first token only."""
    allowed = torch.eye(length, dtype=torch.bool)
    allowed[:, 0] = True
    mask = torch.zeros(length, length, dtype=dtype)
    return mask.masked_fill(~allowed, torch.finfo(dtype).min)[None, None]


@torch.no_grad()
def score_prompts(
    model: PreTrainedModel,
    prompts: list[list[int]],
    positions: list[list[int]],
    digit_tokens: list[int],
) -> list[tuple[float, float]]:
    """(accuracy, nll) of the key in each prompt; positions = where its digit tokens stand.

    One prompt at a time, so that no padding enters, and logits only where they are read.
    """
    digits = torch.tensor(digit_tokens, device=model.device)
    scores = []
    for ids, at in zip(prompts, positions, strict=True):
        tokens = torch.tensor(ids, device=model.device)
        where = torch.tensor(at, device=model.device)
        hidden = model.model(tokens[None, : at[-1]], use_cache=False).last_hidden_state[0]
        logits = model.lm_head(hidden[where - 1])
        scores.append(score(logits, tokens[where], digits))
    return scores
