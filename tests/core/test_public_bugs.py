"""Public bug reports about admission, budgets, preemption and the life of a request: ours does the right thing.

One test per case of `facts/public_bugs.json`, named by its id. Knows schedulers from outside, through `World`.
Blocks and prefix cache: test_public_bugs_kv.py; aborts and ids: _aborts.py; limits and bad input: _input.py; what other
engines failed: _probes.py. Notation: B block size (4 unless said), N blocks, T tokens a step, L longest sequence.

What does not apply, and why:

| case | part                                | why not                                                            |
|------|-------------------------------------|--------------------------------------------------------------------|
| a12  | an urgent arrival replaces a runner | as vLLM v1: priority orders the queue and chooses victims          |
| a14  | skip mode                           | core is strict; only the LoRA and stale-output gates let others by |
| a19  | two adapters under one name         | the name is the adapter's identity here; nothing to tell apart     |
| a21  | metrics and their exceptions        | core keeps no statistics; the plan tells reuse from self-reuse     |
| a28  | late abort of an id's former owner  | an id names the live request; unique ids are the server's task     |
| a30  | strings and start tokens            | needs a tokenizer: engine                                          |
| a31  | stop strings                        | text: engine                                                       |
| a33  | seeds                               | sampling: engine                                                   |
| a35  | swap                                | core recomputes; swap comes later, with its own tests              |
"""

from functools import partial
from itertools import pairwise

import pytest

from mini_vllm.core.async_scheduler import AsyncScheduler
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import KVPoolTooSmallError, SchedulerStalledError
from mini_vllm.request import RequestStatus
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.stages.ch10_priority_aging import Scheduler as ClearForm
from tests.core.public_bugs_world import World, resumed_with, solo


@pytest.fixture(params=[Scheduler, ClearForm], ids=["core", "clear"])
def world(request):
    """Builds a world; both forms of the scheduler must pass."""
    return partial(World, request.param)


def test_a01_prompt_larger_than_the_pool_is_refused_and_blocks_nobody(world):
    """Prompt larger than pool (vllm#39734, #273, #2163): refused at once with need and capacity; the next one runs."""
    w = world(num_gpu_blocks=8, max_model_len=64, max_num_batched_tokens=16)
    with pytest.raises(KVPoolTooSmallError, match=r"'r1' needs up to 11 KV blocks for 43 tokens .* whole pool has 8"):
        w.add("r1", 40, 4)  # the prompt alone needs 10
    w.add("r2", 4, 4)
    w.drain()
    assert w.outputs == {"r2": solo(w.requests["r2"].prompt_token_ids, 4)}


def test_a02_lone_request_that_outgrows_the_pool_is_refused(world):
    """Lone request outgrows pool (sglang#19881): refused up front, since 29 slots are 8 blocks and there are 4."""
    w = world(num_gpu_blocks=4, max_model_len=64)
    with pytest.raises(KVPoolTooSmallError, match="8 KV blocks for 29 tokens"):
        w.add("r1", 10, 20)
    w.add("r1", 10, 7)  # KV for 10 + 6 tokens fills 16 slots; the 7th output needs none
    w.drain()
    assert (w.ends, w.num_preemptions) == ({"r1": ["length"]}, 0)


def test_a02_if_it_is_let_in_it_stalls_with_a_named_error(world):
    """Lone request outgrows pool (sglang#19881): with the refusal off, 7 outputs, then a stall that is named."""
    w = world(num_gpu_blocks=4, max_model_len=64, refuse_unfittable=False)
    w.add("r1", 10, 20)
    for _ in range(8):
        w.step()
    assert len(w.outputs["r1"]) == 7
    assert [plan.num_scheduled_tokens for plan in w.plans[-2:]] == [{"r1": 1}, {}]
    assert w.step() == {}  # not: recompute, self-preempt, recompute …
    assert w.num_preemptions == 1
    with pytest.raises(SchedulerStalledError, match=r"queue head r1 has 17 tokens .* needs 5 blocks"):
        simulate([SimRequest("r1", 10, 20)], w.config, scheduler_cls=type(w.scheduler))


@pytest.mark.parametrize(
    ("reserve_full_isl", "preemptions", "tokens", "steps"), [(True, 1, 87, 37), (False, 8, 150, None)]
)
def test_a03_whole_sequence_admission_stops_the_thrash(world, reserve_full_isl, preemptions, tokens, steps):
    """Preempt/resume thrash (vllm#25538, #28018, #37307): one preemption and 87 tokens, against 8 and 150 without."""
    w = world(num_gpu_blocks=10, max_num_batched_tokens=8, reserve_full_isl=reserve_full_isl)
    w.add("r1", 12, 24)
    w.add("r2", 20, 12)
    w.drain()
    assert w.outputs_are_right()
    assert (w.num_preemptions, w.num_computed) == (preemptions, tokens)  # 66 is the floor
    assert steps is None or len(w.plans) == steps


