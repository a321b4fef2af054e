"""The scheduler's rules, one tiny case each: small enough to be done on paper.

Notation: `plan.num_scheduled_tokens == {"A": 3}` means that A computes three tokens in this step. Blocks hold four
tokens. The stand-in for the model answers 100, 101, … for whoever reached the end of its known tokens.
"""

import pytest

from mini_vllm.core.output import CachedRequestData
from mini_vllm.errors import DuplicateRequestError
from mini_vllm.request import RequestStatus
from tests.core.tiny import answer, ids, make, req, step

# --- a step ---


def test_a_prompt_that_fits_is_computed_at_once_and_gives_its_first_token():
    scheduler = make(req("A", 3))
    plan, news = step(scheduler)
    assert plan.num_scheduled_tokens == {"A": 3}
    assert news[0].new_token_ids == [100]


def test_a_new_request_is_sent_in_full():
    plan, _ = step(make(req("A", 5, max_tokens=7)))
    [new] = plan.scheduled_new_reqs
    assert (new.req_id, new.prompt_token_ids, new.block_ids) == ("A", [10, 11, 12, 13, 14], [1, 2])
    assert (new.num_computed_tokens, new.sampling_params.max_tokens) == (0, 7)
    assert plan.scheduled_cached_reqs == CachedRequestData()


def test_after_that_only_what_changed_is_sent():
    scheduler = make(req("A", 4))
    step(scheduler)
    plan, _ = step(scheduler)
    assert plan.scheduled_cached_reqs == CachedRequestData(["A"], [4], {"A": [2]}, resumed_req_ids=[])
    assert plan.scheduled_new_reqs == []


def test_decoding_takes_one_token_a_step():
    scheduler = make(req("A", 3))
    assert [step(scheduler)[0].num_scheduled_tokens for _ in range(3)] == [{"A": 3}, {"A": 1}, {"A": 1}]


def test_an_idle_step_is_an_empty_plan():
    plan, news = step(make())
    assert (plan.num_scheduled_tokens, plan.blocked_reason, news) == ({}, None, [])


def test_computed_advances_when_the_plan_is_made():
    scheduler = make(req("A", 3))
    scheduler.schedule()
    assert scheduler.requests["A"].num_computed_tokens == 3


def test_a_request_in_mid_prompt_makes_no_news():
    scheduler = make(req("A", 6), max_num_seqs=1, max_num_batched_tokens=4)
    assert [len(step(scheduler)[1]) for _ in range(2)] == [0, 1]


# --- the token budget ---


def test_a_long_prompt_is_computed_in_chunks():
    scheduler = make(req("A", 10), max_num_seqs=1, max_num_batched_tokens=4)
    assert [step(scheduler)[0].num_scheduled_tokens["A"] for _ in range(4)] == [4, 4, 2, 1]


def test_those_who_run_go_first_and_the_rest_of_the_budget_goes_to_who_waits():
    scheduler = make(req("A", 2), max_num_seqs=2, max_num_batched_tokens=4)
    step(scheduler)
    scheduler.add_request(req("B", 9))
    plan, _ = step(scheduler)
    assert list(plan.num_scheduled_tokens.items()) == [("A", 1), ("B", 3)]


def test_two_prompts_share_one_step_and_the_second_is_cut():
    scheduler = make(req("A", 3), req("B", 5), max_num_seqs=2, max_num_batched_tokens=6)
    assert step(scheduler)[0].num_scheduled_tokens == {"A": 3, "B": 3}
    assert step(scheduler)[0].num_scheduled_tokens == {"A": 1, "B": 2}


def test_a_chunk_takes_only_the_blocks_it_fills():
    scheduler = make(req("A", 10), max_num_seqs=1, max_num_batched_tokens=5)
    assert step(scheduler)[0].scheduled_new_reqs[0].block_ids == [1, 2]
    assert step(scheduler)[0].scheduled_cached_reqs.new_block_ids == {"A": [3]}


# --- admission: in order, or not at all ---


def test_requests_enter_in_the_order_of_arrival():
    scheduler = make(req("B", 2), req("A", 2), req("C", 2))
    assert list(step(scheduler)[0].num_scheduled_tokens) == ["B", "A", "C"]


def test_nobody_overtakes_a_head_that_does_not_fit():
    scheduler = make(req("A", 4), req("B", 12), req("C", 1), num_gpu_blocks=3)
    plan, _ = step(scheduler)
    assert ids(scheduler.waiting) == ["B", "C"]
    assert plan.num_scheduled_tokens == {"A": 4}


