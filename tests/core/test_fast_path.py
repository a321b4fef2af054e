"""The fast path: a step in which everybody who runs decodes one token is planned at once, and the plan is the loop's.

`taken` holds what `plan_decodes` answered in each step in which it was asked: how many it planned, or 0 if it left the
step to the loop. `Pair` runs the same requests without it, in lock step. Blocks hold four tokens, everybody answers
100, 101, … (`tiny.py`). Random scenarios of the same kind: `soak --kind fast`.
"""

import pytest

from mini_vllm.core import scheduler as core
from mini_vllm.core.async_scheduler import AsyncScheduler
from mini_vllm.core.fast_path import plan_decodes
from tests.core.tiny import answer, ids, make, req, step


@pytest.fixture
def taken(monkeypatch):
    answers = []

    def watched(*args):
        answers.append(plan_decodes(*args))
        return answers[-1]

    monkeypatch.setattr(core, "plan_decodes", watched)
    return answers


class Pair:
    """The same requests on two schedulers, with the fast path and without; each step must leave both the same."""

    def __init__(self, *lengths, **limits):
        self.fast, self.slow = make(**limits), make(**limits)
        self.slow.fast_path = False
        for name, prompt_len, max_tokens in lengths:
            self.add(name, prompt_len, max_tokens)

    def add(self, *length, **options):
        for scheduler in (self.fast, self.slow):
            scheduler.add_request(req(*length, **options))

    def abort(self, request_id):
        for scheduler in (self.fast, self.slow):
            scheduler.finish_requests(request_id)

    def step(self):
        (plan, news), (same_plan, same_news) = step(self.fast), step(self.slow)
        assert (plan, news) == (same_plan, same_news)
        assert list(plan.num_scheduled_tokens) == list(same_plan.num_scheduled_tokens)
        assert self.books(self.fast) == self.books(self.slow)
        return plan

    @staticmethod
    def books(scheduler):
        kv = scheduler.kv_cache_manager
        requests = [(r.request_id, r.token_ids, r.num_computed_tokens, r.is_prefill_chunk) for r in scheduler.running]
        pool = kv.block_pool
        return requests, ids(scheduler.waiting), kv.req_to_blocks, pool.free_queue(), pool.hash_of, pool.cached


def test_two_who_decode_are_planned_at_once(taken):
    pair = Pair(("A", 2, 16), ("B", 1, 16))
    assert pair.step().num_scheduled_tokens == {"A": 2, "B": 1}
    assert taken == []  # their prompts were the loop's
    assert pair.step().num_scheduled_tokens == {"A": 1, "B": 1}
    assert taken == [2]


def test_switched_off_it_is_not_asked(taken):
    scheduler = make(req("A", 2))
    scheduler.fast_path = False
    for _ in range(3):
        step(scheduler)
    assert taken == []


def test_whoever_fills_its_block_gets_the_next_one(taken):
    pair = Pair(("A", 3, 16), ("B", 4, 16))
    pair.step()
    assert pair.step().scheduled_cached_reqs.new_block_ids == {"B": [3]}
    assert pair.step().scheduled_cached_reqs.new_block_ids == {"A": [4]}
    assert taken == [2, 2]


def test_two_who_need_a_block_get_them_in_the_order_of_running(taken):
    pair = Pair(("A", 4, 16), ("B", 4, 16))
    pair.step()
    assert pair.step().scheduled_cached_reqs.new_block_ids == {"A": [3], "B": [4]}
    assert taken == [2]


def test_until_its_block_is_full_it_need_not_be_looked_at(taken):
    """No block is free after the second step; that is no reason to ask the loop, since nobody needs one."""
    pair = Pair(("A", 4, 16), num_gpu_blocks=2, enable_prefix_caching=True)
    for _ in range(4):
        pair.step()
    assert taken == [1, 1, 1]
    pair.step()  # the token that fills the second block: it is published
    assert taken == [1, 1, 1, 0]


@pytest.mark.parametrize("block_size", [1, 2])
def test_with_the_smallest_blocks_too(taken, block_size):
    pair = Pair(("A", 1, 6), ("B", 2, 6), block_size=block_size, num_gpu_blocks=16, enable_prefix_caching=True)
    for _ in range(6):
        pair.step()
    assert taken == [2] * 5
    assert not pair.fast.has_unfinished_requests()


# --- with a prefix cache ---


