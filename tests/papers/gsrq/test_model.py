"""Quantization inside a (tiny, random) Llama: hooks, packed cache, weights, scores, text."""

from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.papers.gsrq import passkey
from scripts.papers.gsrq.coder import HeadCoder
from scripts.papers.gsrq.hooks import keep_first, projections
from scripts.papers.gsrq.weights import attention_weights, clipped, log_smoothed
from scripts.pipeline import text


@pytest.fixture(scope="module")
def model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, head_dim=16, max_position_embeddings=128,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.normal_(0, 0.3)
    return model


def coders(model, scaled: bool) -> dict[tuple[int, str], HeadCoder]:
    g = torch.Generator().manual_seed(3)
    return {
        (layer, kind): HeadCoder(
            torch.randn(3, 13, 8, generator=g), scaled, strided=scaled and kind == "k"
        )
        for layer in range(model.config.num_hidden_layers)
        for kind in ("k", "v")
    }


@pytest.mark.parametrize("scaled", [False, True])
@torch.no_grad()
def test_packed_cache_decodes_as_the_hooks_score(model, scaled: bool) -> None:
    """32 tokens decoded from packed bytes after a prompt: the logits of teacher forcing."""
    from scripts.papers.gsrq.cache import PackedCache

    ids = torch.randint(0, 97, (2, 42), generator=torch.Generator().manual_seed(1))
    table = coders(model, scaled)
    with projections(model, lambda layer, kind, x: table[layer, kind](x)):
        forced = model(ids, use_cache=False).logits
    cache = PackedCache(model, table)
    with cache.attached(model):
        steps = [model(ids[:, :10], cache=cache, use_cache=True).logits]
        for at in range(10, 42):
            steps.append(model(ids[:, at : at + 1], cache=cache, use_cache=True).logits)
    assert cache.get_seq_length() == 42
    assert (torch.cat(steps, 1) - forced).abs().max() <= 1e-4
    # 3 stages x 4 bits x 2 groups per head vector of 16, rounded up per stored chunk; fp16 scales.
    vectors = 2 * 42 * 2 * 2 * model.config.num_hidden_layers
    chunks = 33 * 2 * model.config.num_hidden_layers
    coded = vectors * 3 * 4 * 2 / 8
    assert coded <= cache.nbytes() - vectors * 2 * scaled <= coded + chunks
    plain = model(ids, use_cache=False).logits
    assert (plain - forced).abs().max() > 1e-2


@torch.no_grad()
def test_hooks_are_removed_and_identity_changes_nothing(model) -> None:
    ids = torch.arange(9)[None]
    before = model(ids, use_cache=False).logits
    with projections(model, lambda layer, kind, x: x):
        inside = model(ids, use_cache=False).logits
    with projections(model, lambda layer, kind, x: x * 0):
        pass
    torch.testing.assert_close(inside, before, rtol=0, atol=0)
    torch.testing.assert_close(model(ids, use_cache=False).logits, before, rtol=0, atol=0)


def test_first_tokens_can_be_kept() -> None:
    x = torch.randn(2, 6, 1, 4)
    kept = keep_first(lambda layer, kind, x: x * 0, 4)(0, "k", x)
    torch.testing.assert_close(kept[:, :4], x[:, :4])
    assert not kept[:, 4:].any()


def test_attention_weights_are_the_output_error() -> None:
    """Against finite differences: w^V is exact, w^K is the first order in a random direction."""
    g = torch.Generator().manual_seed(0)
    q = torch.randn(4, 5, 8, generator=g, dtype=torch.float64)
    k, v = (torch.randn(2, 5, 8, generator=g, dtype=torch.float64) for _ in range(2))

    def output(k, v):
        keys, values = k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
        future = torch.ones(5, 5, dtype=torch.bool).triu(1)
        scores = (q @ keys.mT / 8**0.5).masked_fill(future, float("-inf"))
        return scores.softmax(-1) @ values

    w_k, w_v = attention_weights(q, k, v)
    bump = torch.zeros_like(v)
    bump[1, 2, 3] = 1
    moved = (output(k, v + bump) - output(k, v)).square().sum()
    assert float(w_v[1, 2]) == pytest.approx(float(moved))
    size, total = 1e-4, 0.0
    for channel in range(8):  # an isotropic error: the mean over directions, times the dimension
        bump = torch.zeros_like(k)
        bump[1, 2, channel] = size
        total += float((output(k + bump, v) - output(k, v)).square().sum()) / size**2
    # |dA_ij/dk|^2 = A^2 (1 - A)^2 |q|^2/D for the error along q, so o moves by A (v - o).
    assert float(w_k[1, 2]) == pytest.approx(total, rel=1e-3)


