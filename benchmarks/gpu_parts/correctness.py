"""Part a: are the kernels right on this card? Fresh random inputs, poisoned buffers, float64. Chapter 13.

Error: max|out - ref| / max|ref| of each request and head, as in kernels/reference.py. The reference computes in float64
from the very numbers that the kernel gets, so rounding the inputs counts for nothing.
"""

import random
import time
from dataclasses import dataclass

import torch

from benchmarks.gpu_parts.bench import Bench, OutOfTimeError
from benchmarks.gpu_parts.problems import (
    Problem,
    RoutedError,
    Shape,
    poisoned,
    random_problem,
    run_decode,
    run_prefill,
)
from mini_vllm.kernels.reference import TOLERANCE, max_error, paged_attention

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Variant:
    """kind: decode, split, draft (several new tokens a request), draft-split, prefill."""

    kind: str
    shape: Shape
    dtype: torch.dtype
    window: int | None = None
    splits: int | None = None

    def __str__(self) -> str:
        window = f" window {self.window}" if self.window else ""
        splits = f" {self.splits} splits" if self.splits else ""
        return f"{self.kind} {self.shape} page {self.shape.block_size}{window}{splits}"


def _v(kind, heads, kv_heads, head_dim, page, dtype, window=None, splits=None) -> Variant:
    return Variant(kind, Shape(heads, kv_heads, head_dim, page), dtype, window, splits)


# Every head_dim (64, 80, 96, 128, 256), group (1, 3, 4, 7, 8, 16, 32), page (1, 3, 8, 16, 48, 64) and dtype with each
# kind of kernel, and the pairs that go wrong first: odd groups with odd pages, windows with half pages, large heads.
VARIANTS = (
    _v("decode", 9, 3, 64, 16, FP16),
    _v("decode", 8, 8, 64, 1, BF16),
    _v("decode", 12, 4, 80, 3, FP16),
    _v("decode", 28, 4, 128, 16, BF16),
    _v("decode", 32, 8, 128, 16, BF16),
    _v("decode", 32, 8, 128, 16, FP16, window=100),
    _v("decode", 16, 2, 96, 48, FP16),
    _v("decode", 32, 2, 128, 64, BF16),
    _v("decode", 32, 1, 128, 8, FP16),
    _v("decode", 8, 2, 256, 16, BF16),
    _v("decode", 4, 4, 256, 64, FP32),
    _v("decode", 9, 3, 64, 16, FP32, window=1),
    _v("decode", 14, 2, 64, 3, FP32, window=33),
    _v("split", 32, 8, 128, 16, BF16, splits=2),
    _v("split", 32, 8, 128, 16, FP16, splits=7),
    _v("split", 9, 3, 64, 3, FP16, splits=16),
    _v("split", 28, 4, 80, 1, BF16, splits=5),
    _v("split", 32, 1, 96, 48, FP16, splits=64),
    _v("split", 16, 16, 64, 8, FP32, splits=3),
    _v("split", 8, 2, 256, 64, BF16, splits=8),
    _v("split", 32, 8, 128, 16, BF16, window=130, splits=9),
    _v("split", 32, 2, 128, 16, FP32, splits=32),
    _v("draft", 32, 8, 128, 16, BF16),
    _v("draft", 9, 3, 64, 3, FP16, window=20),
    _v("draft", 28, 4, 128, 16, FP32),
    _v("draft-split", 32, 8, 128, 16, BF16, splits=6),
    _v("draft-split", 14, 2, 64, 48, FP16, splits=11),
    _v("prefill", 32, 8, 128, 16, BF16),
    _v("prefill", 32, 8, 128, 16, FP16, window=77),
    _v("prefill", 9, 3, 64, 16, FP16),
    _v("prefill", 9, 3, 64, 1, FP32),
    _v("prefill", 12, 12, 80, 3, BF16),
    _v("prefill", 28, 4, 96, 48, FP16),
    _v("prefill", 16, 2, 128, 8, FP16, window=1),
    _v("prefill", 32, 2, 64, 64, BF16),
    _v("prefill", 32, 1, 128, 16, BF16),
    _v("prefill", 8, 2, 256, 16, BF16),
    _v("prefill", 4, 4, 256, 3, FP16),
    _v("prefill", 14, 2, 80, 16, FP32, window=50),
    _v("prefill", 16, 1, 128, 64, FP32),
)
_SMOKE = (
    _v("decode", 3, 1, 24, 3, FP16),
    _v("split", 4, 2, 16, 8, BF16, splits=2),
    _v("draft", 2, 1, 16, 4, FP32, window=5),
    _v("draft-split", 2, 2, 16, 4, FP16, splits=3),
    _v("prefill", 6, 2, 16, 4, BF16),
)


def run(bench: Bench) -> None:
    chosen = bench.size(VARIANTS, VARIANTS, _SMOKE)
    first, step = bench.piece
    if first == 0:
        check_far_block(bench)
    worst, right, wrong = 0.0, 0, []
    for number in range(first, len(chosen), step):
        variant = chosen[number]
        if variant.dtype is BF16 and bench.card.capability < (8, 0):
            bench.report.skip(str(variant), f"{bench.card.name} has no bfloat16")
            continue
        try:
            bench.need(3, f"{len(range(number, len(chosen), step))} variants from {variant} on")
            share = check(bench, variant, number)
        except RoutedError as routed:
            bench.report.skip(str(variant), f"routed to torch: {routed}")
            continue
        except OutOfTimeError:
            break
        right += share <= 1
        wrong += [str(variant)] if share > 1 else []
        worst = max(worst, share)
    if right or wrong:
        bench.report.must("all variants within the tolerance", not wrong, f"{right} right, wrong: {wrong or 'none'}")
        bench.report.figure("largest error as a share of its tolerance", worst)


