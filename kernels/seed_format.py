"""The packed format of S-Quant and SeedLM weights: what `seed_gemv` and `seed_dequant` share.

Weights are cut into blocks of C along the input dimension of a row. A block stores a position p in
the bit stream of an LFSR and signed coefficients q_i of P bases; entry n = i C + c of basis i is

    basis    from the stream                integer v           denominator D
    "sign"   bit p + n                      2 bit - 1           1
    "state"  K bits from bit p + n          bits - 2^(K-1)      2^(K-1) - 1
    "word"   K bits from bit p + n K        bits - 2^(K-1)      2^(K-1) - 1

and weight c of the block is float32(sum_i q_i v_i[c]) * f: an exact integer sum, one conversion,
one product, so that every device decodes the same bits. Streams and records are int32 words, lowest
bit first.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.rq_encode import describe

BASES = ("sign", "state", "word")
MAX_BATCH = 16


@dataclass(frozen=True)
class SeedFormat:
    """C channels, P bases (at most), K-bit positions, b-bit coefficients, and what follows."""

    C: int
    P: int
    K: int
    b: int
    basis: str

    def __post_init__(self) -> None:
        allowed = {"C": range(4, 17, 4), "P": range(1, 17), "K": range(2, 17), "b": range(2, 9)}
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(
                    f"{name}: {getattr(self, name)}; {values.start} to {values[-1]}"
                    f"{' in steps of 4' if name == 'C' else ''} allowed"
                )
        if self.basis not in BASES:
            raise ValueError(f"basis: {self.basis!r}; {', '.join(BASES)} are allowed")

    @property
    def step(self) -> int:
        """Bits of the stream from one entry to the next."""
        return self.K if self.basis == "word" else 1

    @property
    def denominator(self) -> int:
        return 1 if self.basis == "sign" else 2 ** (self.K - 1) - 1

    @property
    def unit(self) -> float:
        """float32(1 / D)."""
        return float(torch.tensor(1 / self.denominator, dtype=torch.float32))

    @property
    def lanes(self) -> int:
        """Channels summed in one 32-bit word ("sign"): |sum| must stay below half a lane."""
        return 4 if self.P << (self.b - 1) < 128 else 2

    @property
    def stream_words(self) -> int:
        """Words that a kernel may read: all positions, the bits of their entries, one beyond."""
        width = 1 if self.basis == "sign" else self.K
        last = 2**self.K - 2 + (self.P * self.C - 1) * self.step + width
        return (last + 31) // 32 + 2

    def check_stream(self, stream: torch.Tensor) -> None:
        if stream.ndim != 1 or stream.dtype != torch.int32 or len(stream) < self.stream_words:
            raise ValueError(
                f"stream: {describe(stream)}; int32 of at least {self.stream_words} words expected"
            )

    def check_rows(self, name: str, words: torch.Tensor, blocks: int, bits: int) -> None:
        """Rows of `blocks` records of `bits` bits, with a spare word unless they fill words."""
        if words.ndim != 2 or words.dtype != torch.int32:
            raise ValueError(f"{name}: {describe(words)}; int32 of shape [Nout, W] expected")
        least = (blocks * bits + 31) // 32 + (bits % 32 != 0)
        if blocks and words.shape[1] < least:
            raise ValueError(
                f"{name}: rows of {words.shape[1]} words; {blocks} records of {bits} bits need "
                f"{least}"
            )
        if words.shape[1] * 32 >= 2**31:
            raise ValueError(f"{name}: rows of {words.shape[1]} words; fewer than 2^26 allowed")

    def blocks(self, inputs: int) -> int:
        """Blocks in a row of so many inputs."""
        if inputs % self.C:
            raise ValueError(f"Kin: {inputs}; a multiple of C={self.C} is allowed")
        return inputs // self.C


def check_exponents(base_exp: int, e: int) -> None:
    """2^(base_exp - field) must be a normal float32 for every field of e bits."""
    if not 1 <= e <= 8:
        raise ValueError(f"e: {e}; 1 to 8 allowed")
    if not 2**e - 1 - 126 <= base_exp <= 127:
        raise ValueError(f"base_exp: {base_exp}; {2**e - 1 - 126} to 127 allowed with e={e}")


@triton.jit
def window(words_ptr, at, mask):
    """32 bits from bit `at` of a stream of words; 0 where masked."""
    low = tl.load(words_ptr + (at >> 5), mask=mask, other=0)
    high = tl.load(words_ptr + (at >> 5) + 1, mask=mask, other=0)
    low = low.to(tl.uint32, bitcast=True).to(tl.uint64)
    high = high.to(tl.uint32, bitcast=True).to(tl.uint64)
    return (((high << 32) | low) >> (at & 31).to(tl.uint64)).to(tl.uint32)


@triton.jit
def read_record(row_ptr, block, mask, R: tl.constexpr):
    """Record `block` of a row, int32 for R <= 32, else int64."""
    if R == 32:
        return tl.load(row_ptr + block, mask=mask, other=0)  # contiguous: 16 bytes a thread
    else:
        low = window(row_ptr, block * R, mask)
        if R < 32:
            return low.to(tl.int32, bitcast=True)
        else:
            high = window(row_ptr, block * R + 32, mask).to(tl.int64)
            return (high << 32) | low.to(tl.int64)


@triton.jit
def coefficient(
    source, count, mask, i: tl.constexpr, FIRST: tl.constexpr, b: tl.constexpr, RAGGED: tl.constexpr
):
    """q_i, int32. source: the record; or, ragged, pointers to q_0, and 0 from `count` on."""
    if RAGGED:
        return tl.load(source + i, mask=mask & (count > i), other=0).to(tl.int32)
    else:
        SIZE: tl.constexpr = source.dtype.primitive_bitwidth
        START: tl.constexpr = FIRST + b * i
        return ((source << (SIZE - START - b)) >> (SIZE - b)).to(tl.int32)


def unpack(words: torch.Tensor, blocks: int, bits: int, first: int, width: int) -> torch.Tensor:
    """Bits `first` to `first + width` of every record of every row, int64 [rows, blocks]."""
    at = torch.arange(blocks, device=words.device) * bits + first
    spare = torch.nn.functional.pad(words.long() & 0xFFFFFFFF, (0, 1))
    both = spare[:, at >> 5] | (spare[:, (at >> 5) + 1] << 32)
    return (both >> (at & 31)) & (2**width - 1)


def to_signed(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Two's complement of so many bits."""
    return value - ((value >> (bits - 1)) << bits)


