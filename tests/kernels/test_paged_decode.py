"""Decoding through the block table against the oracle: every head size, group, page and dtype; and planted faults."""

import random

import pytest
import torch

from mini_vllm.kernels import device_code
from mini_vllm.kernels import paged_decode as module
from mini_vllm.kernels.paged_decode import paged_decode
from mini_vllm.kernels.reference import TOLERANCE, max_error
from mini_vllm.kernels.tiles import DecodeTile
from tests.kernels.batches import Batch, random_batch
from tests.kernels.planted import planted

DOT = DecodeTile(16, 4, 3, True, "tl.dot")
SUM = DecodeTile(16, 4, 1, False, "multiply and sum")
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16


def every(batch: Batch) -> torch.Tensor:
    return torch.arange(len(batch.seq_lens), dtype=torch.int32)


def error_of(batch: Batch, tile: DecodeTile, decode=paged_decode, block_table: torch.Tensor | None = None) -> float:
    """Runs the kernel on a poisoned output; the guard rows must be as they were."""
    q, kv_cache, query_start_loc, seq_lens, table = batch.inputs
    out, guard = batch.poisoned_out()
    decode(
        out, q, kv_cache, query_start_loc, seq_lens, table if block_table is None else block_table, every(batch),
        max_query_len=max(batch.query_lens), sliding_window=batch.sliding_window, tile=tile,
    )  # fmt: skip
    assert (guard == 7).all()
    return max_error(out, batch.reference(), query_start_loc)


# head_dim, group, page, dtype, tile, KV heads; each value stands here at least once, and the risky pairs.
SHAPES = [
    (64, 1, 16, FP32, DOT, 2),
    (80, 3, 1, FP16, DOT, 2),  # padded head, rows that are no power of two, a page for each token
    (96, 7, 3, BF16, DOT, 1),
    (128, 4, 48, FP16, DOT, 2),  # a page of several tiles
    (256, 8, 64, BF16, DOT, 1),
    (64, 32, 8, FP16, DOT, 1),  # more heads than tl.dot's 16 rows
    (128, 16, 16, BF16, DOT, 1),
    (256, 3, 3, FP32, DOT, 1),
    (64, 3, 16, FP32, SUM, 3),
    (80, 7, 8, FP16, SUM, 1),
    (96, 4, 1, FP32, SUM, 2),
    (128, 16, 48, FP16, SUM, 1),  # more rows than one program takes
    (256, 1, 3, FP32, SUM, 2),
    (128, 8, 16, BF16, SUM, 1),
    (64, 32, 64, FP32, SUM, 1),
]


@pytest.mark.parametrize(("head_dim", "group", "page", "dtype", "tile", "kv_heads"), SHAPES)
def test_every_shape(head_dim, group, page, dtype, tile, kv_heads):
    batch = random_batch(
        head_dim + group, seq_lens=[37, 1, 16], num_heads=group * kv_heads, num_kv_heads=kv_heads, head_dim=head_dim,
        block_size=page, dtype=dtype,
    )  # fmt: skip
    assert error_of(batch, tile) <= TOLERANCE[dtype]


@pytest.mark.parametrize(("tile", "dtype"), [(DOT, FP32), (DOT, BF16), (SUM, FP16)])
@pytest.mark.parametrize("window", [None, 1, 5, 16])
def test_drafts_and_windows(tile, dtype, window):
    """Up to 8 query tokens a request, each with its own end; also a request that is all query."""
    batch = random_batch(
        7, seq_lens=[40, 8, 17, 9], query_lens=[8, 8, 1, 3], num_heads=6, block_size=3, dtype=dtype,
        sliding_window=window,
    )  # fmt: skip
    assert error_of(batch, tile) <= TOLERANCE[dtype]


@pytest.mark.parametrize("tile", [DOT, SUM], ids=lambda tile: tile.reason)
def test_many_rows_are_shared_out(tile):
    """8 tokens of 12 heads are 96 rows: two programs with tl.dot, twelve without; and one has none of a short piece."""
    batch = random_batch(5, seq_lens=[20, 9], query_lens=[8, 1], num_heads=12, num_kv_heads=1, head_dim=128)
    assert error_of(batch, tile) <= TOLERANCE[FP32]


