"""Priority scheduling: who is served, who must leave, and what happens to the tokens of one who leaves.

A smaller number is more urgent. Both schedulers: `core`'s and the clear form of chapter 10.
"""

import math
from dataclasses import replace

import pytest

from mini_vllm.core.output import ModelRunnerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.stages.ch10_priority_aging import Scheduler as ClearScheduler
from tests.core.tiny import ids, make, req

both = pytest.mark.parametrize("cls", [Scheduler, ClearScheduler], ids=["core", "clear form"])


def step(scheduler):
    plan = scheduler.schedule()
    at_end = [r for r in plan.num_scheduled_tokens if not scheduler.requests[r].is_prefill_chunk]
    scheduler.update_from_output(plan, ModelRunnerOutput({r: [100] for r in at_end}))
    return plan


def after_one_step(*requests, cls, **limits):
    scheduler = make(*requests, policy="priority", scheduler_cls=cls, **limits)
    step(scheduler)
    return scheduler


@both
def test_the_urgent_enter_first(cls):
    scheduler = make(req("A", 2, priority=2), req("B", 2, priority=0), policy="priority", scheduler_cls=cls)
    assert list(step(scheduler).num_scheduled_tokens) == ["B", "A"]


@both
def test_under_fcfs_the_priority_plays_no_part(cls):
    scheduler = make(req("A", 2, priority=2), req("B", 2, priority=0), scheduler_cls=cls)
    assert list(step(scheduler).num_scheduled_tokens) == ["A", "B"]


@both
def test_the_least_urgent_must_leave_not_the_last(cls):
    scheduler = after_one_step(
        req("A", 4, priority=0), req("B", 2, priority=5, arrival_time=0), req("C", 2, priority=1), cls=cls,
        num_gpu_blocks=3,
    )  # fmt: skip
    scheduler.running.sort(key=lambda r: "CBA".index(r.request_id))  # as if they had been admitted in this order
    plan = step(scheduler)
    assert (plan.preempted_req_ids, plan.num_scheduled_tokens) == (["B"], {"C": 1, "A": 1})


@both
def test_of_the_equally_urgent_the_latest_must_leave(cls):
    scheduler = after_one_step(
        req("A", 4, arrival_time=0), req("B", 2, arrival_time=7), req("C", 2, arrival_time=7), cls=cls, num_gpu_blocks=3
    )
    # B and C are equal in both: of them the first in `running`, whatever its id.
    assert step(scheduler).preempted_req_ids == ["B"]


@both
def test_of_the_same_arrival_the_first_in_running_must_leave_even_if_it_is_the_one_in_need(cls):
    scheduler = after_one_step(req("A", 4), req("B", 4), cls=cls, num_gpu_blocks=2)
    plan = step(scheduler)
    assert (plan.preempted_req_ids, plan.num_scheduled_tokens) == (["A"], {"B": 1})


@both
def test_one_that_preempts_itself_does_not_end_the_scan(cls):
    scheduler = after_one_step(req("A", 4, priority=9), req("B", 2, priority=9), cls=cls, num_gpu_blocks=2)
    plan = step(scheduler)  # A needs a block, and is itself the first of the two least urgent
    assert (plan.preempted_req_ids, plan.num_scheduled_tokens) == (["A"], {"B": 1})


@both
def test_the_tokens_of_a_victim_are_handed_out_again(cls):
    """A: 1, B: 2 of its prompt; B's second block costs A its place, and A's token goes to C."""
    scheduler = after_one_step(
        req("A", 1, priority=0), req("B", 12, priority=0), req("C", 1, priority=0), cls=cls,
        num_gpu_blocks=3, reserve_full_isl=False, long_prefill_token_threshold=4,
    )  # fmt: skip
    assert ids(scheduler.running) == ["A", "B", "C"]
    scheduler.requests["A"].priority = 9
    scheduler.config = replace(scheduler.config, max_num_scheduled_tokens=3)
    plan = step(scheduler)
    assert (plan.preempted_req_ids, plan.num_scheduled_tokens) == (["A"], {"B": 2, "C": 1})


@both
def test_a_victim_that_was_planned_already_is_not_sent_to_the_worker(cls):
    scheduler = after_one_step(req("A", 1, priority=9), req("B", 4, priority=0), cls=cls, num_gpu_blocks=2)
    scheduler.running.reverse()  # as if A had been admitted first
    plan = step(scheduler)
    assert plan.preempted_req_ids == ["A"]
    assert plan.scheduled_cached_reqs.req_ids == list(plan.num_scheduled_tokens) == ["B"]
    assert scheduler.requests["A"].num_computed_tokens == 0
    assert scheduler.kv_cache_manager.get_block_ids("A") == []


@both
def test_a_victim_goes_to_its_place_in_the_line_not_to_the_front(cls):
    scheduler = after_one_step(req("A", 4, priority=0), req("B", 4, priority=5), cls=cls, num_gpu_blocks=2)
    scheduler.add_request(req("C", 4, priority=3))
    assert step(scheduler).preempted_req_ids == ["B"]
    assert ids(scheduler.waiting) == ["C", "B"]


def admissions(cls, aging):
    """One seat, one step a request; R has priority 3, and in every step somebody with priority 0 comes."""
    limits = {"policy": "priority", "max_num_seqs": 1, "num_gpu_blocks": 8, "aging": aging}
    scheduler, entered = make(req("R", 2, 1, priority=3), scheduler_cls=cls, **limits), []
    for now in range(12):
        scheduler.add_request(req(f"N{now:02}", 2, 1, priority=0, arrival_time=float(now)))
        entered += step(scheduler).num_scheduled_tokens
    return entered


@both
def test_without_aging_the_least_urgent_starves(cls):
    assert "R" not in admissions(cls, None)


@both
@pytest.mark.parametrize("aging", [0.5, 2, 3])
def test_with_aging_only_those_who_come_soon_overtake(cls, aging):
    """Of three levels less, within 3 * aging: those who arrive at 0, 1, …, just before that."""
    assert admissions(cls, aging).index("R") == math.ceil(3 * aging)


@both
def test_with_aging_the_old_one_is_not_the_victim(cls):
    for aging, victim in ((None, "A"), (1.0, "B")):
        scheduler = after_one_step(
            req("A", 4, priority=1, arrival_time=0.0), req("B", 4, priority=0, arrival_time=5.0), cls=cls,
            num_gpu_blocks=2, aging=aging,
        )  # fmt: skip
        assert step(scheduler).preempted_req_ids == [victim]


@both
def test_an_urgent_newcomer_evicts_nobody(cls):
    """Only those who run may evict; who waits, waits for room."""
    scheduler = after_one_step(req("A", 2, priority=9), cls=cls, num_gpu_blocks=1)
    scheduler.add_request(req("B", 2, priority=0))
    plan = step(scheduler)
    assert (plan.preempted_req_ids, plan.num_scheduled_tokens) == ([], {"A": 1})
