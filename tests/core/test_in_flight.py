"""Each plan's output comes once, in the order of the plans; anything else is a named error and changes nothing.

The plain scheduler has one plan under way at most, the asynchronous one two. Blocks hold four tokens.
"""

import re
from copy import deepcopy

import pytest

from mini_vllm.core.async_scheduler import AsyncScheduler
from mini_vllm.core.in_flight import PlansInFlight
from mini_vllm.core.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import SchedulerContractError
from tests.core.tiny import answer, make, req, step

each = pytest.mark.parametrize("cls", [Scheduler, AsyncScheduler])


def refused(scheduler, plan, output, message):
    before = repr(scheduler.requests)
    with pytest.raises(SchedulerContractError, match=re.escape(message)):
        scheduler.update_from_output(plan, output)
    assert repr(scheduler.requests) == before
    scheduler.check_integrity()


@each
def test_the_same_output_twice(cls):
    scheduler = make(req("A", 3), scheduler_cls=cls)
    plan = scheduler.schedule()
    output = answer(scheduler, plan) if cls is Scheduler else ModelRunnerOutput({"A": [100]})
    scheduler.update_from_output(plan, output)
    message = (
        "got the output of a plan that is not the oldest of the 0 under way (A); give each plan's output once, "
        "in the order of the plans"
    )
    refused(scheduler, plan, output, message)
    assert scheduler.requests["A"].output_token_ids == [100]


@each
def test_an_older_plan_again_while_the_next_is_under_way(cls):
    scheduler = make(req("A", 3), scheduler_cls=cls)
    plan, _ = step(scheduler) if cls is Scheduler else (scheduler.schedule(), None)
    if cls is AsyncScheduler:
        scheduler.update_from_output(plan, ModelRunnerOutput({"A": [100]}))
    scheduler.schedule()
    refused(scheduler, plan, ModelRunnerOutput({"A": [101]}), "not the oldest of the 1 under way (A)")


def test_the_error_names_a_few_of_a_large_plan():
    scheduler = make(*(req(name, 1) for name in "ABCDEF"))
    plan = scheduler.schedule()
    refused(scheduler, deepcopy(plan), ModelRunnerOutput(), "(A, B, C, D, …); give")


def test_two_plans_in_the_wrong_order():
    scheduler = make(req("A", 3), scheduler_cls=AsyncScheduler)
    plans = [scheduler.schedule(), scheduler.schedule()]
    refused(scheduler, plans[1], ModelRunnerOutput({"A": [100]}), "not the oldest of the 2 under way (A)")
    for number, plan in enumerate(plans):
        scheduler.update_from_output(plan, ModelRunnerOutput({"A": [100 + number]}))
    assert scheduler.requests["A"].output_token_ids == [100, 101]


@each
def test_an_equal_plan_is_not_the_same_plan(cls):
    """An id may be used again: {'A': 3} of yesterday is another plan than {'A': 3} of today."""
    scheduler = make(req("A", 3), scheduler_cls=cls)
    plan = scheduler.schedule()
    refused(scheduler, deepcopy(plan), ModelRunnerOutput({"A": [100]}), "not the oldest of the 1 under way (A)")


@each
def test_the_output_of_an_empty_plan_is_nothing_and_may_come_at_any_time(cls):
    scheduler = make(scheduler_cls=cls)
    empty = scheduler.schedule()
    assert scheduler.update_from_output(empty, ModelRunnerOutput()) == []
    scheduler.add_request(req("A", 3))
    plan = scheduler.schedule()
    assert scheduler.update_from_output(empty, ModelRunnerOutput()) == []
    assert [n.new_token_ids for n in scheduler.update_from_output(plan, ModelRunnerOutput({"A": [100]}))] == [[100]]


@each
def test_an_output_goes_to_whom_the_plan_advanced_not_to_the_next_of_that_name(cls):
    scheduler = make(req("A", 3), scheduler_cls=cls)
    plan = scheduler.schedule()
    scheduler.finish_requests("A")
    scheduler.add_request(again := req("A", 5))
    assert scheduler.update_from_output(plan, ModelRunnerOutput({"A": [100]})) == []
    assert (again.output_token_ids, again.num_computed_tokens) == ([], 0)
    assert scheduler.schedule().num_scheduled_tokens == {"A": 5}


def test_by_hand():
    plans, first, second = PlansInFlight(), SchedulerOutput(), SchedulerOutput()
    first.num_scheduled_tokens, second.num_scheduled_tokens = {"A": 1}, {"B": 2}
    a, b = req("A", 1), req("B", 2)
    plans.add(first, [a])
    plans.add(second, [b])
    assert (plans.take(first), plans.take(second)) == ([a], [b])
