"""Part c: how fast does decode read the KV cache, beside a plain copy on the same card? Chapter 13.

One layer of Llama-3-8B (32 query heads, 8 KV heads, head_dim 128, pages of 16 tokens in random order). GB/s counts the
keys and values that the step must read, and nothing else. Each number is the time of the kernel alone, replayed from a
CUDA graph, with several block tables in turn: what one call leaves in the L2 cache, the next does not read.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import torch

from benchmarks.gpu_parts import peers
from benchmarks.gpu_parts.bench import Bench, OutOfTimeError
from benchmarks.gpu_parts.machine import copy_bytes_per_s
from benchmarks.gpu_parts.problems import LLAMA_8B, QWEN_06B, Problem, RoutedError, Shape, decode_tile, run_decode
from mini_vllm.kernels.split_kv import num_splits
from mini_vllm.kernels.tiles import INTERPRETER_DECODE

LARGE, MIDDLE = 1e9, 256e6  # bytes of KV in a launch
PEER_PAIRS = ((1, 32_768), (32, 4_096), (8, 8_192), (256, 1_024))
PEER_BYTES = 4e9  # peers want the KV contiguous, so it is there twice
SMOKE_TILE = replace(INTERPRETER_DECODE, block_n=128)  # few rounds of a loop that an interpreter runs


class Pool:
    """A KV cache as large as a quarter of the card, and block tables into it."""

    def __init__(self, bench: Bench, shape: Shape) -> None:
        self.bench, self.shape = bench, shape
        block_bytes = shape.block_size * shape.kv_bytes_per_token(bench.dtype)
        num_blocks = int(min(bench.total_bytes() / 4, 0.6 * bench.free_bytes()) // block_bytes)
        if bench.smoke:
            num_blocks = 64
        size = (2, 1 + num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
        self.cache = torch.empty(size, dtype=bench.dtype, device=bench.device)
        for piece in self.cache.view(-1).split(2**28):
            piece.normal_(generator=bench.generator())
        order = torch.randperm(num_blocks, generator=bench.generator(1), device=bench.device)
        self.order = (1 + order).to(torch.int32)

    @property
    def tokens(self) -> int:
        return len(self.order) * self.shape.block_size

    def problems(self, context_lens: list[int], new: int = 1) -> list[Problem]:
        """Alike, each with blocks of its own: so many that the L2 cache holds a small share of what they read."""
        size, device = self.shape.block_size, self.bench.device
        width = max(-(-context // size) for context in context_lens)
        blocks = width * len(context_lens)
        read = sum(context_lens) * self.shape.kv_bytes_per_token(self.bench.dtype)
        wanted = min(64, -(-16 * self.bench.l2_bytes // read))
        count = max(1, min(wanted, len(self.order) // blocks))
        starts = torch.arange(0, new * len(context_lens) + 1, new, dtype=torch.int32, device=device)
        lens = torch.tensor(context_lens, dtype=torch.int32, device=device)
        q = torch.randn(
            int(starts[-1]), self.shape.num_heads, self.shape.head_dim, device=device, generator=self.bench.generator(2)
        ).to(self.bench.dtype)
        tables = self.order[: count * blocks].view(count, len(context_lens), width)
        new_lens = [new] * len(context_lens)
        return [Problem(self.shape, q, self.cache, starts, lens, table, new_lens, context_lens) for table in tables]


def run(bench: Bench) -> None:
    copy = copy_bytes_per_s(bench)
    bench.report.figure("copy bandwidth in this run", copy / 1e9, "GB/s")
    try:
        decode_tile(bench, LLAMA_8B, bench.dtype)
    except RoutedError as routed:
        bench.report.skip("decode_bandwidth", f"routed to torch: {routed}")
        return
    shape = replace(LLAMA_8B, num_heads=4, num_kv_heads=2, head_dim=16) if bench.smoke else LLAMA_8B
    try:
        pool = Pool(bench, shape)
        rows = grid(bench, pool, copy)
        conclude(bench, rows)
        drafts(bench, pool)
        ragged(bench, pool, copy)
        others(bench, pool)
        del pool
        second = replace(QWEN_06B, num_heads=4, num_kv_heads=4, head_dim=16) if bench.smoke else QWEN_06B
        grid(bench, Pool(bench, second), copy, "decode, Qwen3-0.6B's heads", step=2)
    except OutOfTimeError:
        pass


def grid(bench: Bench, pool: Pool, copy: float, table: str = "decode", step: int = 1) -> list[dict]:
    """Every pair of batch and context whose KV fits in the pool; `step` 2: every second of both."""
    rows = []
    for batch, context in pairs(bench, pool.tokens, step):
        bench.need(1, f"{table}: batch {batch}, context {context:,} and all after it")
        rows.append(measure(bench, pool, [context] * batch, copy))
        bench.report.row(table, rows[-1])
    return rows


def pairs(bench: Bench, most_tokens: int, step: int = 1) -> list[tuple[int, int]]:
    batches, contexts = bench.size((range(9), range(10, 18)), (range(9), range(10, 18)), ((0,), (5, 9)))
    step = bench.size(step, 2 * step, step)
    found = [(2**i, 2**j) for i in batches[::step] for j in contexts[::step]]
    return [(batch, context) for batch, context in found if batch * context <= most_tokens]


def measure(bench: Bench, pool: Pool, context_lens: list[int], copy: float) -> dict:
    problems, shape = pool.problems(context_lens), pool.shape
    read = sum(context_lens) * shape.kv_bytes_per_token(bench.dtype)
    splits = num_splits(bench.card.num_sms, len(context_lens), shape.num_kv_heads, max(context_lens))
    one = bench.timer.ms(calls(bench, problems)).ms
    split = bench.timer.ms(calls(bench, problems, splits)).ms if splits > 1 else None
    ours = one if split is None else split  # what the engine would run
    return {
        "batch": len(context_lens),
        "context": max(context_lens),
        "KV GB": read / 1e9,
        "one us": 1e3 * one,
        "splits": splits,
        "split us": None if split is None else 1e3 * split,
        "speed-up": None if split is None else one / split,
        "GB/s": read / ours / 1e6,
        "of copy": read / ours * 1e3 / copy,
    }


def calls(bench: Bench, problems: list[Problem], splits: int | None = None, tile=None) -> list[Callable]:
    out = torch.empty_like(problems[0].q)
    tile = tile or bench.size(None, None, SMOKE_TILE)
    return [lambda p=p: run_decode(bench, p, out, splits, tile) for p in problems]


def conclude(bench: Bench, rows: list[dict]) -> None:
    """The numbers that have targets."""
    large = [row for row in rows if row["KV GB"] * 1e9 >= bench.size(LARGE, LARGE, 0)]
    middle = [row for row in rows if bench.size(MIDDLE, MIDDLE, 0) <= row["KV GB"] * 1e9 < LARGE]
    for name, chosen, target in (("≥ 1 GB", large, 0.9), ("256 MB to 1 GB", middle, 0.7)):
        if not chosen:
            bench.report.skip(f"decode, {name} of KV in a launch", "no such pair was measured on this card")
            continue
        worst = min(chosen, key=lambda row: row["of copy"])
        at = f"batch {worst['batch']}, context {worst['context']:,}; {len(chosen)} pairs"
        bench.report.figure(
            f"decode, {name} of KV: smallest share of the copy bandwidth", worst["of copy"], "", target, at
        )
        right = sum(row["of copy"] >= target for row in chosen)
        bench.report.figure(f"decode, {name} of KV: share of the pairs that reach {target:.0%}", right / len(chosen))
    split = [row for row in rows if row["batch"] == 1 and row["context"] == bench.size(32_768, 32_768, 512)]
    if split and split[0]["speed-up"]:
        bench.report.figure("splitting at batch 1, context 32k: times faster", split[0]["speed-up"], "×", 2.0)
    slower = [row for row in rows if row["speed-up"] and row["speed-up"] < 0.98]
    bench.report.figure("pairs in which the split that is chosen is slower than none", len(slower))


def others(bench: Bench, pool: Pool) -> None:
    """Peers on the same numbers; each gets what it wants, a contiguous KV or the pages."""
    pairs = bench.size(PEER_PAIRS, PEER_PAIRS[:2], ((2, 32),))
    for number, (batch, context) in enumerate(pairs):
        read = batch * context * pool.shape.kv_bytes_per_token(bench.dtype)
        if batch * context > pool.tokens or read > PEER_BYTES or 2.5 * read > bench.free_bytes():
            bench.report.skip(f"peers at batch {batch}, context {context:,}", "not enough memory for a second KV")
            continue
        bench.need(10, f"peers at batch {batch}, context {context:,}")
        problems = pool.problems([context] * batch)[:4]
        splits = num_splits(bench.card.num_sms, batch, pool.shape.num_kv_heads, context)
        ours = bench.timer.ms(calls(bench, problems, splits if splits > 1 else None)).ms
        right = run_decode(bench, problems[0], torch.empty_like(problems[0].q)).float()
        for name, prepare, most in peers.DECODE:
            if number >= most:
                continue
            with bench.peer(f"{name} at batch {batch}, context {context:,}"):
                theirs = [prepare(problem) for problem in problems[: 1 if read > LARGE else 4]]
                apart = float((theirs[0]().float() - right).abs().max() / right.abs().max())
                ms = bench.timer.ms(theirs).ms
                bench.report.row("decode beside peers", {
                    "peer": f"{name:<34}", "batch": batch, "context": context, "us": 1e3 * ms, "ours us": 1e3 * ours,
                    "ours is faster": ms / ours, "GB/s": read / ms / 1e6, "apart": apart,
                })  # fmt: skip


def drafts(bench: Bench, pool: Pool) -> None:
    """Verifying drafts should cost little more than a plain decode: the KV is read once all the same."""
    batch, context = bench.size((16, 4096), (16, 4096), (2, 32))
    if batch * context > pool.tokens:
        return
    bench.need(8, "drafts")
    first = 0.0
    for new in bench.size((1, 2, 4, 8), (1, 4, 8), (1, 2)):
        problems = pool.problems([context] * batch, new)
        splits = num_splits(bench.card.num_sms, batch, pool.shape.num_kv_heads, context)
        try:
            ms = bench.timer.ms(calls(bench, problems, splits if splits > 1 else None)).ms
        except RoutedError as routed:
            bench.report.skip(f"{new} new tokens a request", f"routed to torch: {routed}")
            continue
        first = first or ms
        row = {"batch": batch, "context": context, "new tokens": new, "us": 1e3 * ms, "of one token's": ms / first}
        bench.report.row("decode with drafts", row)


def ragged(bench: Bench, pool: Pool, copy: float) -> None:
    """Contexts of many lengths in one launch, as a server has them."""
    rng = random.Random(bench.seed)
    for batch, longest in bench.size(((16, 32_768), (128, 4096)), ((64, 8192),), ((3, 40),)):
        context_lens = [rng.randint(16, longest) for _ in range(batch)]
        if batch * longest <= pool.tokens:
            bench.need(2, "ragged batches")
            bench.report.row("decode, ragged contexts", measure(bench, pool, context_lens, copy))
