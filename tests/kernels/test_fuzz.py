"""All attention kernels on random steps against the float64 reference: whatever shapes, pages, windows, drafts, splits.

A step mixes long pieces (prefill kernel) and short ones (decode kernel, split or not) of the same requests' table, as
the engine does. What a kernel must not read is NaN, what it must not write is watched. A failure names its seed:
`random_step(seed)` is the whole case.
"""

import math
import random
from dataclasses import dataclass, replace

import pytest
import torch

from mini_vllm.kernels.kv_store import store_kv
from mini_vllm.kernels.paged_decode import paged_decode
from mini_vllm.kernels.paged_prefill import paged_prefill, plan_tiles
from mini_vllm.kernels.reference import TOLERANCE, max_error
from mini_vllm.kernels.split_kv import paged_decode_split
from mini_vllm.kernels.tiles import DecodeTile, PrefillTile
from tests.kernels.batches import Batch, random_batch

MOST_SCORES = 20_000  # of a step: what the interpreter does well within a second
LONGEST_DECODE = 8


@dataclass
class Step:
    """A batch and how it is served. long: requests of the prefill kernel; short: those of the decode kernel."""

    batch: Batch
    long: list[int]
    short: list[int]
    max_query_len: int
    num_splits: int  # 0: the kernel without splits
    scale: float | None
    decode_tile: DecodeTile
    prefill_tile: PrefillTile


