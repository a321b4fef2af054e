"""Draft tokens: planned as if they were known, verified in one step, the rejected ones rolled back.

The stand-in for the model drafts 7 and 8 for everybody. Blocks hold four tokens.
"""

import pytest

from mini_vllm.core.output import ModelRunnerOutput
from mini_vllm.errors import SchedulerContractError
from tests.core.tiny import make, req


def with_drafts(*requests, num_speculative_tokens=2, **limits):
    return make(*requests, num_speculative_tokens=num_speculative_tokens, **limits)


def step(scheduler, drafts=(7, 8), **sampled):
    """Whoever is not named in `sampled` and has reached its end gets [100], and drafts for its next step."""
    plan = scheduler.schedule()
    at_end = [r for r in plan.num_scheduled_tokens if not scheduler.requests[r].is_prefill_chunk]
    tokens = {r: sampled.get(r, [100]) for r in at_end}
    news = scheduler.update_from_output(plan, ModelRunnerOutput(tokens, {r: list(drafts) for r in at_end}))
    scheduler.check_integrity()
    return plan, news


@pytest.fixture
def decoding():
    """A: a prompt of 3 and one output are known, 3 are computed, two drafts are to be verified."""
    scheduler = with_drafts(req("A", 3))
    step(scheduler)
    return scheduler


def test_drafts_are_planned_beside_the_next_token(decoding):
    plan = decoding.schedule()
    assert plan.num_scheduled_tokens == {"A": 3}
    assert plan.scheduled_spec_decode_tokens == {"A": [7, 8]}
    assert decoding.requests["A"].num_computed_tokens == 6


@pytest.mark.parametrize(("sampled", "computed"), [([101], 4), ([7, 101], 5), ([7, 8, 101], 6)])
def test_rejected_drafts_are_rolled_back(decoding, sampled, computed):
    a = decoding.requests["A"]
    _, news = step(decoding, A=sampled)
    assert a.num_computed_tokens == computed == a.num_tokens - 1
    assert a.output_token_ids == [100, *sampled]
    assert news[0].new_token_ids == sampled


def test_after_a_rejection_only_the_next_token_is_open(decoding):
    step(decoding, drafts=(), A=[101])
    plan, _ = step(decoding)
    assert plan.num_scheduled_tokens == {"A": 1}
    assert plan.scheduled_spec_decode_tokens == {}


@pytest.mark.parametrize("most", [0, 2])
def test_more_drafts_than_were_agreed_are_an_error(most):
    """Blocks, budgets and windows count on `num_speculative_tokens` drafts at most."""
    scheduler = with_drafts(req("A", 3), num_speculative_tokens=most)
    step(scheduler, drafts=range(most))
    with pytest.raises(SchedulerContractError, match=f"drafts 3 tokens for 'A'; num_speculative_tokens is {most}"):
        step(scheduler, drafts=(7, 8, 9))
    # Nothing of the refused output was taken: the same step can still be answered.
    [(plan, _)] = scheduler.in_flight._plans
    assert scheduler.requests["A"].output_token_ids == [100]
    news = scheduler.update_from_output(plan, ModelRunnerOutput({"A": [101]}))
    assert [item.new_token_ids for item in news] == [[101]]


def test_a_stop_token_among_the_accepted_ends_the_request_there():
    scheduler = with_drafts(req("A", 3, stop_token_ids=(7,)))
    step(scheduler)
    _, news = step(scheduler, A=[7, 8, 101])
    assert (news[0].new_token_ids, news[0].finish_reason) == ([7], "stop")
    assert not scheduler.has_unfinished_requests()
    assert scheduler.kv_cache_manager.num_free_blocks == 64


def test_accepted_tokens_beyond_max_tokens_are_dropped():
    scheduler = with_drafts(req("A", 3, max_tokens=3))
    a = scheduler.requests["A"]
    step(scheduler)
    _, news = step(scheduler, A=[7, 8, 101])
    assert (a.output_token_ids, news[0].finish_reason) == ([100, 7, 8], "length")


def test_a_sequence_with_drafts_never_passes_max_model_len():
    scheduler = with_drafts(req("A", 3), max_model_len=5)
    step(scheduler)
    plan, news = step(scheduler, A=[7, 8])
    assert plan.scheduled_spec_decode_tokens == {"A": []}  # 3 computed of at most 4: one token, no draft
    assert (news[0].new_token_ids, news[0].finish_reason) == ([7], "length")


def test_the_budget_cuts_drafts_before_the_token():
    scheduler = with_drafts(req("A", 2), req("B", 2), max_num_scheduled_tokens=5)
    step(scheduler)
    plan, _ = step(scheduler, B=[7, 101])
    assert plan.num_scheduled_tokens == {"A": 3, "B": 2}
    assert plan.scheduled_spec_decode_tokens == {"A": [7, 8], "B": [7]}


def test_a_prompt_in_mid_chunk_keeps_no_drafts():
    scheduler = with_drafts(req("A", 9), max_num_scheduled_tokens=4)
    plan = scheduler.schedule()
    scheduler.update_from_output(plan, ModelRunnerOutput({}, {"A": [7, 8]}))
    assert scheduler.requests["A"].spec_token_ids == []
    assert step(scheduler)[0].num_scheduled_tokens == {"A": 4}


