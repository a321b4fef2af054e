"""A sliding window in a whole run: what a request holds at once, who is refused, and hits longer than the window.

Blocks hold four tokens and everybody answers 100, 101, … (`tiny.py`), if nothing else is said. What a block table looks
like after one piece: `test_kv_cache_manager.py`.
"""

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.async_scheduler import AsyncScheduler
from mini_vllm.core.output import ModelRunnerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.errors import KVPoolTooSmallError
from mini_vllm.sim.driver import SimRequest, simulate
from tests.core.paged_worker import PagedWorker
from tests.core.tiny import make, req, step

# A window of 5 and pieces of 8: at most 4 + 8 tokens are in use, in 4 blocks if neither end lies on a boundary.
WINDOW = {"sliding_window": 5, "max_num_seqs": 2, "max_num_batched_tokens": 8, "max_model_len": 64}


# --- how much of the pool a request needs ---


@pytest.mark.parametrize(
    ("num_tokens", "blocks"),
    [
        (4, 1),
        (12, 3),
        (16, 4),
        (17, 4),  # 5 blocks in all, of which the first is given back before the last is asked for
        (1_000, 4),
    ],
)
def test_what_a_request_holds_at_once_is_what_the_window_covers_and_the_piece_under_way(num_tokens, blocks):
    assert SchedulerConfig(block_size=4, **WINDOW).peak_blocks(num_tokens) == blocks


def test_with_two_steps_under_way_two_pieces_count():
    assert SchedulerConfig(block_size=4, **WINDOW).peak_blocks(1_000, num_steps_in_flight=2) == 6  # 4 + 8 + 8 tokens


def test_drafts_and_lookahead_count_too():
    cfg = SchedulerConfig(block_size=4, num_speculative_tokens=3, num_lookahead_tokens=3, **WINDOW)
    assert cfg.peak_blocks(1_000) == 6  # 4 + 3 + 8 + 3 tokens


@pytest.mark.parametrize(("slots", "blocks"), [(0, 13), (1, 12), (3, 10)])
def test_slots_for_drafting_make_the_pieces_shorter(slots, blocks):
    """4 + (8 - slots) tokens in blocks of one, and one block for the ends."""
    cfg = SchedulerConfig(block_size=1, max_num_new_slots_for_drafting=slots, **WINDOW)
    assert cfg.peak_blocks(1_000) == blocks


def test_without_a_window_all_tokens_count():
    assert SchedulerConfig(block_size=4).peak_blocks(1_000) == 250


def test_a_long_request_goes_through_a_small_pool():
    scheduler = make(req("A", 30, max_tokens=20), num_gpu_blocks=4, refuse_unfittable=True, **WINDOW)
    most = 0
    while scheduler.has_unfinished_requests():
        held = 4 - scheduler.kv_cache_manager.num_free_blocks
        plan, _ = step(scheduler)
        assert plan.num_scheduled_tokens and not plan.preempted_req_ids
        new = [data.block_ids for data in plan.scheduled_new_reqs]
        most = max(most, held + sum(map(len, [*new, *plan.scheduled_cached_reqs.new_block_ids.values()])))
    assert most == 3  # its pieces begin at multiples of 8, so that it gets by with one less


def test_one_that_needs_more_is_refused_with_the_arithmetic():
    message = (
        r"'A' needs up to 4 KV blocks for 49 tokens, of which a window of 5 is kept \(30 prompt \+ 20 new, "
        r"max_model_len 64, 4 a block\) but the whole pool has 3"
    )
    with pytest.raises(KVPoolTooSmallError, match=message):
        make(req("A", 30, max_tokens=20), num_gpu_blocks=3, refuse_unfittable=True, **WINDOW)


