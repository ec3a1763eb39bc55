"""Cases of `rq_decode_attention`. Peer: torch's SDPA over a cache dequantized beforehand, whose
decoding it does not pay for."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from kernels import rq_decode_attention as attention
from kernels.harness import TRITON_NAME
from kernels.operation import Comparison, Contender, Operation, Variant, compiled
from kernels.rq_encode import code_dtype


@dataclass(frozen=True)
class AttentionShape:
    """`lens`: the filled positions, one sequence each; r query heads per KV head."""

    name: str
    lens: tuple[int, ...]
    hkv: int
    r: int
    g: int
    d: int
    m: int
    k: int
    dtype: torch.dtype = torch.float16
    rope: str = "half"
    spare: int = 0  # positions of the cache beyond the longest sequence

    @property
    def scale(self) -> float:
        return (self.g * self.d) ** -0.5

    def inputs(self, seed: int = 0) -> attention.Operands:
        """Random operands, in the order of the public function."""
        gen = torch.Generator().manual_seed(seed)
        b, s, d_head = len(self.lens), max(self.lens, default=0) + self.spare, self.g * self.d
        shape = (b, self.hkv, s, self.g, self.m)
        kc, vc = (torch.randint(self.k, shape, generator=gen) for _ in range(2))
        books = (self.m, self.k, self.d)
        kcb, vcb = (torch.randn(books, generator=gen).to(self.dtype) for _ in range(2))
        q = torch.randn(b, self.hkv * self.r, d_head, generator=gen).to(self.dtype)
        frequency = 10000.0 ** (-torch.arange(0, d_head, 2) / d_head)
        angle = torch.arange(s)[:, None] * frequency
        codes = code_dtype(self.k)
        lens = torch.tensor(self.lens, dtype=torch.int32)
        return attention.Operands(
            q, kc.to(codes), vc.to(codes), kcb, vcb, angle.cos(), angle.sin(), lens
        )

    def __str__(self) -> str:
        return (
            f"{self.name}: B={len(self.lens)} S={self.lens[0]} Hkv={self.hkv} R={self.r} "
            f"D={self.g * self.d} M={self.m}"
        )


SHAPES = (
    AttentionShape("typical", (150, 97), 2, 3, 1, 64, 4, 256, spare=10),
    AttentionShape("one position", (1,), 1, 1, 1, 32, 2, 16),
    AttentionShape("interleaved, groups", (70, 130), 1, 4, 2, 32, 3, 64, rope="interleaved"),
    AttentionShape("half-split across groups", (65,), 2, 1, 4, 16, 2, 256),
    AttentionShape("one empty sequence", (0, 33), 1, 3, 1, 64, 2, 16),
    AttentionShape("no sequences", (), 1, 1, 1, 32, 2, 16, spare=8),
    AttentionShape("odd dims, int16 codes", (45,), 1, 2, 3, 20, 2, 300, torch.float32),
    AttentionShape("one stage", (40,), 1, 2, 1, 32, 1, 16),
    AttentionShape("int16 codes in words", (40,), 1, 2, 2, 16, 4, 300, rope="interleaved"),
    AttentionShape("bfloat16", (80,), 1, 4, 2, 32, 2, 64, torch.bfloat16, "interleaved"),
)
BENCH_CPU = (
    AttentionShape("SmolLM2, 1 bit", (2048,), 3, 3, 1, 64, 8, 256, torch.float32),
    AttentionShape("SmolLM2, 1 bit, long", (16384,), 3, 3, 1, 64, 8, 256, torch.float32),
    AttentionShape("SmolLM2, 0.25 bit, long", (16384,), 3, 3, 1, 64, 2, 256, torch.float32),
    AttentionShape("Llama-3-8B layer, 1 bit", (4096,), 8, 4, 2, 64, 8, 256, torch.float32),
)
BENCH_GPU = tuple(
    AttentionShape(f"Llama-3-8B layer, {bits} bit", (s,) * b, 8, 4, 2, 64, m, 256)
    for b, s in ((1, 8192), (1, 131072), (16, 8192), (16, 32768))
    for bits, m in ((0.5, 4), (1.0, 8))
)
REHEARSE = (AttentionShape("rehearsal", (70, 70), 1, 2, 1, 32, 2, 16),)


def variants() -> Iterator[Variant]:
    """The builds that the launcher makes for the shapes of the papers, and the merge."""
    cases: tuple[tuple[int, int, int, int, int, torch.dtype, str], ...] = (
        (3, 1, 64, 8, 256, torch.float16, "half"),
        (3, 2, 32, 8, 256, torch.bfloat16, "interleaved"),
        (3, 1, 64, 8, 256, torch.float32, "half"),
        (2, 3, 20, 2, 300, torch.float16, "half"),
        (4, 2, 64, 8, 256, torch.float16, "half"),
        (4, 4, 32, 4, 2048, torch.float16, "interleaved"),
        (4, 4, 64, 4, 256, torch.float16, "half"),
    )
    for r, g, d, m, k, dtype, rope in cases:
        data, code, f32 = f"*{TRITON_NAME[dtype]}", f"*{TRITON_NAME[code_dtype(k)]}", "*fp32"
        if attention.code_bits(m, k):
            code = f"*i{m * attention.code_bits(m, k)}"
        tables = (f32, f32, "*i32", f32, f32)
        options: dict[str, Any] = attention.tile(g * d, r, rope)
        yield Variant(
            name=f"R={r} D={g * d} d={d} M={m} K={k} {data[1:]} {rope}",
            kernel=attention.attend_kernel,
            types=(data, code, code, data, data, *tables, "i32", "i32", "i32"),
            num_warps=options.pop("num_warps"),
            num_stages=options.pop("num_stages"),
            constexprs={
                "scale_log2": attention.LOG2_E * (g * d) ** -0.5,
                "HKV": 8,
                "R": r,
                "G": g,
                "M": m,
                "GROUP": d,
                "INTERLEAVED": rope == "interleaved",
                "CODE_BITS": attention.code_bits(m, k),
                "WIDEN": False,
                **options,
            },
            aligned=("S", "split_len", *(["K"] if k % 16 == 0 else [])),
            tensor_cores=dtype != torch.float32,
            wide_loads=d % 16 == 0,
        )
    yield Variant(
        name="merge D=128 fp16",
        kernel=attention.merge_kernel,
        types=("*fp32", "*fp32", "*fp16", "*fp32", "i32"),
        constexprs={"LN_2": attention.LN_2, "D": 128, "BLOCK_D": 128},
        num_warps=1,
        num_stages=1,
    )


def dense(
    shape: AttentionShape, args: attention.Operands, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [B,Hq,1,D] and the decoded, turned cache [B,Hkv,S,D] that SDPA reads."""
    keys = attention.dequantize(args.kc, args.kcb.float())
    keys = attention.rotate(keys, args.cos, args.sin, shape.rope)
    values = attention.dequantize(args.vc, args.vcb.float())
    return args.q[:, :, None].to(dtype), keys.to(dtype), values.to(dtype)


