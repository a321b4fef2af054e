"""What each stage adds, in cases small enough for paper: blocks of four tokens, a plan as {request: tokens}."""

from dataclasses import replace

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.integrity import check_integrity
from mini_vllm.errors import KVPoolExhaustedError, KVPoolTooSmallError, PromptTooLongError, SchedulerContractError
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.stages import STAGES, load_stage
from mini_vllm.stages.ch05_two_budgets import ReserveNothing, ReservePrompt
from tests.core.tiny import answer, ids, make, req

every = pytest.mark.parametrize("chapter", STAGES)


class StaticAdmission(load_stage(4)):
    """As chapter 4 shows it: the door opens when the batch is empty."""

    def schedule_waiting(self):
        return "batch_runs" if self.running else super().schedule_waiting()


def at(chapter, *requests, **limits):
    cls = load_stage(chapter) if isinstance(chapter, int) else chapter
    return make(*requests, scheduler_cls=cls, **{"refuse_unfittable": True, "max_num_seqs": 4, **limits})


def step(scheduler):
    plan = scheduler.schedule()
    check_integrity(scheduler)
    scheduler.update_from_output(plan, answer(scheduler, plan))
    check_integrity(scheduler)
    return plan


def plans(scheduler, num_steps):
    return [step(scheduler).num_scheduled_tokens for _ in range(num_steps)]


# --- chapter 4: admit and retire ---


@every
def test_the_prompt_then_one_token_a_step_until_it_is_done(chapter):
    scheduler = at(chapter, req("A", 5, 3))
    assert plans(scheduler, 3) == [{"A": 5}, {"A": 1}, {"A": 1}]
    assert not scheduler.has_unfinished_requests()
    assert scheduler.schedule().finished_req_ids == ["A"]
    assert scheduler.kv_cache_manager.num_free_blocks == 64


@every
def test_a_seat_that_is_left_is_taken_in_the_next_step(chapter):
    scheduler = at(chapter, req("A", 2, 1), req("B", 2, 3), req("C", 2, 3), max_num_seqs=2)
    plan = step(scheduler)
    assert (plan.num_scheduled_tokens, plan.blocked_reason) == ({"A": 2, "B": 2}, "max_num_seqs")
    assert step(scheduler).num_scheduled_tokens == {"B": 1, "C": 2}


def test_static_admission_waits_for_the_last_one():
    scheduler = at(StaticAdmission, req("A", 2, 1), req("B", 2, 3), req("C", 2, 3), max_num_seqs=2)
    assert plans(scheduler, 4) == [{"A": 2, "B": 2}, {"B": 1}, {"B": 1}, {"C": 2}]
    scheduler.add_request(req("D", 2))
    assert step(scheduler).blocked_reason == "batch_runs"


@every
@pytest.mark.parametrize("given", ["A", ["A"], ["A", "A", "nobody"]])
def test_an_abort_frees_seat_and_blocks_wherever_it_stands(chapter, given):
    for num_steps in (0, 1):
        scheduler = at(chapter, req("A", 6), req("B", 2))
        plans(scheduler, num_steps)
        scheduler.finish_requests(given)
        check_integrity(scheduler)
        assert ids([*scheduler.waiting, *scheduler.running]) == ["B"]
        plan = step(scheduler)
        assert plan.finished_req_ids == ["A"]
        assert "A" not in plan.num_scheduled_tokens


@every
def test_what_was_sampled_for_one_that_is_gone_is_dropped(chapter):
    scheduler = at(chapter, req("A", 2))
    plan = scheduler.schedule()
    output = answer(scheduler, plan)
    scheduler.finish_requests("A")
    scheduler.add_request(req("A", 3))  # the same name, another request
    assert scheduler.update_from_output(plan, output) == []
    assert step(scheduler).num_scheduled_tokens == {"A": 3}


def test_stage_4_counts_neither_tokens_nor_blocks():
    four = [SimRequest(f"R{i}", 6, 4) for i in range(4)]
    with pytest.raises(SchedulerContractError, match=r"plans 24 tokens \(R0:6 \+ .*max_num_batched_tokens is 16"):
        simulate(four, SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16), scheduler_cls=load_stage(4))
    with pytest.raises(KVPoolExhaustedError, match=r"'R3' finds no KV block for 6 tokens: 1 of 7 are free"):
        simulate(four, SchedulerConfig(max_num_seqs=4, num_gpu_blocks=7), scheduler_cls=load_stage(4))


# --- chapter 5: two budgets ---


