"""`blocked_reason`: why the head of the queue did not enter. One tiny case a value, and which of two is named.

In order: max_num_seqs, the other gates, preempted_this_step, token_budget, kv_full_sequence, kv_watermark, kv_chunk.
"""

from dataclasses import replace

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from tests.core.tiny import ids, make, req, step


def reason(*requests, **limits):
    return step(make(*requests, **limits))[0].blocked_reason


def evicting(**limits):
    """A and B fill two blocks of four; in the next step A takes B's, or its own step says why not."""
    scheduler = make(req("A", 4), req("B", 4), num_gpu_blocks=2, **limits)
    step(scheduler)
    return scheduler


# --- each value ---


def test_none_when_nobody_is_left_waiting():
    assert reason(req("A", 2), req("B", 2)) is None


def test_none_when_nobody_came():
    assert reason() is None


def test_max_num_seqs():
    assert reason(req("A", 2), req("B", 2), max_num_seqs=1) == "max_num_seqs"


def test_preempted_this_step():
    plan, _ = step(evicting())
    assert (plan.preempted_req_ids, plan.blocked_reason) == (["B"], "preempted_this_step")


def test_token_budget():
    assert reason(req("A", 4), req("B", 1), max_num_seqs=2, max_num_batched_tokens=4) == "token_budget"


def test_token_budget_is_max_num_scheduled_tokens_where_that_is_set():
    assert reason(req("A", 4), req("B", 1), max_num_scheduled_tokens=4) == "token_budget"


def test_token_budget_that_is_not_used_up_but_too_small_for_a_whole_prompt():
    limits = {"max_num_batched_tokens": 8, "max_model_len": 8, "enable_chunked_prefill": False}
    assert reason(req("A", 5), req("B", 4), **limits) == "token_budget"


def test_kv_full_sequence():
    assert reason(req("A", 4), req("B", 5), num_gpu_blocks=2) == "kv_full_sequence"


def test_kv_full_sequence_although_the_first_piece_would_fit():
    assert reason(req("A", 9), num_gpu_blocks=2, max_num_scheduled_tokens=4) == "kv_full_sequence"


def test_kv_watermark():
    # 0.25 of 4 blocks and the null block: one stays free. A has one, B needs three.
    assert reason(req("A", 4), req("B", 12), num_gpu_blocks=4, watermark=0.25) == "kv_watermark"
    assert reason(req("A", 4), req("B", 8), num_gpu_blocks=4, watermark=0.25) is None


def test_kv_watermark_holds_without_the_full_sequence_too():
    limits = {"num_gpu_blocks": 4, "watermark": 0.25, "reserve_full_isl": False}
    assert reason(req("A", 4), req("B", 12), **limits) == "kv_watermark"


def test_kv_chunk():
    assert reason(req("A", 4), req("B", 1), num_gpu_blocks=1, reserve_full_isl=False) == "kv_chunk"


def test_kv_chunk_because_of_the_lookahead():
    # All four known tokens have their block; the slot for a draft does not.
    assert reason(req("A", 4), num_gpu_blocks=1, num_lookahead_tokens=1) == "kv_chunk"


# --- the watermark is for those who enter beside others ---


def test_the_watermark_is_waived_while_nothing_runs():
    assert reason(req("A", 16), num_gpu_blocks=4, watermark=0.25) is None


def test_one_admitted_in_the_same_step_counts_as_running():
    scheduler = make(req("A", 4), req("B", 4), num_gpu_blocks=2, watermark=0.4)
    plan, _ = step(scheduler)
    assert (plan.num_scheduled_tokens, plan.blocked_reason) == ({"A": 4}, "kv_watermark")


def test_those_who_run_may_use_the_watermark():
    scheduler = make(req("A", 4), num_gpu_blocks=2, watermark=0.4)
    step(scheduler)
    assert step(scheduler)[0].num_scheduled_tokens == {"A": 1}
    assert scheduler.kv_cache_manager.num_free_blocks == 0


# --- which of two is named ---


def test_max_num_seqs_before_token_budget():
    assert reason(req("A", 4), req("B", 1), max_num_seqs=1, max_num_batched_tokens=4) == "max_num_seqs"


def test_max_num_seqs_before_another_gate():
    plan, _ = step(make(req("A", 1, adapter="x"), req("B", 1, adapter="y"), max_num_seqs=1, max_loras=1))
    assert plan.blocked_reason == "max_num_seqs"


