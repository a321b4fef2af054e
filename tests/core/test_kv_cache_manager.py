"""The block pool and the block tables over it."""

import re

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.errors import KVPoolTooSmallError
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


def manager(num_gpu_blocks=4, **limits):
    return KVCacheManager(SchedulerConfig(num_gpu_blocks=num_gpu_blocks, block_size=4, **limits))


def request(prompt_len, request_id="A", max_tokens=16):
    return Request(request_id, [10] * prompt_len, SamplingParams(max_tokens=max_tokens))


def test_the_pool_starts_with_all_blocks_but_the_null_block():
    assert list(BlockPool(3).free_queue) == [1, 2, 3]


def test_blocks_are_taken_from_the_head():
    pool = BlockPool(4)
    assert pool.take(3) == [1, 2, 3]
    assert pool.num_free_blocks == 1


def test_freed_blocks_go_to_the_front_tail_first():
    pool = BlockPool(5)
    pool.free(pool.take(3))
    assert list(pool.free_queue) == [3, 2, 1, 4, 5]


def test_five_tokens_need_two_blocks_of_four():
    assert manager().allocate_slots(request(5), 5) == [1, 2]


def test_a_token_that_fits_the_started_block_needs_no_new_one():
    kv, a = manager(), request(3)
    kv.allocate_slots(a, 3)
    a.num_computed_tokens = 3
    assert kv.allocate_slots(a, 1) == []
    assert kv.get_block_ids("A") == [1]


def test_the_token_after_a_full_block_needs_a_new_one():
    kv, a = manager(), request(4)
    kv.allocate_slots(a, 4)
    a.num_computed_tokens = 4
    assert kv.allocate_slots(a, 1) == [2]
    assert kv.get_block_ids("A") == [1, 2]


def test_the_last_free_block_can_be_taken():
    assert manager(num_gpu_blocks=2).allocate_slots(request(8), 8) == [1, 2]


def test_none_means_not_now_and_changes_nothing():
    kv, a, b = manager(num_gpu_blocks=2), request(4, "A"), request(8, "B")
    kv.allocate_slots(a, 4)
    assert kv.allocate_slots(b, 8) is None
    assert kv.get_block_ids("B") == []
    assert kv.num_free_blocks == 1
    assert "B" not in kv.req_to_blocks


def test_full_sequence_looks_at_all_known_tokens_but_takes_blocks_for_the_piece():
    kv = manager(num_gpu_blocks=2)
    assert kv.allocate_slots(request(9), 4, full_sequence=True) is None  # 9 tokens: 3 blocks
    assert kv.allocate_slots(request(8), 4, full_sequence=True) == [1]


def test_without_full_sequence_only_the_piece_must_fit():
    assert manager(num_gpu_blocks=2).allocate_slots(request(9), 4) == [1]


def test_full_sequence_counts_the_outputs_of_a_resumed_request():
    kv, a = manager(num_gpu_blocks=2), request(8)
    a.append_output(20, 1_000)
    assert kv.allocate_slots(a, 4, full_sequence=True) is None


def test_full_sequence_counts_max_model_len_tokens_at_most():
    kv = manager(num_gpu_blocks=2, max_model_len=8)
    assert kv.allocate_slots(request(20), 4, full_sequence=True) == [1]


def test_freed_blocks_come_back_and_freeing_twice_is_harmless():
    kv, a = manager(num_gpu_blocks=3), request(8)
    kv.allocate_slots(a, 8)
    kv.free(a)
    kv.free(a)
    assert list(kv.block_pool.free_queue) == [2, 1, 3]
    assert kv.get_block_ids("A") == []


def test_a_request_that_never_fits_is_refused_with_need_and_capacity():
    config = SchedulerConfig(num_gpu_blocks=3, block_size=4)
    # 8 prompt + 6 new tokens; the last one's KV is never computed: 13 tokens, 4 blocks
    with pytest.raises(KVPoolTooSmallError) as error:
        KVCacheManager.refuse_if_never_fits(config, request(8, max_tokens=6))
    assert "needs up to 4 KV blocks for 13 tokens (8 prompt + 6 new, max_model_len 256, 4 a block)" in str(error.value)
    assert "the whole pool has 3" in str(error.value)


def test_the_last_sampled_token_needs_no_block():
    config = SchedulerConfig(num_gpu_blocks=3, block_size=4)
    KVCacheManager.refuse_if_never_fits(config, request(8, max_tokens=5))  # 12 tokens with KV: 3 blocks


def test_a_request_that_max_model_len_cuts_short_is_not_refused():
    config = SchedulerConfig(num_gpu_blocks=3, block_size=4, max_model_len=13)
    KVCacheManager.refuse_if_never_fits(config, request(8, max_tokens=100))


@pytest.mark.parametrize("prompt_len", [5, 9])
def test_a_prompt_that_fills_max_model_len_is_measured_in_full(prompt_len):
    config = SchedulerConfig(num_gpu_blocks=1, block_size=4, max_model_len=5)
    with pytest.raises(KVPoolTooSmallError):
        KVCacheManager.refuse_if_never_fits(config, request(prompt_len, max_tokens=1))


@pytest.mark.parametrize(
    ("spoil", "counts"),
    [
        (lambda kv: kv.block_pool.free_queue.pop(), "2 owned, 1 free, 4 in the pool"),  # a block is lost
        (lambda kv: kv.block_pool.free_queue.append(1), "2 owned, 3 free, 4 in the pool"),  # free and owned
        (lambda kv: kv.req_to_blocks.update(B=[3]), "3 owned, 2 free, 4 in the pool"),
        (lambda kv: kv.req_to_blocks.update(A=[1, 1]), "2 owned, 2 free, 4 in the pool"),  # owned twice
    ],
)
def test_check_integrity_counts_the_blocks(spoil, counts):
    kv = manager()
    kv.allocate_slots(request(8), 8)
    kv.check_integrity()
    spoil(kv)
    with pytest.raises(AssertionError, match=re.escape(counts)):
        kv.check_integrity()
