"""Random paged attention problems, and the launch of the kernel that serves them. Knows no engine. Chapter 13."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch

from benchmarks.gpu_parts.bench import Bench
from mini_vllm.kernels import tiles


class RoutedError(Exception):
    """tiles.py gives this shape on this card to torch; the text is its reason."""


@dataclass(frozen=True)
class Shape:
    """Of one layer's attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 16

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        return 2 * self.num_kv_heads * self.head_dim * dtype.itemsize

    def __str__(self) -> str:
        return f"{self.num_heads}/{self.num_kv_heads}/{self.head_dim}"


LLAMA_8B, QWEN_06B = Shape(32, 8, 128), Shape(16, 8, 128)


@dataclass
class Problem:
    """What a backend gets in one step of one layer; shapes as in AttentionMetadata."""

    shape: Shape
    q: torch.Tensor
    kv_cache: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    query_lens: list[int]
    context_lens: list[int]
    window: int | None = None

    @cached_property
    def requests(self) -> torch.Tensor:
        """All of them. Made once: made in a call, it would be timed with it."""
        return torch.arange(len(self.query_lens), dtype=torch.int32, device=self.q.device)


def random_problem(
    bench: Bench,
    shape: Shape,
    query_lens: list[int],
    context_lens: list[int],
    dtype: torch.dtype,
    *,
    window: int | None = None,
    offset: int = 0,
) -> Problem:
    """Blocks in random order; every slot that no token in sight owns is NaN, block 0 and half pages too.

    context_lens: tokens of each request after the step, its new ones included; 0 is a padded row of a CUDA graph.
    """
    device, generator, size = bench.device, bench.generator(offset), shape.block_size
    needed = [-(-context // size) for context in context_lens]
    num_blocks = sum(needed) + 3
    order = (1 + torch.randperm(num_blocks - 1, generator=generator, device=device)).tolist()
    cache = torch.full(
        (2, num_blocks, size, shape.num_kv_heads, shape.head_dim), float("nan"), dtype=dtype, device=device
    )
    slots = cache.view(2, -1, shape.num_kv_heads, shape.head_dim)
    table = torch.zeros(len(needed), max([1, *needed]), dtype=torch.int32)
    for row, (count, context, new) in enumerate(zip(needed, context_lens, query_lens, strict=True)):
        blocks = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int64)
        first_seen = max(0, context - new - window + 1) if window else 0
        table[row, :count] = blocks
        table[row, : first_seen // size] = 0  # given back: the table points at the null block there
        positions = torch.arange(first_seen, context)
        mine = (blocks[positions // size] * size + positions % size).to(device)
        drawn = torch.randn(2, len(mine), *slots.shape[2:], generator=generator, device=device)
        slots[:, mine] = drawn.to(dtype)
    q = torch.randn(sum(query_lens), shape.num_heads, shape.head_dim, generator=generator, device=device).to(dtype)
    return Problem(
        shape,
        q,
        cache,
        torch.tensor([0, *accumulate(query_lens)], dtype=torch.int32, device=device),
        torch.tensor(context_lens, dtype=torch.int32, device=device),
        table.to(device),
        query_lens,
        context_lens,
        window,
    )


def poisoned(q: torch.Tensor) -> torch.Tensor:
    """Room for the result, full of NaN: a row that no program writes shows."""
    return torch.full_like(q, float("nan"), memory_format=torch.contiguous_format)


def run_decode(bench: Bench, problem: Problem, out: torch.Tensor, splits: int | None = None, tile=None) -> torch.Tensor:
    """Decode, drafts included, without split or with `splits` of them. Raises RoutedError."""
    from mini_vllm.kernels.paged_decode import paged_decode
    from mini_vllm.kernels.split_kv import paged_decode_split

    p, widest = problem, max(problem.query_lens)
    tile = tile or decode_tile(bench, p.shape, p.q.dtype, widest)
    batch = (out, p.q, p.kv_cache, p.query_start_loc, p.seq_lens, p.block_table, p.requests)
    options = {"max_query_len": widest, "sliding_window": p.window, "tile": tile}
    if splits is None:
        paged_decode(*batch, **options)
    else:
        paged_decode_split(*batch, num_splits=splits, **options)
    return out


def run_prefill(bench: Bench, problem: Problem, out: torch.Tensor, tile=None, plan=None) -> torch.Tensor:
    """Ragged prefill; `plan`: its tiles, if they are made already. Raises RoutedError."""
    from mini_vllm.kernels.paged_prefill import paged_prefill

    p = problem
    tile = tile or prefill_tile(bench, p.shape, p.q.dtype)
    if plan is None:
        plan = prefill_plan(bench, p, tile)
    paged_prefill(
        out, p.q, p.kv_cache, p.query_start_loc, p.seq_lens, p.block_table, plan, sliding_window=p.window, tile=tile
    )
    return out


def prefill_plan(bench: Bench, problem: Problem, tile) -> torch.Tensor:
    from mini_vllm.kernels.paged_prefill import plan_tiles

    requests = list(range(len(problem.query_lens)))
    return plan_tiles(problem.query_lens, requests, problem.shape.group, tile.block_m, bench.device)


def decode_tile(bench: Bench, shape: Shape, dtype: torch.dtype, max_query_len: int = 1):
    """What tiles.py gives this card. Raises RoutedError."""
    if bench.smoke:
        return tiles.INTERPRETER_DECODE
    return _tile(tiles.decode_tile(bench.card, shape.head_dim, shape.group, _name(dtype), max_query_len))


def prefill_tile(bench: Bench, shape: Shape, dtype: torch.dtype):
    """What tiles.py gives this card. Raises RoutedError."""
    if bench.smoke:
        return tiles.INTERPRETER_PREFILL
    return _tile(tiles.prefill_tile(bench.card, shape.head_dim, shape.group, _name(dtype)))


def _tile(tile):
    if isinstance(tile, tiles.Routed):
        raise RoutedError(tile.reason)
    return tile


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
