"""lattice_dp: interpreter and numba against the float64 definition, and against enumeration."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cases.lattice_dp import SHAPES, LatticeShape
from kernels.harness import assert_close
from kernels.lattice_dp import (
    SEMIRINGS,
    Semiring,
    cost,
    lattice_dp,
    lattice_dp_triton,
    reference,
)

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
VOCABULARY = ("a", "b", "ab", "ba", "aa", "aba", "bbb")


def assert_scores(actual: torch.Tensor, args: tuple) -> None:
    """As the float64 definition: -inf in the same places, never NaN, the rest to float32."""
    w, *lattice = args
    expected = reference(w.double(), *lattice)
    assert actual.dtype == torch.float32
    assert torch.equal(actual.isneginf(), expected.isneginf())
    finite = expected.isfinite()
    assert_close(actual[finite], expected[finite])


def lattice_of(word: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The lattice of one word over VOCABULARY."""
    edges = [
        (end - len(token), end, at)
        for end in range(1, len(word) + 1)
        for at, token in enumerate(VOCABULARY)
        if word[:end].endswith(token)
    ]
    src, dst, tok = torch.tensor(edges, dtype=torch.int32).reshape(-1, 3).unbind(1)
    return torch.tensor([0, len(edges)]), src.short(), dst.short(), tok.contiguous()


def segmentations(word: str) -> list[list[int]]:
    """All ways to spell the word with tokens, by brute force."""
    if not word:
        return [[]]
    return [
        [at, *rest]
        for at, token in enumerate(VOCABULARY)
        if word.startswith(token)
        for rest in segmentations(word[len(token) :])
    ]


@pytest.mark.interpreter
@every_shape
def test_kernel_equals_the_definition(shape: LatticeShape) -> None:
    args = shape.inputs()
    assert_scores(lattice_dp_triton(*args), args)


@every_shape
def test_cpu_path_equals_the_definition(shape: LatticeShape) -> None:
    args = shape.inputs(seed=1)
    assert_scores(lattice_dp(*args), args)


@pytest.mark.parametrize("semiring", SEMIRINGS)
def test_every_word_of_up_to_eight_letters_against_enumeration(semiring: Semiring) -> None:
    w = -5 * torch.rand(len(VOCABULARY), 3, generator=torch.Generator().manual_seed(0))
    for length in range(9):
        for letters in itertools.product("ab", repeat=length):
            word = "".join(letters)
            totals = torch.stack([w[path].double().sum(0) for path in segmentations(word)])
            best = totals.amax(0) if semiring == "max" else totals.logsumexp(0)
            scores = lattice_dp(w, *lattice_of(word), semiring)
            assert_close(scores[0], best, tolerance=1e-6)


def test_known_values() -> None:
    # "ab" is a+b or ab: 0.2 * 0.3 against 0.1; "ba" is b+a or ba.
    w = torch.tensor([[0.2], [0.3], [0.1], [0.04], [0.0], [0.0], [0.0]]).log()
    assert lattice_dp(w, *lattice_of("ab")).item() == pytest.approx(math.log(0.1))
    assert lattice_dp(w, *lattice_of("ab"), "log").item() == pytest.approx(math.log(0.16))
    assert lattice_dp(w, *lattice_of("ba")).item() == pytest.approx(math.log(0.06))
    assert lattice_dp(w, *lattice_of("")).item() == 0.0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**20), labels=st.integers(1, 30), semiring=st.sampled_from(SEMIRINGS))
def test_labels_do_not_see_each_other(seed: int, labels: int, semiring: Semiring) -> None:
    """Permuting labels permutes columns; adding one leaves the others' bytes alone."""
    w, *lattice, _ = LatticeShape("", 5, 7, labels, semiring=semiring).inputs(seed)
    out = lattice_dp(w, *lattice, semiring)
    order = torch.randperm(labels, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(lattice_dp(w[:, order].contiguous(), *lattice, semiring), out[:, order])
    wider = torch.cat((w, torch.full((len(w), 1), -1.0)), 1)
    assert torch.equal(lattice_dp(wider, *lattice, semiring)[:, :-1], out)


def test_the_total_is_never_below_the_best() -> None:
    w, *lattice, _ = LatticeShape("", 40, 9, 20).inputs()
    assert (lattice_dp(w, *lattice, "log") >= lattice_dp(w, *lattice, "max")).all()


def short(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int16)


BAD = {
    "unknown semiring": ({"semiring": "min"}, "semiring: 'min'; 'max' or 'log'"),
    "scores of doubles": ({"w": torch.zeros(3, 2).double()}, "w: float64 of shape"),
    "labels apart": ({"w": torch.zeros(2, 3).T}, "w: strides"),
    "offsets as int32": ({"word_ptr": torch.zeros(2).int()}, "word_ptr: int32"),
    "no offsets": ({"word_ptr": torch.zeros(0).long()}, "word_ptr: empty"),
    "offsets that fall": ({"word_ptr": torch.tensor([0, 3, 2])}, "word_ptr: from 0 to 2"),
    "too few offsets": ({"word_ptr": torch.tensor([0, 1])}, "word_ptr: from 0 to 1 for 2"),
    "fewer sources": ({"edge_src": short(0)}, "edge_dst: 2 values for 1 edges"),
    "backwards": ({"edge_src": short(0, 2)}, "edge 1 is 2 -> 2"),
    "negative source": ({"edge_src": short(-1, 1)}, "edge 0 is -1 -> 1"),
    "unordered": ({"edge_dst": short(2, 1), "edge_src": short(0, 0)}, "edge 1 is 0 -> 1"),
    "unknown token": ({"edge_tok": torch.tensor([0, 3]).int()}, "edge 1 is 1 -> 2, token 3"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_named(case: str) -> None:
    changes, message = BAD[case]
    args = {
        "w": torch.zeros(3, 2),
        "word_ptr": torch.tensor([0, 2]),
        "edge_src": short(0, 1),
        "edge_dst": short(1, 2),
        "edge_tok": torch.tensor([0, 1]).int(),
    }
    with pytest.raises(ValueError, match=message):
        lattice_dp(**(args | changes))


def test_a_word_may_start_at_a_lower_offset_than_the_one_before_ended() -> None:
    args = (torch.zeros(3, 2), torch.tensor([0, 2, 3]), short(0, 1, 0), short(1, 2, 1))
    assert lattice_dp(*args, torch.tensor([0, 1, 2]).int()).shape == (2, 2)


def test_cost_counts_a_row_of_w_per_edge() -> None:
    flops, traffic = cost(10, 100, 1940)
    assert flops == 2 * 100 * 1940
    assert traffic == 100 * (1940 * 2 + 8) + 11 * 8 + 10 * 1940 * 4


@pytest.mark.gpu
@every_shape
def test_gpu_equals_the_definition(shape: LatticeShape) -> None:
    *tensors, semiring = shape.inputs()
    args = (*(t.cuda() for t in tensors), semiring)
    assert_scores(lattice_dp(*args), args)
