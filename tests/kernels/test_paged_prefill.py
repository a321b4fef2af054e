"""Prefill through the block table against the oracle: shapes, history, windows, plans; and planted faults."""

import random

import pytest
import torch

from mini_vllm.kernels import device_code
from mini_vllm.kernels import paged_prefill as module
from mini_vllm.kernels.paged_prefill import paged_prefill, plan_tiles
from mini_vllm.kernels.reference import TOLERANCE, max_error
from mini_vllm.kernels.tiles import PrefillTile
from tests.kernels.batches import Batch, random_batch
from tests.kernels.planted import planted

SQUARE, WIDE, TALL = (PrefillTile(*sizes, 4, 1, "test") for sizes in ((16, 16), (16, 32), (32, 16)))
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16


def plan_of(batch: Batch, tile: PrefillTile) -> torch.Tensor:
    group = batch.q.shape[1] // batch.kv_cache.shape[3]
    return plan_tiles(batch.query_lens, list(range(len(batch.query_lens))), group, tile.block_m, "cpu")


def error_of(batch: Batch, tile: PrefillTile = SQUARE, kernels=module, block_table=None) -> float:
    """Runs the kernel on a poisoned output; infinite if the guard rows are not as they were."""
    q, kv_cache, query_start_loc, seq_lens, table = batch.inputs
    out, guard = batch.poisoned_out()
    kernels.paged_prefill(
        out, q, kv_cache, query_start_loc, seq_lens, table if block_table is None else block_table,
        plan_of(batch, tile), sliding_window=batch.sliding_window, tile=tile,
    )  # fmt: skip
    return max_error(out, batch.reference(), query_start_loc) if (guard == 7).all() else float("inf")


# Plans.


def test_a_plan_by_eye():
    """3 heads to a KV head: 7 tokens are 21 rows, two tiles of 16, and the later rows, which see more, come first."""
    assert plan_tiles([7, 1, 2], [0, 2], 3, 16, "cpu").tolist() == [[0, 16], [0, 0], [2, 0]]


def test_a_plan_covers_each_row_once():
    rng = random.Random(0)
    for _ in range(50):
        lens, group, block_m = [rng.randrange(0, 70) for _ in range(4)], rng.choice([1, 3, 7, 32]), rng.choice([16, 64])
        plan = plan_tiles(lens, [0, 1, 3], group, block_m, "cpu")
        assert plan.dtype == torch.int32
        for request in (0, 1, 3):
            rows = [row for owner, first in plan.tolist() if owner == request for row in range(first, first + block_m)]
            assert sorted(row for row in rows if row < lens[request] * group) == list(range(lens[request] * group))
            assert len(rows) < lens[request] * group + block_m  # no tile without a row
        assert not any(owner == 2 for owner, _ in plan.tolist())


def test_an_empty_plan_launches_nothing():
    batch = random_batch(0, seq_lens=[4])
    out, _ = batch.poisoned_out()
    paged_prefill(out, *batch.inputs, plan_tiles([0, 3], [0], 2, 16, "cpu"), tile=SQUARE)
    assert out.isnan().all()


# Against the oracle. head_dim, group, KV heads, page, dtype, tile: each value at least once, and the risky pairs.
SHAPES = [
    (64, 1, 2, 16, FP32, SQUARE),
    (64, 3, 3, 8, FP32, TALL),  # SmolLM2's heads; rows of a token straddle two tiles
    (80, 7, 2, 3, FP16, WIDE),  # padded head, and a group and pages that are no powers of two
    (96, 4, 1, 1, BF16, SQUARE),
    (128, 8, 2, 48, FP16, TALL),  # a page of three tiles
    (256, 16, 1, 64, BF16, SQUARE),
    (64, 32, 1, 16, FP16, SQUARE),  # a token has more rows than a tile
    (80, 3, 2, 16, FP32, WIDE),
]


@pytest.mark.parametrize(("head_dim", "group", "kv_heads", "page", "dtype", "tile"), SHAPES)
def test_every_shape(head_dim, group, kv_heads, page, dtype, tile):
    batch = random_batch(
        head_dim + group, seq_lens=[19, 40, 3], query_lens=[19, 5, 1], num_heads=group * kv_heads,
        num_kv_heads=kv_heads, head_dim=head_dim, block_size=page, dtype=dtype,
    )  # fmt: skip
    assert error_of(batch, tile) <= TOLERANCE[dtype]


@pytest.mark.parametrize("tile", [SQUARE, WIDE, TALL], ids=["16x16", "16x32", "32x16"])
@pytest.mark.parametrize("window", [None, 1, 5, 16, 40])
def test_windows_and_histories(window, tile):
    """A whole prompt, a chunk with history, drafts, and a chunk whose history ends on a tile's edge."""
    batch = random_batch(
        3, seq_lens=[50, 70, 33, 48], query_lens=[50, 9, 8, 16], block_size=3, sliding_window=window
    )  # fmt: skip
    assert error_of(batch, tile) <= TOLERANCE[FP32]


