"""Part d: prefill TFLOP/s beside a matrix product of the same card and dtype. Chapter 13.

FLOPs are those of causal attention, counted once: 4 · heads · head_dim for each query and key that it sees.
"""

import torch
import torch.nn.functional as F

from benchmarks.gpu_parts.bench import Bench, OutOfTimeError
from benchmarks.gpu_parts.machine import gemm_flop_per_s
from benchmarks.gpu_parts.problems import (
    LLAMA_8B,
    QWEN_06B,
    Problem,
    RoutedError,
    Shape,
    poisoned,
    prefill_plan,
    prefill_tile,
    random_problem,
    run_prefill,
)
from mini_vllm.roofline import StepWork

# Name, shape, new tokens and history of each request.
CASES: tuple[tuple[str, Shape, list[int], list[int]], ...] = (
    ("1 × 512", LLAMA_8B, [512], [0]),
    ("1 × 2k", LLAMA_8B, [2048], [0]),
    ("1 × 8k", LLAMA_8B, [8192], [0]),
    ("1 × 32k", LLAMA_8B, [32_768], [0]),
    ("16 × 512", LLAMA_8B, [512] * 16, [0] * 16),
    ("ragged, 8 requests", LLAMA_8B, [100, 1024, 333, 2048, 17, 700, 1500, 64], [0] * 8),
    ("chunk of 2k after 30k", LLAMA_8B, [2048], [30_720]),
    ("8 chunks of 256 after 4k", LLAMA_8B, [256] * 8, [4096] * 8),
    ("1 × 8k, Qwen3-0.6B", QWEN_06B, [8192], [0]),
)
SMOKE_CASES = (("2 × 20", Shape(4, 2, 16), [20, 20], [0, 0]), ("chunk", Shape(4, 2, 16), [9], [13]))


def run(bench: Bench) -> None:
    gemm = gemm_flop_per_s(bench)
    bench.report.figure(f"matrix product, {bench.dtype_name}", gemm / 1e12, "TFLOP/s")
    best = 0.0
    for name, shape, new, history in bench.size(CASES, CASES[1:8:2], SMOKE_CASES):
        try:
            bench.need(3, f"prefill {name} and all after it")
            with bench.enough_memory(f"prefill {name}"):
                best = max(best, measure(bench, name, shape, new, history, gemm))
        except RoutedError as routed:
            bench.report.skip(f"prefill {name}", f"routed to torch: {routed}")
        except OutOfTimeError:
            break
    if best:
        bench.report.figure("prefill: largest share of the matrix product's FLOP/s", best)


def measure(bench: Bench, name: str, shape: Shape, new: list[int], history: list[int], gemm: float) -> float:
    """One case; returns its share of the matrix product's FLOP/s."""
    contexts = [n + old for n, old in zip(new, history, strict=True)]
    problem, tile = random_problem(bench, shape, new, contexts, bench.dtype), prefill_tile(bench, shape, bench.dtype)
    plan, out = prefill_plan(bench, problem, tile), poisoned(problem.q)
    pairs = sum(StepWork.prefill(n, old).attention_pairs for n, old in zip(new, history, strict=True))
    flop = 4 * shape.num_heads * shape.head_dim * pairs
    ms = bench.timer.ms([lambda: run_prefill(bench, problem, out, tile, plan)]).ms
    theirs = torch_ms(bench, problem) if len(set(new)) == 1 and not any(history) else None
    bench.report.row("prefill", {
        "case": f"{name:<34}", "tile": f"{tile.block_m}x{tile.block_n}", "us": 1e3 * ms, "TFLOP/s": flop / ms / 1e9,
        "of GEMM": flop / ms * 1e3 / gemm, "SDPA us": theirs and 1e3 * theirs, "SDPA/ours": theirs and theirs / ms,
    })  # fmt: skip
    return flop / ms * 1e3 / gemm


def torch_ms(bench: Bench, problem: Problem) -> float:
    """torch's causal attention on contiguous K and V of the same sizes."""
    shape, batch, new = problem.shape, len(problem.query_lens), problem.query_lens[0]
    q = problem.q.view(batch, new, shape.num_heads, shape.head_dim).transpose(1, 2)
    size = (batch, shape.num_kv_heads, new, shape.head_dim)
    k, v = (torch.randn(size, device=bench.device, generator=bench.generator(i)).to(q.dtype) for i in (1, 2))
    return bench.timer.ms([lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)]).ms
