"""Cases of `seed_gemv`, both arms. Peers: dense weights, and torch's int4 in groups of 128."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton

from kernels import seed_gemv
from kernels.harness import TRITON_NAME
from kernels.operation import Comparison, Contender, Operation, Variant, compiled
from kernels.seed_dequant import seed_dequant
from kernels.seed_format import BASES, SeedFormat, entry_table

TAPS = {
    4: (4, 3),
    8: (8, 6, 5, 4),
    12: (12, 6, 4, 1),
    16: (16, 15, 13, 4),
}
BASE_EXP = -6  # weights of a few hundredths with coefficients of 3 bits
E = 4


@cache
def lfsr_bits(k: int) -> tuple[int, ...]:
    """One period of the output of the Fibonacci LFSR of k bits, from state 1."""
    state, bits = 1, []
    for _ in range(2**k - 1):
        bits.append(state & 1)
        feedback = sum(state >> (k - tap) for tap in TAPS[k]) & 1
        state = state >> 1 | feedback << (k - 1)
    return tuple(bits)


def pack(bits: torch.Tensor, multiple: int = 1) -> torch.Tensor:
    """[..., n] bits as [..., words] int32, lowest bit first, one word spare."""
    words = triton.cdiv(triton.cdiv(bits.shape[-1], 32) + 1, multiple) * multiple
    padded = F.pad(bits.long(), (0, words * 32 - bits.shape[-1])).unflatten(-1, (words, 32))
    return to_words((padded << torch.arange(32)).sum(-1))


def to_words(value: torch.Tensor) -> torch.Tensor:
    """Integers below 2^32 as int32 of the same bits."""
    return (value - ((value >> 31) << 32)).int()


def stream_of(form: SeedFormat) -> torch.Tensor:
    period = torch.tensor(lfsr_bits(form.K))
    count = form.stream_words * 32 - 64
    return F.pad(pack(period.repeat(count // len(period) + 1)[:count]), (0, 1))


def to_bits(value: torch.Tensor, width: int) -> torch.Tensor:
    return (value[..., None] >> torch.arange(width)) & 1


class Ragged(NamedTuple):
    """The operands of `seed_gemv_ragged` between x and the format."""

    heads: torch.Tensor
    coefs: torch.Tensor
    row_start: torch.Tensor
    scales: torch.Tensor
    stream: torch.Tensor


@dataclass(frozen=True)
class SeedShape:
    """B rows of x, W [n_out, blocks * C]. ragged: 2 to P coefficients of 8 bits, scales per 8."""

    name: str
    batch: int
    n_out: int
    blocks: int
    form: SeedFormat
    ragged: bool = False
    dtype: torch.dtype = torch.float16
    spare: int = field(default=16)  # rows are padded to so many words

    @property
    def inputs_count(self) -> int:
        return self.blocks * self.form.C

    @property
    def count_bits(self) -> int:
        return max(1, (self.form.P - 2).bit_length())

    @property
    def record_bits(self) -> int:
        form = self.form
        return form.K + (self.count_bits if self.ragged else E + form.b * form.P)

    def inputs(self, seed: int = 0) -> tuple[torch.Tensor, ...]:
        """x, then the packed operands, the stream last."""
        g = torch.Generator().manual_seed(seed)
        form, shape = self.form, (self.n_out, self.blocks)
        x = torch.randn(self.batch, self.inputs_count, generator=g).to(self.dtype)
        position = torch.randint(2**form.K - 1, shape, generator=g)
        if self.ragged:
            count = torch.randint(2, form.P + 1, shape, generator=g)
            bits = torch.cat((to_bits(position, form.K), to_bits(count - 2, self.count_bits)), -1)
            start = F.pad(count.sum(1).cumsum(0), (1, 0))
            coefs = torch.randint(-128, 128, (int(start[-1]),), generator=g, dtype=torch.int8)
            scales = 0.01 * torch.rand(self.n_out, triton.cdiv(self.blocks, 8), generator=g)
            heads = pack(bits.flatten(1), self.spare)
            return x, *Ragged(heads, coefs, start, scales.half(), stream_of(form))
        exponent = torch.randint(2**E, shape, generator=g)
        half = 2 ** (form.b - 1)
        q = torch.randint(-half, half, (*shape, form.P), generator=g)
        if self.record_bits == 32:  # a word each: no need to go bit by bit
            shifts = form.K + E + form.b * torch.arange(form.P)
            coded = ((q & (2**form.b - 1)) << shifts).sum(-1)
            records = to_words(coded | exponent << form.K | position)
            return x, F.pad(records, (0, -self.blocks % self.spare)), stream_of(form)
        bits = torch.cat(
            (to_bits(position, form.K), to_bits(exponent, E), to_bits(q, form.b).flatten(-2)), -1
        )
        return x, pack(bits.flatten(1), self.spare), stream_of(form)

    @property
    def unit(self) -> float:
        return float(torch.tensor(2.0**BASE_EXP / self.form.denominator, dtype=torch.float32))

    def run(self, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The public function."""
        form = self.form
        if self.ragged:
            options: dict[str, Any] = {"C": form.C, "K": form.K, "basis": form.basis}
            options |= {"G": 8, "kb": self.count_bits, "k_max": form.P, "unit": self.unit}
            return seed_gemv.seed_gemv_ragged(*args, **options)
        return seed_gemv.seed_gemv(*args, base_exp=BASE_EXP, e=E, **vars(form))

    def run_triton(self, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if self.ragged:
            return seed_gemv.seed_gemv_ragged_triton(
                *args, self.form, self.unit, 8, self.count_bits
            )
        return seed_gemv.seed_gemv_triton(*args, self.form, BASE_EXP, E)

    def __str__(self) -> str:
        form = self.form
        arm = f"2..{form.P} x int8" if self.ragged else f"P={form.P} b={form.b}"
        return (
            f"{self.name}: B={self.batch} Nout={self.n_out} Kin={self.inputs_count} C={form.C} "
            f"K={form.K} {arm} {form.basis} {TRITON_NAME[self.dtype]}"
        )


SIGN4 = SeedFormat(8, 4, 16, 3, "sign")  # 32 bits a block: 4 bit per weight
SIGN3 = SeedFormat(12, 5, 16, 3, "sign")  # 35 bits: 2.9 bit
SEEDLM4 = SeedFormat(8, 3, 16, 4, "word")  # 32 bits: 4 bit
SEEDLM3 = SeedFormat(12, 4, 16, 4, "word")  # 36 bits: 3 bit
STATE = SeedFormat(16, 8, 16, 8, "state")
SHAPES = (
    SeedShape("typical", 1, 64, 12, SeedFormat(8, 4, 8, 3, "sign")),
    SeedShape("a record of one word", 1, 20, 12, SIGN4),
    SeedShape("a record of 35 bits", 1, 20, 8, SIGN3),
    SeedShape("three rows", 3, 40, 12, SeedFormat(8, 4, 8, 3, "sign")),
    SeedShape("word basis", 1, 17, 9, SeedFormat(8, 3, 12, 4, "word")),
    SeedShape("word basis, rows, 36 bits", 2, 33, 17, SeedFormat(12, 4, 12, 4, "word"), spare=1),
    SeedShape("state basis", 1, 9, 130, SeedFormat(4, 3, 8, 4, "state")),
    SeedShape("two bytes a lane", 1, 10, 5, SeedFormat(12, 4, 8, 7, "sign")),
    SeedShape("64 bits a record", 16, 35, 6, SeedFormat(8, 11, 16, 4, "state")),
    SeedShape("bfloat16", 4, 40, 20, SeedFormat(8, 4, 8, 3, "sign"), dtype=torch.bfloat16),
    SeedShape("float32", 2, 40, 20, SeedFormat(8, 4, 8, 3, "sign"), dtype=torch.float32),
    SeedShape("one block", 1, 1, 1, SeedFormat(4, 1, 4, 2, "sign")),
    SeedShape("no rows of x", 0, 8, 4, SeedFormat(8, 2, 8, 3, "sign")),
    SeedShape("no rows of W", 1, 0, 4, SeedFormat(8, 2, 8, 3, "sign")),
    SeedShape("ragged", 1, 10, 140, SeedFormat(4, 4, 12, 8, "state"), ragged=True),
    SeedShape("ragged, up to 8 bases", 1, 9, 10, SeedFormat(16, 8, 12, 8, "state"), ragged=True),
    SeedShape("ragged rows", 3, 33, 20, SeedFormat(8, 5, 8, 8, "state"), ragged=True),
    SeedShape("ragged sign", 1, 20, 33, SeedFormat(8, 4, 8, 8, "sign"), ragged=True, spare=1),
    SeedShape("ragged word", 2, 5, 7, SeedFormat(4, 3, 8, 8, "word"), ragged=True),
)
BENCH_CPU = (
    SeedShape("SmolLM2 ffn, 4 bit", 1, 1536, 72, SeedFormat(8, 4, 12, 3, "sign")),
    SeedShape("SmolLM2 ffn, 4 bit", 16, 1536, 72, SeedFormat(8, 4, 12, 3, "sign")),
    SeedShape("SmolLM2 ffn, word", 1, 1536, 72, SeedFormat(8, 3, 12, 4, "word")),
    SeedShape("SmolLM2 ffn, ragged", 1, 1536, 36, SeedFormat(16, 8, 12, 8, "state"), ragged=True),
)
BENCH_GPU = (
    *(
        SeedShape(name, batch, n_out, 4096 // form.C, form)
        for name, form in (("S-Quant, 4 bit", SIGN4), ("SeedLM, 4 bit", SEEDLM4))
        for n_out in (4096, 14336)
        for batch in ((1, 16) if form is SIGN4 else (1,))
    ),
    SeedShape("S-Quant, 2.9 bit", 1, 4096, 4104 // 12, SIGN3),
    SeedShape("S-Quant, ragged", 1, 4096, 256, STATE, ragged=True),
)
REHEARSE = (
    SeedShape("rehearsal", 1, 16, 16, SeedFormat(8, 4, 8, 3, "sign"), dtype=torch.bfloat16),
    SeedShape("rehearsal", 1, 16, 8, SeedFormat(16, 3, 8, 8, "state"), True, torch.bfloat16),
)


def variants() -> Iterator[Variant]:
    """The builds that the launcher makes for the shapes of the papers."""
    for name, form, ragged, batch, dtype in (
        ("4 bit", SIGN4, False, 1, torch.float16),
        ("4 bit", SIGN4, False, 16, torch.float16),
        ("4 bit", SIGN4, False, 16, torch.bfloat16),
        ("2.9 bit", SIGN3, False, 1, torch.float16),
        ("SeedLM 4 bit", SEEDLM4, False, 1, torch.float16),
        ("SeedLM 3 bit", SEEDLM3, False, 1, torch.float16),
        ("state", SeedFormat(8, 4, 16, 3, "state"), False, 1, torch.float16),
        ("ragged", STATE, True, 1, torch.float16),
        ("ragged", STATE, True, 16, torch.float16),
    ):
        x, unused = f"*{TRITON_NAME[dtype]}", ("*i8", "*i64", "*fp16") if ragged else ("*i32",) * 3
        options: dict[str, Any] = seed_gemv.tile(batch, 512, seed_gemv.is_light(form, ragged))
        yield Variant(
            name=f"{name} C={form.C} P={form.P} {form.basis} B={batch} {x[1:]}",
            kernel=seed_gemv.seed_gemv_kernel,
            types=("*fp32" if batch == 1 else x, "*i32", *unused, "*i32", x, *("i32",) * 6, "fp32"),
            num_warps=options.pop("num_warps"),
            num_stages=options.pop("num_stages"),
            constexprs={
                "C": form.C,
                "P": form.P,
                "K": form.K,
                "b": form.b,
                "E": 3 if ragged else E,
                "G": 8 if ragged else 1,
                "BASIS": BASES.index(form.basis),
                "LANES": form.lanes,
                "RAGGED": ragged,
                "WIDEN": False,
                **options,
            },
            aligned=("n_out", "n_blocks", "width"),
            tensor_cores=batch > 1,
            wide_loads=form is SIGN4,
        )


def dense(shape: SeedShape, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """W [n_out, inputs] in x's type, on its device."""
    x, *packed = args
    form, inputs = shape.form, shape.inputs_count
    if not shape.ragged:
        options: dict[str, Any] = {"Kin": inputs, "base_exp": BASE_EXP, "e": E, "dtype": x.dtype}
        return seed_dequant(*packed, **options, **vars(form))
    heads, coefs, row_start, scales, stream = (t.cpu() for t in packed)
    table, rest = entry_table(stream, form), (form, inputs, shape.unit, 8, shape.count_bits)
    sums, factor = seed_gemv.decode_ragged(heads, coefs, row_start[:-1], scales, table, *rest)
    return (sums.float() * factor[..., None]).flatten(1).to(x)


def int4(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's packed int4 and its bfloat16 scales and zeros, in groups of inputs."""
    grouped = weights.float().unflatten(1, (-1, group_of(weights.shape[1])))
    low, high = grouped.amin(-1), grouped.amax(-1)
    scale = ((high - low) / 15).clamp(min=1e-9)
    level = ((grouped - low[..., None]) / scale[..., None]).round().clamp(0, 15).int().flatten(1)
    zeros = torch.stack((scale, low + 8 * scale), -1).transpose(0, 1).bfloat16().contiguous()
    if not weights.is_cuda:
        return torch.ops.aten._convert_weight_to_int4pack_for_cpu(level, 1), zeros
    pairs = (level[:, ::2] << 4 | level[:, 1::2]).to(torch.uint8)
    return torch.ops.aten._convert_weight_to_int4pack(pairs, 8), zeros


def int4_mm(args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    x, packed, zeros = args
    if x.is_cuda:
        return torch.ops.aten._weight_int4pack_mm(x, packed, group_of(x.shape[1]), zeros)
    return torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, group_of(x.shape[1]), zeros)


def group_of(inputs: int) -> int:
    return 64 if inputs % 128 else 128


def int4_peer(shape: SeedShape) -> tuple[Contender, ...]:
    """Where torch's kernel takes the shape."""
    if shape.inputs_count % 64 or shape.n_out % 16:
        return ()
    return (
        Contender(
            f"torch int4, groups of {group_of(shape.inputs_count)}",
            int4_mm,
            lambda args: (args[0].bfloat16(), *int4(dense(shape, args))),
        ),
    )


def on_cpu(shape: SeedShape) -> Comparison:
    flops, traffic = costs(shape)
    return Comparison(
        shape=str(shape),
        operands=shape.inputs,
        ours=Contender("ours", shape.run),
        peers=(
            Contender(
                "dense float32",
                lambda xw: xw[0] @ xw[1],
                lambda args: (args[0].float(), dense(shape, args).float().T.contiguous()),
            ),
            *int4_peer(shape),
        ),
        flops=flops,
        traffic=traffic,
        facts=lambda args: sizes(shape, args),
    )


def on_gpu(shape: SeedShape, device: torch.device) -> Comparison:
    """Against float16 by cuBLAS, int4 by torch, and decoding first."""

    def operands(seed: int) -> tuple[torch.Tensor, ...]:
        return tuple(t.to(device) for t in shape.inputs(seed))

    flops, traffic = costs(shape)
    linear = compiled(lambda xw: F.linear(*xw))
    return Comparison(
        shape=str(shape),
        operands=operands,
        ours=Contender("ours", shape.run_triton),
        peers=(
            Contender(
                f"dense {TRITON_NAME[shape.dtype]}, F.linear",
                lambda xw: F.linear(*xw),
                lambda args: (args[0], dense(shape, args)),
            ),
            Contender(
                f"dense {TRITON_NAME[shape.dtype]}, torch.compile",
                linear,
                lambda args: (args[0], dense(shape, args)),
                slow=True,
            ),
            *int4_peer(shape),
        ),
        flops=flops,
        traffic=traffic,
        arithmetic="float32" if shape.batch == 1 else "float16",
        facts=lambda args: sizes(shape, args),
    )


def costs(shape: SeedShape) -> tuple[int, int]:
    bits = shape.record_bits
    if shape.ragged:  # the mean count, int8 each, and a float16 per 8 blocks
        bits += (2 + shape.form.P) * 8 // 2 + 2
    itemsize = shape.dtype.itemsize
    return seed_gemv.cost(
        shape.batch, shape.inputs_count, shape.n_out, shape.form, bits, itemsize=itemsize
    )


def sizes(shape: SeedShape, args: tuple[torch.Tensor, ...]) -> dict[str, float]:
    weights = shape.n_out * shape.inputs_count
    stored = sum(t.nbytes for t in args[1:-1])
    return {"mb": stored / 1e6, "bits_per_weight": 8 * stored / weights}


OPERATION = Operation("seed_gemv", SHAPES, variants, on_cpu, on_gpu, BENCH_CPU, BENCH_GPU, REHEARSE)
