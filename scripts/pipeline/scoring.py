"""How far a compressed language model is from the full one, per text segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def compare(reference: Tensor, quantized: Tensor, targets: Tensor) -> list[dict[str, float]]:
    """Per segment: kl = KL(reference || quantized) and nll in nat/token, top1 = agreement.

    reference, quantized [B, T, V] log-probabilities; targets [B, T] token ids.
    """
    rows = []
    for p, q, target in zip(reference, quantized, targets, strict=True):
        rows.append(
            {
                "kl": float((p.exp() * (p - q)).sum(-1).double().mean()),
                "nll": float(-q.gather(1, target[:, None]).double().mean()),
                "top1": float((p.argmax(-1) == q.argmax(-1)).double().mean()),
            }
        )
    return rows
