"""Language models and tokenizers from an asset's folder: safetensors only, no remote code."""

from pathlib import Path
from typing import TYPE_CHECKING

from scripts.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_causal_lm(
    path: Path,
    device: str = "cpu",
    dtype: "torch.dtype | None" = None,
    attention: str = "sdpa",
) -> "PreTrainedModel":
    """A causal language model in evaluation mode, without gradients.

    Args:
        path: folder of the asset.
        device: "cpu" or "cuda".
        dtype: default float32.
        attention: "sdpa", or "eager" where attention weights are needed.

    Raises:
        PipelineError: the folder holds no model that transformers can load.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype or torch.float32,
            attn_implementation=attention,
            use_safetensors=True,
            local_files_only=True,
        )
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path}: holds no causal language model: {error}") from error
    return model.to(device).eval().requires_grad_(False)


def load_tokenizer(path: Path) -> "PreTrainedTokenizerBase":
    """The tokenizer beside a model.

    Raises:
        PipelineError: the folder holds no tokenizer.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path}: holds no tokenizer: {error}") from error