def test_the_whole_known_sequence_must_fit_even_if_the_first_chunk_would():
    scheduler = make(req("A", 12), num_gpu_blocks=2, max_num_seqs=1, max_num_batched_tokens=4)
    plan, _ = step(scheduler)
    assert (plan.num_scheduled_tokens, plan.blocked_reason) == ({}, "kv_full_sequence")


def test_the_blocks_of_future_outputs_are_not_asked_for():
    scheduler = make(req("A", 4, max_tokens=100), num_gpu_blocks=1)
    assert step(scheduler)[0].num_scheduled_tokens == {"A": 4}


# --- preemption ---


@pytest.fixture
def full_house():
    """A, B and C fill three blocks of four to the last slot; D waits. Each of the three needs a block next."""
    scheduler = make(req("A", 4), req("B", 4), req("C", 4), num_gpu_blocks=3)
    step(scheduler)
    scheduler.add_request(req("D", 1))
    return scheduler


def test_the_tail_of_running_is_evicted_for_the_head(full_house):
    plan, _ = step(full_house)
    assert plan.num_scheduled_tokens == {"A": 1}
    assert ids(full_house.running) == ["A"]
    # A takes C's block; B finds none either, and is itself the tail.
    assert plan.preempted_req_ids == ["C", "B"]


def test_the_preempted_stand_at_the_head_of_the_queue_in_their_old_order(full_house):
    step(full_house)
    assert ids(full_house.waiting) == ["B", "C", "D"]


def test_nobody_enters_in_a_step_that_evicted_somebody(full_house):
    plan, _ = step(full_house)
    assert plan.scheduled_new_reqs == []
    assert full_house.kv_cache_manager.num_free_blocks == 1  # D alone would have fitted
    assert plan.blocked_reason == "preempted_this_step"


def test_a_victim_loses_its_blocks_and_its_computed_tokens_but_keeps_its_output(full_house):
    victim = full_house.requests["C"]
    step(full_house)
    assert full_house.kv_cache_manager.get_block_ids("C") == []
    assert (victim.num_computed_tokens, victim.output_token_ids) == (0, [100])
    assert (victim.status, victim.num_preemptions) == (RequestStatus.PREEMPTED, 1)


def test_a_victim_in_mid_prompt_is_evicted_too():
    scheduler = make(req("A", 2), max_num_seqs=2, max_num_batched_tokens=6, num_gpu_blocks=4)
    step(scheduler)
    scheduler.add_request(req("B", 12))
    assert step(scheduler)[0].num_scheduled_tokens == {"A": 1, "B": 5}
    assert step(scheduler)[0].num_scheduled_tokens == {"A": 1, "B": 5}  # A: 4 tokens, 1 block; B: 10 of 12, 3 blocks
    plan, _ = step(scheduler)
    assert (plan.num_scheduled_tokens, plan.preempted_req_ids) == ({"A": 1}, ["B"])


def test_a_request_that_is_itself_the_tail_preempts_itself():
    scheduler = make(req("A", 2), max_num_seqs=2, max_num_batched_tokens=4, num_gpu_blocks=4)
    step(scheduler)
    scheduler.add_request(req("B", 12))
    for _ in range(2):
        step(scheduler)  # A: 4 tokens, 1 block; B: 6 tokens, 2 blocks
    plan, _ = step(scheduler)  # A takes the last block, B needs a third
    assert (plan.num_scheduled_tokens, plan.preempted_req_ids) == ({"A": 1}, ["B"])
    assert scheduler.kv_cache_manager.num_free_blocks == 2


def test_a_resumed_request_computes_its_prompt_and_its_outputs_again():
    scheduler = make(req("A", 4, max_tokens=2), req("B", 4), num_gpu_blocks=2)
    step(scheduler)
    step(scheduler)  # A takes B's block and ends
    plan, news = step(scheduler)
    assert plan.num_scheduled_tokens == {"B": 5}
    cached = plan.scheduled_cached_reqs
    assert (cached.req_ids, cached.resumed_req_ids, cached.num_computed_tokens) == (["B"], ["B"], [0])
    assert len(cached.new_block_ids["B"]) == 2  # its whole table, not an addition
    assert news[0].new_token_ids == [101]
    assert scheduler.requests["B"].status is RequestStatus.RUNNING


