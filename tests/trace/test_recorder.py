"""The record of a run: its fields, what stays in memory, and what a writer gets. Knows tiny runs on a step clock."""

import tracemalloc
from dataclasses import asdict
from functools import partial

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.sim.fake_runner import FakeModelRunner
from mini_vllm.trace.recorder import TraceRecorder

CONFIG = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8, num_gpu_blocks=2, block_size=4)


@pytest.fixture(scope="module")
def trace():
    """A and B fill the two blocks; in step 1 A takes B's block and B starts over in step 2."""
    return simulate([SimRequest("A", 4, 2), SimRequest("B", 4, 2)], CONFIG)


def test_the_header_says_what_ran(trace):
    assert trace.header == {
        "format": "mini_vllm.trace",
        "version": 1,
        "kind": "sim",
        "clock": "steps",
        "scheduler": "Scheduler",
        "config": asdict(SchedulerConfig()) | {
            "max_num_seqs": 2, "max_num_batched_tokens": 8, "max_model_len": 256, "num_gpu_blocks": 2, "block_size": 4,
        },
        "requests": {
            "A": {"arrival_step": 0, "prompt_len": 4, "max_tokens": 2},
            "B": {"arrival_step": 0, "prompt_len": 4, "max_tokens": 2},
        },
    }  # fmt: skip


def without_times(record):
    return {field: value for field, value in record.items() if not field.startswith("t_")}


def test_a_step_record_in_full(trace):
    record = without_times(trace.steps[1])
    record.pop("computed")  # in a test of its own
    assert record == {
        "step": 1,
        "arrivals": [],
        "aborted": [],
        "waiting_before": [],
        "running_before": ["A", "B"],
        "free_before": 0,
        "scheduled": [["A", 1]],
        "new": [],
        "resumed": [],
        "preempted": ["B"],
        "hits": {},
        "waiting": ["B"],
        "running": ["A"],
        "blocks": {"A": [1, 2]},
        "free": 0,
        "budget_used": 1,
        "blocked_reason": "preempted_this_step",
        "sampled": {"A": [1001]},
        "finished": ["A"],
        "free_end": 2,
        "running_end": [],
    }


def test_a_resumed_request_is_written_as_resumed_not_as_new(trace):
    record = trace.steps[2]
    assert (record["new"], record["resumed"], record["computed"]) == ([], ["B"], {"B": [0, 5]})


def test_computed_is_before_and_after(trace):
    assert trace.steps[0]["computed"] == {"A": [0, 4], "B": [0, 4]}
    assert trace.steps[1]["computed"]["A"] == [4, 5]


def test_computed_of_a_preempted_request_ends_at_zero(trace):
    assert trace.steps[1]["computed"] == {"A": [4, 5], "B": [4, 0]}


def test_a_record_keeps_what_was_true_then(trace):
    # Lists of the running account must be copied, not referred to.
    assert trace.steps[0]["running"] == ["A", "B"]
    assert trace.steps[0]["blocks"] == {"A": [1], "B": [2]}


def test_a_step_that_samples_nothing_for_a_request_does_not_list_it():
    chunked = simulate([SimRequest("A", 10, 1)], SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=8))
    assert [step["sampled"] for step in chunked.steps] == [{}, {"A": [1000]}]


def test_what_follows_from_a_trace(trace):
    assert trace.outputs() == {"A": [1000, 1001], "B": [1000, 1001]}
    assert trace.first_token_step() == {"A": 0, "B": 0}
    assert trace.finish_step() == {"A": 1, "B": 2}


def loop_with(make_recorder=TraceRecorder, **prompts):
    loop = StepLoop(
        Scheduler(CONFIG), CONFIG, FakeModelRunner().execute, kind="engine", clock=lambda: 0.0,
        make_recorder=make_recorder,
    )  # fmt: skip
    for request_id, prompt in prompts.items():
        loop.add_request(Request(request_id, [10, 20, 21], SamplingParams(max_tokens=2)), prompt)
    return loop


