"""The block tables over the pool: how many blocks, which of them are shared, and when they come back."""

import copy

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.errors import KVPoolTooSmallError, PromptTooLongError
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


def manager(num_gpu_blocks=4, **limits):
    return KVCacheManager(SchedulerConfig(num_gpu_blocks=num_gpu_blocks, block_size=4, **limits))


def request(prompt_len, request_id="A", max_tokens=16):
    return Request(request_id, [10] * prompt_len, SamplingParams(max_tokens=max_tokens))


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
    a.token_ids.append(20)
    assert kv.allocate_slots(a, 4, full_sequence=True) is None


def test_full_sequence_counts_max_model_len_tokens_at_most():
    kv = manager(num_gpu_blocks=2, max_model_len=8)
    assert kv.allocate_slots(request(20), 4, full_sequence=True) == [1]


def test_freed_blocks_come_back_and_freeing_twice_is_harmless():
    kv, a = manager(num_gpu_blocks=3), request(8)
    kv.allocate_slots(a, 8)
    kv.free(a)
    kv.free(a)
    assert kv.block_pool.free_queue() == [2, 1, 3]
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
def test_a_prompt_must_leave_room_for_one_token(prompt_len):
    config = SchedulerConfig(max_model_len=5)
    with pytest.raises(PromptTooLongError, match=f"'A' has {prompt_len} prompt tokens; max_model_len is 5 .* to 4"):
        KVCacheManager.refuse_if_never_fits(config, request(prompt_len, max_tokens=1))
    KVCacheManager.refuse_if_never_fits(config, request(4, max_tokens=1))


def test_slots_for_drafts_and_lookahead_count_up_to_max_model_len():
    fits = request(8, max_tokens=5)  # 12 tokens with KV: 3 blocks
    for ahead in ({"num_speculative_tokens": 1}, {"num_lookahead_tokens": 1}):
        with pytest.raises(KVPoolTooSmallError, match="needs up to 4 KV blocks for 13 tokens"):
            KVCacheManager.refuse_if_never_fits(SchedulerConfig(num_gpu_blocks=3, **ahead), fits)
        KVCacheManager.refuse_if_never_fits(SchedulerConfig(num_gpu_blocks=3, max_model_len=12, **ahead), fits)


# --- lookahead, watermark ---


def test_lookahead_slots_get_blocks_too():
    assert manager().allocate_slots(request(4), 4, num_lookahead_tokens=1) == [1, 2]
    assert manager(num_gpu_blocks=1).allocate_slots(request(4), 4, num_lookahead_tokens=1) is None


def test_no_slot_lies_beyond_max_model_len():
    assert manager(max_model_len=4).allocate_slots(request(4), 4, num_lookahead_tokens=3) == [1]


def test_blocks_that_are_there_already_are_not_asked_for_again():
    kv, a = manager(), request(4)
    kv.allocate_slots(a, 4, num_lookahead_tokens=4)
    a.num_computed_tokens = 4
    assert kv.allocate_slots(a, 4) == []


def test_the_watermark_stays_free():
    assert manager(num_gpu_blocks=3).allocate_slots(request(8), 8, watermark_blocks=1) == [1, 2]
    assert manager(num_gpu_blocks=2).allocate_slots(request(8), 8, watermark_blocks=1) is None


def test_the_watermark_stays_free_beside_the_whole_sequence_too():
    kv = manager(num_gpu_blocks=3)
    assert kv.allocate_slots(request(12), 4, full_sequence=True, watermark_blocks=1) is None
    assert kv.allocate_slots(request(8), 4, full_sequence=True, watermark_blocks=1) == [1]


# --- prefix caching: blocks of four, so tokens 1 to 8 are two full blocks ---

EIGHT = [1, 2, 3, 4, 5, 6, 7, 8]


def caching(num_gpu_blocks=6, **limits):
    return manager(num_gpu_blocks, enable_prefix_caching=True, **limits)


def known(request_id, tokens, **who):
    return Request(request_id, tokens, **who)


