"""Loading models: safetensors only, no code from the folder, whole or one clear error."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from scripts.pipeline.errors import PipelineError
from scripts.pipeline.models import load_causal_lm, load_tokenizer


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of random weights with a tokenizer of five words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {word: number for number, word in enumerate(["[UNK]", "a", "b", "c", "d"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def test_model_is_for_evaluation_and_gives_the_same_numbers(tiny):
    model, again = load_causal_lm(tiny), load_causal_lm(tiny, attention="eager")
    assert not model.training
    assert not any(weight.requires_grad for weight in model.parameters())
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert (model.config._attn_implementation, again.config._attn_implementation) == (
        "sdpa",
        "eager",
    )
    tokens = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        logits = model(tokens).logits
        assert torch.equal(logits, load_causal_lm(tiny)(tokens).logits)
        torch.testing.assert_close(logits, again(tokens).logits)
    assert logits.shape == (1, 4, 16)


def test_weights_are_those_of_the_file(tiny):
    saved = load_file(tiny / "model.safetensors")
    state = load_causal_lm(tiny).state_dict()
    assert saved.keys() <= state.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in saved.items())


def test_dtype(tiny):
    model = load_causal_lm(tiny, dtype=torch.bfloat16)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_tokenizer(tiny):
    tokenizer = load_tokenizer(tiny)
    assert tokenizer("b a x")["input_ids"] == [2, 1, 0]


def refused(folder: Path) -> str:
    with pytest.raises(PipelineError) as error:
        load_causal_lm(folder)
    message = str(error.value)
    assert message.startswith(f"{folder}: holds no causal language model")
    return message


def test_folder_that_is_missing_or_empty(tmp_path: Path):
    refused(tmp_path)
    refused(tmp_path / "nowhere")
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(PipelineError, match="holds no tokenizer"):
            load_tokenizer(path)


def test_model_of_another_kind(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "vit"}))
    refused(folder)


def test_pickled_weights_are_never_read(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert "safetensors" in refused(folder)


def test_code_in_the_folder_is_never_run(folder, tmp_path):
    ran = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    (folder / "config.json").write_text(json.dumps(config))
    load_causal_lm(folder)  # a known type: the library's own code
    config["model_type"] = "evil"
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder)
    assert not ran.exists()


def test_truncated_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refused(folder)


def test_weights_that_lack_a_tensor_are_not_filled_with_random_numbers(folder):
    path = folder / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    assert "model.layers.1.mlp.up_proj.weight" in refused(folder)


def test_weights_of_another_shape(folder):
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"] = torch.ones(9)
    save_file(weights, path, metadata={"format": "pt"})
    assert "model.norm.weight" in refused(folder)
