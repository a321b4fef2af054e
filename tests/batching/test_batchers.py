"""Static, padded and continuous batching, worked by hand.

The picture: one row a slot, one column a step; a letter where that request advances, `#` padding, `.` nothing.
A request of O output tokens advances in O steps: its prefill gives the first token.
"""

import re
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.batching import (
    Batcher,
    BucketedBatcher,
    ContinuousBatcher,
    PaddedBatcher,
    SimRequest,
    StaticBatcher,
    Timeline,
    run_batches,
)
from mini_vllm.config import SchedulerConfig
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.errors import ConfigError, KVPoolExhaustedError, MiniVLLMError, SchedulerStalledError
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sim.driver import simulate
from mini_vllm.sim.fake_runner import FakeModelRunner

#        name, prompt, output
A = SimRequest("A", 3, 2)
B = SimRequest("B", 3, 4)
C = SimRequest("C", 2, 3)
D = SimRequest("D", 2, 1)
FOUR = [A, B, C, D]


def picture(*rows):
    return "\n".join(f"slot {i} |{row}|" for i, row in enumerate(rows))


# --- the pictures ---


def test_static_shuts_the_door_until_the_last_one_is_done():
    assert run_batches(StaticBatcher, FOUR, num_slots=2).text() == picture(
        "AA..CCC",
        "BBBBD..",
    )


def test_padded_is_the_same_schedule_and_computes_the_holes():
    assert run_batches(PaddedBatcher, FOUR, num_slots=2).text() == picture(
        "AA##CCC",
        "BBBBD##",
    )


def test_bucketed_gives_the_oldest_company_of_its_length():
    # A (2) is the oldest; C (3) and D (1) are as near, and C came first. Then B, with whoever is left.
    assert run_batches(BucketedBatcher, FOUR, num_slots=2).text() == picture(
        "AA.BBBB",
        "CCCD...",
    )


def test_bucketed_passes_nobody_for_ever():
    """A long one behind three of many short ones: when it is the oldest, the batch is its own."""
    long = SimRequest("L", 2, 9)
    shorts = [SimRequest(f"s{i}", 2, 1) for i in range(20)]
    run = run_batches(BucketedBatcher, [*shorts[:3], long, *shorts[3:]], num_slots=2)
    joined = [record["new"] for record in run.trace.steps if record["new"]]
    assert joined[:3] == [["s0", "s1"], ["s2", "s3"], ["L", "s4"]]


def test_continuous_gives_the_slot_to_whoever_waits():
    assert run_batches(ContinuousBatcher, FOUR, num_slots=2).text() == picture(
        "AACCC",
        "BBBBD",
    )


def test_continuous_needs_no_second_request_to_start():
    assert run_batches(ContinuousBatcher, [A], num_slots=2).text() == picture("AA", "..")


def test_static_waits_four_steps_for_company_then_starts_alone():
    assert run_batches(StaticBatcher, [A], num_slots=2).text() == picture("....AA", "......")


def test_static_is_as_patient_after_a_batch_of_one_step():
    one_step = [SimRequest("X", 3, 1), SimRequest("Y", 3, 1, arrival_step=5)]
    assert run_batches(StaticBatcher, one_step, num_slots=2).text() == picture("....X....Y", "..........")


def test_static_starts_as_soon_as_the_batch_is_full():
    late = SimRequest("B", 3, 4, arrival_step=2)
    assert run_batches(StaticBatcher, [A, late], num_slots=2).text() == picture("..AA..", "..BBBB")


def test_a_padded_batch_that_is_not_full_pads_only_its_own_rows():
    assert run_batches(PaddedBatcher, [A, B], num_slots=3).text() == picture("....AA##", "....BBBB", "........")


def test_whoever_is_left_over_waits_for_company_again():
    # The batch ends after step 1; C has waited since step 0, but the four steps count from the free slot.
    timeline = run_batches(StaticBatcher, [A, SimRequest("B", 1, 1), C], num_slots=2)
    assert timeline.text() == picture("AA....CCC", "B........")


def test_a_smaller_padded_batch_leaves_the_other_slots_idle():
    timeline = run_batches(PaddedBatcher, [A, SimRequest("B", 1, 1), C], num_slots=2)
    assert timeline.text() == picture("AA....CCC", "B#.......")


def test_late_arrivals_do_not_join_a_running_static_batch():
    late = SimRequest("C", 2, 1, arrival_step=1)
    later = SimRequest("D", 2, 1, arrival_step=1)
    assert run_batches(StaticBatcher, [A, B, late, later], num_slots=2).text() == picture("AA..C", "BBBBD")
    assert run_batches(ContinuousBatcher, [A, B, late, later], num_slots=2).text() == picture("AACD", "BBBB")