def test_a_resumed_request_enters_before_one_that_never_ran():
    scheduler = make(req("A", 4, max_tokens=2), req("B", 4), num_gpu_blocks=2)
    step(scheduler)
    scheduler.add_request(req("C", 4))
    step(scheduler)
    assert list(step(scheduler)[0].num_scheduled_tokens) == ["B"]


def test_a_request_counts_each_of_its_preemptions():
    scheduler = make(req("A", 4, max_tokens=3), req("B", 4, max_tokens=6), req("C", 4, max_tokens=6), num_gpu_blocks=3)
    c = scheduler.requests["C"]
    victims = [step(scheduler)[0].preempted_req_ids for _ in range(20)]
    assert c.num_preemptions == sum("C" in v for v in victims) == 1
    assert c.finish_reason == "length"


# --- how a request ends ---


def test_max_tokens_1_is_one_step():
    scheduler = make(req("A", 5, max_tokens=1))
    _, news = step(scheduler)
    assert (news[0].new_token_ids, news[0].finish_reason) == ([100], "length")
    assert not scheduler.has_unfinished_requests()


def test_a_stop_token_ends_a_request_early():
    scheduler = make(req("A", 2, stop_token_ids=(101,)))
    assert [step(scheduler)[1][0].finish_reason for _ in range(2)] == [None, "stop"]


def test_a_sequence_ends_with_max_model_len_tokens():
    scheduler = make(req("A", 3, max_tokens=50), max_model_len=6)
    news = [step(scheduler)[1][0] for _ in range(3)]
    assert [n.finish_reason for n in news] == [None, None, "length"]
    assert not scheduler.has_unfinished_requests()


def test_a_prompt_of_max_model_len_tokens_gives_one_token():
    scheduler = make(req("A", 6, max_tokens=50), max_model_len=6)
    assert step(scheduler)[1][0].finish_reason == "length"


def test_a_running_prompt_is_never_computed_beyond_max_model_len_minus_one():
    # As in vLLM, whose front end refuses such a prompt before; the bare scheduler lets it stand still.
    scheduler = make(req("A", 10), max_model_len=6, max_num_seqs=1, max_num_batched_tokens=4)
    assert [step(scheduler)[0].num_scheduled_tokens for _ in range(3)] == [{"A": 4}, {"A": 1}, {}]


def test_a_running_request_with_nothing_to_compute_is_passed_over():
    scheduler = make(req("A", 10), max_model_len=6, max_num_seqs=2, max_num_batched_tokens=4)
    for _ in range(2):
        step(scheduler)
    scheduler.add_request(req("B", 2))
    assert step(scheduler)[0].num_scheduled_tokens == {"B": 2}
    assert step(scheduler)[0].num_scheduled_tokens == {"B": 1}


def test_the_blocks_of_a_finished_request_are_free_for_the_next_step():
    scheduler = make(req("A", 4, max_tokens=1), req("B", 4), num_gpu_blocks=1)
    step(scheduler)
    assert step(scheduler)[0].num_scheduled_tokens == {"B": 4}


def test_a_finished_request_is_told_to_the_worker_once():
    scheduler = make(req("A", 2, max_tokens=1), req("B", 2))
    plans = [step(scheduler)[0] for _ in range(3)]
    assert [plan.finished_req_ids for plan in plans] == [[], ["A"], []]


def test_an_id_in_use_is_refused():
    scheduler = make(req("A", 2))
    with pytest.raises(DuplicateRequestError, match="'A' is in use"):
        scheduler.add_request(req("A", 3))


def test_an_id_may_be_used_again_once_its_request_is_over():
    scheduler = make(req("A", 2, max_tokens=1))
    step(scheduler)
    scheduler.add_request(req("A", 3))
    plan, _ = step(scheduler)
    assert plan.finished_req_ids == ["A"]
    assert plan.scheduled_new_reqs[0].prompt_token_ids == [10, 11, 12]
    assert plan.scheduled_cached_reqs == CachedRequestData()


# --- aborts ---


def test_abort_of_a_waiting_request():
    scheduler = make(req("A", 2), req("B", 2), max_num_seqs=1)
    step(scheduler)
    b = scheduler.requests["B"]
    scheduler.finish_requests(["B"])
    assert (ids(scheduler.waiting), b.finish_reason) == ([], "abort")
    scheduler.check_integrity()