def test_the_text_of_a_prompt_is_kept_if_there_is_one():
    requests = loop_with(A="hello", B=None).trace.header["requests"]
    assert requests["A"]["prompt"] == "hello"
    assert "prompt" not in requests["B"]


def test_pieces_of_text_go_to_the_latest_step():
    loop = loop_with(A="hello")
    loop.step()
    loop.recorder.add_pieces({"A": " wor"})
    loop.step()
    loop.recorder.add_pieces({})
    assert loop.trace.steps[0]["pieces"] == {"A": " wor"}
    assert "pieces" not in loop.trace.steps[1]


def test_an_abort_is_written_into_the_next_step_once():
    loop = loop_with(A=None, B=None)
    loop.step()
    loop.abort(["B", "nobody"])
    loop.step()
    loop.step()
    assert [step["aborted"] for step in loop.trace.steps] == [[], ["B"], []]
    assert loop.trace.outputs() == {"A": [1000, 1001], "B": [1000]}
    assert loop.trace.finish_step() == {"A": 1}


def test_an_arrival_is_written_into_the_next_step_once():
    loop = loop_with(A=None)
    for _ in range(2):
        loop.step()
    assert [step["arrivals"] for step in loop.trace.steps] == [["A"], []]


def test_a_priority_is_written_where_there_is_one():
    loop = loop_with()
    for request_id, priority in (("A", 0), ("B", 3)):
        loop.add_request(Request(request_id, [10, 20], SamplingParams(max_tokens=2), priority=priority))
    requests = loop.trace.header["requests"]
    assert ("priority" in requests["A"], requests["B"]["priority"]) == (False, 3)


def test_times_are_the_runs_own_clock_starting_at_zero():
    ticks = iter([100.0, 100.5, 102.0, 102.0, 103.25])
    loop = StepLoop(Scheduler(CONFIG), CONFIG, FakeModelRunner().execute, kind="engine", clock=lambda: next(ticks))
    loop.add_request(Request("A", [10, 20], SamplingParams(max_tokens=2)))
    loop.step()
    loop.step()
    assert [(step["t_start"], step["t_end"]) for step in loop.trace.steps] == [(0.5, 2.0), (2.0, 3.25)]


def test_a_run_on_a_clock_says_seconds():
    assert loop_with().trace.header["clock"] == "seconds"


def test_drafts_are_counted_with_what_they_leave_computed():
    config = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=8, num_speculative_tokens=2)
    sampled = iter([[7], [8], [9, 10]])  # one draft of two accepted in the last step

    def execute(plan):
        return ModelRunnerOutput({"A": next(sampled)}, {"A": [1, 2]})

    loop = StepLoop(Scheduler(config), config, execute, kind="sim", clock=None)
    loop.add_request(Request("A", [5, 6], SamplingParams(max_tokens=9, ignore_eos=True)))
    for _ in range(3):
        loop.step()
    assert [step["spec"] for step in loop.trace.steps] == [{}, {"A": 2}, {"A": 2}]
    assert [step["computed"]["A"] for step in loop.trace.steps] == [[0, 2], [2, 5], [3, 6]]
    assert [step["computed_end"] for step in loop.trace.steps] == [{"A": 2}, {"A": 3}, {"A": 5}]


def test_without_drafts_and_caching_their_fields_are_left_out(trace):
    assert not {"spec", "computed_end", "cached_blocks"} & {name for step in trace.steps for name in step}


def test_cached_blocks_are_those_that_a_prefix_could_hit():
    config = SchedulerConfig(max_num_seqs=2, num_gpu_blocks=4, block_size=4, enable_prefix_caching=True)
    steps = simulate([SimRequest("A", 9, 2)], config).steps
    assert [step["cached_blocks"] for step in steps] == [[1, 2], [1, 2]]


