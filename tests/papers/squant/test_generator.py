"""Shift registers by enumeration, the bases that seeds stand for, and the search over seeds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.seed_search import seed_search
from scripts.papers.squant import lfsr
from scripts.papers.squant.basis import (
    KINDS,
    Generator,
    dictionary,
    integers,
    projectors,
    pseudo_inverses,
)


def walk(state: int, bits: int, taps: tuple[int, ...]) -> int:
    """One shift, bit by bit, as the hardware does it."""
    feedback = 0
    for tap in taps:
        feedback ^= (state >> (bits - tap)) & 1
    return (state >> 1) | (feedback << (bits - 1))


def test_four_bit_register_has_the_known_cycle() -> None:
    states = [1]
    while (state := walk(states[-1], 4, (4, 3))) != 1:
        states.append(state)
    assert len(states) == 15
    assert lfsr.cycle(4, (4, 3)).tolist() == states
    assert states[:5] == [1, 8, 4, 2, 9]


@pytest.mark.parametrize("bits", lfsr.TAPS)
def test_every_polynomial_has_the_full_period(bits: int) -> None:
    """Walked state by state, with no help of the code's own leaps: each non-zero state once."""
    taps, seen, state = lfsr.TAPS[bits], bytearray(1 << bits), 1
    order = np.empty((1 << bits) - 1, dtype=np.int64)
    for place in range(len(order)):
        assert not seen[state]
        seen[state], order[place] = 1, state
        state = walk(state, bits, taps)
    assert state == 1 and not seen[0] and sum(seen) == (1 << bits) - 1
    np.testing.assert_array_equal(lfsr.cycle(bits), order)
    np.testing.assert_array_equal(lfsr.positions(bits)[order], np.arange(len(order)))
    assert lfsr.faults(bits) == {"period": 0, "balance": 0, "autocorrelation": 0, "leap": 0}


def test_faults_are_found() -> None:
    """Taps of a reducible polynomial: a short cycle, which the check must not let pass."""
    assert len(lfsr.cycle(8, (8, 4))) < 255
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(lfsr.TAPS, 8, (8, 4))
        lfsr.cycle.cache_clear()
        assert lfsr.faults(8)["period"] > 0
    lfsr.cycle.cache_clear()


def test_autocorrelation_is_two_valued() -> None:
    stream = lfsr.cycle(9) & 1
    bits = 2 * stream.astype(int) - 1
    direct = [int((bits * np.roll(bits, shift)).sum()) for shift in range(len(bits))]
    assert direct == lfsr.autocorrelation(stream).tolist()
    assert direct[0] == 511 and set(direct[1:]) == {-1}


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(list(lfsr.TAPS)), st.integers(0, 200), st.data())
def test_leap_forward_is_as_many_steps(bits: int, steps: int, data: st.DataObject) -> None:
    state = data.draw(st.integers(1, (1 << bits) - 1))
    leap = lfsr.power(lfsr.step_matrix(bits, lfsr.TAPS[bits]), steps)
    slow = state
    for _ in range(steps):
        slow = walk(slow, bits, lfsr.TAPS[bits])
    assert lfsr.apply(leap, np.array([state]))[0] == slow


@pytest.mark.parametrize("kind", KINDS)
def test_bases_are_what_a_stepped_register_makes(kind: str) -> None:
    bits, size, count, seed = 9, 6, 3, 77
    taps, state, stream, states = lfsr.TAPS[bits], seed, [], []
    for _ in range(size * count * bits):
        stream.append(state & 1)
        states.append(state)
        state = walk(state, bits, taps)
    half = 1 << (bits - 1)
    expected = {
        "sign": [2 * bit - 1 for bit in stream[: size * count]],
        "state": [s - half for s in states[: size * count]],
        "word": [s - half for s in states[::bits][: size * count]],
    }[kind]
    position = torch.tensor(int(lfsr.positions(bits)[seed]))
    found = integers(Generator(kind, bits, size, count), position)
    assert found.flatten().tolist() == expected
    assert found.shape == (count, size)


def test_neighbours_of_states_correlate_and_words_do_not() -> None:
    def correlation(kind: str) -> float:
        u = integers(Generator(kind, 12, 8, 1), torch.arange(4095))[:, 0].double()
        return float(torch.corrcoef(torch.stack([u[:, :-1].flatten(), u[:, 1:].flatten()]))[0, 1])

    assert correlation("state") == pytest.approx(0.5, abs=0.01)
    assert abs(correlation("word")) < 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_projectors_and_inverses_against_least_squares(kind: str) -> None:
    seeds = dictionary(Generator(kind, 8, 8, 3))
    w = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a, b = torch.triu_indices(8, 8)
    for count in (2, 3):
        energy = (w[a] * w[b]).float() @ projectors(seeds, count)
        inverse = pseudo_inverses(seeds, count)
        for place in (0, 17, len(seeds.positions) - 1):
            u = seeds.matrices[place, :count].double().T
            t = torch.linalg.lstsq(u, w).solution
            assert float(energy[place]) == pytest.approx(float((u @ t).square().sum()), rel=1e-4)
            torch.testing.assert_close(inverse[place].double() @ w, t, rtol=1e-4, atol=1e-5)


def test_rank_deficient_seeds_are_dropped() -> None:
    generator = Generator("sign", 8, 8, 4)
    kept = set(dictionary(generator).positions.tolist())
    for position in range(generator.period):
        matrix = integers(generator, torch.tensor(position)).numpy()
        assert (position in kept) == (np.linalg.matrix_rank(matrix) == 4)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 300), st.integers(1, 16), st.integers(0, 10**6))
def test_search_is_topk_of_all_energies(n: int, top: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    seeds = dictionary(Generator("sign", 8, 4, 2))
    w = torch.randn(n, 4, generator=g)
    scan = projectors(seeds)
    found = seed_search(w, scan, top)
    a, b = torch.triu_indices(4, 4)
    energy = (w[:, a] * w[:, b]) @ scan
    torch.testing.assert_close(found.energy, energy.topk(top).values, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        found.energy, energy.gather(1, found.index.long()), rtol=1e-5, atol=1e-6
    )
    assert all(len(set(row)) == top for row in found.index.tolist())


def test_search_in_groups_finds_the_same() -> None:
    """With 4095 seeds the best groups are searched, not all scores."""
    seeds = dictionary(Generator("word", 12, 8, 3))
    w = torch.randn(200, 8, generator=torch.Generator().manual_seed(1))
    scan = projectors(seeds)
    a, b = torch.triu_indices(8, 8)
    energy = (w[:, a] * w[:, b]) @ scan
    for top in (1, 16):
        found = seed_search(w, scan, top)
        torch.testing.assert_close(found.energy, energy.topk(top).values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Generator("cosine", 8, 8, 2), "kind: 'cosine'; allowed: sign, state, word"),
        (lambda: Generator("sign", 7, 8, 2), "bits: 7; registers of 8 to 16"),
        (lambda: Generator("sign", 8, 8, 9), "count: 9 bases; 1 to 8"),
        (lambda: lfsr.check_taps(8, (8, 7, 6, 1)), r"\(8, 7, 6, 1\) is an unknown polynomial"),
        (lambda: seed_search(torch.ones(1, 2), torch.ones(3, 5), 6), "top"),
        (lambda: seed_search(torch.ones(1, 2), torch.ones(3, 5), 0), "top"),
    ],
)
def test_bad_input_is_named(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