def test_preempted_this_step_before_token_budget():
    scheduler = evicting()
    scheduler.config = replace(scheduler.config, max_num_scheduled_tokens=1)  # A's token is the whole budget
    plan, _ = step(scheduler)
    assert (plan.num_scheduled_tokens, plan.blocked_reason) == ({"A": 1}, "preempted_this_step")


def test_a_gate_before_preempted_this_step():
    """B is skipped by its gate; C behind it is the one that the eviction keeps out."""
    scheduler = make(req("A", 4, adapter="x"), req("D", 4, adapter="x"), num_gpu_blocks=2, max_loras=1)
    step(scheduler)
    scheduler.add_request(req("B", 1, adapter="y"))
    plan, _ = step(scheduler)
    assert plan.preempted_req_ids == ["D"]
    assert (ids(scheduler.waiting), plan.blocked_reason) == (["D", "B"], "preempted_this_step")


def test_token_budget_before_the_blocks():
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 4, "num_gpu_blocks": 1}
    assert reason(req("A", 4), req("B", 1), **limits) == "token_budget"


def test_kv_full_sequence_before_kv_watermark():
    assert reason(req("A", 4), req("B", 16), num_gpu_blocks=4, watermark=0.25) == "kv_full_sequence"


def test_kv_watermark_before_kv_chunk():
    # B's three blocks are there, not one more: neither for the watermark nor for a lookahead that needs none.
    limits = {"num_gpu_blocks": 4, "watermark": 0.25, "reserve_full_isl": False, "num_lookahead_tokens": 1}
    assert reason(req("A", 3), req("B", 11), **limits) == "kv_watermark"
    assert reason(req("A", 3), req("B", 12), **limits) == "kv_chunk"  # with the lookahead it needs a fourth


# --- gates ---


def test_the_lora_gate_lets_those_behind_go_first():
    lora = {"A": "x", "B": "y", "C": None, "D": "x"}
    scheduler = make(*(req(name, 2, adapter=adapter) for name, adapter in lora.items()), max_loras=1)
    plan, _ = step(scheduler)
    assert list(plan.num_scheduled_tokens) == ["A", "C", "D"]
    assert ids(scheduler.waiting) == ["B"]


def test_max_num_seqs_lets_nobody_pass():
    scheduler = make(req("A", 2), req("B", 2), req("C", 2), max_num_seqs=1)
    assert list(step(scheduler)[0].num_scheduled_tokens) == ["A"]
    assert ids(scheduler.waiting) == ["B", "C"]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_the_skipped_keep_their_order_in_front(policy):
    requests = [req("A", 2, adapter="x"), req("B", 2, adapter="y"), req("C", 2, adapter="z"), req("D", 9)]
    scheduler = make(*requests, max_loras=1, max_num_scheduled_tokens=2, policy=policy)
    step(scheduler)
    assert ids(scheduler.waiting) == ["B", "C", "D"]


def test_a_skipped_one_enters_once_its_adapter_has_room():
    scheduler = make(req("A", 2, max_tokens=1, adapter="x"), req("B", 2, adapter="y"), max_loras=1)
    assert [list(step(scheduler)[0].num_scheduled_tokens) for _ in range(2)] == [["A"], ["B"]]


def test_max_loras_counts_different_adapters():
    requests = [req(name, 2, adapter=adapter) for name, adapter in (("A", "x"), ("B", "y"), ("C", "z"), ("D", "y"))]
    scheduler = make(*requests, max_loras=2)
    assert list(step(scheduler)[0].num_scheduled_tokens) == ["A", "B", "D"]
    assert ids(scheduler.waiting) == ["C"]


def test_without_max_loras_every_adapter_enters():
    requests = [req(name, 2, adapter=name) for name in "ABC"]
    assert list(step(make(*requests))[0].num_scheduled_tokens) == ["A", "B", "C"]


def test_a_head_that_is_passed_over_is_named_even_if_others_enter():
    """One adapter at a time: B waits for A's adapter to leave, C (without one) overtakes it."""
    scheduler = Scheduler(SchedulerConfig(max_loras=1))
    for name, adapter in [("A", "x"), ("B", "y"), ("C", None)]:
        scheduler.add_request(Request(name, [1, 2], SamplingParams(max_tokens=4), adapter=adapter))
    plan = scheduler.schedule()
    assert list(plan.num_scheduled_tokens) == ["A", "C"]
    assert plan.blocked_reason == "max_loras"
    assert [r.request_id for r in scheduler.waiting] == ["B"]
