"""What launchers ask about the device."""

import torch
import triton


def processors(device: torch.device) -> int:
    """Multiprocessors that a grid should fill; 1 in Triton's interpreter, which has a CPU."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def widen(x: torch.Tensor) -> bool:
    """Whether a kernel must widen the operands of a dot: never on a GPU.

    Triton's interpreter multiplies the bit patterns of bfloat16 as integers. Rounded to bfloat16
    and widened, they give there what a tensor core gives: products of bfloat16 summed in float32.
    """
    return x.dtype == torch.bfloat16 and triton.knobs.runtime.interpret
