"""Pass-key retrieval: a five-digit number is hidden in text and asked for at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HIDDEN = "\n\nThe pass key is {key}. Remember it. {key} is the pass key.\n\n"
QUESTION = "\n\nWhat is the pass key? The pass key is"
CHANCE = 0.1  # one of ten digits


@dataclass
class Prompt:
    """ids [length] ends with the key; digits = positions of the key's digit tokens in ids."""

    ids: list[int]
    digits: list[int]
    key: str
    depth: float


def make_prompt(
    tokenizer: PreTrainedTokenizerBase, filler: list[int], rng: np.random.Generator
) -> Prompt:
    """Hide a random key at a random depth (5% to 85%) of the filler tokens."""
    key = "".join(str(d) for d in rng.integers(0, 10, 5))
    depth = float(rng.uniform(0.05, 0.85))
    cut = int(depth * len(filler))

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    answer = encode(f" {key}")
    before = [*filler[:cut], *encode(HIDDEN.format(key=key)), *filler[cut:], *encode(QUESTION)]
    digits = [
        len(before) + i for i, t in enumerate(answer) if tokenizer.decode([t]).strip().isdigit()
    ]
    if len(digits) != 5:
        raise ValueError("the tokenizer does not give each digit a token; pass keys need that")
    return Prompt(before + answer, digits, key, depth)


def digit_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token id of each digit 0..9."""
    return [tokenizer(str(d), add_special_tokens=False).input_ids[-1] for d in range(10)]


def score(logits: Tensor, targets: Tensor, digits: Tensor) -> tuple[float, float]:
    """(accuracy, nll) of one prompt's key.

    logits [5, V] predict the digit tokens `targets` [5]. Accuracy: share where the likeliest of the
    ten digit tokens `digits` [10] is right (chance 0.1). nll: nat per digit, whole vocabulary.
    """
    best = digits[logits[:, digits].argmax(1)]
    nll = torch.nn.functional.cross_entropy(logits.float(), targets)
    return float((best == targets).double().mean()), float(nll)


def retained(accuracy: float, full_precision: float) -> float:
    """R = (score - chance) / (score in full precision - chance)."""
    return (accuracy - CHANCE) / (full_precision - CHANCE)