def test_admission_asks_for_what_the_window_covers_not_for_the_whole_prompt():
    scheduler = make(req("A", 40), num_gpu_blocks=4, **WINDOW)
    assert step(scheduler)[0].num_scheduled_tokens == {"A": 8}
    scheduler = make(req("A", 40), num_gpu_blocks=3, **WINDOW)
    assert step(scheduler)[0].blocked_reason == "kv_full_sequence"


# --- one step ahead ---


def run_ahead(prompt_len, max_tokens, **limits):
    """Alone, each output one plan late; returns what each plan computed."""
    request = req("A", prompt_len, max_tokens)
    scheduler = make(request, scheduler_cls=AsyncScheduler, refuse_unfittable=True, **limits)
    pieces, under_way, num_sampled = [], [], 0
    while scheduler.has_unfinished_requests():
        plan = scheduler.schedule()
        assert not plan.preempted_req_ids
        sampled = {}
        if plan.num_scheduled_tokens and not request.is_prefill_chunk:
            sampled, num_sampled = {"A": [100 + num_sampled]}, num_sampled + 1
        under_way.append((plan, sampled))
        pieces.append(sum(plan.num_scheduled_tokens.values()))
        if len(under_way) > 1:
            plan, sampled = under_way.pop(0)
            scheduler.update_from_output(plan, ModelRunnerOutput(sampled))
        scheduler.check_integrity()
    return pieces


def test_an_output_moves_the_window_on_before_the_next_plan():
    """Blocks of one token, pieces of 4, a window of 1: when the third piece is planned, the first is done with.

    |<- done, given back ->|<- under way ->|<- third piece ->|          8 blocks, and one for the ends
    """
    limits = {"block_size": 1, "sliding_window": 1, "max_num_seqs": 1, "max_num_batched_tokens": 4}
    assert run_ahead(16, 2, num_gpu_blocks=9, **limits)[:5] == [4, 4, 4, 4, 1]
    with pytest.raises(KVPoolTooSmallError, match="needs up to 9 KV blocks"):
        run_ahead(16, 2, num_gpu_blocks=8, **limits)


# --- hits longer than the window ---


def after_a(**limits):
    """A, with a prompt of 13, has come and gone; B's prompt begins with the same 16 tokens, of which 12 are cached."""
    scheduler = make(req("A", 13, max_tokens=1), enable_prefix_caching=True, num_gpu_blocks=8, **limits)
    step(scheduler)
    scheduler.add_request(req("B", 16, max_tokens=4))
    return scheduler


def test_of_a_long_hit_only_what_the_window_still_covers_is_shared():
    scheduler = after_a(sliding_window=5)
    kv = scheduler.kv_cache_manager
    [b] = scheduler.waiting
    assert kv.get_computed_blocks(b) == [0, 0, 3]  # token 12 looks back to 8
    plan, _ = step(scheduler)
    assert (plan.num_scheduled_tokens, plan.scheduled_new_reqs[0].num_computed_tokens) == ({"B": 4}, 12)
    assert plan.scheduled_new_reqs[0].block_ids[:3] == [0, 0, 3]
    assert kv.block_pool.ref_count[1] == kv.block_pool.ref_count[2] == 0


@pytest.mark.parametrize(
    ("window", "hits"), [(1, [0, 0, 0]), (4, [0, 0, 3]), (5, [0, 0, 3]), (6, [0, 2, 3]), (10, [1, 2, 3])]
)
def test_where_the_window_begins(window, hits):
    """Token 12 looks back to 13 - window."""
    scheduler = after_a(sliding_window=window)
    assert scheduler.kv_cache_manager.get_computed_blocks(next(iter(scheduler.waiting))) == hits


def test_null_blocks_among_the_hits_are_not_taken():
    kv = (scheduler := after_a(sliding_window=5)).kv_cache_manager
    [b] = scheduler.waiting
    assert kv.allocate_slots(b, 4, hits=[0, 0, 3]) == [4]
    assert kv.num_free_blocks == 8 - 2
    assert kv.block_pool.ref_count == [0, 0, 0, 1, 1, 0, 0, 0, 0]
    kv.free(b)
    scheduler.check_integrity()
    assert kv.num_free_blocks == 8