def check(bench: Bench, variant: Variant, number: int) -> float:
    """The error of one variant as a share of what its dtype is allowed."""
    start = time.perf_counter()
    query_lens, context_lens = lengths(bench, variant, number)
    problem = random_problem(
        bench, variant.shape, query_lens, context_lens, variant.dtype, window=variant.window, offset=number
    )
    out = poisoned(problem.q)
    if variant.kind == "prefill":
        run_prefill(bench, problem, out)
    else:
        run_decode(bench, problem, out, variant.splits)
    error = max_error(out, reference(problem), problem.query_start_loc)
    allowed = TOLERANCE[variant.dtype]
    bench.report.row(
        "correctness",
        {
            "variant": f"{variant!s:<42}",
            "dtype": str(variant.dtype).removeprefix("torch."),
            "error": error,
            "allowed": allowed,
            "right": error <= allowed,
            "seconds": round(time.perf_counter() - start, 2),
        },
    )
    return error / allowed


def lengths(bench: Bench, variant: Variant, number: int) -> tuple[list[int], list[int]]:
    """New tokens and context of each request: the edges of a page and of a tile, and some at random."""
    rng = random.Random(1000 * bench.seed + number)
    # The reference of a long prefill holds heads × new × context numbers of 8 bytes, several times over.
    page, longest = variant.shape.block_size, bench.size(1500 if variant.kind == "prefill" else 6000, 1500, 20)
    middle = longest // 10
    drawn = [rng.randint(2, middle), rng.randint(middle, longest), rng.randint(longest - middle, longest)]
    context_lens = [min(context, longest) for context in (1, page, page + 1, *drawn)][bench.size(0, 0, 3) :]
    if variant.kind in ("decode", "split"):
        return [1] * (len(context_lens) + 1), [
            *context_lens,
            0,
        ]  # 0: a row that only fills up the batch of a CUDA graph
    if variant.kind.startswith("draft"):
        return [min(rng.randint(1, 8), context) for context in context_lens], context_lens
    query_lens = [rng.randint(1, context) for context in context_lens]
    query_lens[-1] = context_lens[-1]  # a whole prompt, without history
    return query_lens, context_lens


def reference(problem: Problem) -> torch.Tensor:
    """In float64. The slots in sight hold no NaN; the others are not read."""
    p = problem
    return paged_attention(
        p.q.double(), p.kv_cache, p.query_start_loc, p.seq_lens, p.block_table, sliding_window=p.window
    )


def check_far_block(bench: Bench) -> None:
    """Block 131,079 of 131,080: block number times stride passes 2^31 elements from block 131,072 on (case b07).

    Public reports: vllm-project/vllm#47671, sgl-project/sglang#20389, thu-ml/SageAttention#386.
    """
    from mini_vllm.kernels.kv_store import store_kv

    shape = bench.size(Shape(32, 8, 128), Shape(32, 8, 128), Shape(2, 1, 16))
    num_blocks, heads, head_dim = bench.size(131_080, 131_080, 12), shape.num_kv_heads, shape.head_dim
    needed = num_blocks * shape.block_size * shape.kv_bytes_per_token(FP16)
    if needed > 0.8 * bench.free_bytes():
        bench.report.skip("64-bit offsets", f"needs {needed / 1e9:.1f} GB, {bench.free_bytes() / 1e9:.1f} are free")
        return
    generator, last, device = bench.generator(7), num_blocks - 1, bench.device
    cache = torch.zeros(2, num_blocks, 16, heads, head_dim, dtype=FP16, device=device)
    k, v = (torch.randn(16, heads, head_dim, generator=generator, device=device).to(FP16) for _ in range(2))
    store_kv(k, v, cache, last * 16 + torch.arange(16, device=device))
    is_there = torch.equal(cache[:, last], torch.stack((k, v)))
    bench.report.must("64-bit offsets: the last block holds what was stored", is_there)
    bench.report.must("64-bit offsets: no other block was written", not bool(cache[:, :last].any()))
    q = torch.randn(17, shape.num_heads, head_dim, generator=generator, device=device).to(FP16)
    for name, query_len in (("decode", 1), ("prefill", 16)):
        starts = torch.tensor([0, query_len], dtype=torch.int32, device=device)
        lens, table = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([16], [[last]]))
        problem = Problem(shape, q[:query_len], cache, starts, lens, table, [query_len], [16])
        try:
            out = poisoned(problem.q)
            run_decode(bench, problem, out) if name == "decode" else run_prefill(bench, problem, out)
        except RoutedError as routed:
            bench.report.skip(f"64-bit offsets: {name}", f"routed to torch: {routed}")
            continue
        error = max_error(out, reference(problem), starts)
        bench.report.must(
            f"64-bit offsets: {name} reads the last block", error <= TOLERANCE[FP16], f"error {error:.1e}"
        )
