"""The matrices that are compressed: some layers of a Llama, rotated, and of a BERT encoder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from scripts.papers.squant.rotation import MATRICES, READERS, rotated

LANGUAGE, ENCODER = "language", "encoder"
"""Names of the two data sets: matrices of the language model and of the sentence encoder."""
ENCODER_MATRICES = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)


def language_matrices(
    folder: Path, layers: list[int], rotation: Tensor | None, wanted: list[str] | None = None
) -> dict[str, Tensor]:
    """Matrices [out, in] float32 by name "<layer>.<module>"; rotated where a rotation is given."""
    names = [name for name in MATRICES if wanted is None or name in wanted]
    found = {}
    for layer in layers:
        prefix = f"model.layers.{layer}"
        for name in names:
            weight = _read(folder, f"{prefix}.{name}.weight")
            if rotation is not None:
                norm = READERS.get(name)
                gain = _read(folder, f"{prefix}.{norm}.weight") if norm else None
                weight = rotated(name, weight, gain, rotation)
            found[f"{layer}.{name}"] = weight.float()
    return found


def encoder_matrices(folder: Path, layers: list[int]) -> dict[str, Tensor]:
    """Matrices [out, in] float32 of the encoder by name "<layer>.<module>"."""
    return {
        f"{layer}.{name}": _read(folder, f"encoder.layer.{layer}.{name}.weight").float()
        for layer in layers
        for name in ENCODER_MATRICES
    }


def _read(folder: Path, name: str) -> Tensor:
    """One tensor of the safetensors files of a folder.

    Raises FileNotFoundError when none holds it.
    """
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if name in file.keys():  # noqa: SIM118 (not a dict)
                return file.get_tensor(name)
    raise FileNotFoundError(f"{folder}: no safetensors file holds {name}")


def sampled_rows(weight: Tensor, rows: int) -> Tensor:
    """At most `rows` rows at even distances."""
    step = max(1, len(weight) // rows)
    return weight[::step][:rows]


def digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's bytes."""
    import hashlib

    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def random_inputs(columns: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Calibration statistics of noise, to see which arms depend on them."""
    x = torch.randn(2 * columns, columns, generator=generator)
    return {"gram": x.T @ x / len(x), "mean": x.abs().mean(0)}