def test_the_head_waits_for_a_budget_that_holds_its_prompt():
    scheduler = at(5, req("A", 5), req("B", 4), req("C", 1), max_num_batched_tokens=8)
    plan = step(scheduler)
    assert (plan.num_scheduled_tokens, plan.blocked_reason) == ({"A": 5}, "token_budget")  # C would fit, behind B
    assert step(scheduler).num_scheduled_tokens == {"A": 1, "B": 4, "C": 1}


def test_those_who_run_take_their_share_of_the_budget_first():
    scheduler = at(5, req("A", 1), req("B", 1), req("C", 2), max_num_batched_tokens=8, max_num_scheduled_tokens=3)
    assert plans(scheduler, 2) == [{"A": 1, "B": 1}, {"A": 1, "B": 1}]
    assert ids(scheduler.waiting) == ["C"]


def test_one_late_in_running_may_get_nothing():
    scheduler = at(5, req("A", 1), req("B", 1), max_num_batched_tokens=8, max_num_scheduled_tokens=2)
    step(scheduler)
    scheduler.config = replace(scheduler.config, max_num_scheduled_tokens=1)
    assert step(scheduler).num_scheduled_tokens == {"A": 1}


def test_the_worst_case_is_reserved():
    """A may need 4 + 5 - 1 = 8 tokens, 2 blocks of 4; B the same; 3 blocks are there."""
    scheduler = at(5, req("A", 4, 5), req("B", 4, 5), num_gpu_blocks=3)
    plan = step(scheduler)
    assert (plan.num_scheduled_tokens, plan.blocked_reason) == ({"A": 4}, "kv_reservation")
    assert plans(scheduler, 5)[-1] == {"B": 4}  # as soon as A has left
    assert plans(at(5, req("A", 4, 5), req("B", 4, 5), num_gpu_blocks=4), 1) == [{"A": 4, "B": 4}]


def test_who_reserves_less_lets_more_in_and_can_run_dry():
    scheduler = at(ReservePrompt, req("A", 4, 5), req("B", 4, 5), num_gpu_blocks=3)
    assert plans(scheduler, 1) == [{"A": 4, "B": 4}]
    with pytest.raises(KVPoolExhaustedError, match=r"'B' finds no KV block for 1 tokens: 0 of 3 are free"):
        step(scheduler)
    assert step(at(ReservePrompt, req("A", 8, 5), req("B", 8, 5), num_gpu_blocks=3)).num_scheduled_tokens == {"A": 8}
    with pytest.raises(KVPoolExhaustedError, match="'B' finds no KV block for 8 tokens: 1 of 3 are free"):
        step(at(ReserveNothing, req("A", 8, 5), req("B", 8, 5), num_gpu_blocks=3))


@pytest.mark.parametrize("chapter", [5, 6, 7])
def test_a_prompt_beyond_the_budget_is_refused_with_the_arithmetic(chapter):
    scheduler = at(chapter, max_num_batched_tokens=8)
    with pytest.raises(PromptTooLongError, match=r"'A' may need 9 tokens in one step; the token budget is 8"):
        scheduler.add_request(req("A", 9, 1))
    assert not scheduler.has_unfinished_requests()
    scheduler.add_request(req("A", 8, 1))


def test_from_chapter_8_on_one_may_come_back_with_its_output():
    with pytest.raises(PromptTooLongError, match=r"'A' may need 11 tokens in one step; the token budget is 8"):
        at(8, req("A", 4, 8), max_num_batched_tokens=8)
    at(8, req("A", 4, 5), max_num_batched_tokens=8)
    at(9, req("A", 40, 8), max_num_batched_tokens=8)  # in pieces


@pytest.mark.parametrize("chapter", [n for n in STAGES if n >= 5])
def test_what_the_whole_pool_cannot_hold_is_refused(chapter):
    with pytest.raises(KVPoolTooSmallError, match=r"'A' needs up to 4 KV blocks for 13 tokens"):
        at(chapter, req("A", 8, 6), num_gpu_blocks=3)


# --- chapter 6: blocks ---


def test_a_request_grows_block_by_block():
    scheduler = at(6, req("A", 4, 6), req("B", 4, 2), num_gpu_blocks=4)
    assert plans(scheduler, 1) == [{"A": 4, "B": 4}]  # 1 block each, where chapter 5 reserves 3 and 2
    assert scheduler.kv_cache_manager.get_block_ids("A") == [1]
    step(scheduler)
    assert scheduler.kv_cache_manager.get_block_ids("A") == [1, 3]


