"""Both seed coders: recovery, optimality, invariances, Algorithm 1's properties; packed bytes."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.seed_dequant import seed_dequant
from scripts.papers.squant import adaptive, designs, fixed, lfsr
from scripts.papers.squant.adaptive import AdaptiveConfig
from scripts.papers.squant.basis import Generator, dictionary, integers, pseudo_inverses
from scripts.papers.squant.fixed import FixedConfig
from scripts.papers.squant.packing import (
    HEADER,
    blocks_of,
    decode_matrix,
    kernel_operands,
    kernel_records,
    pack,
    pack_matrix,
    unpack,
    unpack_matrix,
)

SMALL = FixedConfig(Generator("sign", 8, 8, 3), 4, 4)
ADAPTIVE = AdaptiveConfig(Generator("state", 8, 8, 5), 4)


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["sign", "state", "word"])
def test_a_block_made_from_a_seed_is_recovered(kind: str) -> None:
    config = FixedConfig(Generator(kind, 10, 8, 3), 4, 4)
    seeds = dictionary(config.generator)
    q = torch.tensor([[7, -3, 2], [-8, 5, 1]])
    position = seeds.positions[torch.tensor([5, 500])]
    codes = fixed.FixedCodes(position, torch.tensor([0, 3]), q, -6)
    w = fixed.decode(codes, config)
    made = fixed.decode(fixed.encode(w, config, shortlist=4), config)
    torch.testing.assert_close(made, w, rtol=1e-5, atol=1e-8)


def test_exhaustive_search_against_brute_force() -> None:
    """T = all seeds: no (seed, exponent candidate) has less error; the shortlist is close."""
    w = gaussian(40, 8)
    seeds = dictionary(SMALL.generator)
    codes = fixed.encode(w, SMALL, shortlist=10**6)
    error = (fixed.decode(codes, SMALL) - w).square().sum(1)
    least = torch.full((len(w),), float("inf"))
    for place in range(len(seeds.positions)):
        u = seeds.matrices[place]
        t = w @ torch.linalg.pinv(u.double()).float()
        exponent = (t.abs().amax(1, keepdim=True) / 7).log2().ceil()
        for lower in (0, 1):
            step = torch.exp2(exponent - lower)
            q = (t / step).round().clamp(-8, 7)
            least = torch.minimum(least, ((q * step) @ u - w).square().sum(1))
    torch.testing.assert_close(error, least, rtol=1e-4, atol=1e-6)
    short = (fixed.decode(fixed.encode(w, SMALL), SMALL) - w).square().sum(1)
    assert (short >= error - 1e-6).all() and short.sum() < 1.05 * error.sum()


def test_zeros_signs_and_scales() -> None:
    w = torch.cat([gaussian(30, 8), torch.zeros(2, 8)])
    codes = fixed.encode(w, SMALL)
    made = fixed.decode(codes, SMALL)
    assert not made[-2:].any() and not codes.coefficients[-2:].any()
    # Two's complement reaches one step further down than up, so signs are flipped where it is not.
    inner = (codes.coefficients > -8).all(1)
    flipped = fixed.encode(-w, SMALL)
    same = inner & (flipped.coefficients > -8).all(1) & (flipped.position == codes.position)
    assert same.sum() > 20
    torch.testing.assert_close(fixed.decode(flipped, SMALL)[same], -made[same], rtol=0, atol=0)
    large = fixed.encode(w * 2.0**7, SMALL)
    assert large.base_exponent == codes.base_exponent + 7
    for a, b in zip(large[:3], codes[:3], strict=True):
        assert torch.equal(a, b)


def test_small_blocks_share_the_least_exponent() -> None:
    config = FixedConfig(Generator("sign", 8, 8, 3), 4, 3)
    w = gaussian(20, 8)
    w[5] *= 2.0**-5
    w[6] *= 2.0**-40
    codes = fixed.encode(w, config)
    assert codes.field.min() >= 0 and codes.field.max() <= 7
    made = fixed.decode(codes, config)
    assert not made[6].any()
    assert (made[5] - w[5]).norm() < w[5].norm()


def test_known_signal_to_noise_on_gaussian_blocks() -> None:
    """Random 4-dimensional subspaces at K=12: measured before, within a few hundredths of a dB."""
    config = FixedConfig(Generator("sign", 12, 8, 4), 4, 4)
    w = gaussian(4096, 8)
    made = fixed.decode(fixed.encode(w, config), config)
    assert designs.snr(w, made) == pytest.approx(17.85, abs=0.15)
    single = fixed.decode(fixed.encode(w, config, shortlist=1), config)
    assert designs.snr(w, single) < designs.snr(w, made)


# Algorithm 1


def brute_shares(w: torch.Tensor, config: AdaptiveConfig) -> torch.Tensor:
    """R_k of the best seed for every k, by the cumulative sum of squared projections."""
    seeds = dictionary(config.generator)
    onto = torch.einsum("nc,scp->nsp", w.double(), seeds.orthonormal.double()).square().cumsum(-1)
    return (onto.amax(1) / w.double().square().sum(1, keepdim=True))[:, 1:]


def test_scan_is_the_cumulative_sum_over_all_seeds() -> None:
    w = gaussian(50, 8)
    share = adaptive.scan(w, ADAPTIVE).share
    torch.testing.assert_close(share.double(), brute_shares(w, ADAPTIVE), rtol=1e-4, atol=1e-5)
    assert (share.diff(dim=1) >= -1e-5).all()
    full = adaptive.scan(w, AdaptiveConfig(Generator("state", 8, 8, 8), 4)).share
    torch.testing.assert_close(full[:, -1], torch.ones(50), rtol=1e-3, atol=1e-3)


def test_thresholds_and_counts() -> None:
    w = gaussian(64, 8)
    whole = adaptive.scan(w, ADAPTIVE)
    assert (whole.counts(0.0) == 2).all()
    assert (whole.counts(1.1) == 5).all()
    codes, reached = adaptive.encode(w, ADAPTIVE, 0.0, per_row=8)
    assert (codes.count == 2).all() and reached.all()
    codes, reached = adaptive.encode(w, ADAPTIVE, 1.1, per_row=8)
    assert (codes.count == 5).all() and not reached.any()
    share = brute_shares(w, ADAPTIVE)
    codes, reached = adaptive.encode(w, ADAPTIVE, 0.9, per_row=8)
    for row, count in enumerate(codes.count.tolist()):
        assert count == 5 or share[row, count - 2] >= 0.9 - 1e-5
        assert count == 2 or share[row, count - 3] < 0.9 + 1e-5
    assert torch.equal(reached, share.gather(1, codes.count[:, None] - 2)[:, 0] >= 0.9)
    assert torch.equal(codes.count, whole.counts(0.9))


@settings(max_examples=10, deadline=None)
@given(st.floats(2.0, 4.9), st.integers(0, 1000))
def test_threshold_makes_the_mean_count(mean: float, seed: int) -> None:
    found = adaptive.scan(gaussian(100, 8, seed=seed), ADAPTIVE)
    counts = found.counts(adaptive.threshold_for(found, mean)).double().mean()
    assert counts <= mean + 1e-9 and counts > mean - 0.05


def test_adaptive_coder_recovers_and_quantizes_to_int8() -> None:
    w = gaussian(64, 8)
    codes, _ = adaptive.encode(w, ADAPTIVE, 0.9, per_row=8)
    made = adaptive.decode(codes, ADAPTIVE, 8)
    assert codes.coefficients.abs().max() <= 127 and len(codes.scale) == 16
    starts = codes.count.cumsum(0) - codes.count
    for row in (0, 13, 63):
        k, at = int(codes.count[row]), int(starts[row])
        u = integers(ADAPTIVE.generator, codes.position[row])[:k].double() / 127  # 2^7 - 1
        t = torch.linalg.lstsq(u.T, w[row].double()).solution
        step = float(codes.scale[row // 4]) * 2.0**codes.base_exponent
        q = codes.coefficients[at : at + k]
        assert (q - t / step).abs().max() <= 0.51
        torch.testing.assert_close(
            made[row].double(), (q.double() * step) @ u, rtol=1e-5, atol=1e-6
        )
    assert torch.equal(adaptive.decode(adaptive.encode(w * 0.25, ADAPTIVE, 0.9, 8)[0], ADAPTIVE, 8),
                       made * 0.25)  # fmt: skip


def test_blocks_of_zeros_need_the_fewest_bases() -> None:
    w = gaussian(16, 8)
    w[4:9] = 0
    codes, reached = adaptive.encode(w, ADAPTIVE, 0.99, per_row=8)
    made = adaptive.decode(codes, ADAPTIVE, 8)
    assert (codes.count[4:9] == 2).all() and reached[4:9].all() and not made[4:9].any()
    none, _ = adaptive.encode(torch.zeros(8, 8), ADAPTIVE, 0.9, per_row=8)
    assert not adaptive.decode(none, ADAPTIVE, 8).any()


def test_rates_count_everything() -> None:
    config = AdaptiveConfig(Generator("state", 16, 16, 9), 8)
    assert config.count_bits == 3
    assert config.published_bits(5.35, per_row=32) == pytest.approx((16 + 8 * 5.35 + 2) / 16)
    assert config.bits(5, per_row=32) == pytest.approx((16 + 40 + 2 + 3) / 16)
    assert config.mean_count(config.bits(3.3, 36), 36) == pytest.approx(3.3)
    assert config.published_bits(2, per_row=9) == pytest.approx((16 + 16 + 16 * 2 / 9) / 16)
    assert FixedConfig(Generator("sign", 16, 8, 4), 3, 4).bits == 4.0


# Packed bytes


def packed(kind: str = "fixed") -> tuple[torch.Tensor, torch.Tensor]:
    w = gaussian(12, 48)
    if kind == "fixed":
        config = FixedConfig(Generator("word", 9, 8, 3), 3, 4)
        codes = fixed.encode(blocks_of(w, 8), config)
        made = fixed.decode(codes, config)
    else:
        config = AdaptiveConfig(Generator("state", 9, 8, 5), 4)
        codes, _ = adaptive.encode(blocks_of(w, 8), config, 0.85, per_row=6)
        made = adaptive.decode(codes, config, 6)
    return pack_matrix(codes, config, 48), made.view(12, 48)


def read(data: bytes, start: int, width: int) -> int:
    """Bits of a byte string, lowest first."""
    return int.from_bytes(data, "little") >> start & ((1 << width) - 1)


def test_fixed_bytes_decode_bit_for_bit_without_our_code() -> None:
    """A decoder in plain Python that steps the register; sums are exact, so bits must agree."""
    data, made = packed("fixed")
    raw = data.numpy().tobytes()
    head = struct.unpack("<4sBBIIBBBIBHh", raw[: HEADER.size])
    _, _, _, rows, cols, size, count, bits, mask, width, e, base = head
    taps = [t for t in range(1, 17) if mask >> (t - 1) & 1]
    body, record = raw[HEADER.size :], bits + e + count * width
    assert len(body) == -(-rows * cols // size * record // 8)
    weights = []
    for block in range(rows * cols // size):
        at = block * record
        state, field = read(body, at, bits), read(body, at + bits, e)
        q = [read(body, at + bits + e + i * width, width) for i in range(count)]
        q = [x - (1 << width) if x >> (width - 1) else x for x in q]
        words = []
        for _ in range(size * count):
            words.append(state - (1 << (bits - 1)))
            for _ in range(bits):  # a fresh word takes K shifts
                feedback = 0
                for tap in taps:
                    feedback ^= state >> (bits - tap) & 1
                state = state >> 1 | feedback << (bits - 1)
        one = np.float32(1 / ((1 << (bits - 1)) - 1))
        factor = np.float32(2.0 ** (base - field)) * one
        for c in range(size):
            total = sum(q[i] * words[i * size + c] for i in range(count))
            weights.append(np.float32(total) * factor)
    expected = np.array(weights, dtype=np.float32).reshape(rows, cols)
    np.testing.assert_array_equal(made.numpy(), expected)
    np.testing.assert_array_equal(decode_matrix(data).numpy(), expected)


@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
def test_bytes_alone_decode_and_take_the_bits_of_the_formula(kind: str) -> None:
    data, made = packed(kind)
    assert torch.equal(decode_matrix(data), made)
    codes, config, shape = unpack_matrix(data)
    assert shape == (12, 48)
    bits = (
        config.bits
        if kind == "fixed"
        else config.bits(float(codes.count.double().mean()), per_row=6)
    )
    assert len(data) - HEADER.size == pytest.approx(bits * made.numel() / 8, abs=1)
    assert torch.equal(pack_matrix(codes, config, 48), data)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 40), st.lists(st.integers(1, 17), min_size=1, max_size=6), st.randoms())
def test_records_round_trip(n: int, widths: list[int], random) -> None:
    fields = [torch.tensor([random.randrange(1 << w) for _ in range(n)]).long() for w in widths]
    data = pack(fields, widths)
    assert len(data) == -(-n * sum(widths) // 8)
    for a, b in zip(unpack(data, widths, n), fields, strict=True):
        assert torch.equal(a, b)


def test_kernel_records_start_each_row_at_a_word() -> None:
    fields = [torch.arange(12) % 8, torch.tensor([-1, 0, 1, -2] * 3)]
    words = kernel_records(fields, (3, 2), rows=3)
    assert words.dtype == torch.int32 and words.shape == (3, 2)  # 20 bits, and a spare word
    for row in range(3):
        value = int(words[row, 0]) & 0xFFFFFFFF
        for j in range(4):
            record = value >> (5 * j) & 31
            assert record == int(fields[0][4 * row + j]) | (int(fields[1][4 * row + j]) & 3) << 3
    assert not words[:, 1].any()


@pytest.mark.parametrize("kind", ["sign", "state", "word"])
def test_kernels_decode_the_same_weights(kind: str) -> None:
    config = FixedConfig(Generator(kind, 9, 8, 3), 3, 4)
    codes = fixed.encode(gaussian(12 * 6, 8), config)
    data = pack_matrix(codes, config, 48)
    records, stream, options = kernel_operands(data)
    made = seed_dequant(records, stream, Kin=48, dtype=torch.float32, **options)
    assert torch.equal(made, decode_matrix(data))
    with pytest.raises(ValueError, match="adaptive"):
        kernel_operands(packed("adaptive")[0])


@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
@pytest.mark.parametrize("cut", [1, 40, 10**6])
def test_truncated_bytes_are_refused(kind: str, cut: int) -> None:
    data, _ = packed(kind)
    with pytest.raises(ValueError, match="truncated"):
        decode_matrix(data[: max(0, len(data) - cut)])
    with pytest.raises(ValueError, match="too long"):
        decode_matrix(torch.cat([data, data[:1]]))


def broken(kind: str, offset: int, value: bytes) -> torch.Tensor:
    data, _ = packed(kind)
    data = data.clone()
    data[offset : offset + len(value)] = torch.tensor(list(value), dtype=torch.uint8)
    return data


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, b"GGUF", "starts with b'GGUF'"),
        (5, b"\x07", "basis 7"),
        (14, b"\x07", "blocks of 7 do not divide 48 columns"),
        (16, b"\x11", "bits: 17; registers of 8 to 16"),
        (17, b"\x03\x00\x00\x00", r"\(2, 1\) is an unknown polynomial for 9 bits"),
        (HEADER.size, b"\x00\x00", "block 0 has seed 0; 1 to 511"),
    ],
)
def test_damaged_files_are_refused(offset: int, value: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_matrix(broken("fixed", offset, value))


def test_other_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="blocks of 7 do not divide the 48 columns"):
        blocks_of(torch.ones(2, 48), 7)
    with pytest.raises(ValueError, match="not finite"):
        fixed.encode(torch.tensor([[1.0, float("nan")] * 4]), SMALL)
    with pytest.raises(ValueError, match="not finite"):
        adaptive.encode(torch.full((1, 8), float("inf")), ADAPTIVE, 0.9, 1)
    with pytest.raises(ValueError, match="coefficient_bits: 9"):
        FixedConfig(SMALL.generator, 9, 4)
    with pytest.raises(ValueError, match=r"mean_count: 1\.5"):
        adaptive.threshold_for(adaptive.scan(gaussian(4, 8), ADAPTIVE), 1.5)
    with pytest.raises(ValueError, match="at least 2"):
        AdaptiveConfig(Generator("state", 8, 8, 1), 4)
    data = packed("adaptive")[0].clone()
    data[15] = 4  # k_max; the counts then are 2 to 4, in 2 bits as before
    data[HEADER.size + 2 * 12 * 2 + 1] |= 0b110  # and the first block's field says 5
    with pytest.raises(ValueError, match="a block of 5 bases; at most 4"):
        decode_matrix(data)


def test_design_space_and_choice() -> None:
    space = {
        "bases": ["sign", "word"], "sizes": [8], "counts": [2, 3, 4], "max_counts": [3, 5],
        "groups": [4, 16], "coefficient_bits": [3, 4], "exponent_bits": [4],
        "register": 9, "window": 0.5,
    }  # fmt: skip
    found = list(designs.fixed_configs(space, 3.0))
    assert found and all(2.5 < config.bits <= 3.0 for config in found)
    blocks = {8: designs.gaussian(96, 8, torch.Generator().manual_seed(0))}
    rows = designs.explore(space, [3.5], blocks, 16)
    assert {row["coder"] for row in rows} == {"fixed", "adaptive", "equal"}
    assert all(row["bits"] <= 3.52 for row in rows)
    best = designs.choose(rows, {"coder": ["fixed"], "basis": ["sign"], "target": [3.5]})
    rivals = [r for r in rows if r["coder"] == "fixed" and r["basis"] == "sign"]
    assert best["snr"] == max(r["snr"] for r in rivals)
    config = designs.config_of(best)
    assert config.bits == best["bits"]
    with pytest.raises(ValueError, match="no configuration"):
        designs.choose(rows, {"basis": ["cosine"]})


def test_pseudo_inverse_of_prefixes() -> None:
    seeds = dictionary(Generator("state", 8, 8, 5))
    for count in (2, 5):
        inverse = pseudo_inverses(seeds, count)
        eye = inverse @ seeds.matrices[:, :count].mT
        torch.testing.assert_close(eye, torch.eye(count).expand_as(eye), rtol=0, atol=2e-3)
    assert lfsr.TAPS[8] == (8, 6, 5, 4)