def test_drafts_may_be_rejected_so_their_window_begins_earlier():
    scheduler = after_a(sliding_window=5, num_speculative_tokens=2)
    assert scheduler.kv_cache_manager.get_computed_blocks(next(iter(scheduler.waiting))) == [0, 2, 3]


# --- under the watch, which keeps its own account of the window ---


def test_the_watch_follows_an_eviction_and_a_hit_on_what_was_left_behind():
    config = SchedulerConfig(
        block_size=2, sliding_window=3, max_num_seqs=3, max_num_batched_tokens=7, num_gpu_blocks=6,
        enable_prefix_caching=True, policy="priority", reserve_full_isl=False,
    )  # fmt: skip
    trace = simulate([SimRequest("A", 14, 6, priority=9), SimRequest("B", 13, 4, priority=8)], config)
    assert [step["hits"]["A"] for step in trace.steps if "A" in step["resumed"]] == [6]  # twice the window
    assert any(0 in table for step in trace.steps for table in step["blocks"].values())
    assert sorted(req_id for step in trace.steps for req_id in step["finished"]) == ["A", "B"]
    for record in trace.steps:
        owned = {block for table in record["blocks"].values() for block in table} - {0}
        assert len(owned) + record["free"] == config.num_gpu_blocks


def test_the_watch_follows_hits_that_several_share():
    config = SchedulerConfig(
        block_size=2, sliding_window=3, max_num_seqs=3, max_num_batched_tokens=6, num_gpu_blocks=24,
        enable_prefix_caching=True,
    )  # fmt: skip
    scheduler = Scheduler(config)
    loop = StepLoop(scheduler, config, PagedWorkerWithAWindow(config).execute, kind="sim", clock=None)
    hits = {}
    for number in range(24):
        if number in (0, 6, 7, 8):
            loop.add_request(req(f"R{number}", 9 + number, max_tokens=6))  # each prompt begins as the one before
        loop.step(more_to_come=True)
        hits |= {req_id: hit for req_id, hit in loop.trace.steps[-1]["hits"].items() if hit}
        kv = scheduler.kv_cache_manager
        assert loop.watch.block_tables == kv.req_to_blocks
        assert loop.watch.num_free_blocks == kv.num_free_blocks
        scheduler.check_integrity()
    assert hits == {"R6": 8, "R7": 14, "R8": 16}
    assert not scheduler.has_unfinished_requests()


class PagedWorkerWithAWindow(PagedWorker):
    """Reads back only what the window covers."""

    def __init__(self, config):
        super().__init__(config.block_size)
        self.window = config.sliding_window

    def _sample(self, req_id):
        end = self.computed[req_id]
        if end < len(self.tokens[req_id]):
            return []
        for position in range(max(0, end - self.window), end):
            assert self.slots[self._slot(req_id, position)] == self.tokens[req_id][position]
        self.tokens[req_id].append(100)
        return [100]


@pytest.mark.parametrize(("cls", "drafts"), [(Scheduler, 0), (Scheduler, 2), (AsyncScheduler, 0)])
def test_the_watch_counts_free_blocks_as_the_scheduler_does(cls, drafts):
    config = SchedulerConfig(
        block_size=3, sliding_window=4, max_num_seqs=2, max_num_batched_tokens=6, num_gpu_blocks=10,
        num_speculative_tokens=drafts,
    )  # fmt: skip

    class Compared(cls):
        def update_from_output(self, plan, output):
            news = super().update_from_output(plan, output)
            free.append(self.kv_cache_manager.num_free_blocks)
            return news

    free = []
    trace = simulate([SimRequest("A", 20, 8), SimRequest("B", 3, 15, 2)], config, scheduler_cls=Compared)
    assert [step["free_end"] for step in trace.steps] == free