@pytest.mark.parametrize("chapter", [n for n in STAGES if n >= 6])
def test_why_the_head_finds_no_blocks(chapter):
    base = {"num_gpu_blocks": 4, "max_model_len": 64}
    scheduler = at(chapter, req("A", 8, 2), req("B", 12, 2), **base)
    assert step(scheduler).blocked_reason == "kv_full_sequence"  # 3 blocks, and 2 are free
    scheduler = at(chapter, req("A", 8, 2), req("B", 12, 2), **base, reserve_full_isl=False)
    assert step(scheduler).blocked_reason == "kv_chunk"
    scheduler = at(chapter, req("A", 8, 2), req("B", 5, 2), **base, watermark=0.2)
    assert step(scheduler).blocked_reason == "kv_watermark"  # 2 blocks, 2 are free, and int(0.2 * 5) = 1 must stay


@pytest.mark.parametrize("chapter", [6, 7])
def test_without_eviction_a_pool_that_runs_dry_is_an_error(chapter):
    scheduler = at(chapter, req("A", 4, 5), req("B", 4, 5), num_gpu_blocks=3)
    step(scheduler)
    with pytest.raises(KVPoolExhaustedError, match=r"'B' finds no KV block .* before chapter 8 nobody is evicted"):
        step(scheduler)


@pytest.mark.parametrize("chapter", [n for n in STAGES if n >= 6])
def test_blocks_out_of_the_window_are_given_back(chapter):
    scheduler = at(chapter, req("A", 12, 6), sliding_window=4)
    plans(scheduler, 3)  # tokens 9 … 13 are in sight of the next one
    assert scheduler.kv_cache_manager.get_block_ids("A")[:2] == [0, 0]


# --- chapter 7: prefix cache ---


def test_a_second_prompt_starts_behind_the_blocks_of_the_first():
    assert plans(at(6, req("A", 10), req("B", 10), enable_prefix_caching=True), 1) == [{"A": 10, "B": 10}]
    scheduler = at(7, req("A", 10), req("B", 10), enable_prefix_caching=True)
    plan = step(scheduler)
    assert plan.num_scheduled_tokens == {"A": 10, "B": 2}
    assert [new.num_computed_tokens for new in plan.scheduled_new_reqs] == [0, 8]
    assert [new.block_ids for new in plan.scheduled_new_reqs] == [[1, 2, 3], [1, 2, 4]]


def test_what_is_shared_is_not_counted_against_the_pool_twice():
    twins = req("A", 9, 2), req("B", 9, 2)
    scheduler = at(7, *twins, enable_prefix_caching=True, num_gpu_blocks=4)  # 3 blocks, and 1 more
    assert plans(scheduler, 1) == [{"A": 9, "B": 1}]


# --- chapter 8: preemption ---


@pytest.mark.parametrize("chapter", [n for n in STAGES if n >= 8])
def test_the_last_gives_way_and_comes_back_with_all_its_tokens(chapter):
    scheduler = at(chapter, req("A", 4, 5), req("B", 4, 5), num_gpu_blocks=3)
    step(scheduler)
    plan = step(scheduler)
    assert (plan.num_scheduled_tokens, plan.preempted_req_ids) == ({"A": 1}, ["B"])
    assert plan.blocked_reason == "preempted_this_step"
    assert plans(scheduler, 3) == [{"A": 1}] * 3  # B knows 5 tokens, and they need 2 blocks
    plan = step(scheduler)
    assert plan.num_scheduled_tokens == {"B": 5}
    assert plan.scheduled_cached_reqs.resumed_req_ids == ["B"]
    assert plan.scheduled_cached_reqs.new_block_ids["B"] == scheduler.kv_cache_manager.get_block_ids("B")


# --- chapter 9: chunks ---


@pytest.mark.parametrize("chapter", [9, 10])
def test_a_prompt_takes_what_is_left_of_the_budget(chapter):
    scheduler = at(chapter, req("A", 5), req("B", 9), max_num_batched_tokens=8)
    assert plans(scheduler, 2) == [{"A": 5, "B": 3}, {"A": 1, "B": 6}]


@pytest.mark.parametrize("chapter", [9, 10])
def test_a_long_prompt_leaves_room_for_others(chapter):
    scheduler = at(chapter, req("A", 9), req("B", 2), long_prefill_token_threshold=4)
    assert plans(scheduler, 2) == [{"A": 4, "B": 2}, {"A": 4, "B": 1}]


# --- chapter 10: priority ---


def test_only_the_last_stage_knows_who_is_urgent():
    requests = [(req("A", 2, priority=2), req("B", 2, priority=0)) for _ in range(2)]
    assert list(plans(at(9, *requests[0], policy="priority"), 1)[0]) == ["A", "B"]
    assert list(plans(at(10, *requests[1], policy="priority"), 1)[0]) == ["B", "A"]