def test_gradient_weights_are_squared_gradients(model) -> None:
    """One entry against a finite difference of the loss."""
    from scripts.papers.gsrq.capture import gradient_weights

    ids = torch.randint(0, 97, (12,), generator=torch.Generator().manual_seed(2))
    vectors, weights = gradient_weights(model, ids)
    assert vectors[1, "v"].shape == (12, 2, 16) and weights[1, "v"].shape == (12, 2)

    def loss(bump: torch.Tensor) -> float:
        def add(layer, kind, x):
            if (layer, kind) == (1, "v"):
                x = x.clone()
                x[0, 4, 1] += bump
            return x

        with projections(model, add), torch.no_grad():
            logits = model(ids[None], use_cache=False).logits[0, :-1].double()
        return float(torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum"))

    slopes = []
    for channel in range(16):
        bump = torch.zeros(16)
        bump[channel] = 1e-2
        slopes.append((loss(bump) - loss(-bump)) / 2e-2)
    assert float(weights[1, "v"][4, 1]) == pytest.approx(np.square(slopes).sum(), rel=0.02)


def test_weights_are_tamed_and_average_one() -> None:
    raw = torch.cat([torch.ones(99), torch.tensor([1e6])])
    for tamed in (clipped(raw), log_smoothed(raw)):
        assert float(tamed.mean()) == pytest.approx(1)
        assert float(tamed.max()) < 1e5


@torch.no_grad()
def test_scores_against_transformers(model) -> None:
    from scripts.papers.gsrq.scoring import log_probs, no_past_mask
    from scripts.pipeline.scoring import compare

    ids = torch.randint(0, 97, (3, 20), generator=torch.Generator().manual_seed(5))
    found = log_probs(model, ids, 8)
    loss = model(ids[1:2], labels=ids[1:2]).loss
    rows = compare(found, found, ids[:, 8:])
    every = compare(log_probs(model, ids, 1), log_probs(model, ids, 1), ids[:, 1:])
    assert every[1]["nll"] == pytest.approx(float(loss), rel=1e-5)
    assert [row["kl"] for row in rows] == [0, 0, 0] and rows[0]["top1"] == 1
    blind = log_probs(model, ids, 8, no_past_mask(20))
    assert all(row["kl"] > 0 for row in compare(found, blind, ids[:, 8:]))
    changed = ids.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 97
    torch.testing.assert_close(log_probs(model, changed, 8, no_past_mask(20)), blind)


class Letters:
    """A tokenizer with a token for every character."""

    def __call__(self, string: str, add_special_tokens: bool = False):
        return type("Encoded", (), {"input_ids": [ord(c) % 97 for c in string]})

    def decode(self, ids: list[int]) -> str:
        return chr(ids[0]) if chr(ids[0]).isdigit() else "x"


def test_passkey_prompt_ends_with_its_key() -> None:
    prompt = passkey.make_prompt(Letters(), [70] * 50, np.random.default_rng(0))
    assert [chr(prompt.ids[at]) for at in prompt.digits] == list(prompt.key)
    assert prompt.digits[-1] == len(prompt.ids) - 1
    assert "".join(chr(i) for i in prompt.ids).count(prompt.key) == 3
    assert 0.05 <= prompt.depth <= 0.85
    assert passkey.digit_tokens(Letters()) == [ord(str(d)) for d in range(10)]


def test_passkey_score_and_chance() -> None:
    targets = torch.tensor([3, 5, 7, 1, 9])
    digits = torch.arange(1, 11)
    logits = torch.full((5, 20), -4.0)
    logits[range(4), targets[:4]] = 4
    logits[4, 2], logits[:, 15] = 4, 9  # a wrong digit; a letter that is likelier but no digit
    accuracy, nll = passkey.score(logits, targets, digits)
    assert accuracy == pytest.approx(0.8) and nll > 5
    assert passkey.retained(1.0, 1.0) == 1 and passkey.retained(0.1, 1.0) == 0


def test_prompts_are_scored_one_by_one(model) -> None:
    """No padding enters: a prompt's score does not depend on its neighbours."""
    from scripts.papers.gsrq.scoring import score_prompts

    g = torch.Generator().manual_seed(8)
    prompts = [torch.randint(0, 97, (n,), generator=g).tolist() for n in (20, 33)]
    at = [list(range(len(p) - 5, len(p))) for p in prompts]
    digits = list(range(10))
    both = score_prompts(model, prompts, at, digits)
    assert both == [score_prompts(model, [prompts[i]], [at[i]], digits)[0] for i in (0, 1)]
    logits = model(torch.tensor(prompts[:1]), use_cache=False).logits[0, -6:-1]
    whole = passkey.score(logits, torch.tensor(prompts[0][-5:]), torch.arange(10))
    assert both[0] == pytest.approx(whole, rel=1e-5)


def test_splits_are_disjoint_in_topics_and_paragraphs() -> None:
    from pydoc_data.topics import topics

    splits = text.split_topics(topics)
    assert set(splits) == set(text.SPLITS) and all(splits.values())
    names = [name for part in splits.values() for name in part]
    assert sorted(names) == sorted(topics)
    paragraphs = {
        split: {" ".join(p.split()) for t in part.values() for p in t.split("\n\n")} - {""}
        for split, part in splits.items()
    }
    assert not paragraphs["eval"] & paragraphs["calibration"]
    assert not paragraphs["dev"] & paragraphs["calibration"]
    assert not paragraphs["eval"] & paragraphs["dev"]


def test_split_is_a_stable_hash_of_the_name() -> None:
    """0-5 calibration, 6 dev, 7-9 eval of SHA-256 modulo ten; pinned."""
    assert [text.split_of(name) for name in ("binary", "assert", "del")] == [
        "calibration", "dev", "eval",
    ]  # fmt: skip


def test_segments_take_topics_in_turn_and_say_when_there_are_too_few() -> None:
    topics = {"a": "x" * 25, "b": "y" * 10, "c": "z" * 9}
    found = text.segments(Letters(), topics, 10, 3)
    assert [name for name, _ in found[:2]] in (["a", "b"], ["b", "a"]) and found[2][0] == "a"
    with pytest.raises(ValueError, match="3 segments of 10 tokens in the text, 4 wanted"):
        text.segments(Letters(), topics, 10, 4)


def test_shared_ngrams_counts_leaks() -> None:
    assert text.shared_ngrams([[1, 2, 3, 4]], [[9, 2, 3, 4]], 3) == 1
    assert text.shared_ngrams([[1, 2, 3, 4]], [[4, 3, 2, 1]], 2) == 0


def test_documents_of_every_kind(tmp_path: Path) -> None:
    import pandas as pd

    folder = tmp_path / "wiki"
    folder.mkdir()
    lines = [" = One = \n", " first \n", " = = Part = = \n", " = Two = \n", " second \n"]
    pd.DataFrame({"text": lines}).to_parquet(folder / "train-0.parquet")
    pd.DataFrame({"text": lines}).to_parquet(folder / "test-0.parquet")
    found = text.documents(folder)
    assert set(found) == {"calibration", "eval"}
    assert list(found["eval"]) == ["One", "Two"] and "Part" in found["eval"]["One"]
    (tmp_path / "rst").mkdir()
    (tmp_path / "rst" / "a.rst").write_text("words")
    assert text.documents(tmp_path / "rst") == {"eval": {"a.rst": "words"}}
    with pytest.raises(FileNotFoundError, match=r"no topics\.json"):
        text.documents(tmp_path / "nothing")