def test_a_more_patient_static_batcher_waits_longer():
    class Patient(StaticBatcher):
        max_wait_steps = 6

    class Impatient(StaticBatcher):
        max_wait_steps = 0

    assert run_batches(Patient, [D], num_slots=2).queue_time("D") == 6
    assert run_batches(Impatient, [D], num_slots=2).queue_time("D") == 0


def test_waiting_starts_anew_for_every_batch():
    # A waits its 4 steps, runs for 2; C comes alone at step 6 and has its own 4 steps.
    late = SimRequest("C", 2, 1, arrival_step=6)
    assert run_batches(StaticBatcher, [A, late], num_slots=2).text() == picture("....AA....C", "...........")


# --- the numbers, by hand ---


def test_times_of_the_static_run():
    timeline = run_batches(StaticBatcher, FOUR, num_slots=2)  # AA..CCC / BBBBD..
    assert [timeline.ttft(r) for r in "ABCD"] == [1, 1, 5, 5]
    assert [timeline.latency(r) for r in "ABCD"] == [2, 4, 7, 5]
    assert [timeline.queue_time(r) for r in "ABCD"] == [0, 0, 4, 4]


def test_times_of_the_continuous_run():
    timeline = run_batches(ContinuousBatcher, FOUR, num_slots=2)  # AACCC / BBBBD
    assert [timeline.ttft(r) for r in "ABCD"] == [1, 1, 3, 5]
    assert [timeline.latency(r) for r in "ABCD"] == [2, 4, 5, 5]
    assert [timeline.queue_time(r) for r in "ABCD"] == [0, 0, 2, 4]


def test_times_count_from_the_arrival():
    late = SimRequest("C", 2, 3, arrival_step=1)  # AA.. / BBBB, then C alone waits 4 more steps
    static = run_batches(StaticBatcher, [A, B, late], num_slots=2)
    assert (static.ttft("C"), static.latency("C"), static.queue_time("C")) == (8, 10, 7)
    continuous = run_batches(ContinuousBatcher, [A, B, late], num_slots=2)  # AACCC / BBBB.
    assert (continuous.ttft("C"), continuous.latency("C"), continuous.queue_time("C")) == (2, 4, 1)


def test_waste_of_the_three_runs():
    static, padded, continuous = (
        run_batches(cls, FOUR, num_slots=2) for cls in (StaticBatcher, PaddedBatcher, ContinuousBatcher)
    )
    assert (static.num_steps, static.slot_steps, static.useful_slot_steps) == (7, 14, 10)
    assert static.bubble_waste == padded.bubble_waste == pytest.approx(4 / 14)
    assert (continuous.num_steps, continuous.bubble_waste) == (5, 0)
    # Padded: 2 × (3+4-1) and 2 × (2+3-1) tokens computed; A 4, B 6, C 4 and D 2 of them useful.
    assert (padded.computed_tokens, padded.useful_tokens) == (20, 16)
    assert padded.padding_waste == pytest.approx(0.2)
    assert static.computed_tokens == static.useful_tokens == continuous.computed_tokens == 16
    assert static.padding_waste == continuous.padding_waste == 0
    assert static.output_tokens == padded.output_tokens == continuous.output_tokens == 10


def test_prompts_are_padded_to_the_longest():
    timeline = run_batches(PaddedBatcher, [SimRequest("A", 5, 1), SimRequest("B", 2, 2)], num_slots=2)
    assert [[cell.tokens for cell in row] for row in timeline.grid] == [[5, 1], [5, 1]]
    assert [[cell.kind for cell in row] for row in timeline.grid] == [["prefill", "padding"], ["prefill", "decode"]]


def test_without_padding_a_cell_counts_what_is_computed():
    timeline = run_batches(StaticBatcher, [SimRequest("A", 5, 1), SimRequest("B", 2, 2)], num_slots=2)
    assert [[(cell.kind, cell.tokens) for cell in row] for row in timeline.grid] == [
        [("prefill", 5), ("idle", 0)],
        [("prefill", 2), ("decode", 1)],
    ]


def test_a_prompt_of_one_token_is_a_prefill_once():
    timeline = run_batches(ContinuousBatcher, [SimRequest("A", 1, 3)], num_slots=1)
    assert [cell.kind for cell in timeline.grid[0]] == ["prefill", "decode", "decode"]


# --- limits ---


