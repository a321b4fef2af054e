"""A trace of which only the latest steps are kept is told as the whole one, step by step."""

import copy
from functools import partial

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sim.fake_runner import FakeModelRunner
from mini_vllm.trace.command import _about
from mini_vllm.trace.convert import from_vllm_recording
from mini_vllm.trace.cut import leave_out
from mini_vllm.trace.perfetto import export_perfetto
from mini_vllm.trace.recorder import TraceRecorder
from mini_vllm.trace.trace import Trace
from mini_vllm.trace.writer import TraceWriter
from mini_vllm.viz import StepPlayer
from tests.core.recordings import RECORDINGS


def test_what_is_left_out_is_counted():
    requests = {"A": {"arrival_step": 0}, "B": {"arrival_step": 7}}
    record = {"step": 6, "sampled": {"A": [4, 5], "B": [1], "gone": [2]}, "preempted": ["A"], "computed": {"A": [9, 0]}}
    leave_out(record, requests)
    leave_out({"step": 7, "sampled": {"A": [6], "B": []}, "preempted": ["A"], "computed": {"A": [8, 0]}}, requests)
    leave_out({"step": 8, "scheduled": [], "preempted": ["A"]}, requests)  # not every trace says what was computed
    assert requests == {"A": {"arrival_step": 0, "sampled_before": 3, "lost_before": 9}, "B": {"arrival_step": 7}}


def cut(trace, at):
    header = copy.deepcopy(trace.header) | {"dropped_steps": trace.steps[at]["step"]}
    for record in trace.steps[:at]:
        leave_out(record, header["requests"])
    return Trace(header, trace.steps[at:])


@pytest.mark.parametrize("path", RECORDINGS[::3], ids=lambda path: path.stem)
def test_the_steps_that_stay_are_told_in_the_same_words(path):
    """But for the first of them: what was evicted, or lost its hash, is seen by comparing with the step before."""
    whole = from_vllm_recording(path)
    told = StepPlayer(whole).events()
    for at in {1, len(whole.steps) // 2, len(whole.steps) - 2} & set(range(1, len(whole.steps))):
        assert StepPlayer(cut(whole, at)).events()[1:] == told[at + 1 :]


def run(make_recorder, num_requests=8):
    """KV is so short that they evict each other."""
    settings = SchedulerConfig(4, 32, 64, num_gpu_blocks=9, block_size=4)
    loop = StepLoop(
        Scheduler(settings), settings, FakeModelRunner().execute, kind="sim", clock=None, make_recorder=make_recorder
    )
    for i in range(num_requests):
        loop.add_request(Request(f"R{i}", list(range(6 + i)), SamplingParams(max_tokens=12, ignore_eos=True)))
    while loop.has_unfinished_requests():
        loop.step()
    loop.close()
    return loop.trace


@pytest.fixture(scope="module")
def whole():
    return run(TraceRecorder)


@pytest.mark.parametrize("keep", [1, 5, 20])
def test_a_recorder_that_keeps_the_latest_steps_says_so_and_is_told_rightly(whole, keep, tmp_path):
    assert sum(len(step["preempted"]) for step in whole.steps) > 3 and "dropped_steps" not in whole.header
    ring = run(partial(TraceRecorder, keep_steps=keep))
    assert ring.steps == whole.steps[-keep:] and ring.header["dropped_steps"] == len(whole.steps) - keep
    assert StepPlayer(ring).events()[1:] == StepPlayer(whole).events()[-keep:][1:]
    loaded = Trace.load(ring.save(tmp_path / "ring.jsonl"))
    assert (loaded.header, loaded.steps) == (ring.header, ring.steps)
    assert f"the {len(whole.steps) - keep} steps before are not kept" in StepPlayer(loaded).data()["runs"][0]["about"]
    assert any("steps before are not kept" in line for line in _about(loaded))
    assert export_perfetto(loaded, tmp_path / "ring.json").stat().st_size > 0


def test_every_file_of_a_row_is_told_rightly(whole, tmp_path):
    """And what the files hold does not lean on what the memory forgets."""
    writer = TraceWriter(tmp_path / "run.jsonl", max_bytes=6_000, keep_files=99)
    run(partial(TraceRecorder, keep_steps=2, writer=writer))
    told, files = StepPlayer(whole).events(), sorted(tmp_path.iterdir())
    assert len(files) > 3
    for file in files:
        part = Trace.load(file)
        first = part.steps[0]["step"]
        assert part.header.get("dropped_steps", 0) == first
        assert StepPlayer(part).events()[1:] == told[first + 1 : first + len(part.steps)]
