"""How long a piece may be: long-prefill threshold, chunked prefill off, token budget; and refusal at the door."""

import pytest

from mini_vllm.core.output import ModelRunnerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import KVPoolTooSmallError
from mini_vllm.stages.ch10_priority_aging import Scheduler as ClearScheduler
from tests.core.tiny import ids, make, req, step

both = pytest.mark.parametrize("cls", [Scheduler, ClearScheduler], ids=["core", "clear form"])


def plans(scheduler, num_steps):
    """What each of the next steps computes."""
    out = []
    for _ in range(num_steps):
        plan = scheduler.schedule()
        at_end = [r for r in plan.num_scheduled_tokens if not scheduler.requests[r].is_prefill_chunk]
        scheduler.update_from_output(plan, ModelRunnerOutput({r: [100] for r in at_end}))
        out.append(plan.num_scheduled_tokens)
    return out


# --- the long-prefill threshold ---


@both
def test_a_long_prompt_is_cut_while_others_are_there(cls):
    scheduler = make(req("A", 9), req("B", 2), long_prefill_token_threshold=4, scheduler_cls=cls)
    assert plans(scheduler, 3) == [{"A": 4, "B": 2}, {"A": 4, "B": 1}, {"A": 1, "B": 1}]


@both
def test_alone_it_may_take_the_whole_budget(cls):
    assert plans(make(req("A", 9), long_prefill_token_threshold=4, scheduler_cls=cls), 1) == [{"A": 9}]


@both
def test_alone_again_it_may_take_the_rest_at_once(cls):
    scheduler = make(req("A", 12), req("B", 2, max_tokens=1), long_prefill_token_threshold=4, scheduler_cls=cls)
    assert plans(scheduler, 2) == [{"A": 4, "B": 2}, {"A": 8}]


@both
def test_one_who_only_waits_is_company_enough(cls):
    limits = {"long_prefill_token_threshold": 4, "max_num_seqs": 1}
    assert plans(make(req("A", 9), req("B", 2), **limits, scheduler_cls=cls), 2) == [{"A": 4}, {"A": 4}]


@both
def test_adaptive_raises_it_to_an_equal_share_of_the_budget(cls):
    limits = {"long_prefill_token_threshold_adaptive": True, "max_num_batched_tokens": 17}
    scheduler = make(req("A", 20), req("B", 20), **limits, long_prefill_token_threshold=2, scheduler_cls=cls)
    assert plans(scheduler, 1) == [{"A": 8, "B": 8}]  # 17 // 2
    scheduler = make(req("A", 20), req("B", 20), req("C", 20), **limits, scheduler_cls=cls)
    assert plans(scheduler, 1) == [{"A": 5, "B": 5, "C": 5}]  # 17 // 3


@both
def test_adaptive_never_lowers_it(cls):
    limits = {"long_prefill_token_threshold_adaptive": True, "max_num_batched_tokens": 16}
    scheduler = make(req("A", 20), req("B", 20), **limits, long_prefill_token_threshold=10, scheduler_cls=cls)
    assert plans(scheduler, 1) == [{"A": 10, "B": 6}]


@both
def test_adaptive_is_off_for_one_who_is_alone(cls):
    limits = {"long_prefill_token_threshold_adaptive": True, "max_num_batched_tokens": 16}
    assert plans(make(req("A", 16), **limits, scheduler_cls=cls), 1) == [{"A": 16}]


# --- chunked prefill off ---


@both
def test_without_chunks_a_prompt_enters_whole_or_not_at_all(cls):
    limits = {"max_num_batched_tokens": 8, "max_model_len": 8, "enable_chunked_prefill": False}
    scheduler = make(req("A", 5, 4), req("B", 4, 4), req("C", 1, 4), **limits, scheduler_cls=cls)
    assert plans(scheduler, 2) == [{"A": 5}, {"A": 1, "B": 4, "C": 1}]  # C would have fitted, and waits for B


@both
def test_without_chunks_the_budget_may_be_met_exactly(cls):
    limits = {"max_num_batched_tokens": 8, "max_model_len": 8, "enable_chunked_prefill": False}
    assert plans(make(req("A", 5), req("B", 3), **limits, scheduler_cls=cls), 1) == [{"A": 5, "B": 3}]


# --- the token budget ---


@both
def test_max_num_scheduled_tokens_may_be_below_the_input_budget(cls):
    scheduler = make(req("A", 9), max_num_batched_tokens=16, max_num_scheduled_tokens=4, scheduler_cls=cls)
    assert plans(scheduler, 3) == [{"A": 4}, {"A": 4}, {"A": 1}]


@both
def test_one_late_in_running_can_get_nothing(cls):
    scheduler = make(req("A", 1), req("B", 9), max_num_seqs=2, max_num_batched_tokens=2, scheduler_cls=cls)
    scheduler.add_request(req("C", 1))
    assert plans(scheduler, 2) == [{"A": 1, "B": 1}, {"A": 1, "B": 1}]
    assert ids(scheduler.waiting) == ["C"]


# --- refusal at the door ---


@both
def test_what_can_never_fit_is_refused_and_leaves_nothing_behind(cls):
    scheduler = make(num_gpu_blocks=3, refuse_unfittable=True, scheduler_cls=cls)
    with pytest.raises(KVPoolTooSmallError, match=r"'A' needs up to 4 KV blocks for 13 tokens .* pool has 3"):
        scheduler.add_request(req("A", 8, max_tokens=6))
    assert not scheduler.has_unfinished_requests()
    assert scheduler.requests == {}
    scheduler.add_request(req("A", 8, max_tokens=5))


@both
def test_with_refusal_off_it_waits_as_in_vllm(cls):
    scheduler = make(req("A", 13, max_tokens=1), num_gpu_blocks=3, refuse_unfittable=False, scheduler_cls=cls)
    assert plans(scheduler, 2) == [{}, {}]


def test_a_refused_id_is_free():
    scheduler = make(num_gpu_blocks=3, refuse_unfittable=True)
    with pytest.raises(KVPoolTooSmallError):
        scheduler.add_request(req("A", 13))
    scheduler.add_request(req("A", 2, max_tokens=2))
    assert step(scheduler)[0].num_scheduled_tokens == {"A": 2}
