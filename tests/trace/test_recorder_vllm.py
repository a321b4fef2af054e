"""A trace of ours has the fields of vLLM's recordings, and of the same run the same values.

The recordings are replayed through `StepLoop`, whose watch keeps its account from outside: what it writes down is
compared with what vLLM's own books said, whatever our scheduler's say. Synchronous runs without drafts.
"""

from dataclasses import fields

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sim.fake_runner import FakeModelRunner
from mini_vllm.trace.replay import read_recording
from tests.core.recordings import CLEAR_FORM

NOT_IN_A_TRACE = {"allocs", "free_queue", "cached_blocks"}  # a scheduler's insides
ONLY_IN_OURS = {"budget_used", "blocked_reason", "t_start", "t_end"}


def request_of(entry: dict) -> Request:
    params = SamplingParams(entry["max_tokens"], True, tuple(entry.get("stop_token_ids", ())))
    arrival_time = entry.get("arrival_time", entry["arrival_step"])
    return Request(entry["id"], entry["prompt_token_ids"], params, arrival_time, priority=entry.get("priority", 0))


@pytest.mark.parametrize("path", CLEAR_FORM, ids=lambda path: path.stem)
def test_a_trace_says_what_vllm_said(path):
    data = read_recording(path)
    requests, real = data["scenario"]["requests"], data["trace"]
    limits = {f.name: real["config"][f.name] for f in fields(SchedulerConfig) if f.name in real["config"]}
    config = SchedulerConfig(**limits, refuse_unfittable=False, unpublish_given_back=False)
    loop = StepLoop(Scheduler(config), config, FakeModelRunner().execute, kind="sim", clock=None)
    for number, recorded in enumerate(real["steps"]):
        for entry in (r for r in requests if r["arrival_step"] == number):
            loop.add_request(request_of(entry))
        loop.abort([r["id"] for r in requests if r.get("abort_step") == number])
        loop.step(more_to_come=True)
        ours = loop.trace.steps[-1]
        for field in recorded.keys() - NOT_IN_A_TRACE:
            assert ours[field] == recorded[field], f"step {number}, {field}"
        # What a recording leaves out was empty.
        assert not any(ours[field] for field in ours.keys() - recorded.keys() - ONLY_IN_OURS), f"step {number}"
    assert loop.has_unfinished_requests() == (real["end"] != "finished")
    outputs, finish_step = loop.trace.outputs(), loop.trace.finish_step()
    for req_id, recorded in real["requests"].items():
        assert outputs[req_id] == recorded["output"], req_id
        if recorded["status"] != "FINISHED_ABORTED":
            assert finish_step.get(req_id) == recorded["finish_step"], req_id
