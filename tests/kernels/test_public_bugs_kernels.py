"""Public bug reports about attention kernels: ours do the right thing. Knows no scheduler.

One or more tests per case of `facts/public_bugs.json`, named by its id, from b03 to b10. Tiles of cards (b01, b02)
and what the engine does around the kernels are tested beside them.
"""

import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl

from mini_vllm.kernels import mode
from mini_vllm.kernels.device_code import cache_slots
from mini_vllm.kernels.kv_store import store_kv
from mini_vllm.kernels.paged_decode import paged_decode
from mini_vllm.kernels.paged_prefill import paged_prefill, plan_tiles
from mini_vllm.kernels.reference import TOLERANCE, max_error
from mini_vllm.kernels.split_kv import paged_decode_split
from mini_vllm.kernels.tiles import INTERPRETER_PREFILL, DecodeTile
from tests.kernels.batches import Batch, random_batch

DOT = DecodeTile(16, 4, 3, True, "tl.dot")
SUM = DecodeTile(16, 4, 1, False, "multiply and sum")


def decode(out: torch.Tensor, batch: Batch, tile: DecodeTile = DOT) -> None:
    requests = torch.arange(len(batch.seq_lens), dtype=torch.int32)
    window = batch.sliding_window
    paged_decode(out, *batch.inputs, requests, max_query_len=max(batch.query_lens), sliding_window=window, tile=tile)


def decode_by_sum(out: torch.Tensor, batch: Batch) -> None:
    decode(out, batch, SUM)


def split_decode(out: torch.Tensor, batch: Batch) -> None:
    """In three splits: of a short context some are empty."""
    requests = torch.arange(len(batch.seq_lens), dtype=torch.int32)
    window, longest = batch.sliding_window, max(batch.query_lens)
    args = {"max_query_len": longest, "sliding_window": window, "tile": DOT}
    paged_decode_split(out, *batch.inputs, requests, num_splits=3, **args)


def prefill(out: torch.Tensor, batch: Batch) -> None:
    tile = INTERPRETER_PREFILL
    group = batch.q.shape[1] // batch.kv_cache.shape[3]
    plan = plan_tiles(batch.query_lens, list(range(len(batch.seq_lens))), group, tile.block_m, "cpu")
    paged_prefill(out, *batch.inputs, plan, sliding_window=batch.sliding_window, tile=tile)


KERNELS = [decode, decode_by_sum, split_decode, prefill]


def checked(batch: Batch, kernel) -> float:
    """The kernel's error on a poisoned output; the guard words behind it must stand."""
    out, guard = batch.poisoned_out()
    kernel(out, batch)
    assert (guard == 7).all()
    return max_error(out, batch.reference(), batch.query_start_loc)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("head_dim", [80, 96, 1, 3])
def test_b03_head_sizes_that_are_no_power_of_two(head_dim, kernel):
    """Head size (vllm#4127): padded lanes count as zero and are not stored."""
    batch = random_batch(1, seq_lens=[5, 17], head_dim=head_dim, num_heads=3, num_kv_heads=1)
    assert checked(batch, kernel) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("kernel", KERNELS)
def test_b03_head_sizes_that_do_not_fit_are_refused(kernel):
    """Head size (vllm#4127): before anything is launched, with the limit."""
    batch = random_batch(1, seq_lens=[2], head_dim=264)
    out, _ = batch.poisoned_out()
    with pytest.raises(ValueError, match="head_dim=264 is over 256"):
        kernel(out, batch)
    assert out.isnan().all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(6, 2), (14, 2), (32, 1), (4, 4)])
def test_b04_each_query_head_reads_its_own_kv_head(num_heads, num_kv_heads, kernel):
    """GQA groups (vllm#23424, #47248; LMCache#3092): K and V of other groups are large, and never show."""
    group = num_heads // num_kv_heads
    batch = random_batch(2, seq_lens=[18], num_heads=num_heads, num_kv_heads=num_kv_heads)
    right = batch.reference()
    clean = batch.kv_cache
    for kv_head in range(num_kv_heads):
        others = [head for head in range(num_kv_heads) if head != kv_head]
        batch.kv_cache = clean.clone()
        batch.kv_cache[:, :, :, others] = 1e4
        out, _ = batch.poisoned_out()
        kernel(out, batch)
        mine = slice(kv_head * group, (kv_head + 1) * group)
        assert max_error(out[:, mine], right[:, mine], batch.query_start_loc) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("kernel", [decode, split_decode, prefill])
@pytest.mark.parametrize("block_size", [1, 3, 16, 48])
def test_b06_pages_of_any_size(block_size, kernel):
    """Page size (TileOPs#754, triton#3788): a page more, a page less, two pages; each tile looks up each token."""
    lengths = sorted({1, max(1, block_size - 1), block_size, block_size + 1, 2 * block_size})
    batch = random_batch(3, seq_lens=lengths, block_size=block_size, num_heads=2, num_kv_heads=1)
    assert checked(batch, kernel) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("block_size", [1, 3, 16, 48])
def test_b06_prefill_of_whole_prompts(block_size):
    """Page size (TileOPs#754, triton#3788): the same with every token a query."""
    lengths = sorted({1, max(1, block_size - 1), block_size, block_size + 1, 2 * block_size})
    batch = random_batch(3, seq_lens=lengths, query_lens=lengths, block_size=block_size, num_heads=2, num_kv_heads=1)
    assert checked(batch, prefill) <= TOLERANCE[torch.float32]


@triton.jit
def offsets_of(out_ptr, table_ptr, stride, BLOCK_SIZE: tl.constexpr, N: tl.constexpr):
    positions = tl.arange(0, N)
    slots = cache_slots(table_ptr, positions, positions < N, BLOCK_SIZE)
    tl.store(out_ptr + positions, slots * stride)