class NoManager:
    """A scheduler whose blocks nobody can look at: it never schedules anything."""

    def __init__(self, config):
        self.requests = {}

    def add_request(self, request):
        self.requests[request.request_id] = request

    def schedule(self):
        return SchedulerOutput()

    def update_from_output(self, plan, output):
        return []

    def has_unfinished_requests(self):
        return True


def test_cached_blocks_are_left_out_where_nobody_can_see_them():
    config = SchedulerConfig(enable_prefix_caching=True)
    loop = StepLoop(NoManager(config), config, FakeModelRunner().execute, kind="sim", clock=None)
    loop.step()
    assert "cached_blocks" not in loop.trace.steps[0]
    large = SchedulerConfig(enable_prefix_caching=True, num_gpu_blocks=2000)
    assert "cached_blocks" not in simulate([SimRequest("A", 9, 2)], large).steps[0]


# --- block tables are shared, and still a record of what was ---


def tables_as_they_were(config, requests):
    """Run twice: with the recorder, and with a copy of every table in every step."""
    loop = StepLoop(Scheduler(config), config, FakeModelRunner().execute, kind="sim", clock=None)
    for r in requests:
        params = SamplingParams(max_tokens=r.max_tokens, ignore_eos=True)
        loop.add_request(Request(r.request_id, list(range(r.prompt_len)), params))
    copies = []
    planned = loop.watch.planned
    loop.watch.planned = lambda plan: (
        planned(plan),
        copies.append({k: list(t) for k, t in loop.watch.block_tables.items()}),
    )
    while loop.has_unfinished_requests():
        loop.step()
    return loop.trace, copies


@pytest.mark.parametrize(
    "limits", [{}, {"sliding_window": 7, "num_gpu_blocks": 6}, {"enable_prefix_caching": True}], ids=str
)
def test_every_record_has_the_tables_of_its_own_step(limits):
    config = SchedulerConfig(**{"max_num_seqs": 4, "max_num_batched_tokens": 12, "num_gpu_blocks": 9, **limits})
    trace, copies = tables_as_they_were(config, [SimRequest(f"R{i}", 5 + 3 * i, 12) for i in range(5)])
    assert [step["blocks"] for step in trace.steps] == copies
    if "sliding_window" in limits:
        assert any(0 in table for step in trace.steps for table in step["blocks"].values())
    else:
        assert any(step["preempted"] for step in trace.steps)


def test_a_new_request_under_an_old_id_gets_its_own_table():
    loop = loop_with()
    for request_ids in (["A"], ["B", "A"]):
        for request_id in request_ids:
            loop.add_request(Request(request_id, [10, 20], SamplingParams(max_tokens=1, ignore_eos=True)))
        loop.step()
    assert [step["blocks"] for step in loop.trace.steps] == [{"A": [1]}, {"B": [1], "A": [2]}]


def test_a_table_that_did_not_change_is_not_copied():
    config = SchedulerConfig(max_num_seqs=2, block_size=16)
    first, second, *_ = simulate([SimRequest("A", 4, 5), SimRequest("B", 15, 5)], config).steps[1:]
    assert second["blocks"]["A"] is first["blocks"]["A"]
    assert (len(first["blocks"]["B"]), len(second["blocks"]["B"])) == (1, 2)


# --- what stays in memory ---


def run(make_recorder, num_steps=40):
    """One request a step for `num_steps` steps; each takes two."""
    loop = loop_with(make_recorder)
    for i in range(num_steps):
        loop.add_request(Request(f"R{i}", [10, 20], SamplingParams(max_tokens=2, ignore_eos=True)))
        loop.step()
    return loop


def test_the_last_steps_stay_and_the_requests_in_them():
    whole, ring = run(TraceRecorder).trace, run(partial(TraceRecorder, keep_steps=3)).trace
    assert ring.steps == whole.steps[-3:]
    assert [step["finished"] for step in ring.steps] == [["R36"], ["R37"], ["R38"]]
    assert list(ring.header["requests"]) == ["R36", "R37", "R38", "R39"]