@pytest.mark.parametrize("window", [None, 20])
def test_pieces_of_every_small_length(window):
    """1 to 17 query tokens behind 0 to 17 tokens of history: every way in which the two edges meet a tile of 16."""
    lens = list(range(1, 18))
    for history in (0, 1, 15, 16, 17):
        batch = random_batch(
            history, seq_lens=[history + n for n in lens], query_lens=lens, num_heads=1, num_kv_heads=1, head_dim=16,
            sliding_window=window,
        )  # fmt: skip
        assert error_of(batch) <= TOLERANCE[FP32]


def test_sharp_softmax():
    """Scores of the size 60: a maximum that moves from tile to tile, weights down to 2 ** -200."""
    assert error_of(random_batch(11, seq_lens=[50, 33], query_lens=[50, 9], q_scale=60.0)) <= TOLERANCE[FP32]


@pytest.mark.parametrize("seed", range(6))
def test_random_steps(seed):
    rng = random.Random(seed)
    query_lens = [rng.choice([0, 1, 2, 8, 17, 31]) for _ in range(4)]
    dtype = rng.choice([FP32, FP16, BF16])
    batch = random_batch(
        seed, seq_lens=[n + rng.choice([0, 0, 3, 15, 16, 29]) for n in query_lens], query_lens=query_lens,
        num_heads=2 * rng.choice([1, 3, 7]), head_dim=rng.choice([64, 80, 96]), block_size=rng.choice([1, 3, 8, 16]),
        dtype=dtype, sliding_window=rng.choice([None, None, 4, 20]),
    )  # fmt: skip
    assert error_of(batch, rng.choice([SQUARE, WIDE, TALL])) <= TOLERANCE[dtype]


def test_rows_without_kv_are_zero_and_the_guard_matters(tmp_path):
    """Two tokens where KV exists for one: the first stands at position -1. Also a padded request: length 0."""
    batch = random_batch(6, seq_lens=[1, 0, 20], query_lens=[2, 1, 3])
    assert batch.reference()[[0, 2]].abs().max() == 0
    assert error_of(batch) <= TOLERANCE[FP32]
    wrong = planted(tmp_path, module, 'tl.where(new_max == float("-inf"), 0.0, new_max)', "new_max")
    assert error_of(batch, kernels=wrong) == float("inf")


def test_only_the_planned_requests_write():
    batch = random_batch(1, seq_lens=[5, 30, 17], query_lens=[1, 20, 2])
    out, guard = batch.poisoned_out()
    paged_prefill(out, *batch.inputs, plan_tiles(batch.query_lens, [1], 2, 16, "cpu"), tile=SQUARE)
    assert (out[1:21] - batch.reference()[1:21]).abs().max() <= 1e-5
    assert out[[0, 21, 22]].isnan().all()
    assert (guard == 7).all()


def test_strided_views_and_scale():
    """q as a slice of the joined projection, out as one of a larger buffer, the table as one of a wider table."""
    batch = random_batch(2, seq_lens=[19, 8], query_lens=[12, 8])
    joined, whole = torch.full((20, 8, 64), float("nan")), torch.full((20, 6, 64), 7.0)
    joined[:, 1:5] = batch.q
    wide = torch.full((2, 9), 10**6, dtype=torch.int32)
    wide[:, : batch.block_table.shape[1]] = batch.block_table
    table = wide[:, : batch.block_table.shape[1]]
    inputs = (joined[:, 1:5], batch.kv_cache, batch.query_start_loc, batch.seq_lens, table)
    paged_prefill(whole[:, 1:5], *inputs, plan_of(batch, SQUARE), scale=0.25, tile=SQUARE)
    assert max_error(whole[:, 1:5], batch.reference(scale=0.25), batch.query_start_loc) <= TOLERANCE[FP32]
    assert (whole[:, [0, 5]] == 7).all()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"q": torch.zeros(5, 4, 257), "out": torch.zeros(5, 4, 257), "kv_cache": torch.zeros(2, 1, 16, 2, 257)},
            "257",
        ),
        ({"q": torch.zeros(5, 5, 64), "out": torch.zeros(5, 5, 64)}, "num_heads=5 is not a multiple of num_kv_heads=2"),
        ({"out": torch.zeros(2, 4, 64)}, "must have one shape"),
        ({"out": torch.zeros(5, 4, 64).half()}, "one dtype"),
        ({"out": torch.zeros(5, 4, 128)[..., ::2]}, "side by side"),
        ({"kv_cache": torch.zeros(2, 1, 2, 16, 64).transpose(2, 3)}, "contiguous"),
        ({"tiles_of_step": torch.zeros(4, dtype=torch.int32)}, r"is not \[num_tiles, 2\] of int32: take plan_tiles"),
        ({"tiles_of_step": torch.zeros(1, 2, dtype=torch.int64)}, "int64"),
        ({"seq_lens": torch.zeros(2, dtype=torch.int32)}, "of 1 requests.*2 seq_lens"),
        ({"block_table": torch.zeros(1, 4, dtype=torch.int32)[:, ::2]}, "each row contiguous"),
        ({"sliding_window": 0}, "sliding_window=0 must be at least 1"),
        ({"scale": 0.0}, "scale=0.0 must be greater than 0"),
    ],
)
def test_what_no_kernel_takes_is_refused(changed, said):
    batch = random_batch(0, seq_lens=[5], query_lens=[5])
    names = ("q", "kv_cache", "query_start_loc", "seq_lens", "block_table")
    args = dict(zip(names, batch.inputs, strict=True)) | {"out": batch.poisoned_out()[0]}
    with pytest.raises(ValueError, match=said):
        paged_prefill(**(args | {"tiles_of_step": plan_of(batch, SQUARE), "tile": SQUARE} | changed))


