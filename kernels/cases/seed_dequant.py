"""Cases of `seed_dequant`. Peers: the definition in torch; on a GPU, a copy of the weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernels import seed_dequant
from kernels.cases.seed_gemv import BASE_EXP, SEEDLM3, SEEDLM4, SIGN3, SIGN4, E, SeedShape
from kernels.harness import TRITON_NAME
from kernels.operation import Comparison, Contender, Operation, Variant, compiled
from kernels.seed_format import BASES, SeedFormat, stream_values, to_signed, unpack


@dataclass(frozen=True)
class DequantShape:
    """W [n_out, blocks * C] as `dtype`."""

    name: str
    n_out: int
    blocks: int
    form: SeedFormat
    dtype: torch.dtype = torch.float32
    spare: int = 16  # rows are padded to so many words

    @property
    def inputs_count(self) -> int:
        return self.blocks * self.form.C

    @property
    def record_bits(self) -> int:
        return self.form.K + E + self.form.b * self.form.P

    def inputs(self, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """records and stream."""
        shape = SeedShape("", 1, self.n_out, self.blocks, self.form, spare=self.spare)
        _, records, stream = shape.inputs(seed)
        return records, stream

    def run(self, args: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The public function."""
        options: dict[str, Any] = {"Kin": self.inputs_count, "base_exp": BASE_EXP, "e": E}
        return seed_dequant.seed_dequant(*args, **options, **vars(self.form), dtype=self.dtype)

    def run_triton(self, args: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return seed_dequant.seed_dequant_triton(
            *args, self.form, self.inputs_count, BASE_EXP, E, self.dtype
        )

    def __str__(self) -> str:
        form = self.form
        return (
            f"{self.name}: Nout={self.n_out} Kin={self.inputs_count} C={form.C} P={form.P} "
            f"K={form.K} b={form.b} {form.basis} {TRITON_NAME[self.dtype]}"
        )


SHAPES = (
    DequantShape("typical", 20, 70, SeedFormat(8, 4, 8, 3, "sign")),
    DequantShape("float16", 9, 12, SIGN4, torch.float16),
    DequantShape("bfloat16", 9, 12, SIGN4, torch.bfloat16),
    DequantShape("12 channels, 35 bits", 7, 10, SIGN3, spare=1),
    DequantShape("word basis", 6, 9, SeedFormat(8, 3, 12, 4, "word")),
    DequantShape("word basis, 36 bits", 5, 70, SeedFormat(12, 4, 12, 4, "word"), spare=1),
    DequantShape("state basis", 9, 5, SeedFormat(16, 4, 16, 8, "state")),
    DequantShape("64 bits a record", 3, 6, SeedFormat(8, 11, 16, 4, "state")),
    DequantShape("one block", 1, 1, SeedFormat(4, 1, 4, 2, "sign")),
    DequantShape("no rows", 0, 4, SeedFormat(8, 2, 8, 3, "sign")),
)
BENCH_CPU = (
    DequantShape("SmolLM2 ffn, 4 bit", 1536, 72, SeedFormat(8, 4, 12, 3, "sign")),
    DequantShape("SmolLM2 ffn, word", 1536, 72, SeedFormat(8, 3, 12, 4, "word")),
)
BENCH_GPU = (
    DequantShape("S-Quant, 4 bit", 14336, 512, SIGN4, torch.float16),
    DequantShape("S-Quant, 2.9 bit", 14336, 342, SIGN3, torch.float16),
    DequantShape("SeedLM, 4 bit", 14336, 512, SEEDLM4, torch.float16),
)
REHEARSE = (DequantShape("rehearsal", 8, 6, SeedFormat(8, 4, 8, 3, "sign"), torch.float16),)


def variants() -> Iterator[Variant]:
    """The builds that the launcher makes for the shapes of the papers."""
    for name, form, dtype in (
        ("4 bit", SIGN4, torch.float16),
        ("4 bit", SIGN4, torch.float32),
        ("2.9 bit", SIGN3, torch.float16),
        ("SeedLM 4 bit", SEEDLM4, torch.float16),
        ("SeedLM 3 bit", SEEDLM3, torch.float16),
        ("state", SeedFormat(8, 4, 16, 3, "state"), torch.float16),
    ):
        options: dict[str, Any] = seed_dequant.tile(form.C)
        yield Variant(
            name=f"{name} C={form.C} P={form.P} {form.basis} {TRITON_NAME[dtype]}",
            kernel=seed_dequant.seed_dequant_kernel,
            types=("*i32", "*i32", f"*{TRITON_NAME[dtype]}", *("i32",) * 4, "fp32"),
            num_warps=options.pop("num_warps"),
            num_stages=options.pop("num_stages"),
            constexprs={
                "C": form.C,
                "P": form.P,
                "K": form.K,
                "b": form.b,
                "E": E,
                "BASIS": BASES.index(form.basis),
                **options,
            },
            aligned=("n_out", "n_blocks", "width"),
            wide_stores=form.C % 8 == 0,
        )


def eager(shape: DequantShape, args: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The definition by torch's gathers and sums, on any device."""
    records, stream = args
    form, blocks, bits = shape.form, shape.blocks, shape.record_bits
    first = form.K + E
    position = unpack(records, blocks, bits, 0, form.K)
    field = unpack(records, blocks, bits, form.K, E)
    values = stream_values(stream, form.basis, form.K)
    channel = torch.arange(form.C, device=records.device) * form.step
    total = torch.zeros(1, dtype=torch.int32, device=records.device)
    for i in range(form.P):
        q = to_signed(unpack(records, blocks, bits, first + i * form.b, form.b), form.b)
        at = position[..., None] + i * form.C * form.step + channel
        total = total + q[..., None].int() * values[at]
    factor = (BASE_EXP - field + 127 << 23).int().view(torch.float32) * form.unit
    return (total.float() * factor[..., None]).flatten(1).to(shape.dtype)


def on_cpu(shape: DequantShape) -> Comparison:
    return comparison(shape, shape.inputs, shape.run, ())


def on_gpu(shape: DequantShape, device: torch.device) -> Comparison:
    """The copy is the least that decoding could cost if W lay in memory."""

    def operands(seed: int) -> tuple[torch.Tensor, ...]:
        return tuple(t.to(device) for t in shape.inputs(seed))

    step = compiled(lambda args: eager(shape, args))
    peers = (
        Contender("the definition, torch.compile", step, slow=True),
        Contender("copy of a dense W", torch.clone, lambda args: shape.run_triton(args)),
    )
    return comparison(shape, operands, shape.run_triton, peers)


def comparison(
    shape: DequantShape, operands: Any, run: Any, peers: tuple[Contender, ...]
) -> Comparison:
    flops, traffic = seed_dequant.cost(
        shape.inputs_count,
        shape.n_out,
        shape.form,
        shape.record_bits,
        itemsize=shape.dtype.itemsize,
    )
    return Comparison(
        shape=str(shape),
        operands=operands,
        ours=Contender("ours", run),
        peers=(Contender("the definition, eager torch", lambda args: eager(shape, args)), *peers),
        flops=flops,
        traffic=traffic,
    )


OPERATION = Operation(
    "seed_dequant", SHAPES, variants, on_cpu, on_gpu, BENCH_CPU, BENCH_GPU, REHEARSE
)
