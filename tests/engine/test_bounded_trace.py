"""An engine whose trace does not grow: the last steps in memory, every run in a file. Knows the tiny model."""

from functools import partial

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.engine.engine_core import EngineCore
from mini_vllm.models.tiny import tiny_model
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.trace.recorder import TraceRecorder
from mini_vllm.trace.trace import Trace
from mini_vllm.trace.writer import TraceWriter


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
