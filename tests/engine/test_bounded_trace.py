"""An engine whose trace does not grow: the last steps in memory, every run in a file. Knows the tiny model."""

from functools import partial

import pytest

from mini_vllm import LLM
from mini_vllm.config import SchedulerConfig
from mini_vllm.engine.engine_core import EngineCore
from mini_vllm.errors import ConfigError
from mini_vllm.models.tiny import tiny_model
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.trace.recorder import TraceRecorder
from mini_vllm.trace.trace import Trace
from mini_vllm.trace.writer import TraceWriter
from mini_vllm.viz import StepPlayer
from tests.engine.tiny_llm import tiny_loaded


@pytest.fixture
def engine(tmp_path):
    writer = TraceWriter(tmp_path / "run.jsonl", max_bytes=10**6)
    make_recorder = partial(TraceRecorder, keep_steps=2, writer=writer)
    return EngineCore(tiny_model(0), SchedulerConfig(), make_recorder=make_recorder)


def run(engine, *request_ids):
    for request_id in request_ids:
        engine.add_request(Request(request_id, [1, 2, 3], SamplingParams(max_tokens=6, ignore_eos=True)))
    while engine.has_unfinished_requests():
        engine.step()


def test_memory_keeps_the_last_steps_and_the_files_hold_the_runs(engine, tmp_path):
    run(engine, "A")
    run(engine, "B", "C")
    assert [step["step"] for step in engine.trace.steps] == [4, 5]
    engine.loop.recorder.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.1.jsonl", "run.jsonl"]
    first, second = (Trace.load(tmp_path / name) for name in ("run.1.jsonl", "run.jsonl"))
    assert (list(first.header["requests"]), len(first.steps)) == (["A"], 6)
    assert (list(second.header["requests"]), len(second.steps)) == (["B", "C"], 6)


def test_an_id_is_in_use_until_its_steps_are_gone(engine):
    run(engine, "A")
    engine.add_request(Request("A", [1], SamplingParams(max_tokens=6, ignore_eos=True)))
    assert engine.used_request_ids() == {"A"}


# --- through LLM ---

LIMITS = {"max_model_len": 96, "num_gpu_blocks": 60, "block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 24}
TWENTY = SamplingParams(max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def loaded():
    return tiny_loaded()


def test_by_default_some_thousand_steps_stay(loaded):
    llm = LLM(loaded, **LIMITS)
    llm.generate("a", TWENTY)
    assert llm.engine_core.loop.recorder.keep_steps == 4000 and "dropped_steps" not in llm.trace.header


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_the_latest_steps_in_memory_and_all_of_them_in_the_file(loaded, tmp_path, suffix):
    file = tmp_path / f"run{suffix}"
    llm = LLM(loaded, **LIMITS, trace_steps=3, trace_file=file)
    [output] = llm.generate("abc", TWENTY)
    if suffix == ".jsonl":
        assert len(Trace.load(file).steps) == 20, "whole as soon as the run is over"
    llm.close()
    whole = Trace.load(file)
    assert [step["step"] for step in whole.steps] == list(range(20)) and "dropped_steps" not in whole.header
    assert llm.trace.steps == whole.steps[-3:] and llm.trace.header["dropped_steps"] == 17
    assert "".join(step.get("pieces", {}).get("R1", "") for step in whole.steps) == output.text
    assert StepPlayer(llm.trace).events()[1:] == StepPlayer(whole).events()[-2:]
    [shown] = StepPlayer(llm.trace).data()["runs"][0]["lanes"]
    assert shown["text"] == "…" + output.text[-3:] and shown["prompt"] == "abc"
    llm.generate("d", TWENTY)  # another run, after close()
    llm.close()
    assert Trace.load(file).header["requests"]["R1"]["prompt"] == "d", "the file holds the latest run"


def test_the_file_of_a_run_that_failed_stays(loaded, tmp_path, monkeypatch):
    file = tmp_path / "run.jsonl"
    llm = LLM(loaded, **LIMITS, trace_file=file)
    stream = llm.stream("abc", TWENTY)
    for _ in range(5):
        next(stream)
    monkeypatch.setattr(llm.engine_core.model, "compute_logits", lambda hidden: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(stream)
    *whole, failed = Trace.load(file).steps
    assert len(whole) == 5 and failed["scheduled"] == [["R1", 1]] and "sampled" not in failed
    assert len(StepPlayer(Trace.load(file)).events()) == 6


def test_an_engine_that_never_ran_leaves_a_file_alone(loaded, tmp_path):
    file = tmp_path / "run.jsonl"
    file.write_text("mine")
    LLM(loaded, **LIMITS, trace_file=file).close()
    assert file.read_text() == "mine"


def test_an_engine_that_is_never_idle_does_not_grow(loaded):
    """Requests overlap, so it is all one run; what is kept of it is that of the latest steps."""
    llm = LLM(loaded, **LIMITS, trace_steps=4)
    streams = [llm.stream("a", SamplingParams(max_tokens=6, ignore_eos=True))]
    for _ in range(30):
        for _ in range(3):
            next(streams[-1])
        streams.append(llm.stream("a", SamplingParams(max_tokens=6, ignore_eos=True)))
        streams = streams[-2:]
    assert len(llm.trace.steps) == 4 and llm.trace.header["dropped_steps"] > 50
    assert len(llm.trace.header["requests"]) <= 4
    assert llm.engine_core.used_request_ids() == set(llm.trace.header["requests"])
    llm.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trace_steps": -1}, "trace_steps=-1 must be a whole number of at least 0, or None"),
        ({"trace_steps": "many"}, "trace_steps='many'"),
        ({"trace_steps": True}, "trace_steps=True"),
        ({"trace_file": "/no/such/folder/run.jsonl"}, "trace_file /no/such/folder/run.jsonl: there is no folder"),
        ({"trace_file": "run.jsonl", "async_scheduling": True}, "trace_file='run.jsonl': with async_scheduling there"),
    ],
)
def test_wrong_settings_are_refused_before_a_model_is_loaded(settings, message):
    with pytest.raises(ConfigError, match=message):
        LLM("no such model", **settings)
