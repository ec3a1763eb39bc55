"""The entropy of known distributions, and how it moves when they are moved and scaled."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.papers.lpds.entropy import clipped_share, kozachenko_leonenko


@pytest.mark.parametrize("dimension", [1, 6])
def test_a_gaussian_has_its_entropy(dimension: int) -> None:
    points = np.random.default_rng(0).standard_normal((20_000, dimension))
    expected = dimension / 2 * math.log(2 * math.pi * math.e)
    assert kozachenko_leonenko(points) == pytest.approx(expected, abs=0.05)


def test_a_uniform_cube_has_the_logarithm_of_its_volume() -> None:
    points = np.random.default_rng(1).uniform(0, 3, (20_000, 2))
    assert kozachenko_leonenko(points) == pytest.approx(2 * math.log(3), abs=0.05)


def test_the_definition_by_brute_force() -> None:
    points = np.random.default_rng(2).standard_normal((30, 3))
    apart = np.sort(np.linalg.norm(points[:, None] - points[None], axis=-1), axis=1)
    harmonic = sum(1 / i for i in range(1, 30)) - 1.5  # digamma(30) - digamma(3)
    expected = harmonic + math.log(4 / 3 * math.pi) + 3 * np.log(apart[:, 3]).mean()
    assert kozachenko_leonenko(points, neighbours=3) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(
    shift=st.floats(-100, 100), scale=st.floats(0.01, 100), seed=st.integers(0, 99),
    dimension=st.integers(1, 5),
)  # fmt: skip
def test_shifts_leave_it_and_scaling_adds_d_log_c(
    shift: float, scale: float, seed: int, dimension: int
) -> None:
    points = np.random.default_rng(seed).standard_normal((50, dimension))
    before = kozachenko_leonenko(points)
    assert kozachenko_leonenko(points + shift) == pytest.approx(before, abs=1e-6)
    scaled = kozachenko_leonenko(scale * points)
    assert scaled == pytest.approx(before + dimension * math.log(scale), abs=1e-9)


def test_several_samples_are_several_entropies() -> None:
    points = np.random.default_rng(3).standard_normal((2, 4, 64, 3))
    found = kozachenko_leonenko(points)
    assert found.shape == (2, 4)
    assert found[1, 2] == kozachenko_leonenko(points[1, 2])


def test_clipped_points_need_jitter_and_then_have_its_entropy() -> None:
    clipped = np.ones((500, 2))
    with pytest.raises(ValueError, match=r"4 points coincide.*jitter above 0"):
        kozachenko_leonenko(clipped)
    found = kozachenko_leonenko(clipped, jitter=1e-4, rng=np.random.default_rng(4))
    assert found == pytest.approx(2 * math.log(2e-4), abs=0.15)
    assert clipped_share(clipped) == 1


@pytest.mark.parametrize("neighbours", [0, 10])
def test_an_impossible_neighbour_is_refused(neighbours: int) -> None:
    with pytest.raises(ValueError, match=f"neighbours is {neighbours}; allowed: 1 to 9"):
        kozachenko_leonenko(np.zeros((10, 2)), neighbours)


def test_jitter_needs_a_generator() -> None:
    with pytest.raises(ValueError, match="rng is None"):
        kozachenko_leonenko(np.zeros((10, 2)), jitter=1e-4)


def test_the_clipped_share_counts_coordinates() -> None:
    assert clipped_share(np.array([[1.0, 0.5], [-1.0, -1.0]])) == 0.75