def test_drafts_need_slots_too():
    scheduler = with_drafts(req("A", 3), num_gpu_blocks=2)
    step(scheduler)
    plan, _ = step(scheduler, A=[101])
    assert plan.scheduled_cached_reqs.new_block_ids == {"A": [2]}  # tokens 3 to 5 reach into the second block
    assert scheduler.kv_cache_manager.get_block_ids("A") == [1, 2]  # and it is kept when they are rejected


def test_lookahead_keeps_slots_for_drafts_to_come():
    scheduler = with_drafts(req("A", 3), num_lookahead_tokens=2)
    assert step(scheduler)[0].scheduled_new_reqs[0].block_ids == [1, 2]


def test_one_who_is_evicted_loses_its_drafts():
    scheduler = with_drafts(req("A", 4), req("B", 3), num_gpu_blocks=2)
    step(scheduler)
    b = scheduler.requests["B"]
    assert b.spec_token_ids == [7, 8]
    plan, _ = step(scheduler, A=[101])
    assert plan.preempted_req_ids == ["B"]
    assert (b.spec_token_ids, b.num_computed_tokens, b.output_token_ids) == ([], 0, [100])


def test_a_block_with_drafts_is_published_only_once_they_are_accepted():
    scheduler = with_drafts(req("A", 2), enable_prefix_caching=True)
    step(scheduler)
    cached = scheduler.kv_cache_manager.block_pool.cached
    plan = scheduler.schedule()  # tokens 2, 3 and 4; the last two are drafts
    assert cached == {}
    scheduler.update_from_output(plan, ModelRunnerOutput({"A": [7, 8, 101]}))
    assert list(cached.values()) == [1]


def test_a_block_whose_drafts_were_rejected_is_not_published():
    scheduler = with_drafts(req("A", 2), enable_prefix_caching=True)
    step(scheduler)
    step(scheduler, A=[101])
    assert scheduler.kv_cache_manager.block_pool.cached == {}


# --- one who enters beside decodes with drafts, and lacks one token, is made as wide as they are ---


def test_a_one_token_admission_is_padded(decoding):
    decoding.add_request(req("B", 1))
    plan, _ = step(decoding, A=[101])
    assert plan.num_scheduled_tokens == {"A": 3, "B": 3}
    assert plan.scheduled_spec_decode_tokens == {"A": [7, 8], "B": [-1, -1]}
    b = decoding.requests["B"]
    assert (b.num_computed_tokens, b.output_token_ids) == (1, [100])  # the padding is rolled back


def test_a_longer_one_is_not(decoding):
    decoding.add_request(req("B", 2))
    plan, _ = step(decoding, A=[101])
    assert plan.num_scheduled_tokens == {"A": 3, "B": 2}


def test_one_who_enters_alone_is_not():
    assert step(with_drafts(req("A", 1)))[0].num_scheduled_tokens == {"A": 1}


def test_without_drafts_nobody_is_padded():
    scheduler = make(req("A", 3))
    step(scheduler, drafts=())
    scheduler.add_request(req("B", 1))
    assert step(scheduler, drafts=())[0].num_scheduled_tokens == {"A": 1, "B": 1}


def test_beside_a_prompt_in_chunks_nobody_is_padded():
    scheduler = with_drafts(req("A", 9), max_num_scheduled_tokens=6, long_prefill_token_threshold=4)
    scheduler.add_request(req("C", 2))
    assert step(scheduler)[0].num_scheduled_tokens == {"A": 4, "C": 2}
    scheduler.finish_requests(["C"])
    scheduler.add_request(req("B", 1))
    assert step(scheduler)[0].num_scheduled_tokens == {"A": 4, "B": 1}


def test_padding_that_does_not_fit_the_budget_keeps_it_out():
    scheduler = with_drafts(req("A", 3), max_num_scheduled_tokens=5)
    step(scheduler)
    scheduler.add_request(req("B", 1))
    plan, _ = step(scheduler, A=[101])
    assert (plan.num_scheduled_tokens, plan.blocked_reason) == ({"A": 3}, "token_budget")


def test_padding_needs_room_up_to_max_model_len():
    scheduler = with_drafts(req("A", 1), max_model_len=3)
    step(scheduler, drafts=())
    scheduler.add_request(req("B", 1))
    assert step(scheduler)[0].num_scheduled_tokens == {"A": 1, "B": 1}


@pytest.mark.parametrize("threshold", [1, 2])
def test_padding_is_cut_with_its_piece(threshold):
    """One token of the piece is real, so the padding is one less: never wider than its piece."""
    scheduler = with_drafts(req("A", 3), long_prefill_token_threshold=threshold)
    step(scheduler)
    scheduler.add_request(req("B", 1))
    plan, _ = step(scheduler, A=[101])
    assert plan.num_scheduled_tokens["B"] == threshold
    assert plan.scheduled_spec_decode_tokens.get("B", []) == [-1] * (threshold - 1)
    assert scheduler.requests["B"].num_computed_tokens == 1


# --- a sliding window ---


@pytest.mark.parametrize("window", [1, 2, 3, 5])
@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_a_block_is_kept_while_the_token_after_rejected_drafts_looks_back_at_it(window, block_size):
    scheduler = with_drafts(req("A", 6), block_size=block_size, sliding_window=window)
    a = scheduler.requests["A"]
    step(scheduler)
    for _ in range(8):
        step(scheduler, A=[101])  # both drafts are rejected
        table, computed = scheduler.kv_cache_manager.get_block_ids("A"), a.num_computed_tokens
        seen = {position // block_size for position in range(max(0, computed - window + 1), computed)}
        assert all(table[i] for i in seen), f"token {computed} looks back at the null block: {table}"