def test_run_batches_makes_room_for_everybody_at_once():
    config = run_batches(ContinuousBatcher, [SimRequest("A", 20, 13), D], num_slots=3).trace.header["config"]
    assert config == asdict(SchedulerConfig()) | {
        "max_num_seqs": 3,
        "max_num_batched_tokens": 99,  # 3 × (20 + 13)
        "max_model_len": 33,
        "num_gpu_blocks": 9,  # 3 × 3 blocks of 16
        "block_size": 16,
    }


def test_no_requests_are_refused():
    with pytest.raises(ConfigError, match="run_batches got 0 requests"):
        run_batches(StaticBatcher, [], num_slots=2)


def test_no_slots_are_refused():
    with pytest.raises(ConfigError, match="max_num_seqs=0"):
        run_batches(StaticBatcher, [A], num_slots=0)


@pytest.mark.parametrize("batcher", [StaticBatcher, PaddedBatcher, ContinuousBatcher])
def test_a_pool_that_is_too_small_is_an_error_with_numbers(batcher):
    config = SchedulerConfig(max_num_seqs=2, num_gpu_blocks=2, block_size=4)
    with pytest.raises(KVPoolExhaustedError) as error:
        simulate([SimRequest("A", 4, 2), SimRequest("B", 4, 2)], config, scheduler_cls=batcher)
    assert str(error.value) == (
        f"{batcher.__name__} cannot evict anybody: A needs a KV block and 0 of 2 are free; "
        "give it a larger pool (num_gpu_blocks)"
    )


def test_a_pool_that_is_too_small_is_one_of_our_errors():
    config = SchedulerConfig(max_num_seqs=1, num_gpu_blocks=1, block_size=4)
    with pytest.raises(MiniVLLMError):
        simulate([SimRequest("A", 4, 2)], config, scheduler_cls=ContinuousBatcher)


def test_whoever_finds_no_block_at_the_door_waits_and_nobody_overtakes():
    config = SchedulerConfig(max_num_seqs=3, num_gpu_blocks=2, block_size=4)
    requests = [SimRequest("A", 4, 1), SimRequest("B", 8, 1), SimRequest("C", 1, 1)]
    trace = simulate(requests, config, scheduler_cls=ContinuousBatcher)
    assert [step["new"] for step in trace.steps] == [["A"], ["B"], ["C"]]


def test_the_token_budget_holds_at_the_door():
    config = SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=8)
    requests = [SimRequest("A", 4, 1), SimRequest("B", 5, 1), SimRequest("C", 4, 1)]
    trace = simulate(requests, config, scheduler_cls=ContinuousBatcher)
    assert [step["scheduled"] for step in trace.steps] == [[["A", 4]], [["B", 5]], [["C", 4]]]
    exact = simulate([SimRequest("A", 4, 1), SimRequest("B", 4, 1)], config, scheduler_cls=ContinuousBatcher)
    assert len(exact.steps) == 1


def test_a_prompt_beyond_the_budget_is_a_stall_with_numbers():
    config = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8)
    with pytest.raises(SchedulerStalledError, match=r"queue head A has 9 tokens \(budget 8 a step\)"):
        simulate([SimRequest("A", 9, 1)], config, scheduler_cls=ContinuousBatcher)


def test_a_batcher_without_a_policy_says_so():
    with pytest.raises(NotImplementedError, match=re.escape("a batching policy answers num_may_join()")):
        simulate([A], scheduler_cls=Batcher)


# --- ends and aborts: a batcher is a full scheduler ---


def loop_of(batcher_cls, *requests, num_slots=2):
    config = SchedulerConfig(max_num_seqs=num_slots)
    loop = StepLoop(batcher_cls(config), config, FakeModelRunner().execute, kind="sim", clock=lambda: 0.0)
    for request in requests:
        loop.add_request(request)
    return loop


def test_stop_tokens_end_a_request():
    loop = loop_of(ContinuousBatcher, Request("A", [10], SamplingParams(max_tokens=9, stop_token_ids=(1001,))))
    news = [loop.step()[0] for _ in range(2)]
    assert [n.finish_reason for n in news] == [None, "stop"]
    assert not loop.has_unfinished_requests()


def test_an_abort_frees_slot_and_blocks():
    loop = loop_of(ContinuousBatcher, *(Request(r, [10, 20]) for r in "ABC"))
    loop.step()
    loop.abort(["A"])
    loop.step()
    step = loop.trace.steps[1]
    assert (step["aborted"], step["scheduled"], step["free_before"]) == (["A"], [["B", 1], ["C", 2]], 63)
    assert loop.scheduler.kv_cache_manager.num_free_blocks == step["free_end"] == 62