@pytest.mark.parametrize("tile", [DOT, SUM], ids=lambda tile: tile.reason)
def test_sharp_softmax(tile):
    """Scores of the size 60: a maximum that moves from tile to tile, weights down to 2 ** -200."""
    batch = random_batch(11, seq_lens=[50, 33], q_scale=60.0)
    assert error_of(batch, tile) <= TOLERANCE[FP32]


@pytest.mark.parametrize("seed", range(8))
def test_random_steps(seed):
    rng = random.Random(seed)
    query_lens = [rng.choice([0, 1, 1, 1, 2, 5, 8]) for _ in range(4)]
    dtype = rng.choice([FP32, FP16, BF16])
    batch = random_batch(
        seed, seq_lens=[n + rng.choice([0, 0, 3, 14, 15, 16, 29]) for n in query_lens], query_lens=query_lens,
        num_heads=2 * rng.choice([1, 3, 7]), head_dim=rng.choice([64, 80, 96]), block_size=rng.choice([1, 3, 8, 16]),
        dtype=dtype, sliding_window=rng.choice([None, None, 4, 20]),
    )  # fmt: skip
    tile = DecodeTile(rng.choice([16, 32]), 4, 2, rng.choice([True, False]), "random")
    assert error_of(batch, tile) <= TOLERANCE[dtype]


def test_only_the_chosen_requests_in_any_order():
    batch = random_batch(1, seq_lens=[5, 30, 17, 20], query_lens=[1, 20, 2, 1])
    out, guard = batch.poisoned_out()
    paged_decode(out, *batch.inputs, torch.tensor([3, 0], dtype=torch.int32), tile=DOT)
    right = batch.reference()
    for rows in (slice(0, 1), slice(23, 24)):
        assert (out[rows] - right[rows]).abs().max() <= 1e-5
    assert out[1:23].isnan().all()  # the prefill and the drafts are somebody else's rows
    assert (guard == 7).all()


def test_strided_views_and_scale():
    """q as a slice of the joined projection, out as one of a larger buffer."""
    batch = random_batch(2, seq_lens=[19, 4])
    joined = torch.full((2, 8, 64), float("nan"))
    joined[:, 1:5] = batch.q
    whole = torch.full((2, 6, 64), 7.0)
    paged_decode(whole[:, 1:5], joined[:, 1:5], *batch.inputs[1:], every(batch), scale=0.25, tile=DOT)
    assert max_error(whole[:, 1:5], batch.reference(scale=0.25), batch.query_start_loc) <= TOLERANCE[FP32]
    assert (whole[:, [0, 5]] == 7).all()


def test_nobody_to_serve():
    batch = random_batch(0, seq_lens=[5])
    out, _ = batch.poisoned_out()
    paged_decode(out, *batch.inputs, torch.empty(0, dtype=torch.int32), tile=DOT)
    assert out.isnan().all()


def refused(**changed):
    batch = random_batch(0, seq_lens=[5], head_dim=changed.pop("head_dim", 64), num_heads=changed.pop("num_heads", 4))
    args = dict(
        out=batch.poisoned_out()[0], q=batch.q, kv_cache=batch.kv_cache, query_start_loc=batch.query_start_loc,
        seq_lens=batch.seq_lens, block_table=batch.block_table, requests=every(batch), tile=DOT,
    )  # fmt: skip
    paged_decode(**(args | changed))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"head_dim": 257}, "head_dim=257 is over 256.*'torch'"),
        ({"num_heads": 5}, "num_heads=5 is not a multiple of num_kv_heads=2"),
        ({"out": torch.zeros(2, 4, 64)}, "must have one shape"),
        ({"out": torch.zeros(1, 4, 64).half()}, "one dtype"),
        ({"out": torch.zeros(1, 4, 128)[..., ::2]}, "side by side"),
        ({"kv_cache": torch.zeros(2, 1, 2, 16, 64).transpose(2, 3)}, "contiguous"),
        ({"seq_lens": torch.zeros(2, dtype=torch.int32)}, "2 seq_lens"),
        ({"requests": torch.tensor([0])}, "requests int32, not torch.int64"),
        ({"max_query_len": 9}, "max_query_len=9 is not within 1 to 8.*paged_prefill"),
        ({"sliding_window": 0}, "sliding_window=0 must be at least 1"),
    ],
)
def test_what_no_kernel_takes_is_refused(changed, said):
    with pytest.raises(ValueError, match=said):
        refused(**changed)