def between(x: torch.Tensor, before: int, behind: int, filler: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The same numbers as a view into something wider, as q is in a joined qkv; and the wider thing."""
    wide = torch.full((len(x) + 2, before + x.shape[1] + behind, *x.shape[2:]), filler, dtype=x.dtype)
    view = wide[: len(x), before : before + x.shape[1]]
    view.copy_(x)
    return view, wide


def random_step(seed: int) -> Step:
    """Small enough for the interpreter, yet with every edge: empty requests, windows within a tile, one-token pages."""
    rng = random.Random(seed)
    kv_heads, group = rng.choice([1, 1, 2, 3]), rng.choice([1, 2, 3, 4, 5, 7, 8, 16])
    block_size = rng.choice([1, 2, 3, 8, 16, 16, 48, 64])
    # A softmax sharper than this loses more than the tolerance to rounding, whoever computes it in float32.
    q_scale, scale = rng.choice([(0.0, None), (1.0, None), (1.0, 0.3), (8.0, None)])
    window = rng.choice([None, None, 1, 2, 5, 16, 17, 40])
    seq_lens, query_lens, scores = [], [], 0
    for _ in range(rng.randint(1, 6)):
        seq_len = rng.choice([0, 1, block_size, 16, 17, rng.randint(1, 40), rng.randint(1, 200)])
        n = min(seq_len, rng.choice([0, 1, 1, 1, rng.randint(1, 8), rng.randint(1, 60)]))
        n = 1 if seq_len == 0 and rng.random() < 0.5 else n  # a row that pads a CUDA graph's batch
        if seq_lens and scores + max(n, 1) * seq_len * group * kv_heads > MOST_SCORES:
            break
        scores += max(n, 1) * seq_len * group * kv_heads
        seq_lens.append(seq_len)
        query_lens.append(n)
    batch = random_batch(
        seed,
        seq_lens=seq_lens,
        query_lens=query_lens,
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=rng.choice([16, 24, 64, 64, 80, 96, 128]),
        block_size=block_size,
        dtype=rng.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16]),
        sliding_window=window,
        q_scale=q_scale,
    )
    requests = list(range(len(seq_lens)))
    rng.shuffle(requests)
    served = [i for i in requests if rng.random() < 0.9]
    short = [i for i in served if query_lens[i] <= LONGEST_DECODE and rng.random() < 0.8]
    return Step(
        batch=replace(
            batch,
            q=between(batch.q, rng.choice([0, 1]), rng.choice([0, 2]), torch.nan)[0],
            block_table=between(batch.block_table, 0, rng.choice([0, 1, 3]), 0)[0],
        ),
        long=[i for i in served if i not in short],
        short=short,
        max_query_len=rng.randint(max([1, *(query_lens[i] for i in short)]), LONGEST_DECODE),
        num_splits=rng.choice([0, 0, 1, 2, 3, 5, 8]),
        scale=scale,
        decode_tile=DecodeTile(rng.choice([16, 32]), 4, 1, rng.random() < 0.7, "of a random test"),
        prefill_tile=PrefillTile(rng.choice([16, 32]), rng.choice([16, 32]), 4, 1, "of a random test"),
    )


def outcome(step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernels write into an output full of NaN; and the wider tensor, full of 7, in which that lies."""
    batch, short = step.batch, torch.tensor(step.short, dtype=torch.int32)
    out, wide = between(torch.full_like(batch.q, torch.nan), 1, 2, 7.0)
    common = {"sliding_window": batch.sliding_window, "scale": step.scale}
    decode = {**common, "max_query_len": step.max_query_len, "tile": step.decode_tile}
    if step.num_splits:
        paged_decode_split(out, *batch.inputs, short, num_splits=step.num_splits, **decode)
    else:
        paged_decode(out, *batch.inputs, short, **decode)
    group = batch.q.shape[1] // batch.kv_cache.shape[3]
    tiles = plan_tiles(batch.query_lens, step.long, group, step.prefill_tile.block_m, "cpu")
    paged_prefill(out, *batch.inputs, tiles, **common, tile=step.prefill_tile)
    return out, wide


def error_of(step: Step) -> float:
    """The error of all served rows. Fails if a row of another request was written, or anything around the output."""
    batch = step.batch
    before = [x.clone() for x in batch.inputs]
    out, wide = outcome(step)
    assert all(torch.equal(x.nan_to_num(9), y.nan_to_num(9)) for x, y in zip(before, batch.inputs, strict=True))
    mine = torch.zeros(len(batch.q), dtype=torch.bool)
    for i in step.long + step.short:
        mine[batch.query_start_loc[i] : batch.query_start_loc[i + 1]] = True
    assert out[~mine].isnan().all()
    out[~mine] = 0.0
    assert (wide[len(out) :] == 7).all() and (wide[:, 0] == 7).all() and (wide[:, -2:] == 7).all()
    right = batch.reference(step.scale)
    right[~mine] = 0.0
    return max_error(out, right, batch.query_start_loc)


def check_step(seed: int) -> None:
    step = random_step(seed)
    error = error_of(step)
    assert error <= TOLERANCE[step.batch.q.dtype], f"seed {seed}: error {error:.2e} of {step}"


def check_store(seed: int) -> None:
    """store_kv against plain indexing: random slots, some of them -1, out of views."""
    rng, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
    blocks, size = rng.randint(1, 9), rng.choice([1, 3, 16])
    heads, head_dim = rng.randint(1, 5), rng.choice([24, 64, 80])
    num_tokens = rng.randint(0, blocks * size)
    slots = torch.randperm(blocks * size, generator=numbers)[:num_tokens]
    slots[torch.rand(num_tokens, generator=numbers) < 0.3] = -1
    joined = torch.randn(num_tokens, 3 * heads, head_dim, generator=numbers).to(rng.choice(list(TOLERANCE)))
    k, v = joined[:, heads : 2 * heads], joined[:, 2 * heads :]
    cache = torch.randn(2, blocks, size, heads, head_dim, generator=numbers).to(joined.dtype)
    right = cache.clone()
    right.view(2, -1, heads, head_dim)[0, slots[slots >= 0]] = k[slots >= 0]
    right.view(2, -1, heads, head_dim)[1, slots[slots >= 0]] = v[slots >= 0]
    store_kv(k, v, cache, slots)
    assert torch.equal(cache, right), f"seed {seed}"


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_random_steps_equal_the_reference(first):
    for seed in range(first, first + 10):
        check_step(seed)


def test_random_stores_equal_indexing():
    for seed in range(20):
        check_store(seed)


def test_a_length_off_by_one_is_seen():
    for seed in (130, 140, 141, 152, 180):  # steps without a window: beside one lie NaNs
        step = random_step(seed)
        right = step.batch.reference(step.scale)
        step.batch.seq_lens.sub_(1).clamp_(min=0)
        error = max_error(outcome(step)[0], right, step.batch.query_start_loc)
        assert 10 * TOLERANCE[step.batch.q.dtype] < error < math.inf  # by a wrong sum, not by a row left out


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1300, 50))
def test_more_random_steps_equal_the_reference(first):
    for seed in range(first, first + 50):
        check_step(seed)
        check_store(seed)
