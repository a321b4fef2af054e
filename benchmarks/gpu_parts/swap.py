"""Part f: is it cheaper to compute a victim's KV again, or to move it to the host and back? Chapters 8 and 13.

Copies go between the KV pool and pinned host memory, as the engine makes them: each block, layer, and key or value on
its own where the blocks lie scattered, whole runs where they lie in a row. Recomputing is one prefill of the same
tokens by the engine's runner, in steps of at most 8,192 tokens.
"""

import random

import torch

from benchmarks.gpu_parts.bench import Bench, OutOfTimeError
from benchmarks.gpu_parts.engine import build_engine, plan_of
from benchmarks.gpu_parts.machine import gemm_flop_per_s, link_bytes_per_s, spec
from benchmarks.gpu_parts.models import LLAMA, QWEN, build_model, config_of, does_not_fit, random_weights
from mini_vllm import SchedulerConfig
from mini_vllm.core.output import SchedulerOutput
from mini_vllm.engine.engine_core import EngineCore
from mini_vllm.engine.kv_pool import KVPool
from mini_vllm.roofline import ModelCosts, recompute_ms, swap_ms

BLOCK = 16
STEP_TOKENS = 8192


def run(bench: Bench) -> None:
    to_device, to_host = link_bytes_per_s(bench)
    link = 2 / (1 / to_device + 1 / to_host)  # of a way out and back
    bench.report.figure("link, out and back", link / 1e9, "GB/s")
    card, gemm = spec(bench), gemm_flop_per_s(bench)
    reached = min(1.0, gemm / card.peak(bench.dtype_name)) if card else None
    for name in bench.size((LLAMA, QWEN), (QWEN,), (QWEN,)):
        config = config_of(bench, name)
        if why := does_not_fit(bench, config, bench.dtype, spare=5e9):
            bench.report.skip(f"swap, {name}", why)
            continue
        sizes = bench.size((256, 1024, 4096, 16_384), (256, 1024, 4096), (20,))
        core, costs = engine_for(bench, config, max(sizes)), ModelCosts(config, bench.dtype_name)
        for tokens in sizes:
            try:
                bench.need(4, f"swap, {name}, {tokens:,} tokens and more")
            except OutOfTimeError:
                break
            with bench.enough_memory(f"swap, {name}, {tokens:,} tokens"):
                again = recompute(bench, core.runner, tokens)
                scattered, in_a_row = (copies(bench, config, tokens, shuffled) for shuffled in (True, False))
                bench.report.row("recompute or swap", {
                    "model": name, "tokens": tokens, "MB": tokens * costs.kv_bytes_per_token / 1e6,
                    "recompute ms": again, "swap ms, scattered": scattered, "swap ms, in a row": in_a_row,
                    "predicted swap ms": swap_ms(costs, tokens, link),
                    "predicted recompute ms": card and recompute_ms(costs, card, tokens, flop_eff=reached),
                    "cheaper": "recompute" if again < scattered else "swap",
                })  # fmt: skip
        core.loop.close()
        del core


def engine_for(bench: Bench, config, longest: int) -> EngineCore:
    """For one request of `longest` tokens."""
    model = build_model(config, random_weights(bench, config, bench.dtype))
    limits = SchedulerConfig(
        max_num_seqs=1,
        max_num_batched_tokens=STEP_TOKENS,
        max_model_len=longest + 1,
        num_gpu_blocks=longest // BLOCK + 4,
        block_size=BLOCK,
    )
    return build_engine(bench, model, limits, graphs=False)


def recompute(bench: Bench, runner, tokens: int) -> float:
    """Milliseconds of the prefill of `tokens`, alone in its steps."""
    pieces = [(min(STEP_TOKENS, tokens - done), done) for done in range(0, tokens, STEP_TOKENS)]
    count = 0

    def prefill() -> None:
        nonlocal count
        for piece in pieces:
            runner.execute(plan_of([piece], BLOCK, f"x{count}-"))
            runner.execute(SchedulerOutput(finished_req_ids=[f"x{count}-0"]))
            count += 1

    prefill()
    return bench.timer.wall_ms(prefill)


def copies(bench: Bench, config, tokens: int, shuffled: bool) -> float:
    """Milliseconds to move the KV of `tokens` out and in again, block by block if they lie scattered."""
    count = -(-tokens // BLOCK)
    pool = KVPool(config, bench.dtype, bench.device, count, BLOCK, count)
    blocks = list(range(1, count + 1))
    if shuffled:
        random.Random(bench.seed).shuffle(blocks)
    moves = list(zip(blocks, range(count), strict=True))
    before = pool.caches[0].normal_(generator=bench.generator()).clone()

    def out_and_back() -> None:
        pool.swap(moves, [])
        pool.swap([], moves)

    ms = bench.timer.wall_ms(out_and_back)
    pool.caches[0].zero_()
    pool.swap([], moves)
    is_back = torch.equal(before[:, 1:], pool.caches[0][:, 1:])
    bench.report.must(f"{tokens:,} tokens, {'scattered' if shuffled else 'in a row'}: back as they went", is_back)
    return ms
