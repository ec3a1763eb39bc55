"""What launchers ask about the device."""

import torch


def processors(device: torch.device) -> int:
    """Multiprocessors that a grid should fill; 1 in Triton's interpreter, which has a CPU."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