def sdpa(shape: AttentionShape, qkv: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return F.scaled_dot_product_attention(*qkv, scale=shape.scale, enable_gqa=True)


def on_cpu(shape: AttentionShape) -> Comparison:
    """Against SDPA over a float32 and over a float16 cache."""
    flops, traffic = costs(shape, itemsize=4)
    return Comparison(
        shape=str(shape),
        operands=shape.inputs,
        ours=Contender(
            "ours",
            lambda args: attention.rq_decode_attention(*args, shape.scale, rope=shape.rope),
        ),
        peers=tuple(
            Contender(
                f"SDPA, {str(dtype)[6:]} cache",
                lambda qkv: sdpa(shape, qkv),
                lambda args, dtype=dtype: dense(shape, args, dtype),
            )
            for dtype in (torch.float32, torch.float16)
        ),
        flops=flops,
        traffic=traffic,
        facts=lambda args: cache_sizes(shape, args),
    )


def on_gpu(shape: AttentionShape, device: torch.device) -> Comparison:
    """Against SDPA over a float16 cache, and against decoding first, then SDPA."""

    def operands(seed: int) -> attention.Operands:
        return attention.Operands(*(t.to(device) for t in shape.inputs(seed)))

    def decode_then_attend(args: attention.Operands) -> torch.Tensor:
        return sdpa(shape, dense(shape, args, args.q.dtype))

    flops, traffic = costs(shape)
    return Comparison(
        shape=str(shape),
        operands=operands,
        ours=Contender(
            "ours",
            lambda args: attention.rq_decode_attention_triton(args, shape.scale, rope=shape.rope),
        ),
        peers=(
            Contender(
                "SDPA, float16 cache",
                lambda qkv: sdpa(shape, qkv),
                lambda args: dense(shape, args, torch.float16),
            ),
            Contender("decode, then SDPA, eager", decode_then_attend),
            Contender("decode, then SDPA, torch.compile", compiled(decode_then_attend), slow=True),
        ),
        flops=flops,
        traffic=traffic,
        arithmetic="float16",
        facts=lambda args: cache_sizes(shape, args),
    )


def costs(shape: AttentionShape, itemsize: int = 2) -> tuple[int, int]:
    b, hq, s = len(shape.lens), shape.hkv * shape.r, shape.lens[0]
    return attention.cost(
        b, hq, shape.hkv, s, shape.g, shape.d, shape.m, shape.k, itemsize=itemsize
    )


def cache_sizes(shape: AttentionShape, args: attention.Operands) -> dict[str, float]:
    """Megabytes of the codes, and of a float16 cache; and what is gathered from the codebooks,
    the real load of the first cache at one bit."""
    vectors = 2 * args.kc.numel() // shape.m
    return {
        "cache_mb": 2 * args.kc.nbytes / 1e6,
        "float16_cache_mb": 2 * vectors * shape.d / 1e6,
        "gathered_mb": vectors * shape.m * shape.d * args.kcb.element_size() / 1e6,
    }


OPERATION = Operation(
    "rq_decode_attention", SHAPES, variants, on_cpu, on_gpu, BENCH_CPU, BENCH_GPU, REHEARSE
)