def test_an_abort_of_a_waiting_request():
    loop = loop_of(ContinuousBatcher, *(Request(r, [10, 20]) for r in "ABC"))
    loop.step()
    loop.abort(["C"])
    assert list(loop.scheduler.waiting) == []
    loop.scheduler.finish_requests(["nobody"])


def test_the_worker_is_told_once_who_is_done():
    config = SchedulerConfig(max_num_seqs=1)
    batcher, worker = ContinuousBatcher(config), FakeModelRunner()
    for name in "AB":
        batcher.add_request(Request(name, [10], SamplingParams(max_tokens=1)))
    told = []
    for _ in range(3):
        plan = batcher.schedule()
        told.append(plan.finished_req_ids)
        batcher.update_from_output(plan, worker.execute(plan))
    assert told == [[], ["A"], ["B"]]


def test_an_aborted_request_leaves_its_slot_in_the_grid():
    loop = loop_of(ContinuousBatcher, *(Request(r, [10], SamplingParams(max_tokens=3)) for r in "AB"), num_slots=1)
    loop.step()
    loop.abort(["A"])
    loop.step()
    assert Timeline(loop.trace).text() == picture("AB")


def test_the_wait_of_an_aborted_request_is_not_charged_to_the_next():
    loop = loop_of(StaticBatcher, Request("A", [10], SamplingParams(max_tokens=1)))
    for _ in range(3):
        loop.step()
    loop.abort(["A"])
    loop.step()
    loop.add_request(Request("B", [10], SamplingParams(max_tokens=1)))
    arrived = loop.step_index
    while loop.has_unfinished_requests():
        loop.step()
    assert loop.trace.first_token_step()["B"] - arrived == StaticBatcher.max_wait_steps


# --- for every workload ---

workloads = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12), st.integers(0, 20)), min_size=1, max_size=12).map(
    lambda rows: [SimRequest(f"R{i}", *row) for i, row in enumerate(rows)]
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(workloads, st.integers(1, 5))
def test_continuous_is_never_slower_than_static_and_gives_the_same_tokens(requests, num_slots):
    static, padded, continuous = (
        run_batches(cls, requests, num_slots) for cls in (StaticBatcher, PaddedBatcher, ContinuousBatcher)
    )
    assert continuous.num_steps <= static.num_steps == padded.num_steps
    for r in requests:  # not only the last one: each
        assert continuous.latency(r.request_id) <= static.latency(r.request_id)
        assert continuous.ttft(r.request_id) <= static.ttft(r.request_id)
    expected = {r.request_id: [1000 + i for i in range(r.max_tokens)] for r in requests}
    assert static.trace.outputs() == padded.trace.outputs() == continuous.trace.outputs() == expected


@settings(max_examples=100, deadline=None, derandomize=True)
@given(workloads, st.integers(1, 5), st.sampled_from([StaticBatcher, PaddedBatcher, ContinuousBatcher]))
def test_the_grid_accounts_for_every_slot_step_and_token(requests, num_slots, batcher):
    timeline = run_batches(batcher, requests, num_slots)
    assert len(timeline.grid) == num_slots
    assert {len(row) for row in timeline.grid} == {timeline.num_steps}
    assert timeline.useful_slot_steps == timeline.output_tokens == sum(r.max_tokens for r in requests)
    assert timeline.useful_tokens == sum(r.prompt_len + r.max_tokens - 1 for r in requests)
    assert 0 <= timeline.bubble_waste < 1 and 0 <= timeline.padding_waste < 1
    for r in requests:  # a request keeps its slot
        rows = {slot for slot, row in enumerate(timeline.grid) for cell in row if cell.request_id == r.request_id}
        assert len(rows) == 1
        assert timeline.latency(r.request_id) == timeline.queue_time(r.request_id) + r.max_tokens
        assert timeline.ttft(r.request_id) == timeline.queue_time(r.request_id) + 1


@settings(max_examples=100, deadline=None, derandomize=True)
@given(workloads, st.integers(1, 5))
def test_continuous_leaves_no_slot_idle_while_somebody_waits(requests, num_slots):
    for record in run_batches(ContinuousBatcher, requests, num_slots).trace.steps:
        assert not record["waiting"] or len(record["running"]) == num_slots


@settings(max_examples=100, deadline=None, derandomize=True)
@given(workloads, st.integers(1, 5))
def test_nobody_joins_a_static_batch_that_runs(requests, num_slots):
    for record in run_batches(StaticBatcher, requests, num_slots).trace.steps:
        assert not (record["new"] and record["running_before"])
