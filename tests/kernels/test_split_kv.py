"""Splits and their merge against the oracle, empty splits too; and how many splits a GPU gets."""

import random

import pytest
import torch

from mini_vllm.kernels import split_kv as module
from mini_vllm.kernels.reference import TOLERANCE, max_error
from mini_vllm.kernels.split_kv import Workspace, num_splits, paged_decode_split, workspace_shape
from mini_vllm.kernels.tiles import DecodeTile
from tests.kernels.batches import Batch, random_batch
from tests.kernels.planted import planted

DOT = DecodeTile(16, 4, 3, True, "tl.dot")
SUM = DecodeTile(16, 4, 1, False, "multiply and sum")
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16


def error_of(batch: Batch, tile: DecodeTile, splits: int, decode=paged_decode_split) -> float:
    """Runs the kernels on a poisoned output with a poisoned workspace; the guard rows must be as they were."""
    out, guard = batch.poisoned_out()
    num_heads, head_dim = batch.q.shape[1:]
    requests = torch.arange(len(batch.seq_lens), dtype=torch.int32)
    longest = max(batch.query_lens)
    shape = workspace_shape(len(requests), num_heads, batch.kv_cache.shape[3], head_dim, splits, longest)
    workspace = Workspace.empty(shape, "cpu")
    for part in workspace:
        part.fill_(float("nan"))
    decode(
        out, *batch.inputs, requests, num_splits=splits, workspace=workspace, max_query_len=longest,
        sliding_window=batch.sliding_window, tile=tile,
    )  # fmt: skip
    assert (guard == 7).all()
    return max_error(out, batch.reference(), batch.query_start_loc)


@pytest.mark.parametrize(
    ("splits", "tile", "dtype"), [(1, DOT, FP32), (2, SUM, FP16), (3, DOT, BF16), (5, DOT, FP32), (7, SUM, FP32)]
)
def test_ragged_lengths_leave_splits_empty(splits, tile, dtype):
    """33 tokens are 3 tiles of 16: 2 splits get 2 and 1 of them; of 5 splits two are empty; of 1 token all but one."""
    batch = random_batch(
        splits, seq_lens=[33, 1, 0, 60], num_heads=3, num_kv_heads=1, head_dim=80, block_size=8, dtype=dtype
    )
    assert error_of(batch, tile, splits) <= TOLERANCE[dtype]


@pytest.mark.parametrize(("window", "dtype"), [(None, FP32), (1, BF16), (20, FP32), (40, FP16)])
def test_drafts_and_windows(window, dtype):
    """The splits share out what the window lets the rows see, not the whole context."""
    batch = random_batch(
        9, seq_lens=[60, 8, 35], query_lens=[8, 8, 2], num_heads=7, num_kv_heads=1, block_size=3, dtype=dtype,
        sliding_window=window,
    )  # fmt: skip
    assert error_of(batch, DOT, 3) <= TOLERANCE[dtype]


def test_many_rows_are_shared_out():
    """96 rows of 64 a program: the second program's rows are not the next split's."""
    batch = random_batch(5, seq_lens=[40, 9], query_lens=[8, 1], num_heads=12, num_kv_heads=1, head_dim=128)
    assert error_of(batch, DOT, 3) <= TOLERANCE[FP32]


@pytest.mark.parametrize("seed", range(4))
def test_random_steps(seed):
    rng = random.Random(100 + seed)
    query_lens = [rng.choice([0, 1, 1, 3, 8]) for _ in range(3)]
    dtype = rng.choice([FP32, FP16, BF16])
    batch = random_batch(
        seed, seq_lens=[n + rng.choice([0, 1, 15, 31, 50]) for n in query_lens], query_lens=query_lens,
        num_heads=2 * rng.choice([1, 4]), block_size=rng.choice([1, 16]), dtype=dtype,
        sliding_window=rng.choice([None, 30]), q_scale=rng.choice([1.0, 20.0]),
    )  # fmt: skip
    assert error_of(batch, rng.choice([DOT, SUM]), rng.choice([2, 3, 4])) <= TOLERANCE[dtype]


