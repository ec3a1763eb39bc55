"""The cases of every operation, shared by tests and benchmark: shapes with inputs, and builds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernels import rq_decode_attention, rq_encode
from kernels.harness import TRITON_NAME, Variant
from kernels.rq_encode import code_dtype


@dataclass(frozen=True)
class EncodeShape:
    """One case for tests and benchmark. `step`: x takes every step-th column of a wider tensor."""

    name: str
    n: int
    d: int
    m: int
    k: int
    dtype: torch.dtype = torch.float32
    step: int = 1

    def inputs(self, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """x [n,d] and codebooks [m,k,d], each stage scaled like the residual that it meets."""
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(self.n, self.d * self.step, generator=g).to(self.dtype)[:, :: self.step]
        scale = torch.tensor([0.8**stage for stage in range(self.m)])
        cb = torch.randn(self.m, self.k, self.d, generator=g) * 0.5 * scale[:, None, None]
        return x, cb


ENCODE_SHAPES = (
    EncodeShape("typical", 192, 64, 4, 256, torch.float16),
    EncodeShape("one decode step", 3, 64, 8, 256),
    EncodeShape("one vector", 1, 32, 2, 16),
    EncodeShape("no vectors", 0, 64, 2, 256),
    EncodeShape("odd everywhere", 77, 41, 3, 100),
    EncodeShape("one codeword", 5, 8, 2, 1),
    EncodeShape("int16 codes", 40, 32, 2, 300, torch.bfloat16),
    EncodeShape("tiny dims", 33, 3, 2, 7),
    EncodeShape("strided", 50, 24, 2, 64, torch.float32, 2),
)
ENCODE_BENCH_CPU = (
    EncodeShape("decode step", 32, 64, 8, 256),
    EncodeShape("laptop calibration", 4096, 64, 8, 256),
    EncodeShape("segment, all heads", 16384, 64, 8, 256),
    EncodeShape("half vectors", 16384, 32, 8, 256),
    EncodeShape("K=16", 16384, 64, 8, 16),
    EncodeShape("head_dim 128", 8192, 128, 8, 256),
    EncodeShape("VQLLM", 4096, 32, 6, 2048),
)
ENCODE_BENCH_GPU = (
    EncodeShape("decode step", 128, 128, 8, 256, torch.float16),
    EncodeShape("8k tokens, 8 heads", 65536, 128, 8, 256, torch.float16),
    EncodeShape("VQLLM", 65536, 32, 8, 2048, torch.float16),
)


def encode_variants() -> Iterator[Variant]:
    """The builds that the launcher makes for the shapes of the papers."""
    cases: tuple[tuple[int, int, int, int, torch.dtype, bool], ...] = (
        (128, 64, 8, 256, torch.float16, True),
        (128, 128, 8, 256, torch.float16, True),
        (65536, 8, 4, 256, torch.float32, True),
        (65536, 32, 8, 2048, torch.bfloat16, True),
        (65536, 64, 8, 256, torch.float32, False),
        (65536, 64, 8, 256, torch.float16, True),
        (65536, 128, 8, 256, torch.float16, True),
        (65536, 256, 8, 256, torch.float32, True),
        (65536, 80, 4, 100, torch.float16, True),
        (65536, 512, 4, 1024, torch.float16, True),
    )
    for n, d, m, k, dtype, want_xhat in cases:
        x, code, books = TRITON_NAME[dtype], TRITON_NAME[code_dtype(k)], ("*fp32", "*fp32")
        options: dict[str, Any] = rq_encode.tile(n, d)
        yield Variant(
            name=f"rq_encode N={n} d={d} M={m} K={k} {x}{' xhat' if want_xhat else ''}",
            kernel=rq_encode.rq_encode_kernel,
            types=(f"*{x}", *books, f"*{code}", "*fp32", "*fp32", "i32", "i32", "i32"),
            num_warps=options.pop("num_warps"),
            num_stages=options.pop("num_stages"),
            constexprs={"D": d, "M": m, "WANT_XHAT": want_xhat, **options},
            aligned=k % 16 == 0,
        )


@dataclass(frozen=True)
class AttentionShape:
    """One case for tests and benchmark; `lens` are the filled positions, one sequence each."""

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

    def inputs(self, seed: int = 0) -> rq_decode_attention.Operands:
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
        return rq_decode_attention.Operands(
            q, kc.to(codes), vc.to(codes), kcb, vcb, angle.cos(), angle.sin(), lens
        )


ATTENTION_SHAPES = (
    AttentionShape("typical", (150, 97), 2, 3, 1, 64, 4, 256, spare=10),
    AttentionShape("one position", (1,), 1, 1, 1, 32, 2, 16),
    AttentionShape("interleaved, groups", (70, 130), 1, 4, 2, 32, 3, 64, rope="interleaved"),
    AttentionShape("half-split across groups", (65,), 2, 1, 4, 16, 2, 256),
    AttentionShape("one empty sequence", (0, 33), 1, 3, 1, 64, 2, 16),
    AttentionShape("no sequences", (), 1, 1, 1, 32, 2, 16, spare=8),
    AttentionShape("odd dims, int16 codes", (45,), 1, 2, 3, 20, 2, 300, torch.float32),
    AttentionShape("bfloat16", (80,), 1, 4, 2, 32, 2, 64, torch.bfloat16, "interleaved"),
)
ATTENTION_BENCH_CPU = (
    AttentionShape("SmolLM2, 1 bit", (2048,), 3, 3, 1, 64, 8, 256, torch.float32),
    AttentionShape("SmolLM2, 1 bit, long", (16384,), 3, 3, 1, 64, 8, 256, torch.float32),
    AttentionShape("SmolLM2, 0.25 bit, long", (16384,), 3, 3, 1, 64, 2, 256, torch.float32),
    AttentionShape("Llama-3-8B layer, 1 bit", (4096,), 8, 4, 2, 64, 8, 256, torch.float32),
)
ATTENTION_BENCH_GPU = tuple(
    AttentionShape(f"Llama-3-8B layer, {bits} bit, B={b}, S={s}", (s,) * b, 8, 4, 2, 64, m, 256)
    for b, s in ((1, 8192), (1, 32768), (1, 131072), (16, 8192), (16, 32768))
    for bits, m in ((0.5, 4), (1.0, 8))
)


def attention_variants() -> Iterator[Variant]:
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
        tables = (f32, f32, "*i32", f32, f32)
        options: dict[str, Any] = rq_decode_attention.tile(g * d, r)
        yield Variant(
            name=f"rq_decode_attention R={r} D={g * d} d={d} M={m} K={k} {data[1:]} {rope}",
            kernel=rq_decode_attention.attend_kernel,
            types=(data, code, code, data, data, *tables, "i32", "i32", "i32"),
            num_warps=options.pop("num_warps"),
            num_stages=options.pop("num_stages"),
            constexprs={
                "scale_log2": rq_decode_attention.LOG2_E * (g * d) ** -0.5,
                "HKV": 8,
                "R": r,
                "G": g,
                "M": m,
                "GROUP": d,
                "INTERLEAVED": rope == "interleaved",
                **options,
            },
            aligned=k % 16 == 0,
        )
    yield Variant(
        name="rq_decode_attention merge D=128 fp16",
        kernel=rq_decode_attention.merge_kernel,
        types=("*fp32", "*fp32", "*fp16", "*fp32", "i32"),
        constexprs={"LN_2": rq_decode_attention.LN_2, "D": 128, "BLOCK_D": 128},
        num_warps=1,
        num_stages=1,
        aligned=False,
    )


def variants() -> Iterator[Variant]:
    """Every build of every kernel."""
    yield from encode_variants()
    yield from attention_variants()