def test_a06_the_token_at_the_end_of_a_recompute_is_kept(world):
    """Token dropped on re-prefill (nano-vllm#217): the step that ends the recompute appends exactly one token."""
    w = world(num_gpu_blocks=2)
    w.add("hog", 4, 2)
    w.add("r1", 4, 4)
    w.step()
    w.add("late", 4, 2)
    w.step()  # hog takes r1's only block and ends
    r1 = w.requests["r1"]
    assert (r1.status, r1.num_tokens) == (RequestStatus.PREEMPTED, 5)
    assert w.step() == {"r1": 5}  # before "late", which never ran
    assert r1.num_tokens == 6
    w.drain()
    assert w.outputs_are_right()


def test_a07_a_resumed_request_is_not_decoding_before_its_last_known_token(world):
    """Prefill boundary after preemption (vllm-gaudi#524, vllm-ascend#11334): four steps of 4, one token at the end."""
    w = world(num_gpu_blocks=8, max_num_seqs=2, max_num_batched_tokens=4)
    w.add("hog", 3, 15)
    w.add("r1", 3, 20)
    while not w.num_preemptions:
        w.step()
    assert w.requests["r1"].num_tokens == 16
    pieces, outputs = [], []
    for _ in range(4):
        pieces.append(w.step())
        outputs.append(len(w.outputs["r1"]))
    assert pieces == [{"r1": 4}] * 4
    assert outputs == [13, 13, 13, 14]
    w.drain()
    assert w.outputs_are_right()
    assert len(w.outputs["r1"]) == 20


@pytest.mark.parametrize("budget", [1, 3, 4, 5, 6, 7, 12, 64])
def test_a09_chunks_need_not_be_multiples_of_the_block(world, budget):
    """Chunk not a multiple of the block (vllm#7380, #5952): same tokens for every T, each slot written once."""
    w = world(num_gpu_blocks=8, max_num_seqs=1, max_num_batched_tokens=budget)
    w.add("r1", 12, 4)
    while w.requests["r1"].num_computed_tokens < 12:
        w.step()
    assert len(w.blocks("r1")) == 3
    w.step()  # the first output token's KV
    assert len(w.blocks("r1")) == 4
    w.drain()
    assert w.outputs_are_right()
    assert w.writes == [("r1", position) for position in range(15)]


def test_a10_victim_before_the_cursor_leaves_no_trace_in_the_step(world):
    """Victim before the scan cursor (vllm#49097): A's token is handed out again, B and C run, nobody is skipped."""
    w = world(num_gpu_blocks=5, max_num_batched_tokens=16, policy="priority")
    w.add("A", 10, 9, priority=9)
    w.step()
    w.add("B", 4, 9, arrival_time=1.0)
    w.add("C", 2, 9, arrival_time=2.0)
    w.step()
    assert [len(w.blocks(r)) for r in w.running()] == [3, 1, 1]
    assert w.step() == {"B": 1, "C": 1}
    assert w.plans[-1].preempted_req_ids == ["A"]
    assert w.plans[-1].scheduled_cached_reqs.req_ids == ["B", "C"]
    assert (w.waiting(), w.blocks("A"), w.requests["A"].num_computed_tokens) == (["A"], [], 0)
    assert w.free == 2
    w.drain()
    assert w.outputs_are_right()


def test_a10_the_budget_of_the_victim_goes_to_those_behind(world):
    """Victim before the scan cursor (vllm#49097): with T = 3, C gets the token that A had been given."""
    w = world(
        num_gpu_blocks=5, max_num_seqs=3, max_num_batched_tokens=3, policy="priority", reserve_full_isl=False
    )  # fmt: skip
    w.add("A", 8, 9, priority=9)
    w.step()
    w.step()
    w.add("B", 3, 9, arrival_time=1.0)
    w.step()
    w.step()
    w.add("C", 7, 9, arrival_time=2.0)
    assert w.step() == {"A": 1, "B": 1, "C": 1}
    assert w.step() == {"B": 1, "C": 2}
    assert w.plans[-1].preempted_req_ids == ["A"]
    w.drain()
    assert w.outputs_are_right()


def test_a10_blocks_that_the_victim_was_to_fill_are_not_cached(world):
    """Victim before the scan cursor (vllm#49097): A's piece, which was to fill a block, never ran: no hit for it."""
    w = world(
        num_gpu_blocks=6, max_num_seqs=2, max_num_batched_tokens=7, policy="priority", enable_prefix_caching=True,
        long_prefill_token_threshold=4,
    )  # fmt: skip
    w.add("A", 20, 3, priority=9)
    w.step()
    w.add("B", 3, 3, arrival_time=1.0)
    w.step()
    assert w.step() == {"A": 4, "B": 1}
    assert w.requests["A"].num_computed_tokens == 15  # its next piece fills block 4, slots 12 to 15
    assert w.step() == {"B": 1}  # A was granted that piece, then B needed a block
    assert w.plans[-1].preempted_req_ids == ["A"]
    w.step()
    assert list(resumed_with(w.plans[-1]).values()) == [12]
    w.drain()
    assert w.outputs_are_right()


