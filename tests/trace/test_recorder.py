"""The written record of a run: its fields, its file, and what a broken file is told."""

import json
from dataclasses import asdict

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.errors import TraceFormatError
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.sim.fake_runner import FakeModelRunner
from mini_vllm.trace.recorder import Trace

CONFIG = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8, num_gpu_blocks=2, block_size=4)


@pytest.fixture(scope="module")
def trace():
    """A and B fill the two blocks; in step 1 A takes B's block and B starts over in step 2."""
    return simulate([SimRequest("A", 4, 2), SimRequest("B", 4, 2)], CONFIG)


@pytest.fixture
def file(trace, tmp_path):
    return trace.save(tmp_path / "run.jsonl")


def test_the_header_says_what_ran(trace):
    assert trace.header == {
        "format": "mini_vllm.trace",
        "version": 1,
        "kind": "sim",
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


def loop_with(**prompts):
    loop = StepLoop(Scheduler(CONFIG), CONFIG, FakeModelRunner().execute, kind="engine", clock=lambda: 0.0)
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


def test_times_are_the_runs_own_clock_starting_at_zero():
    ticks = iter([100.0, 100.5, 102.0, 102.0, 103.25])
    loop = StepLoop(Scheduler(CONFIG), CONFIG, FakeModelRunner().execute, kind="engine", clock=lambda: next(ticks))
    loop.add_request(Request("A", [10, 20], SamplingParams(max_tokens=2)))
    loop.step()
    loop.step()
    assert [(step["t_start"], step["t_end"]) for step in loop.trace.steps] == [(0.5, 2.0), (2.0, 3.25)]


# --- the file ---


def test_what_is_saved_is_what_is_loaded(trace, file):
    assert Trace.load(file) == trace
    assert Trace.load(str(file)) == trace


def test_the_file_is_one_object_a_line(trace, file):
    lines = file.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + len(trace.steps)
    assert json.loads(lines[0])["format"] == "mini_vllm.trace"
    assert [json.loads(line)["step"] for line in lines[1:]] == [0, 1, 2]


@pytest.mark.parametrize("text", ["naïve 中文 🙂", 'quote " and \\ and \n newline'])
def test_text_survives_the_file(trace, tmp_path, text):
    with_text = Trace({**trace.header, "prompt": text}, trace.steps)
    assert Trace.load(with_text.save(tmp_path / "run.jsonl")) == with_text


@pytest.mark.parametrize("text", ["a\u2028b", "a\x85b"])
def test_line_separators_inside_a_text_survive_the_file(trace, tmp_path, text):
    with_text = Trace({**trace.header, "prompt": text}, trace.steps)
    assert Trace.load(with_text.save(tmp_path / "run.jsonl")) == with_text


@pytest.mark.parametrize(
    ("broken", "why"),
    [('{"step": 0, "sched', "not a JSON object"), ("[1, 2]", "not an object"), ("", "not a JSON object")],
)
def test_a_broken_line_is_refused_by_file_and_number(file, broken, why):
    lines = file.read_text(encoding="utf-8").splitlines()
    lines[2] = broken
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(TraceFormatError) as error:
        Trace.load(file)
    assert str(error.value).startswith(f"{file}, line 3: not a JSON object")
    assert why in str(error.value)


def test_a_file_that_was_cut_short_is_refused(file):
    file.write_text(file.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    with pytest.raises(TraceFormatError, match="line 4: not a JSON object"):
        Trace.load(file)


@pytest.mark.parametrize("text", ["", '{"step": 0}\n', '{"format": "something.else", "version": 1}\n'])
def test_a_file_without_our_header_is_refused(file, text):
    file.write_text(text, encoding="utf-8")
    with pytest.raises(TraceFormatError) as error:
        Trace.load(file)
    assert str(error.value) == f'{file}: the first line is not a header with "format": "mini_vllm.trace"'


@pytest.mark.parametrize(("version", "shown"), [(2, "2"), (None, "None"), ("1", "'1'")])
def test_another_version_is_refused_with_both_numbers(trace, file, version, shown):
    Trace({**trace.header, "version": version}, trace.steps).save(file)
    with pytest.raises(TraceFormatError) as error:
        Trace.load(file)
    assert str(error.value) == f"{file}: version {shown}; this package reads 1"


def test_a_file_that_is_no_text_is_refused(file):
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceFormatError):
        Trace.load(file)
