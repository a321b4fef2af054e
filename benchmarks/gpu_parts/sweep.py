"""Other tiles for decode and prefill, timed: predict, change, measure. For whoever tunes tiles.py. Chapter 13.

Compiled before, by several processes: see sweep_compile.py.

Prediction for decode: bytes that a multiprocessor must keep on their way to hide the latency of its memory,
bandwidth / multiprocessors · latency (Little's law), against the bytes that a tile keeps on their way. Fewer, and the
memory idles; far more, and nothing is gained. The table is sorted by the measured time; "now" is what tiles.py gives.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from benchmarks.gpu_parts.bench import Bench, OutOfTimeError
from benchmarks.gpu_parts.decode_bandwidth import Pool, calls
from benchmarks.gpu_parts.machine import copy_bytes_per_s, gemm_flop_per_s
from benchmarks.gpu_parts.problems import (
    LLAMA_8B,
    RoutedError,
    Shape,
    decode_tile,
    poisoned,
    prefill_plan,
    prefill_tile,
    random_problem,
    run_prefill,
)
from mini_vllm.kernels.split_kv import num_splits
from mini_vllm.roofline import StepWork

LATENCY_S = 700e-9  # of device memory under load, about; a guess to be corrected by what is measured


def run(bench: Bench) -> None:
    shape = Shape(4, 2, 16) if bench.smoke else LLAMA_8B
    for work in (sweep_splits, sweep_decode, sweep_prefill):
        try:
            work(bench, shape)
        except RoutedError as routed:
            bench.report.skip(work.__name__, f"routed to torch: {routed}")
        except OutOfTimeError:
            pass


def sweep_splits(bench: Bench, shape: Shape) -> None:
    """Whether split_kv.num_splits chooses well: its choice is "now"."""
    decode_tile(bench, shape, bench.dtype)  # raises where there is no kernel
    pool = Pool(bench, shape)
    for batch, context in (pair for pair in pairs_of(bench) if pair[0] * pair[1] <= pool.tokens):
        chosen = num_splits(bench.card.num_sms, batch, shape.num_kv_heads, context)
        problems = pool.problems([context] * batch)[:8]
        for splits in sorted({*bench.size((1, 2, 4, 8, 16, 32, 64), (1, 4, 16), (1, 2)), chosen}):
            bench.need(2, f"splits at batch {batch}, context {context:,}")
            us = 1e3 * bench.timer.ms(calls(bench, problems, splits if splits > 1 else None)).ms
            row = {"batch": batch, "context": context, "splits": splits, "us": us, "now": splits == chosen}
            bench.report.row("splits", row)


def pairs_of(bench: Bench) -> tuple[tuple[int, int], ...]:
    return bench.size(((1, 32_768), (16, 4096), (64, 8192), (256, 1024)), ((16, 4096),), ((2, 32),))


def sweep_decode(bench: Bench, shape: Shape) -> None:
    copy, now = copy_bytes_per_s(bench), decode_tile(bench, shape, bench.dtype)
    needed = copy / bench.card.num_sms * LATENCY_S
    bench.report.figure("decode: bytes on their way that a multiprocessor needs", needed, "bytes")
    pool = Pool(bench, shape)
    for batch, context in (pair for pair in pairs_of(bench) if pair[0] * pair[1] <= pool.tokens):
        read = batch * context * shape.kv_bytes_per_token(bench.dtype)
        problems = pool.problems([context] * batch)[:8]
        splits = num_splits(bench.card.num_sms, batch, shape.num_kv_heads, context)
        chosen, rows = splits if splits > 1 else None, []
        try:
            for tile in decode_tiles(bench, now):
                bench.need(2, f"decode tiles at batch {batch}, context {context:,}")
                with bench.peer(f"decode tile {tile.block_n}, {tile.num_warps} warps, {tile.num_stages} stages"):
                    ms = bench.timer.ms(calls(bench, problems, chosen, tile)).ms
                    # Triton counts table look-up and K/V load as two steps: of five stages two tiles are under way.
                    tile_bytes = tile.block_n * shape.kv_bytes_per_token(bench.dtype) // shape.num_kv_heads
                    on_the_way = max(1, (tile.num_stages - 1) // 2) * tile_bytes
                    rows.append({
                        "block_n": tile.block_n, "warps": tile.num_warps, "stages": tile.num_stages,
                        "dot": tile.use_dot, "bytes": on_the_way, "programs needed": needed / on_the_way,
                        "us": 1e3 * ms, "GB/s": read / ms / 1e6, "of copy": read / ms * 1e3 / copy,
                        "now": same(tile, now),
                    })  # fmt: skip
        finally:  # out of time, too
            for row in sorted(rows, key=lambda row: row["us"]):
                bench.report.row(f"decode tiles, batch {batch}, context {context:,}, {splits} splits", row)


def decode_tiles(bench: Bench, now) -> Iterator:
    sizes = bench.size(((16, 32, 64, 128), (2, 4, 8), (1, 3, 5, 7)), ((32, 64), (4,), (3, 5)), ((16, 32), (4,), (1,)))
    yield now
    for block_n, warps, stages in product(*sizes):
        tile = replace(now, block_n=block_n, num_warps=warps, num_stages=stages, reason="sweep")
        if not same(tile, now):
            yield tile


def sweep_prefill(bench: Bench, shape: Shape) -> None:
    gemm, now = gemm_flop_per_s(bench), prefill_tile(bench, shape, bench.dtype)
    new = bench.size(8192, 2048, 20)
    problem = random_problem(bench, shape, [new], [new], bench.dtype)
    flop = 4 * shape.num_heads * shape.head_dim * StepWork.prefill(new).attention_pairs
    out, rows = poisoned(problem.q), []
    try:
        for tile in prefill_tiles(bench, now):
            bench.need(2, "prefill tiles")
            name = f"prefill tile {tile.block_m}x{tile.block_n}, {tile.num_warps} warps, {tile.num_stages} stages"
            with bench.peer(name):
                plan = prefill_plan(bench, problem, tile)
                ms = bench.timer.ms([lambda t=tile, p=plan: run_prefill(bench, problem, out, t, p)]).ms
                rows.append({
                    "block_m": tile.block_m, "block_n": tile.block_n, "warps": tile.num_warps,
                    "stages": tile.num_stages, "us": 1e3 * ms, "TFLOP/s": flop / ms / 1e9,
                    "of GEMM": flop / ms * 1e3 / gemm, "now": same(tile, now),
                })  # fmt: skip
    finally:
        for row in sorted(rows, key=lambda row: row["us"]):
            bench.report.row(f"prefill tiles, 1 × {new:,}", row)


def prefill_tiles(bench: Bench, now) -> Iterator:
    sizes = bench.size(
        ((32, 64, 128), (32, 64, 128), (4, 8), (2, 3, 5)),
        ((64, 128), (64,), (4, 8), (2, 5)),
        ((16, 32), (16,), (4,), (1,)),
    )
    yield now
    for block_m, block_n, warps, stages in product(*sizes):
        tile = replace(now, block_m=block_m, block_n=block_n, num_warps=warps, num_stages=stages, reason="sweep")
        if not same(tile, now):
            yield tile


def same(tile, now) -> bool:
    return replace(tile, reason="") == replace(now, reason="")
