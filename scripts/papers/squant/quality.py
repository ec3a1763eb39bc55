"""Quality of compressed models: KL and NLL of the language model, embeddings of the encoder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scripts.papers.squant.weights import digest
from scripts.pipeline.scoring import compare

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BATCH = 4  # segments at once
NEIGHBOURS = 10


class Language:
    """A language model on fixed segments, with the states before the first changed layer kept.

    ids [S, T]; changed: the lowest layer that will be changed.
    """

    def __init__(self, model: PreTrainedModel, ids: Tensor, changed: int):
        self.model, self.ids = model, ids
        self._layers = model.model.layers
        self._states, self._reference = [], []
        with torch.no_grad():
            for batch in ids.split(BATCH):
                out = model.model(batch, output_hidden_states=True, use_cache=False)
                self._states.append(out.hidden_states[changed])
                self._reference.append(self._log_probs(out.last_hidden_state))
        self._changed, self._digests = changed, _digests(model)

    def matrix(self, tensor: str) -> Tensor:
        """The weight named "<layer>.<module>"."""
        layer, module = tensor.split(".", 1)
        return self._layers[int(layer)].get_submodule(module).weight

    def scores(self) -> list[dict[str, float]]:
        """kl, nll, top1 of each segment as the model's weights are now."""
        rows = []
        inner = self.model.model
        inner.layers = self._layers[self._changed :]
        try:
            with torch.no_grad():
                for batch, states, reference in zip(
                    self.ids.split(BATCH), self._states, self._reference, strict=True
                ):
                    hidden = inner(inputs_embeds=states, use_cache=False).last_hidden_state
                    rows += compare(reference, self._log_probs(hidden), batch[:, 1:])
        finally:
            inner.layers = self._layers
        return rows

    def foreign_changes(self, tensors: Iterable[str]) -> tuple[int, int]:
        """How many parameters and buffers but the tensors differ from before, and of how many."""
        own = {
            f"model.layers.{layer}.{module}.weight"
            for layer, _, module in (name.partition(".") for name in tensors)
        }
        now = {name: value for name, value in _digests(self.model).items() if name not in own}
        return sum(self._digests[name] != value for name, value in now.items()), len(now)

    def _log_probs(self, hidden: Tensor) -> Tensor:
        return self.model.lm_head(hidden[:, :-1]).float().log_softmax(-1)


class Encoder:
    """A sentence encoder (mean pooling, unit length) on fixed sentences."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: list[str]
    ):
        self.model = model
        self._inputs = tokenizer(
            sentences, padding=True, truncation=True, max_length=64, return_tensors="pt"
        ).to(model.device)
        self._reference = self._embed()

    def matrix(self, tensor: str) -> Tensor:
        """The weight named "<layer>.<module>"."""
        return self.model.get_submodule(f"encoder.layer.{tensor}").weight

    def scores(self) -> dict[str, float]:
        """Against the full encoder: mean cosine, Spearman of pair similarities, top-10 overlap."""
        from scipy.stats import spearmanr

        ours, full = self._embed(), self._reference
        pairs = torch.triu_indices(len(full), len(full), 1)
        similar = [(x @ x.T).double() for x in (ours, full)]
        near = [s.fill_diagonal_(-2).topk(NEIGHBOURS).indices for s in similar]
        shared = (near[0][:, :, None] == near[1][:, None, :]).any(-1).double().mean()
        rank = spearmanr(*(s[pairs[0], pairs[1]].cpu().numpy() for s in similar)).statistic
        return {
            "cosine": float((ours * full).sum(1).double().mean()),
            "similarity_rank": float(rank),
            "neighbours_kept": float(shared),
        }

    @torch.no_grad()
    def _embed(self) -> Tensor:
        states = self.model(**self._inputs).last_hidden_state
        mask = self._inputs["attention_mask"][..., None].to(states)
        return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)


def _digests(model: PreTrainedModel) -> dict[str, str]:
    """SHA-256 of every parameter and buffer."""
    named = dict([*model.named_parameters(), *model.named_buffers()])
    return {name: digest(x.detach().contiguous().view(torch.uint8)) for name, x in named.items()}
