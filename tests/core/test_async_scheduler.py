"""One step ahead: plan s + 1 is made before the output of plan s is known.

    plan 0, plan 1, output 0, plan 2, output 1, …

`Ahead` keeps the outputs back; a test says when they arrive. Blocks hold four tokens.
"""

from collections import deque

import pytest

from mini_vllm.core.async_scheduler import AsyncScheduler
from mini_vllm.core.output import ModelRunnerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import ConfigError, SchedulerContractError
from mini_vllm.request import RequestStatus
from mini_vllm.sim.driver import SimRequest, simulate
from tests.core.tiny import ids, make, req


class Ahead:
    """An asynchronous scheduler and what is under way. Everybody at its end gets 100, 101, …"""

    def __init__(self, *requests, **limits):
        self.scheduler = make(*requests, scheduler_cls=AsyncScheduler, **limits)
        self.requests = dict(self.scheduler.requests)
        self.under_way = deque()
        self.sampled = dict.fromkeys(self.requests, 0)

    def plan(self):
        plan = self.scheduler.schedule()
        at_end = [r for r in plan.num_scheduled_tokens if not self.requests[r].is_prefill_chunk]
        tokens = {r: [100 + self.sampled[r]] for r in at_end}
        self.sampled.update({r: self.sampled[r] + 1 for r in at_end})
        self.under_way.append((plan, ModelRunnerOutput(tokens)))
        self.scheduler.check_integrity()
        return plan

    def output(self):
        news = self.scheduler.update_from_output(*self.under_way.popleft())
        self.scheduler.check_integrity()
        return news


def pieces(ahead, num_plans):
    """What each plan computes, the outputs one plan late."""
    out = []
    for _ in range(num_plans):
        out.append(ahead.plan().num_scheduled_tokens)
        if len(ahead.under_way) > 1:
            ahead.output()
    return out


# --- placeholders ---


def test_a_token_that_is_under_way_is_advanced_over():
    ahead = Ahead(req("A", 3))
    a = ahead.requests["A"]
    assert ahead.plan().num_scheduled_tokens == {"A": 3}
    assert (a.num_output_placeholders, a.num_in_flight_tokens) == (1, 3)
    assert ahead.plan().num_scheduled_tokens == {"A": 1}
    assert (a.num_output_placeholders, a.num_in_flight_tokens, a.num_computed_tokens) == (2, 4, 4)


def test_its_output_closes_the_placeholder():
    ahead = Ahead(req("A", 3))
    ahead.plan()
    ahead.plan()
    assert ahead.output()[0].new_token_ids == [100]
    a = ahead.requests["A"]
    assert (a.num_output_placeholders, a.num_in_flight_tokens, a.output_token_ids) == (1, 1, [100])


def test_a_piece_in_mid_prompt_gets_no_placeholder():
    ahead = Ahead(req("A", 9), max_num_scheduled_tokens=4)
    a = ahead.requests["A"]
    assert [ahead.plan().num_scheduled_tokens for _ in range(2)] == [{"A": 4}, {"A": 4}]
    assert a.num_output_placeholders == 0
    assert ahead.plan().num_scheduled_tokens == {"A": 1}
    assert a.num_output_placeholders == 1
    assert ahead.output() == []


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_no_step_is_planned_after_the_last_token(max_tokens):
    ahead = Ahead(req("A", 3, max_tokens=max_tokens))
    assert pieces(ahead, 5) == [{"A": 3}, *[{"A": 1}] * (max_tokens - 1), *[{}] * (5 - max_tokens)]
    assert not ahead.scheduler.has_unfinished_requests()


def test_one_who_waits_for_its_last_token_is_passed_over_not_the_end_of_the_scan():
    ahead = Ahead(req("A", 3, max_tokens=1), req("B", 3))
    assert pieces(ahead, 2) == [{"A": 3, "B": 3}, {"B": 1}]


def test_a_stop_token_costs_one_step_whose_token_is_dropped():
    ahead = Ahead(req("A", 3, stop_token_ids=(100,)))
    assert pieces(ahead, 2) == [{"A": 3}, {"A": 1}]  # planned before 100 was known
    assert ahead.output() == []
    assert ahead.requests["A"].output_token_ids == [100]
    assert ahead.scheduler.kv_cache_manager.num_free_blocks == 64


def test_a_block_that_holds_a_placeholder_is_not_published():
    ahead = Ahead(req("A", 3), enable_prefix_caching=True)
    cached = ahead.scheduler.kv_cache_manager.block_pool.cached
    ahead.plan()
    ahead.plan()  # fills the block with a token that nobody knows
    assert cached == {}
    ahead.output()
    assert cached == {}  # known now, but its step is still under way
    ahead.output()
    assert list(cached.values()) == [1]


