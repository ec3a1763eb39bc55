"""Cases of `rq_encode`. CPU peer: `faiss.ResidualQuantizer`, beam 1, the same codebooks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernels import rq_encode
from kernels.harness import TRITON_NAME
from kernels.operation import Comparison, Contender, Operation, Variant, compiled
from kernels.rq_decode_attention import dequantize


@dataclass(frozen=True)
class EncodeShape:
    """N vectors of d dims, M stages of K codewords. `step`: x is every step-th column of a tensor
    that is wider."""

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

    def __str__(self) -> str:
        return f"{self.name}: N={self.n} d={self.d} M={self.m} K={self.k}"


SHAPES = (
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
BENCH_CPU = (
    EncodeShape("decode step", 32, 64, 8, 256),
    EncodeShape("laptop calibration", 4096, 64, 8, 256),
    EncodeShape("segment, all heads", 16384, 64, 8, 256),
    EncodeShape("half vectors", 16384, 32, 8, 256),
    EncodeShape("K=16", 16384, 64, 8, 16),
    EncodeShape("head_dim 128", 8192, 128, 8, 256),
    EncodeShape("VQLLM", 4096, 32, 6, 2048),
)
BENCH_GPU = (
    EncodeShape("decode step", 128, 128, 8, 256, torch.float16),
    EncodeShape("8k tokens, 8 heads", 65536, 128, 8, 256, torch.float16),
    EncodeShape("VQLLM", 65536, 32, 8, 2048, torch.float16),
)
REHEARSE = (EncodeShape("rehearsal", 20, 16, 2, 40, torch.float16),)


def variants() -> Iterator[Variant]:
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
        x, code = TRITON_NAME[dtype], TRITON_NAME[rq_encode.code_dtype(k)]
        options: dict[str, Any] = rq_encode.tile(n, d)
        yield Variant(
            name=f"N={n} d={d} M={m} K={k} {x}{' xhat' if want_xhat else ''}",
            kernel=rq_encode.rq_encode_kernel,
            types=(f"*{x}", "*fp32", "*fp32", f"*{code}", "*fp32", "*fp32", "i32", "i32", "i32"),
            num_warps=options.pop("num_warps"),
            num_stages=options.pop("num_stages"),
            constexprs={"D": d, "M": m, "WANT_XHAT": want_xhat, **options},
            aligned=tuple(
                name for name, value in (("n", n), ("x_stride", d), ("K", k)) if value % 16 == 0
            ),
        )


def on_cpu(shape: EncodeShape) -> Comparison:
    """Codes only, the norms of the codebooks known, as for a cache that is written once."""
    import faiss

    faiss.omp_set_num_threads(1)
    bits = (shape.k - 1).bit_length()
    peer = faiss.ResidualQuantizer(shape.d, shape.m, bits)
    peer.max_beam_size = 1

    def operands(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x, cb = shape.inputs(seed)
        return x, cb, cb.square().sum(-1)

    def to_faiss(args: tuple[torch.Tensor, ...]) -> Any:
        faiss.copy_array_to_vector(args[1].numpy().ravel(), peer.codebooks)
        peer.is_trained = True
        return args[0].numpy()

    def facts(args: tuple[torch.Tensor, ...]) -> dict[str, float]:
        x, cb, cn = args
        out = rq_encode.rq_encode(x, cb, cn)
        packed = peer.compute_codes(to_faiss(args))
        codes = torch.from_numpy(faiss.unpack_bitstrings(packed, shape.m, bits).astype("int64"))
        energy = x.square().sum()
        left = (x - dequantize(codes[:, None], cb)).square().sum()
        return {
            "distortion": float(out.err.sum() / energy),
            "peer_distortion": float(left / energy),
            "same_codes": float((out.codes.long() == codes).float().mean()),
        }

    flops, traffic = rq_encode.cost(shape.n, shape.d, shape.m, shape.k, itemsize=4)
    return Comparison(
        shape=str(shape),
        operands=operands,
        ours=Contender("ours", lambda args: rq_encode.rq_encode(*args, want_xhat=False)),
        peers=(Contender("faiss, beam 1", peer.compute_codes, to_faiss),),
        flops=flops,
        traffic=traffic,
        facts=facts,
    )


def on_gpu(shape: EncodeShape, device: torch.device) -> Comparison:
    """Beside the definition in float32, which makes the same products; there is no library's."""

    def operands(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x, cb = (t.to(device) for t in shape.inputs(seed))
        return x, cb, cb.square().sum(-1)

    def eager(args: tuple[torch.Tensor, ...]) -> rq_encode.Encoded:
        return rq_encode.reference(args[0].float(), args[1])

    flops, traffic = rq_encode.cost(shape.n, shape.d, shape.m, shape.k)
    return Comparison(
        shape=str(shape),
        operands=operands,
        ours=Contender("ours", lambda args: rq_encode.rq_encode_triton(*args, want_xhat=False)),
        peers=(
            Contender("eager torch, float32", eager),
            Contender("torch.compile, float32", compiled(eager), slow=True),
        ),
        flops=flops,
        traffic=traffic,
    )


OPERATION = Operation("rq_encode", SHAPES, variants, on_cpu, on_gpu, BENCH_CPU, BENCH_GPU, REHEARSE)