def test_an_id_that_is_used_again_keeps_its_latest_entry():
    loop = loop_with(partial(TraceRecorder, keep_steps=2))
    for prompt in ([1], [1, 2], [1, 2, 3]):
        loop.add_request(Request("A", prompt, SamplingParams(max_tokens=1, ignore_eos=True)))
        loop.step()
    loop.step()  # drops the end of the second A; the third has ended, too, but in a step that stays
    assert loop.trace.header["requests"]["A"]["prompt_len"] == 3
    loop.step()
    assert loop.trace.header["requests"] == {}


def test_an_id_that_is_aborted_and_used_again_at_once_keeps_its_entry():
    loop = loop_with(partial(TraceRecorder, keep_steps=1), A=None)
    loop.step()
    loop.abort(["A"])
    loop.add_request(Request("A", [1], SamplingParams(max_tokens=8, ignore_eos=True)))
    for _ in range(3):
        loop.step()
    assert loop.trace.header["requests"]["A"]["prompt_len"] == 1


def test_keeping_nothing_keeps_no_requests_either():
    loop = run(partial(TraceRecorder, keep_steps=0))
    loop.abort(["R39"])
    loop.step()
    assert (loop.trace.steps, loop.trace.header["requests"]) == ([], {})


def test_a_ring_does_not_grow_with_the_run():
    def held(num_steps):
        tracemalloc.start()
        loop = run(partial(TraceRecorder, keep_steps=5), num_steps)
        ours = [tracemalloc.Filter(True, "*/mini_vllm/trace/*"), tracemalloc.Filter(True, "*/core/step_loop.py")]
        size = sum(entry.size for entry in tracemalloc.take_snapshot().filter_traces(ours).statistics("filename"))
        tracemalloc.stop()
        assert len(loop.trace.steps) == 5
        return size

    held(20)
    assert held(2000) < 1.2 * held(200)


# --- what a writer gets ---


class Writer:
    """Remembers what it was given, and when it was full."""

    path = "here.jsonl"

    def __init__(self, room=1000):
        self.room = room
        self.calls = []

    def begin(self, header):
        self.calls.append(("begin", dict(header["requests"])))

    def write(self, record, requests):
        if len(self.calls) > self.room:
            raise OSError(28, "No space left on device")
        self.calls.append((record["step"], dict(requests), record.get("pieces"), "finished" in record))

    def close(self):
        self.calls.append("close")


def test_a_writer_gets_every_step_once_and_whole():
    writer = Writer()
    loop = loop_with(partial(TraceRecorder, writer=writer), A=None)
    facts = dict(loop.trace.header["requests"])
    loop.step()
    assert [call[0] for call in writer.calls] == ["begin"], "text may still be added to step 0"
    loop.recorder.add_pieces({"A": "hi"})
    assert writer.calls[1:] == [(0, facts, {"A": "hi"}, True)]
    loop.step()
    loop.step()
    loop.recorder.close()
    assert writer.calls[2:] == [(1, {}, None, True), (2, {}, None, True), "close"]


def test_a_step_that_failed_is_handed_over_as_far_as_it_came():
    writer = Writer()
    loop = loop_with(partial(TraceRecorder, writer=writer, keep_steps=0), A=None)

    def out_of_memory(plan):
        raise MemoryError

    loop.execute = out_of_memory
    with pytest.raises(MemoryError):
        loop.step()
    loop.recorder.close()
    assert writer.calls[1][0] == 0 and writer.calls[1][3] is False


def test_a_full_disk_does_not_stop_the_run(caplog):
    loop = run(partial(TraceRecorder, writer=Writer(room=3)), num_steps=10)
    loop.recorder.close()
    assert len(loop.trace.steps) == 10
    assert [r.getMessage() for r in caplog.records] == [
        "the trace here.jsonl ends here, the run goes on: [Errno 28] No space left on device"
    ]