def test_abort_of_a_running_request_frees_its_blocks_at_once():
    scheduler = make(req("A", 8), req("B", 4), num_gpu_blocks=2)
    step(scheduler)
    scheduler.finish_requests(["A"])
    scheduler.check_integrity()
    plan, _ = step(scheduler)
    assert (plan.num_scheduled_tokens, plan.finished_req_ids) == ({"B": 4}, ["A"])


def test_abort_of_a_preempted_request():
    scheduler = make(req("A", 4), req("B", 4), num_gpu_blocks=2)
    step(scheduler)
    step(scheduler)
    assert scheduler.requests["B"].status is RequestStatus.PREEMPTED
    scheduler.finish_requests(["B"])
    scheduler.check_integrity()
    assert ids(scheduler.waiting) == []
    assert step(scheduler)[0].finished_req_ids == ["B"]


def test_abort_while_the_step_is_under_way_drops_the_token():
    scheduler = make(req("A", 2), req("B", 2))
    plan = scheduler.schedule()
    output = answer(scheduler, plan)
    a = scheduler.requests["A"]
    scheduler.finish_requests(["A"])
    assert [n.request_id for n in scheduler.update_from_output(plan, output)] == ["B"]
    assert a.output_token_ids == []
    scheduler.check_integrity()


def test_abort_of_an_unknown_or_finished_request_is_passed_over():
    scheduler = make(req("A", 2, max_tokens=1))
    step(scheduler)
    scheduler.finish_requests(["A", "nobody"])
    assert step(scheduler)[0].finished_req_ids == ["A"]


def test_one_id_may_be_given_as_it_is():
    scheduler = make(req("R1", 2), req("R", 2), req("1", 2))
    scheduler.finish_requests("R1")
    assert list(scheduler.requests) == ["R", "1"]
    scheduler.finish_requests("1")
    assert list(scheduler.requests) == ["R"]


def test_ids_may_come_from_any_iterable():
    scheduler = make(req("A", 2), req("B", 2), req("C", 2))
    scheduler.finish_requests(r for r in ("A", "B"))
    scheduler.finish_requests({"C"})
    assert scheduler.requests == {}


def test_requests_may_be_ended_with_another_status():
    scheduler = make(req("A", 2))
    a = scheduler.requests["A"]
    step(scheduler)
    scheduler.finish_requests(["A"], RequestStatus.FINISHED_STOPPED)
    assert a.finish_reason == "stop"


# --- check_integrity names what is broken ---


def spoil_lost(scheduler):
    scheduler.running.pop()


def spoil_twice(scheduler):
    scheduler.waiting.add(scheduler.running[0])


def spoil_holds_kv(scheduler):
    scheduler.waiting.add(scheduler.running.pop())


def spoil_too_many_running(scheduler):
    object.__setattr__(scheduler.config, "max_num_seqs", 1)


def spoil_missing_block(scheduler):
    scheduler.running[0].num_computed_tokens = 5


def spoil_lost_block(scheduler):
    scheduler.kv_cache_manager.block_pool._unlink(3)


def spoil_hash(scheduler):
    a, pool = scheduler.running[0], scheduler.kv_cache_manager.block_pool
    a.block_hashes = [b"made up"]
    pool.register(1, b"of another")
    scheduler.kv_cache_manager.num_registered["A"] = 1


def spoil_computed(scheduler):
    scheduler.running[0].num_computed_tokens = 4


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_lost, r"queues hold \['A'\], known are \['A', 'B'\]"),
        (spoil_twice, r"queues hold \['A', 'A', 'B'\], known are \['A', 'B'\]"),
        (spoil_holds_kv, "B waits and holds KV"),
        (spoil_too_many_running, "more running than max_num_seqs"),
        (spoil_lost_block, r"free queue \[4, .*64\], blocks without an owner \[3, 4, "),
        (spoil_missing_block, "A has computed 5 tokens and room for 4"),
        (spoil_computed, "A has computed 4 tokens and knows 3"),
        (spoil_hash, "A: block 1 carries another hash than its tokens 0 ff."),
    ],
)
def test_check_integrity_names_the_broken_invariant(spoil, message):
    scheduler = make(req("A", 2), req("B", 2))
    step(scheduler)
    spoil(scheduler)
    with pytest.raises(AssertionError, match=message):
        scheduler.check_integrity()
