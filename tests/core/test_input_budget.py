"""The third limit: the model's input holds `max_num_batched_tokens`, and a drafter takes slots of it for each request.

    | A's tokens | A's slots | B's tokens | B's slots | …        <= max_num_batched_tokens
      ^^^^^^^^^^               ^^^^^^^^^^                         <= the token budget

Here the drafter takes two slots for each scheduled request, if nothing else is said. No drafts are made.
"""

from dataclasses import replace

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.async_scheduler import AsyncScheduler
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import ConfigError
from mini_vllm.sim.driver import SimRequest, simulate
from tests.core.tiny import make, req, step


def with_slots(*requests, max_num_new_slots_for_drafting=2, **limits):
    return make(*requests, max_num_new_slots_for_drafting=max_num_new_slots_for_drafting, **limits)


def pieces(scheduler, num_steps):
    return [step(scheduler)[0].num_scheduled_tokens for _ in range(num_steps)]


def test_a_prompt_leaves_room_for_its_slots():
    scheduler = with_slots(req("A", 20), max_num_seqs=2, max_num_batched_tokens=10)
    assert pieces(scheduler, 3) == [{"A": 8}, {"A": 8}, {"A": 4}]


def test_each_request_takes_its_own_slots():
    scheduler = with_slots(req("A", 3), req("B", 9), max_num_seqs=2, max_num_batched_tokens=10)
    assert pieces(scheduler, 1) == [{"A": 3, "B": 3}]  # 3 + 2 + 3 + 2 = 10


def test_a_newcomer_needs_room_for_a_token_and_its_slots():
    scheduler = with_slots(req("A", 5), req("B", 9), max_num_seqs=2, max_num_batched_tokens=9)
    plan, _ = step(scheduler)  # 5 + 2 leaves 2, which B's slots would fill
    assert (plan.num_scheduled_tokens, plan.blocked_reason) == ({"A": 5}, "token_budget")
    assert pieces(scheduler, 1) == [{"A": 1, "B": 4}]


def test_a_full_batch_can_decode():
    requests = [req("A", 1), req("B", 1), req("C", 1)]
    scheduler = with_slots(*requests, max_num_seqs=3, max_num_batched_tokens=9)
    assert pieces(scheduler, 2) == [{"A": 1, "B": 1, "C": 1}] * 2


def test_one_behind_a_chunk_that_fills_the_input_is_passed_over():
    scheduler = with_slots(req("A", 1), req("B", 9), max_num_seqs=2, max_num_batched_tokens=8)
    assert pieces(scheduler, 1) == [{"A": 1, "B": 3}]
    scheduler.running.reverse()  # as if B had been admitted first
    assert pieces(scheduler, 2) == [{"B": 6}, {"B": 1, "A": 1}]


def test_the_token_budget_stands_beside_it():
    """Of an input of 10, at most 4 tokens are handed out: A's slots cost B nothing, since 6 were spare."""
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 10, "max_num_scheduled_tokens": 4}
    scheduler = with_slots(req("A", 3), req("B", 9), **limits)
    assert pieces(scheduler, 2) == [{"A": 3, "B": 1}, {"A": 1, "B": 3}]
    scheduler = with_slots(req("A", 3), req("B", 9), max_num_new_slots_for_drafting=4, **limits)
    assert pieces(scheduler, 2) == [{"A": 3}, {"A": 1, "B": 1}]  # the second: 1 + 4 + 1 + 4 = 10


@pytest.mark.parametrize(("slots", "room"), [(0, 6), (1, 4), (2, 2), (3, 0), (4, -2)])
def test_room_by_hand(slots, room):
    """An input of 8, one request with 2 tokens planned: 8 - 2 - slots, less the slots of the next."""
    cfg = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=8, max_num_new_slots_for_drafting=slots)
    assert cfg.room(budget=6, num_planned=1) == room


def test_without_slots_the_room_is_the_budget():
    cfg = SchedulerConfig(max_num_batched_tokens=64, max_num_scheduled_tokens=16)
    assert [cfg.room(budget, 7) for budget in (16, 1, 0)] == [16, 1, 0]


# --- with evictions ---


@pytest.mark.parametrize("num_slots", [0, 1, 3])
def test_the_slots_of_a_victim_are_handed_out_again(num_slots):
    """A takes 1 and its slots, B the 3 that are left. B's new block costs A its place, and A's share goes to C."""
    scheduler = with_slots(
        req("A", 1), req("B", 12), req("C", 1), policy="priority", num_gpu_blocks=3, reserve_full_isl=False,
        long_prefill_token_threshold=4, max_num_new_slots_for_drafting=num_slots,
    )  # fmt: skip
    assert pieces(scheduler, 1) == [{"A": 1, "B": 4, "C": 1}]
    scheduler.requests["A"].priority = 9
    scheduler.config = replace(scheduler.config, max_num_seqs=2, max_num_batched_tokens=1 + 3 + 2 * num_slots)
    plan, _ = step(scheduler)
    assert (plan.preempted_req_ids, plan.num_scheduled_tokens) == (["A"], {"B": 3, "C": 1})


# --- configurations that could never work ---


def refused(message, **limits):
    with pytest.raises(ConfigError, match=message):
        SchedulerConfig(**limits)


def test_a_full_batch_must_fit_with_its_slots():
    limits = {"max_num_seqs": 3, "max_num_new_slots_for_drafting": 2}
    refused(
        r"max_num_batched_tokens=8 is below max_num_seqs=3 times 1 \+ max_num_new_slots_for_drafting=2",
        max_num_batched_tokens=8, **limits,
    )  # fmt: skip
    SchedulerConfig(max_num_batched_tokens=9, **limits)


def test_without_chunks_the_longest_prompt_must_fit_beside_its_slots():
    limits = {"max_num_seqs": 1, "max_num_new_slots_for_drafting": 2, "enable_chunked_prefill": False}
    refused(
        r"the token budget of 9 \(of 11, less 2 for drafting\) is below max_model_len=10",
        max_num_batched_tokens=11, max_model_len=10, **limits,
    )  # fmt: skip
    scheduler = make(req("A", 9), max_num_batched_tokens=12, max_model_len=10, **limits)
    assert pieces(scheduler, 1) == [{"A": 9}]


def test_a_decode_with_its_drafts_must_fit_beside_its_slots():
    limits = {"max_num_seqs": 1, "max_num_new_slots_for_drafting": 3, "num_speculative_tokens": 2}
    refused(
        r"the token budget of 2 \(of 5, less 3 for drafting\) is below 1 \+ num_speculative_tokens = 3",
        max_num_batched_tokens=5, **limits,
    )  # fmt: skip
    SchedulerConfig(max_num_batched_tokens=6, **limits)


# --- to the end, under the watch ---


@pytest.mark.parametrize("cls", [Scheduler, AsyncScheduler])
@pytest.mark.parametrize("chunked", [True, False])
def test_everybody_is_served(cls, chunked):
    config = SchedulerConfig(
        max_num_seqs=3, max_num_batched_tokens=19, max_model_len=16, max_num_new_slots_for_drafting=3, num_gpu_blocks=8,
        enable_chunked_prefill=chunked, enable_prefix_caching=True,
    )  # fmt: skip
    requests = [SimRequest(f"R{i}", 1 + i, 9 - i, arrival_step=i // 2) for i in range(8)]
    trace = simulate(requests, config, scheduler_cls=cls)
    widths = [step["budget_used"] + 3 * len(step["scheduled"]) for step in trace.steps]
    assert max(widths) == 19
    assert sorted(r for step in trace.steps for r in step["finished"]) == [r.request_id for r in requests]