def test_a_block_that_a_decode_fills_is_published_in_its_plan(taken):
    scheduler = make(req("A", 3), enable_prefix_caching=True)
    step(scheduler)
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.cached == {}
    step(scheduler)  # the fourth token
    assert taken == [1]
    assert list(pool.cached.values()) == [1]


def test_each_block_is_published_once_and_under_its_own_name(taken):
    pair = Pair(("A", 2, 12), enable_prefix_caching=True)
    for _ in range(12):
        pair.step()
    assert taken == [1] * 11
    # A ends with 14 tokens, of which 13 were computed: three full blocks.
    a_again = req("B", 2)
    a_again.token_ids += range(100, 112)
    assert pair.fast.kv_cache_manager.get_computed_blocks(a_again) == [1, 2, 3]


def test_a_new_block_evicts_what_was_cached_in_it(taken):
    pair = Pair(("A", 4, 1), num_gpu_blocks=2, enable_prefix_caching=True)
    pair.step()  # A has ended; block 1 is idle and still named, block 2 is bare and goes first
    pair.add("B", 3, 8)
    pair.step()
    pair.step()
    pool = pair.fast.kv_cache_manager.block_pool
    assert pool.free_queue() == [1] and pool.hash_of[1] is not None
    pair.step()  # the fifth token of B
    assert taken[-2:] == [1, 1]
    assert (pool.free_queue(), pool.hash_of[1]) == ([], None)


# --- when it leaves the step to the loop ---


def test_it_steps_back_if_the_blocks_do_not_suffice(taken):
    pair = Pair(("A", 4, 16), ("B", 4, 16), num_gpu_blocks=3)
    pair.step()
    plan = pair.step()
    assert taken == [0]
    assert (plan.num_scheduled_tokens, plan.preempted_req_ids) == ({"A": 1}, ["B"])


def test_stepping_back_leaves_no_trace():
    scheduler = make(req("A", 4), req("B", 4), num_gpu_blocks=3)
    step(scheduler)
    tables = {name: [*table] for name, table in scheduler.kv_cache_manager.req_to_blocks.items()}
    planned, scheduled, new_blocks = [], {}, {}
    assert plan_decodes(scheduler, planned, scheduled, new_blocks) == 0
    assert (planned, scheduled, new_blocks) == ([], {}, {})
    assert scheduler.kv_cache_manager.req_to_blocks == tables
    assert scheduler.kv_cache_manager.num_free_blocks == 1


def test_exactly_enough_blocks_are_enough(taken):
    pair = Pair(("A", 4, 16), ("B", 4, 16), num_gpu_blocks=4)
    pair.step()
    assert pair.step().preempted_req_ids == []
    assert taken == [2]


def test_it_counts_those_who_only_publish_too_and_the_plan_is_the_same(taken):
    """A fills its block and needs none; none is free. Too careful, but then it is the loop that plans."""
    pair = Pair(("A", 3, 16), num_gpu_blocks=1, enable_prefix_caching=True)
    pair.step()
    assert pair.step().num_scheduled_tokens == {"A": 1}
    assert taken == [0]


def test_after_an_eviction_it_comes_back(taken):
    pair = Pair(("A", 4, 4), ("B", 4, 4), num_gpu_blocks=3)
    pair.step()
    assert pair.step().preempted_req_ids == ["B"]
    while pair.fast.has_unfinished_requests():
        pair.step()
    assert taken[:2] == [0, 1]
    assert pair.fast.kv_cache_manager.num_free_blocks == 3


# --- who does not decode ---


def test_it_is_not_asked_while_somebody_is_in_its_prompt(taken):
    pair = Pair(("A", 2, 16), ("B", 8, 16), max_num_seqs=2, max_num_batched_tokens=4)
    assert pair.step().num_scheduled_tokens == {"A": 2, "B": 2}
    assert pair.step().num_scheduled_tokens == {"A": 1, "B": 3}
    assert pair.step().num_scheduled_tokens == {"A": 1, "B": 3}  # here B's prompt ends
    assert taken == []
    pair.step()
    assert taken == [2]


def test_one_who_ends_does_not_stand_in_for_one_in_its_prompt(taken):
    """A ends and C goes on: two have news. B, in its prompt, and C run: two as well. Yet B has more than one to go."""
    pair = Pair(("A", 1, 1), ("C", 1, 16), ("B", 8, 16), max_num_seqs=3, max_num_batched_tokens=4)
    assert pair.step().num_scheduled_tokens == {"A": 1, "C": 1, "B": 2}
    assert ids(pair.fast.running) == ["C", "B"]
    assert pair.step().num_scheduled_tokens == {"C": 1, "B": 3}
    assert taken == []


