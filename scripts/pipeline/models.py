"""Language models and tokenizers from an asset's folder: safetensors only, no remote code."""

from pathlib import Path
from typing import TYPE_CHECKING

from scripts.pipeline.errors import PipelineError
from scripts.pipeline.schema import listed

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
        PipelineError: the folder holds no model that transformers can load, or not all of it.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype or torch.float32,
            attn_implementation=attention,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # they are refused below, with their names
            output_loading_info=True,
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise PipelineError(f"{path}: holds no causal language model: {error}") from error
    unset = sorted([*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])])
    if unset:
        raise PipelineError(
            f"{path}: holds no causal language model: missing or of another shape: {listed(unset)}"
        )
    return model.to(device).eval().requires_grad_(False)


def load_tokenizer(path: Path) -> "PreTrainedTokenizerBase":
    """The tokenizer beside a model.

    Raises:
        PipelineError: the folder holds no tokenizer.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path}: holds no tokenizer: {error}") from error