def test_a10_victim_that_was_passed_over_in_this_step():
    """Victim before the scan cursor (vllm#49097): A, whose last token is in flight, had none to give back."""
    w = World(AsyncScheduler, num_gpu_blocks=5, max_num_batched_tokens=16, policy="priority")
    w.add("A", 10, 2, priority=9)
    w.step()
    w.add("B", 4, 9, arrival_time=1.0)
    w.add("C", 2, 9, arrival_time=2.0)
    w.step()
    assert w.plans[-1].num_scheduled_tokens == {"A": 1, "B": 4, "C": 2}
    plan = w.plan()
    assert (plan.num_scheduled_tokens, plan.preempted_req_ids) == ({"B": 1, "C": 1}, ["A"])
    assert (w.waiting(), w.blocks("A"), w.requests["A"].num_computed_tokens) == (["A"], [], 0)
    w.finish_step()  # A's last token arrives while it waits, and ends it
    assert w.ends["A"] == ["length"]
    w.drain()
    assert w.outputs_are_right()


def test_a12_an_urgent_request_waits_for_a_full_batch_and_is_next(world):
    """High priority behind a full batch (vllm#40004, #24365, #45561): no eviction for it; it is the next to enter."""
    w = world(max_num_seqs=2, policy="priority")
    w.add("slow1", 2, 50, priority=10)
    w.add("slow2", 2, 60, priority=10, arrival_time=1.0)
    w.step()
    w.add("five", 2, 20, priority=5, arrival_time=2.0)
    w.step()
    w.add("zero", 2, 20, priority=0, arrival_time=3.0)
    while len(w.outputs["slow1"]) < 50:
        assert w.step() == {"slow1": 1, "slow2": 1}
        assert w.plans[-1].blocked_reason == "max_num_seqs"
    assert w.step() == {"slow2": 1, "zero": 2}
    w.drain()
    assert (w.num_preemptions, w.outputs_are_right()) == (0, True)


def test_a14_small_requests_wait_behind_a_head_that_does_not_fit(world):
    """Head-of-line blocking (vllm#16969, #33499, #57413): strict order; r2 starts in the step after r1 frees."""
    w = world(num_gpu_blocks=10, max_num_seqs=8)
    w.add("r1", 17, 8)  # 5 blocks, later 6
    w.step()
    w.add("r2", 24, 1)  # 6 blocks
    for i in range(3, 9):
        w.add(f"r{i}", 3, 1)
        assert w.step() == {"r1": 1}
        assert w.plans[-1].blocked_reason.startswith("kv")  # where the wait can be seen
    assert w.waiting() == [f"r{i}" for i in range(2, 9)]
    assert w.step() == {"r1": 1}
    assert w.ends["r1"] == ["length"]
    assert list(w.step()) == ["r2", "r3", "r4", "r5", "r6"]
    w.drain()
    assert w.outputs_are_right()


@pytest.mark.parametrize("reserve_full_isl", [True, False])
@pytest.mark.parametrize("caching", [False, True])
def test_a22_the_token_in_flight_at_a_preemption_counts_once(reserve_full_isl, caching):
    """In-flight token at preemption (vllm#38624, #47900, #49620): kept once; no open placeholder; same outputs."""
    w = World(
        AsyncScheduler, num_gpu_blocks=10, max_num_batched_tokens=8, reserve_full_isl=reserve_full_isl,
        enable_prefix_caching=caching,
    )  # fmt: skip
    w.add("r1", 12, 24)
    r2 = w.add("r2", 20, 12)
    late = 0
    while w.scheduler.has_unfinished_requests():
        plan = w.plan()
        if "r2" in plan.preempted_req_ids:
            assert (r2.num_output_placeholders, r2.num_in_flight_tokens, r2.num_computed_tokens) == (0, 0, 0)
            before = r2.num_tokens
            w.finish_step()
            late += r2.num_tokens - before  # what was in flight has come, and was kept
        else:
            w.finish_step()
        assert all(r.num_output_placeholders >= 0 for r in w.requests.values())
    w.drain()
    assert late >= 1
    assert w.outputs_are_right()
    assert {req_id: len(tokens) for req_id, tokens in w.outputs.items()} == {"r1": 24, "r2": 12}


def test_a22_evicted_twice_in_a_row():
    """In-flight token at preemption (vllm#38624, #47900, #49620): two preemptions before the next own token."""
    w = World(AsyncScheduler, num_gpu_blocks=10, max_num_batched_tokens=8, reserve_full_isl=False)
    w.add("r1", 12, 24)
    w.add("r2", 20, 12)
    tokens_at = []
    while w.scheduler.has_unfinished_requests():
        w.step()
        if "r2" in w.plans[-1].preempted_req_ids:
            tokens_at.append(w.requests["r2"].num_tokens)
    w.drain()
    assert any(a == b for a, b in pairwise(tokens_at))
    assert w.outputs_are_right()


def test_the_world_tells_right_from_wrong_outputs():
    """Not a case: else nothing above could fail."""
    w = World(Scheduler)
    w.add("r", 5, 4)
    w.drain()
    assert w.outputs_are_right()
    w.outputs["r"][2] += 1
    assert not w.outputs_are_right()