def admit(kv, a, num_new_tokens=None, **options):
    """What a scheduler does at admission; returns the hits and the new blocks."""
    hits = kv.get_computed_blocks(a)
    n = a.num_tokens - 4 * len(hits) if num_new_tokens is None else num_new_tokens
    blocks = kv.allocate_slots(a, n, hits=hits, **options)
    if blocks is not None:
        a.num_computed_tokens = 4 * len(hits) + n
    kv.check_integrity()
    return hits, blocks


def test_a_prefix_that_was_computed_is_found():
    kv = caching()
    admit(kv, known("A", [*EIGHT, 9]))
    assert admit(kv, known("B", [*EIGHT, 10])) == ([1, 2], [4])
    assert kv.get_block_ids("B") == [1, 2, 4]


def test_without_caching_nothing_is_found():
    kv = manager(num_gpu_blocks=6)
    admit(kv, known("A", [*EIGHT, 9]))
    assert kv.get_computed_blocks(known("B", [*EIGHT, 9])) == []
    assert kv.block_pool.cached == {}


@pytest.mark.parametrize(("num_tokens", "num_hits"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_one_token_at_least_is_left_to_compute(num_tokens, num_hits):
    kv = caching()
    tokens = [*EIGHT, 9, 10, 11, 12]
    admit(kv, known("A", tokens))
    assert len(kv.get_computed_blocks(known("B", tokens[:num_tokens]))) == num_hits


def test_a_prefix_ends_at_the_first_block_that_is_missing():
    kv, a = caching(), known("A", [*EIGHT, 9, 10, 11, 12])
    admit(kv, a)
    kv.free(a)
    kv.block_pool.touch([1, 3])
    kv.block_pool.take(4)  # block 2 among them: it loses its content
    assert kv.get_computed_blocks(known("B", [*EIGHT, 9, 10, 11, 12, 13])) == [1]


def test_only_full_blocks_are_found():
    kv = caching()
    admit(kv, known("A", EIGHT[:6]))
    assert kv.get_computed_blocks(known("B", [*EIGHT, 9])) == [1]


def test_a_chunk_publishes_what_it_fills():
    kv = caching()
    admit(kv, known("A", [*EIGHT, 9]), num_new_tokens=5)
    assert kv.get_computed_blocks(known("B", [*EIGHT, 9])) == [1]


def test_a_block_is_found_in_the_same_step_before_it_is_computed():
    kv = caching()
    kv.allocate_slots(known("A", [*EIGHT, 9]), 9)
    assert kv.get_computed_blocks(known("B", [*EIGHT, 9])) == [1, 2]


def test_another_salt_or_adapter_finds_nothing():
    kv = caching()
    admit(kv, known("A", [*EIGHT, 9], cache_salt="x", adapter="y"))
    for who in ({}, {"cache_salt": "x"}, {"adapter": "y"}, {"cache_salt": "y", "adapter": "x"}):
        assert kv.get_computed_blocks(known("B", [*EIGHT, 9], **who)) == []
    assert kv.get_computed_blocks(known("B", [*EIGHT, 9], cache_salt="x", adapter="y")) == [1, 2]


def test_a_shared_block_stays_until_the_last_owner_goes():
    kv, a, b = caching(), known("A", [*EIGHT, 9]), known("B", [*EIGHT, 9])
    admit(kv, a)
    admit(kv, b)
    kv.free(a)
    assert kv.num_free_blocks == 6 - 3
    kv.free(b)
    assert kv.num_free_blocks == 6


def test_freed_cached_blocks_go_to_the_back_tail_first_and_the_bare_tail_to_the_front():
    kv, a = caching(num_gpu_blocks=5), known("A", [*EIGHT, 9])
    admit(kv, a)
    kv.free(a)
    assert kv.block_pool.free_queue() == [3, 4, 5, 2, 1]


def test_idle_hits_are_not_free_for_anything_else():
    # Three blocks, all idle; B shares two of them and needs a third and a fourth.
    kv, a = caching(num_gpu_blocks=3), known("A", [*EIGHT, 9])
    admit(kv, a)
    kv.free(a)
    b = known("B", [*EIGHT, 9, 10, 11, 12, 13])
    assert kv.allocate_slots(b, 5, hits=[1, 2]) is None
    assert kv.allocate_slots(b, 4, hits=[1, 2]) == [3]


def test_idle_hits_count_in_the_full_sequence_too():
    kv, a = caching(num_gpu_blocks=3), known("A", [*EIGHT, 9])
    admit(kv, a)
    kv.free(a)
    assert kv.allocate_slots(known("B", [*EIGHT, *range(9, 14)]), 1, hits=[1, 2], full_sequence=True) is None
    assert kv.allocate_slots(known("B", [*EIGHT, *range(9, 13)]), 1, hits=[1, 2], full_sequence=True) == [3]


def test_hits_that_somebody_owns_cost_nothing():
    kv = caching(num_gpu_blocks=4)
    admit(kv, known("A", [*EIGHT, 9]))
    assert admit(kv, known("B", [*EIGHT, 9]), full_sequence=True) == ([1, 2], [4])


def books(kv):
    """All that an allocation may change, as a copy."""
    pool = kv.block_pool
    return copy.deepcopy(
        (pool.free_queue(), pool.ref_count, pool.hash_of, pool.cached, kv.req_to_blocks, kv.num_registered)
    )


def test_a_failure_changes_nothing():
    kv, a = caching(num_gpu_blocks=3), known("A", [*EIGHT, 9])
    admit(kv, a)
    kv.free(a)
    before = books(kv)
    b = known("B", [*EIGHT, *range(9, 30)])
    assert kv.allocate_slots(b, 21, hits=[1, 2]) is None
    assert kv.allocate_slots(b, 1, hits=[1, 2], full_sequence=True) is None
    assert kv.allocate_slots(b, 1, hits=[1, 2], watermark_blocks=1) is None
    assert books(kv) == before


def test_identical_blocks_are_not_merged_and_the_first_is_found():
    kv = caching()
    for name in "AB":  # both compute their own copy of a block that was no hit: one-block prompts never are
        admit(kv, known(name, EIGHT[:4]))
    assert (kv.get_block_ids("A"), kv.get_block_ids("B")) == ([1], [2])
    assert kv.get_computed_blocks(known("C", EIGHT)) == [1]


def test_what_was_evicted_is_not_found():
    kv, a = caching(num_gpu_blocks=3), known("A", [*EIGHT, 9])
    admit(kv, a)
    kv.free(a)
    admit(kv, known("X", [50, 51, 52, 53, 54, 55, 56, 57]))  # takes 3 and 2: the tail of the chain goes first
    assert kv.get_computed_blocks(known("B", [*EIGHT, 9])) == [1]


def test_a_piece_that_was_taken_back_is_not_published():
    kv, a = caching(), known("A", [*EIGHT, 9])
    a.num_computed_tokens = 4  # one block is computed, the second was only planned
    kv.allocate_slots(a, 5)
    kv.unpublish(a)
    kv.check_integrity()
    assert kv.get_computed_blocks(known("B", [*EIGHT, 9])) == [1]
    kv.unpublish(a)  # twice is harmless
    kv.check_integrity()


# --- when a scheduler need not ask: `quiet_until` ---


def asked(kv, a, num_new_tokens, **options):
    """Where the next piece may end without asking again."""
    kv.allocate_slots(a, num_new_tokens, **options)
    a.num_computed_tokens += num_new_tokens
    return a.quiet_until


def test_the_rest_of_a_block_needs_no_question():
    assert asked(manager(), request(5), 5) == 8
    assert asked(manager(), request(8), 8) == 8


def test_lookahead_slots_are_no_room():
    assert asked(manager(), request(5), 5, num_lookahead_tokens=2) == 6


def test_with_caching_the_piece_that_fills_a_block_must_be_asked_for():
    assert asked(caching(), request(5), 5) == 7


def test_drafts_fill_no_block_until_they_are_known():
    # 18 tokens known, 17 computed, 3 drafts: 6 blocks. The first two tokens after 18 fill the fifth block.
    kv, a = caching(), request(18)
    kv.allocate_slots(a, 17)
    a.num_computed_tokens = 17
    assert asked(kv, a, 4) == 19


def test_whoever_has_no_blocks_must_ask():
    kv, a = manager(), request(5)
    asked(kv, a, 5)
    kv.free(a)
    assert a.quiet_until == 0


def test_a_token_that_is_only_planned_publishes_no_block():
    kv, a = caching(), known("A", EIGHT[:3])
    kv.allocate_slots(a, 4)  # three known tokens and a placeholder
    assert kv.block_pool.cached == {}


# --- sliding window ---


def windowed(num_computed, sliding_window=4, in_flight=0, **limits):
    kv, a = manager(num_gpu_blocks=6, sliding_window=sliding_window, **limits), request(num_computed)
    kv.allocate_slots(a, num_computed)
    a.num_computed_tokens, a.num_in_flight_tokens = num_computed, in_flight
    kv.free_out_of_window(a)
    kv.check_integrity()
    return kv, a


@pytest.mark.parametrize(
    ("num_computed", "table"),
    [
        (6, [1, 2]),  # the next token, at position 6, looks back to 3
        (7, [0, 2]),  # at 7 it looks back to 4: nobody looks at the first block again
        (10, [0, 2, 3]),
        (11, [0, 0, 3]),
    ],
)
def test_blocks_out_of_sight_are_given_back(num_computed, table):
    kv, _ = windowed(num_computed)
    assert kv.get_block_ids("A") == table
    assert kv.num_free_blocks == 6 - sum(block > 0 for block in table)


def test_tokens_in_flight_may_still_look_back():
    kv, a = windowed(11, in_flight=5)
    assert kv.get_block_ids("A") == [1, 2, 3]
    a.num_in_flight_tokens = 4
    kv.free_out_of_window(a)
    assert kv.get_block_ids("A") == [0, 2, 3]


def test_without_a_window_nothing_is_given_back():
    assert windowed(11, sliding_window=None)[0].get_block_ids("A") == [1, 2, 3]


def test_a_request_with_gaps_is_freed_once():
    kv, a = windowed(11)
    kv.free_out_of_window(a)
    kv.free(a)
    kv.check_integrity()
    assert kv.num_free_blocks == 6


def test_a_request_with_gaps_goes_on_in_its_own_place():
    kv, a = windowed(8)
    assert kv.get_block_ids("A") == [0, 2]
    assert kv.allocate_slots(a, 1) == [1]
    assert kv.get_block_ids("A") == [0, 2, 1]


def test_a_gap_is_not_published():
    kv, a = windowed(7, enable_prefix_caching=True)
    assert kv.get_block_ids("A") == [0, 2]
    a.token_ids = [10] * 8
    kv.register_full_blocks(a, 8)
    assert kv.block_pool.hash_of[0] is None
    assert kv.block_pool.hash_of[2] is not None
    kv.check_integrity()


# --- check_integrity ---


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda kv: kv.block_pool._unlink(3), r"free queue \[4\], blocks without an owner \[3, 4\]"),
        (lambda kv: kv.block_pool._link(0, 1), r"free queue \[1, 3, 4\], blocks without an owner \[3, 4\]"),
        (lambda kv: kv.req_to_blocks.update(B=[3]), "block tables count .* the pool"),
        (lambda kv: kv.req_to_blocks.update(A=[1, 1]), "block tables count .* the pool"),
        (lambda kv: kv.block_pool.forget_hash(1), r"A: blocks \[1\] are registered without a hash"),
        (lambda kv: kv.num_registered.update(A=3), r"A: blocks \[\] are registered without a hash"),
    ],
)
def test_check_integrity_names_what_is_broken(spoil, message):
    kv = caching(num_gpu_blocks=4)
    kv.allocate_slots(request(8), 8)
    kv.check_integrity()
    spoil(kv)
    with pytest.raises(AssertionError, match=message):
        kv.check_integrity()