def stream_values(stream: torch.Tensor, basis: str, k: int) -> torch.Tensor:
    """v of the entry that starts at each bit of the stream, int32."""
    shifts = torch.arange(32, device=stream.device)
    bits = ((stream[:, None] >> shifts) & 1).flatten().int()
    if basis == "sign":
        return 2 * bits - 1
    count = len(bits) - k + 1
    return sum(bits[i : i + count] << i for i in range(k)) - 2 ** (k - 1)


def block_sums(
    position: torch.Tensor, coefficients: torch.Tensor, table: torch.Tensor, form: SeedFormat
) -> torch.Tensor:
    """sum_i q_i v_i[c], int32 [..., C], from [...] positions and [..., P] coefficients.

    table: the entries of one basis, [bits, C], by the position of the first.
    """
    if position.numel() and int(position.max()) > 2**form.K - 2:
        raise ValueError(
            f"position: {int(position.max())} found; 0 to {2**form.K - 2}, the period of K={form.K}"
        )
    total = torch.zeros(*position.shape, form.C, dtype=torch.int32)
    at = position.flatten()
    for i in range(coefficients.shape[-1]):
        entries = table.index_select(0, at + i * form.C * form.step).view_as(total)
        total.addcmul_(entries, coefficients[..., i, None].int())
    return total


def entry_table(stream: torch.Tensor, form: SeedFormat) -> torch.Tensor:
    """[bits, C] int32: row t holds the C entries that a basis starting at bit t has."""
    values = stream_values(stream, form.basis, form.K)
    return values.unfold(0, (form.C - 1) * form.step + 1, 1)[:, :: form.step].contiguous()