def test_b07_offsets_are_64_bit():
    """int32 offsets (vllm#47671; sglang#20389; SageAttention#386): block 131,072 of 16,384 numbers begins at 2**31."""
    table = torch.tensor([131_071, 131_072, 131_079, 2**31 - 1], dtype=torch.int32)
    offsets = torch.zeros(64, dtype=torch.int64)
    offsets_of[(1,)](offsets, table, 8 * 128, BLOCK_SIZE=16, N=64)
    right = [block * 16_384 + token * 1_024 for block in table.tolist() for token in range(16)]
    assert offsets.tolist() == right
    assert right[16] == 2**31


@pytest.mark.parametrize("kernel", KERNELS)
def test_b08_a_row_without_kv_is_zero(kernel):
    """Fully masked rows (burn#4697; TensorRT-LLM#17477; flashinfer#4401): zeros, and the neighbours are right."""
    batch = random_batch(4, seq_lens=[9, 0, 20])
    out, _ = batch.poisoned_out()
    kernel(out, batch)
    assert (out[1] == 0).all()
    assert max_error(out, batch.reference(), batch.query_start_loc) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("kernel", KERNELS)
def test_b08_a_tile_wholly_out_of_the_window(kernel):
    """Fully masked rows (burn#4697; TensorRT-LLM#17477; flashinfer#4401): window 8 of 50 tokens."""
    batch = random_batch(5, seq_lens=[50, 21], query_lens=[8, 1], sliding_window=8)
    assert checked(batch, kernel) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("score", [-1e5, -1e36])
def test_b08_very_low_scores_are_scores(score, kernel):
    """Fully masked rows (burn#4697; TensorRT-LLM#17477; flashinfer#4401): all scores below any sentinel: the mean of V.

    The keys behind the end would score 0, far above: they may not win.
    """
    batch = random_batch(6, seq_lens=[20, 3], query_lens=[2, 1], head_dim=64)
    batch.q[:] = 0
    batch.q[:, :, 0] = 8.0  # 1 / sqrt(64) = 1 / 8
    batch.kv_cache[0] = 0
    batch.kv_cache[0, ..., 0] = score
    assert checked(batch, kernel) <= TOLERANCE[torch.float32]


NOTEBOOK = """
import numpy as np
a_global_array = np.zeros(10)
from mini_vllm.kernels.mode import use_interpreter
use_interpreter()
import torch
from mini_vllm.kernels.paged_decode import paged_decode
from mini_vllm.kernels.reference import max_error
from mini_vllm.kernels.tiles import INTERPRETER_DECODE
from tests.kernels.batches import random_batch
batch = random_batch(0, seq_lens=[5, 33])
out, _ = batch.poisoned_out()
paged_decode(out, *batch.inputs, torch.tensor([0, 1], dtype=torch.int32), tile=INTERPRETER_DECODE)
print(max_error(out, batch.reference(), batch.query_start_loc))
"""


def test_b09_in_a_notebook_with_a_global_array(root):
    """Interpreter and NumPy (triton#9171, #5484, #4317, #4440): results are compared, not only "no exception".

    A switch set too late: test_mode.py.
    """
    env = {name: value for name, value in mode.os.environ.items() if name not in (mode.INTERPRET, mode.FORCE)}
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, env=env, cwd=root, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("kernel", KERNELS)
def test_b09_loops_over_bounds_that_were_read(kernel):
    """Interpreter and NumPy (triton#9171, #5484, #4317, #4440): one number as a loop bound, which NumPy 2.4 refuses.

    Whatever pair is installed: several tiles of a length that is read from memory.
    """
    assert checked(random_batch(8, seq_lens=[70]), kernel) <= TOLERANCE[torch.float32]


def test_b10_padding_writes_no_slot():
    """Graph padding (vllm#43810): batch 8 with 5 live rows; the last slot of the last block belongs to one of them."""
    live = random_batch(9, seq_lens=[16, 32, 16, 48, 48], block_size=16)
    cache = live.kv_cache[:, : live.block_table.max() + 1].contiguous()
    assert cache[:, -1, -1].isfinite().all()
    right = cache.clone()
    k, v = torch.randn(2, 8, 2, 64, generator=torch.Generator().manual_seed(9))
    right.view(2, -1, 2, 64)[:, live.slot_mapping] = torch.stack([k[:5], v[:5]])
    store_kv(k, v, cache, torch.cat([live.slot_mapping, torch.full((3,), -1)]))
    assert torch.equal(cache.nan_to_num(), right.nan_to_num())


@pytest.mark.parametrize("kernel", [decode, split_decode])
def test_b10_padded_rows_change_nobodys_output(kernel):
    """Graph padding (vllm#43810): the same 5 rows alone and in a batch of 8, bit for bit; the padding is zeros."""
    live = random_batch(9, seq_lens=[16, 20, 1, 33, 48], block_size=16)
    alone, _ = live.poisoned_out()
    kernel(alone, live)
    padded = Batch(
        q=torch.cat([live.q, torch.full((3, 4, 64), 1e4)]),
        kv_cache=live.kv_cache,
        query_start_loc=torch.arange(9, dtype=torch.int32),
        seq_lens=torch.cat([live.seq_lens, torch.zeros(3, dtype=torch.int32)]),
        block_table=torch.cat([live.block_table, torch.zeros_like(live.block_table[:3])]),
        slot_mapping=torch.full((8,), -1),
        sliding_window=None,
    )
    out, guard = padded.poisoned_out()
    kernel(out, padded)
    assert torch.equal(out[:5], alone)
    assert (out[5:] == 0).all() and (guard == 7).all()
