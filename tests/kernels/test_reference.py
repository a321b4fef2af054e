"""The oracle itself: by eye, and against torch's own attention. Knows no kernel."""

import pytest
import torch
import torch.nn.functional as F

from mini_vllm.kernels.reference import TOLERANCE, max_error, paged_attention
from tests.kernels.batches import random_batch


def tiny(values: list[list[float]], seq_len: int, table: list[int], n: int = 1, **options) -> list[float]:
    """One head of one number; all keys 0, so that every position in sight weighs the same. values: of each block."""
    cache = torch.zeros(2, len(values), len(values[0]), 1, 1, dtype=torch.float64)
    cache[1, :, :, 0, 0] = torch.tensor(values)
    q = torch.ones(n, 1, 1, dtype=torch.float64)
    lengths = torch.tensor([0, n]), torch.tensor([seq_len]), torch.tensor([table])
    return paged_attention(q, cache, *lengths, **options).flatten().tolist()


BLOCKS = [[99, 99], [3, 5], [1, 2]]


def test_the_mean_of_what_the_table_says():
    assert tiny(BLOCKS, seq_len=3, table=[2, 1]) == [2.0]  # 1, 2, 3; the 5 is behind the end
    assert tiny(BLOCKS, seq_len=4, table=[1, 2]) == [2.75]


def test_a_token_sees_itself_and_its_past():
    assert tiny(BLOCKS, seq_len=4, table=[2, 1], n=3) == [1.5, 2.0, 2.75]


def test_a_window_of_two_is_the_token_and_the_one_before():
    assert tiny(BLOCKS, seq_len=4, table=[2, 1], n=3, sliding_window=2) == [1.5, 2.5, 4.0]


def test_no_kv_is_zero():
    assert tiny(BLOCKS, seq_len=0, table=[0]) == [0.0]
    assert tiny(BLOCKS, seq_len=1, table=[2], n=2) == [0.0, 1.0]  # the first row stands before the start


def test_the_scale_sharpens():
    cache = torch.tensor([[[1.0, 0.0]], [[10.0, 20.0]]]).view(2, 1, 2, 1, 1)
    args = torch.ones(1, 1, 1), cache, torch.tensor([0, 1]), torch.tensor([2]), torch.tensor([[0]])
    assert paged_attention(*args, scale=100.0).item() == 10.0
    assert paged_attention(*args, scale=0.0).item() == 15.0
    assert paged_attention(*args).item() == pytest.approx((10 * torch.e + 20) / (torch.e + 1))


@pytest.mark.parametrize(("heads", "kv_heads", "window"), [(4, 4, None), (6, 2, None), (7, 1, 5)])
def test_equal_to_torchs_attention(heads, kv_heads, window):
    batch = random_batch(
        3, seq_lens=[1, 9, 23], query_lens=[1, 4, 23], num_heads=heads, num_kv_heads=kv_heads, head_dim=8,
        block_size=3, sliding_window=window,
    )  # fmt: skip
    ours = batch.reference()
    for request, (seq_len, n) in enumerate(zip(batch.seq_lens.tolist(), batch.query_lens, strict=True)):
        positions = torch.arange(seq_len)
        slots = batch.block_table[request].long()[positions // 3] * 3 + positions % 3
        # Out of the window the cache is NaN: zero it there, where torch's mask alone would give 0 * NaN.
        k, v = batch.kv_cache.double().nan_to_num().view(2, -1, kv_heads, 8)[:, slots]
        rows = positions[seq_len - n :, None]
        mask = (positions <= rows) & (positions > rows - (window or seq_len))
        first = int(batch.query_start_loc[request])
        q = batch.q[first : first + n].double()
        right = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask, enable_gqa=True
        )
        torch.testing.assert_close(ours[first : first + n], right[0].transpose(0, 1))


def test_half_precision_is_computed_in_float32():
    batch = random_batch(0, seq_lens=[9], dtype=torch.bfloat16)
    out = paged_attention(*batch.inputs)
    assert out.dtype == torch.float32
    assert max_error(out, batch.reference(), batch.query_start_loc) < TOLERANCE[torch.float32]


def test_the_error_is_relative_to_each_request_and_head():
    starts = torch.tensor([0, 2, 2, 3])
    right = torch.ones(3, 2, 4)
    right[:, 1] = 1000.0
    wrong = right.clone()
    wrong[2, 0, 3] += 0.5  # a small head beside a large one
    assert max_error(wrong, right, starts) == 0.5
    assert max_error(right, right, starts) == 0.0
    wrong[2, 1, 0] = float("nan")
    assert max_error(wrong, right, starts) == float("inf")


def test_zero_must_be_zero():
    starts = torch.tensor([0, 1])
    zero = torch.zeros(1, 1, 2)
    assert max_error(zero, zero, starts) == 0.0
    assert max_error(zero + 1e-30, zero, starts) == float("inf")