@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=str)
def test_a_swapped_page_would_show(dtype):
    batch = random_batch(3, seq_lens=[20, 37], dtype=dtype)
    table = batch.block_table.clone()
    table[0, 0], table[1, 1] = batch.block_table[1, 1], batch.block_table[0, 0]
    assert error_of(batch, DOT) <= TOLERANCE[dtype]
    assert error_of(batch, DOT, block_table=table) > 10 * TOLERANCE[dtype]


FAULTS = {
    "each token blind to itself": ("positions[None, :] <= row", "positions[None, :] < row"),
    "each token sees one more": ("positions[None, :] <= row", "positions[None, :] <= 1 + row"),
    "window one too wide": ("positions[None, :] > row", "positions[None, :] >= row"),
    "window one too small": ("row_positions[:, None] - WINDOW", "row_positions[:, None] - WINDOW + 1"),
    "window starts late": ("query_len - WINDOW + 1", "query_len - WINDOW + 2"),
    "drafts share the last one's end": ("seq_len - query_len + tokens, -1", "seq_len - query_len, -1"),
    "reads behind the end": ("wanted = positions < end", "wanted = positions <= end"),
    "one tile too few": ("tl.cdiv(tl.maximum(end - first, 0), BLOCK_N)", "tl.maximum(end - first, 0) // BLOCK_N"),
    "old sum not rescaled": ("acc * shrink[:, None]", "acc"),
    "old denominator not rescaled": ("denominator * shrink", "denominator"),
    "heads of the next group": ("kv_head * GROUP + rows % GROUP", "kv_head * GROUP + rows % (GROUP + 1)"),
    "KV head by query head": ("key_cache_ptr + kv_head", "key_cache_ptr + 0 * kv_head"),
    "e instead of 2": ("LOG2_E * (q.shape[2]", "1.0 * (q.shape[2]"),
    "padded lanes stored": ("(lanes < HEAD_DIM)[None, :]\n    q_rows", "(lanes < BLOCK_D)[None, :]\n    q_rows"),
    "padded rows stored": ("kept = mine[:, None]", "kept = (mine | True)[:, None]"),
}


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")  # the faults'
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_would_show(fault, dtype, tmp_path):
    right, wrong = FAULTS[fault]
    batch = random_batch(
        4, seq_lens=[21, 9], query_lens=[2, 3], num_heads=6, head_dim=80, block_size=3, dtype=dtype, sliding_window=18,
    )  # fmt: skip
    assert error_of(batch, DOT) <= TOLERANCE[dtype]
    try:
        error = error_of(batch, DOT, planted(tmp_path, module, right, wrong).paged_decode)
    except AssertionError:  # the guard rows
        return
    assert error > 10 * TOLERANCE[dtype]


@pytest.mark.filterwarnings("ignore:invalid value")  # the fault's
def test_a_row_that_sees_nothing_is_zero_and_the_guard_matters(tmp_path):
    """Two tokens where KV exists for one: the first stands at position -1. Also a graph's padding: length 0."""
    batch = random_batch(6, seq_lens=[1, 0, 20], query_lens=[2, 1, 1])
    assert batch.reference()[[0, 2]].abs().max() == 0
    for tile in (DOT, SUM):
        assert error_of(batch, tile) <= TOLERANCE[FP32]
    wrong = planted(tmp_path, module, 'tl.where(new_max == float("-inf"), 0.0, new_max)', "new_max")
    assert error_of(batch, DOT, wrong.paged_decode) == float("inf")


@pytest.mark.parametrize("right", ["positions // BLOCK_SIZE", "positions % BLOCK_SIZE"])
def test_a_slot_off_by_one_would_show(right, tmp_path):
    batch = random_batch(4, seq_lens=[20, 8], block_size=3)
    code = planted(tmp_path, device_code, right, right.replace("positions", "(positions + 1)"))
    wrong = planted(tmp_path, module, "LARGEST_QUERY_LEN = 8", "LARGEST_QUERY_LEN = 8", device_code=code)
    assert error_of(batch, DOT, wrong.paged_decode) > 10 * TOLERANCE[FP32]