# Planted faults.


@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=str)
def test_a_swapped_page_would_show(dtype):
    batch = random_batch(3, seq_lens=[20, 37], query_lens=[20, 6], dtype=dtype)
    table = batch.block_table.clone()
    table[0, 0], table[1, 1] = batch.block_table[1, 1], batch.block_table[0, 0]
    assert error_of(batch) <= TOLERANCE[dtype]
    assert error_of(batch, block_table=table) > 10 * TOLERANCE[dtype]


FAULTS = {
    "each token blind to itself": ("(ages >= 0)", "(ages > 0)"),
    "each token sees one more": ("(ages >= 0)", "(ages >= -1)"),
    "window one too wide": ("(ages < window)", "(ages <= window)"),
    "window one too small": ("(ages < window)", "(ages < window - 1)"),
    "window starts late": ("oldest - window + 1, 0)", "oldest - window + 2, 0)"),
    "reads behind the end": ("end_seen = tl.maximum(newest + 1, 0)", "end_seen = tl.maximum(newest + 2, 0)"),
    "the last position not read": ("end_seen = tl.maximum(newest + 1, 0)", "end_seen = tl.maximum(newest, 0)"),
    "no mask on the edge": ("tl.maximum(oldest + 1, 0) // BLOCK_N", "tl.cdiv(oldest + 1, BLOCK_N)"),
    "no mask on the window's edge": ("tl.cdiv(tl.maximum(newest - window + 1, 0), BLOCK_N)", "first_tile"),
    "a tile left out": ("num_left + end_tile - full_end", "num_left + end_tile - full_end - 1"),
    "tiles on the left counted as on the right": (
        "tl.where(i < num_left, first_tile + i, full_end + i - num_left)",
        "full_end + i - num_left",
    ),
    "the window's freed pages are read": ("(positions >= first_seen) & (positions < end_seen)", "positions < end_seen"),
    "row to head": ("kv_head * group + rows % group", "kv_head + rows % group * 2"),
    "row to token": ("tokens = rows // group", "tokens = (rows + 1) // group"),
    "KV head by another": ("k_ptr += kv_head * HEAD_DIM", "k_ptr += 0 * kv_head"),
    "old sum not rescaled": ("acc * shrink[:, None]", "acc"),
    "old denominator not rescaled": ("denominator * shrink", "denominator"),
    "e instead of 2": ("scale * LOG2_E", "scale"),
    "history forgotten": ("tl.load(seq_lens_ptr + request) - query_len", "tl.load(seq_lens_ptr + request) * 0"),
    "padded lanes stored": (
        "[:, None] & (lanes < HEAD_DIM)[None, :]\n    q_off",
        "[:, None] & (lanes >= 0)[None, :]\n    q_off",
    ),
    "padded rows stored": ("mine = (rows < query_len * group)", "mine = (rows < query_len * group + 1)"),
    "tile starts late": ("first_tile = first_seen // BLOCK_N", "first_tile = tl.cdiv(first_seen, BLOCK_N)"),
}


def faulty_step(dtype: torch.dtype) -> Batch:
    """Has what the faults touch: history, a window that ends inside a tile, three heads a group, padded lanes."""
    return random_batch(
        4, seq_lens=[41, 70, 9], query_lens=[18, 13, 3], num_heads=6, head_dim=80, block_size=3, dtype=dtype,
        sliding_window=38,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_without_a_fault_the_step_is_right(dtype):
    assert error_of(faulty_step(dtype)) <= TOLERANCE[dtype]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_would_show(fault, tmp_path):
    dtype = BF16 if fault in list(FAULTS)[::3] else FP32
    assert error_of(faulty_step(dtype), kernels=planted(tmp_path, module, *FAULTS[fault])) > 10 * TOLERANCE[dtype]


@pytest.mark.parametrize("right", ["positions // BLOCK_SIZE", "positions % BLOCK_SIZE"])
def test_a_slot_off_by_one_would_show(right, tmp_path):
    batch = random_batch(4, seq_lens=[20, 8], query_lens=[9, 8], block_size=3)
    code = planted(tmp_path, device_code, right, right.replace("positions", "(positions + 1)"))
    wrong = planted(tmp_path, module, "LARGEST_HEAD_DIM = 256", "LARGEST_HEAD_DIM = 256", device_code=code)
    assert error_of(batch, kernels=wrong) > 10 * TOLERANCE[FP32]