def test_a_request_with_more_rows_than_promised_harms_nobody():
    """max_query_len is the caller's promise. Broken, the row beyond is not computed, and the others are right."""
    batch = random_batch(2, seq_lens=[20, 20], query_lens=[2, 1])
    out, guard = batch.poisoned_out()
    requests = torch.tensor([0, 1], dtype=torch.int32)
    paged_decode_split(out, *batch.inputs, requests, num_splits=2, max_query_len=1, tile=DOT)
    right = batch.reference()
    assert (out[[0, 2]] - right[[0, 2]]).abs().max() <= 1e-5
    assert out[1].isnan().all() and (guard == 7).all()


def test_a_workspace_is_for_one_size():
    batch = random_batch(0, seq_lens=[5])
    args = batch.poisoned_out()[0], *batch.inputs, torch.tensor([0], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"workspace of \(1, 2, 3, 2, 64\).*needs \(1, 2, 4, 2, 64\)"):
        paged_decode_split(*args, num_splits=4, workspace=Workspace.empty((1, 2, 3, 2, 64), "cpu"), tile=DOT)
    for splits in (0, 65):
        with pytest.raises(ValueError, match=f"num_splits={splits} is not within 1 to 64"):
            paged_decode_split(*args, num_splits=splits, tile=DOT)


FAULTS = {
    "the last split dropped": ("mask=splits < num_splits,", "mask=splits < num_splits - 1,"),
    "parts added without their weights": ("tl.sum(weights[:, None] * acc, 0)", "tl.sum(acc, 0)"),
    "denominators without their weights": ("tl.sum(weights * denominator, 0)", "tl.sum(denominator, 0)"),
    "splits overlap by a tile": ("tl.minimum(first + split_len,", "tl.minimum(first + split_len + BLOCK_N,"),
    "splits begin at 0, not at the window": ("first = first_seen + tl", "first = tl"),
    "an empty split's acc is read": ("kept = full[:, None]", "kept = (splits < num_splits)[:, None]"),
    "-inf minus -inf": ('tl.where(largest == float("-inf"), 0.0, largest)', "largest"),
    "0 / 0": ("tl.where(total == 0.0, 1.0, total)", "total"),
    "rows of the next part": ("mine = mine & (own_rows < NUM_ROWS)", "rows = part * (NUM_ROWS - 1) + own_rows"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # the faults'
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_would_show(fault, tmp_path):
    right, wrong = FAULTS[fault]
    batch = random_batch(
        4, seq_lens=[60, 0, 48], query_lens=[3, 1, 1], num_heads=3, num_kv_heads=1, block_size=3, dtype=BF16,
        sliding_window=50,
    )  # fmt: skip
    assert error_of(batch, DOT, 3) <= TOLERANCE[BF16]
    assert error_of(batch, DOT, 3, planted(tmp_path, module, right, wrong).paged_decode_split) > 10 * TOLERANCE[BF16]


H200, A100 = 132, 108


def test_a_lone_request_fills_the_card():
    assert num_splits(H200, 1, 8, 32_768) * 8 >= 0.85 * 2 * H200
    assert num_splits(A100, 1, 4, 32_768) * 4 >= 0.85 * 2 * A100


def test_short_contexts_are_not_cut():
    assert num_splits(H200, 1, 8, 511) == 1
    assert num_splits(H200, 1, 8, 0) == 1
    assert num_splits(H200, 1, 8, 1024) == 4  # 256 tokens each


def test_a_full_card_is_not_cut():
    assert num_splits(H200, 256, 8, 131_072) == 1
    assert num_splits(A100, 64, 16, 8_192) == 1


def test_fewer_kv_heads_on_this_card_need_more_splits():
    """Tensor parallelism over 4 cards leaves 2 of 8 (vllm#54191: counted whole, the step took twice as long)."""
    assert num_splits(H200, 4, 2, 32_768) >= 3 * num_splits(H200, 4, 8, 32_768)


@pytest.mark.parametrize("num_sms", [40, 58, 72, A100, H200, 148])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4, 8])
def test_no_batch_size_falls_off_a_cliff(num_sms, num_kv_heads):
    """With a long context no last wave is nearly empty (vllm#48076: from batch 12 on, steps took twice as long)."""
    for num_requests in range(1, 257):
        splits = num_splits(num_sms, num_requests, num_kv_heads, 131_072)
        assert 1 <= splits <= 64
        waves = num_requests * num_kv_heads * splits / (2 * num_sms)
        if num_requests * num_kv_heads * 64 >= 2 * num_sms:  # else 64 splits do not fill one wave
            assert waves / -(-waves // 1) >= 0.8, (num_requests, splits)
