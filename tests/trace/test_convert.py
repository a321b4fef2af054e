"""The real vLLM's runs as traces, and ours beside them: all 99, and what a broken recording is told."""

import json
import random

import pytest

from mini_vllm.errors import MiniVLLMError, TraceFormatError
from mini_vllm.trace.convert import from_vllm_recording, is_recording, load_run, replayed
from mini_vllm.trace.diff import compare, diff
from mini_vllm.trace.trace import Trace
from tests.core.recordings import CLEAR_FORM, FOLDER, RECORDINGS
from tests.trace.runs import run_of_recording, tiny_trace

EXAMPLE = FOLDER / "97_worked_example_first_chunk.json"


def test_the_worked_example_is_vllms_run():
    trace = from_vllm_recording(EXAMPLE)
    recorded = json.loads(EXAMPLE.read_text())
    assert {name: trace.header[name] for name in ("kind", "clock", "scheduler", "vllm_version", "end")} == {
        "kind": "vllm", "clock": "steps", "scheduler": "Scheduler", "vllm_version": "0.33.0", "end": "finished",
    }  # fmt: skip
    assert trace.header["config"] == recorded["trace"]["config"]
    assert trace.header["requests"]["R3"] == {"arrival_step": 0, "prompt_len": 32, "max_tokens": 16}
    step = dict(trace.steps[9])
    assert [step.pop(name) for name in ("arrivals", "aborted", "budget_used", "t_start", "t_end")] == [[], [], 3, 9, 10]
    assert step == recorded["trace"]["steps"][9]
    assert trace.outputs() == {req_id: each["output"] for req_id, each in recorded["trace"]["requests"].items()}


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_every_recording_is_a_trace_that_survives_its_file_and_is_our_run_too(path, tmp_path):
    theirs, ours = from_vllm_recording(path), replayed(path)
    assert Trace.load(theirs.save(tmp_path / "run.jsonl")) == theirs
    comparison = compare(theirs, ours)
    assert comparison.difference is None
    assert comparison.num_steps == len(theirs.steps) == len(ours.steps)
    # Nothing that vLLM recorded is passed over, but what our trace of other runs would hold besides.
    assert comparison.not_compared.keys() == {"t_start", "t_end"} and comparison.notes == []


@pytest.mark.parametrize("path", CLEAR_FORM, ids=lambda path: path.stem)
def test_the_trace_that_our_recorder_writes_does_not_differ_either(path):
    """Through `StepLoop`, whose watch keeps its account from outside the scheduler."""
    comparison = compare(from_vllm_recording(path), run_of_recording(path).trace)
    assert comparison.difference is None
    only_theirs = {name for name, why in comparison.not_compared.items() if why == "only in A"}
    assert only_theirs <= {"allocs", "free_queue"}
    # Requests of a run that vLLM gave up on early never arrived in ours.
    assert all(note.endswith("is only in A") for note in comparison.notes)


def test_a_recording_and_another_run_of_it_do_differ():
    theirs, other = from_vllm_recording(EXAMPLE), from_vllm_recording(FOLDER / "98_worked_example_full.json")
    found = diff(theirs, other)
    assert (found.step, found.field) == (30, "scheduled")
    assert compare(theirs, other).notes == ["reserve_full_isl is False in A and True in B"]


# --- which file is what ---


def test_a_run_is_loaded_by_what_the_file_holds(tmp_path):
    renamed = tmp_path / "recording.jsonl"
    renamed.write_bytes(EXAMPLE.read_bytes())
    assert load_run(renamed) == from_vllm_recording(EXAMPLE)
    ours = tiny_trace()
    assert load_run(ours.save(tmp_path / "run.json")) == ours
    assert load_run(ours.save(tmp_path / "run.json.gz")) == ours


def test_an_indented_recording_is_one_too(tmp_path):
    file = tmp_path / "run.json"
    file.write_text(json.dumps(json.loads(EXAMPLE.read_text()), indent=1))
    assert load_run(file) == from_vllm_recording(EXAMPLE)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"scenario": 1}', "3", "no json", "[" * 100_000])
def test_what_is_neither_is_read_as_a_trace_and_refused_as_one(tmp_path, text):
    file = tmp_path / "run.json"
    file.write_text(text)
    assert not is_recording(file)
    with pytest.raises(TraceFormatError, match=r"run\.json"):
        load_run(file)


def test_a_recording_with_a_field_of_the_wrong_shape_is_refused_by_step(tmp_path):
    data = json.loads(EXAMPLE.read_text())
    data["trace"]["steps"][7]["free"] = "many"
    file = tmp_path / "run.json"
    file.write_text(json.dumps(data))
    with pytest.raises(TraceFormatError, match=r'run\.json, step 7: .*free is "many", not a whole number'):
        load_run(file)


def test_a_recording_that_lacks_something_is_refused(tmp_path):
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"scenario": {}, "trace": {}}))
    with pytest.raises(TraceFormatError, match=r"run\.json is not a recorded run"):
        load_run(file)


@pytest.mark.parametrize("seed", range(80))
def test_random_damage_is_a_named_error_or_a_run(tmp_path, seed):
    """Anything in the file replaced by anything: both ways of using it are told in our own words."""
    rng = random.Random(seed)
    data = json.loads((FOLDER / "53_spec_preempt_lookahead.json").read_text())
    place = data
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = rng.choice(keys)
        if not isinstance(place[key], (dict, list)) or not place[key] or rng.random() < 0.2:
            break
        place = place[key]
    place[key] = rng.choice([None, True, -1, 0, 7, 2.5, "x", [], [3], [["r0", "x"]], {}, {"r0": "x"}, {"r0": None}])
    file = tmp_path / "run.json"
    file.write_text(json.dumps(data))
    for read in (load_run, replayed):
        try:
            read(file)
        except MiniVLLMError as error:
            assert str(error)