def test_a_prompt_is_published_at_once():
    ahead = Ahead(req("A", 9), req("B", 9), enable_prefix_caching=True)
    plan = ahead.plan()
    assert [new.num_computed_tokens for new in plan.scheduled_new_reqs] == [0, 8]


# --- eviction of one whose step is under way ---


def evicted(*more, num_gpu_blocks=2, max_tokens=16):
    """Plan 1 evicts B, whose token of plan 0 is under way."""
    ahead = Ahead(req("A", 4), req("B", 4, max_tokens=max_tokens), *more, num_gpu_blocks=num_gpu_blocks)
    ahead.plan()
    assert ahead.plan().preempted_req_ids == ["B"]
    return ahead


def test_a_stale_output_is_kept_and_leaves_the_new_counters_alone():
    ahead = evicted()
    b = ahead.requests["B"]
    assert (b.num_stale_plans, b.num_output_placeholders, b.num_in_flight_tokens) == (1, 0, 0)
    assert [news.request_id for news in ahead.output()] == ["A", "B"]
    assert (b.output_token_ids, b.status) == ([100], RequestStatus.PREEMPTED)
    assert (b.num_stale_plans, b.num_output_placeholders, b.num_computed_tokens) == (0, 0, 0)
    assert ids(ahead.scheduler.waiting) == ["B"]


def test_a_stale_output_may_end_a_request_that_waits():
    ahead = evicted(max_tokens=1)
    a, b = ahead.output()
    assert (a.finish_reason, b.request_id, b.finish_reason) == (None, "B", "length")
    assert ids(ahead.scheduler.waiting) == []
    assert "B" not in ahead.scheduler.requests
    assert ahead.plan().finished_req_ids == ["B"]


def test_one_with_stale_output_stands_aside_until_it_has_come():
    # Three blocks: A takes the third, B evicts itself and leaves one free. C would fit, but B is at its head.
    ahead = Ahead(req("A", 4), req("B", 4), req("C", 1), num_gpu_blocks=3, max_num_scheduled_tokens=8)
    ahead.plan()
    assert ahead.plan().preempted_req_ids == ["B"]
    assert ids(ahead.scheduler.waiting) == ["B", "C"]
    plan = ahead.plan()  # a third plan before the first output: B has stale output under way, C enters
    assert (plan.num_scheduled_tokens, ids(ahead.scheduler.waiting)) == ({"A": 1, "C": 1}, ["B"])
    ahead.output()
    assert ahead.requests["B"].num_stale_plans == 0


# --- what must not be done ---


def test_outputs_come_in_the_order_of_the_plans():
    ahead = Ahead(req("A", 3))
    ahead.plan()
    ahead.plan()
    ahead.under_way.reverse()
    with pytest.raises(SchedulerContractError, match="not the oldest of the 2 under way"):
        ahead.output()
    assert ahead.requests["A"].output_token_ids == []


def test_an_output_is_taken_once():
    ahead = Ahead(req("A", 3))
    ahead.plan()
    ahead.under_way *= 2
    ahead.output()
    with pytest.raises(SchedulerContractError, match="not the oldest of the 0 under way"):
        ahead.output()


def test_drafts_and_async_are_refused_together():
    with pytest.raises(ConfigError, match="num_speculative_tokens=2 with asynchronous scheduling"):
        make(scheduler_cls=AsyncScheduler, num_speculative_tokens=2)


# --- aborts ---


def test_abort_while_two_steps_are_under_way():
    ahead = Ahead(req("A", 3))
    ahead.plan()
    ahead.plan()
    ahead.scheduler.finish_requests(["A"])
    assert (ahead.output(), ahead.output()) == ([], [])
    assert ahead.requests["A"].output_token_ids == []
    assert ahead.scheduler.kv_cache_manager.num_free_blocks == 64


def test_the_output_of_an_aborted_request_is_not_given_to_the_next_one_of_that_id():
    ahead = Ahead(req("A", 3))
    ahead.plan()
    ahead.scheduler.finish_requests(["A"])
    heir = ahead.requests["A"] = req("A", 5)
    ahead.scheduler.add_request(heir)
    assert ahead.output() == []
    assert (heir.output_token_ids, ahead.plan().num_scheduled_tokens) == ([], {"A": 5})


# --- against the synchronous one ---


@pytest.mark.parametrize("limits", [{}, {"num_gpu_blocks": 4}, {"max_num_scheduled_tokens": 3}])
def test_fed_at_once_it_decides_as_the_synchronous_one(limits):
    config = make(**limits, max_num_seqs=3).config
    requests = [SimRequest("A", 5, 4), SimRequest("B", 9, 3, 1), SimRequest("C", 4, 8, 1)]
    ahead, synchronous = (simulate(requests, config, scheduler_cls=cls) for cls in (AsyncScheduler, Scheduler))
    assert ahead.steps == synchronous.steps
