"""Codes as bytes: `bits` per code, no padding but at the very end."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack integer codes of any shape into a uint8 vector of ceil(count * bits / 8) bytes.

    Raises ValueError when a code needs more than `bits` bits.
    """
    values = codes.reshape(-1).cpu().numpy().astype(np.uint32)
    if len(values) and int(values.max()) >> bits:
        raise ValueError(f"code {int(values.max())} does not fit {bits} bits")
    planes = (values[:, None] >> np.arange(bits, dtype=np.uint32)) & 1
    return torch.from_numpy(np.packbits(planes.astype(np.uint8).reshape(-1), bitorder="little"))


def unpack(data: Tensor, bits: int, shape: tuple[int, ...]) -> Tensor:
    """Inverse of `pack`: int64 codes of the given shape."""
    count = int(np.prod(shape))
    planes = np.unpackbits(data.numpy(), count=count * bits, bitorder="little")
    values = planes.reshape(count, bits).astype(np.int64) @ (1 << np.arange(bits, dtype=np.int64))
    return torch.from_numpy(values).reshape(shape)