def test_a_second_plan_before_the_output_of_the_first_is_empty(taken):
    scheduler = make(req("A", 1))
    step(scheduler)
    plans = [scheduler.schedule() for _ in range(2)]
    assert [plan.num_scheduled_tokens for plan in plans] == [{"A": 1}, {}]
    assert taken == [1]


def test_an_output_that_lacks_somebody_keeps_it_away(taken):
    scheduler = make(req("A", 1), req("B", 1))
    plan = scheduler.schedule()
    output = answer(scheduler, plan)
    del output.sampled_token_ids["B"]
    scheduler.update_from_output(plan, output)
    assert step(scheduler)[0].num_scheduled_tokens == {"A": 1}
    assert taken == []


@pytest.mark.parametrize(
    "limits",
    [
        {"num_speculative_tokens": 2},
        {"num_lookahead_tokens": 2},
        {"max_num_new_slots_for_drafting": 1},
        {"sliding_window": 4},
        {"scheduler_cls": AsyncScheduler},
    ],
    ids=lambda limits: next(iter(limits)),
)
def test_it_leaves_alone_what_it_does_not_know(taken, limits):
    scheduler = make(req("A", 3), **limits)
    for _ in range(4):
        step(scheduler)
    assert scheduler.requests["A"].num_computed_tokens == 6
    assert taken == []


# --- others come and go ---


def test_a_newcomer_enters_in_the_same_step(taken):
    pair = Pair(("A", 2, 16))
    pair.step()
    pair.add("B", 3, 16)
    plan = pair.step()
    assert taken == [1]
    assert plan.num_scheduled_tokens == {"A": 1, "B": 3}
    assert plan.scheduled_cached_reqs.req_ids == ["A"]
    assert [new.req_id for new in plan.scheduled_new_reqs] == ["B"]


def test_a_newcomer_gets_what_the_decodes_leave_of_the_budget(taken):
    pair = Pair(("A", 1, 16), ("B", 1, 16), max_num_seqs=3, max_num_batched_tokens=5)
    pair.step()
    pair.add("C", 9, 16)
    assert pair.step().num_scheduled_tokens == {"A": 1, "B": 1, "C": 3}
    assert taken == [2]


def test_a_newcomer_waits_as_it_would_without_it(taken):
    pair = Pair(("A", 4, 16), num_gpu_blocks=3)
    pair.step()
    pair.add("B", 5, 16)
    plan = pair.step()
    assert taken == [1]
    assert (plan.num_scheduled_tokens, plan.blocked_reason) == ({"A": 1}, "kv_full_sequence")


def test_an_abort_between_two_steps_leaves_the_others_to_it(taken):
    pair = Pair(("A", 1, 16), ("B", 1, 16), ("C", 1, 16))
    pair.step()
    pair.abort("B")
    plan = pair.step()
    assert (plan.num_scheduled_tokens, plan.finished_req_ids) == ({"A": 1, "C": 1}, ["B"])
    assert taken == [2]


def test_an_abort_while_a_step_runs_too(taken):
    scheduler = make(req("A", 1), req("B", 1), req("C", 1))
    plan = scheduler.schedule()
    output = answer(scheduler, plan)
    scheduler.finish_requests("B")
    scheduler.update_from_output(plan, output)
    assert step(scheduler)[0].num_scheduled_tokens == {"A": 1, "C": 1}
    assert taken == [2]


def test_when_all_have_gone_the_next_one_starts_afresh(taken):
    pair = Pair(("A", 1, 1))
    pair.step()
    pair.add("B", 3, 16)
    assert pair.step().num_scheduled_tokens == {"B": 3}
    pair.step()
    assert [n for n in taken if n] == [1]


# --- the end ---


def test_it_stops_at_max_model_len(taken):
    pair = Pair(("A", 5, 99), max_model_len=8)
    steps = []
    while pair.fast.has_unfinished_requests():
        steps.append(pair.step().num_scheduled_tokens)
    assert steps == [{"A": 5}, {"A": 1}, {"A": 1}]  # 5 + 3 = 8 tokens; the KV of the last is never computed
    assert taken == [1, 1]


def test_whoever_is_done_leaves_the_others_to_it(taken):
    pair = Pair(("A", 1, 2), ("B", 1, 4))
    while pair.fast.has_unfinished_requests():
        pair.step()
    assert taken == [2, 1, 1]
