"""A trace of ours has the fields of vLLM's recordings, and of the same run the same values.

The recordings are replayed through `StepLoop`, whose watch keeps its account from outside: what it writes down is
compared with what vLLM's own books said, whatever our scheduler's say. Synchronous runs without drafts.
"""

import pytest

from mini_vllm.trace.replay import read_recording
from tests.core.recordings import CLEAR_FORM
from tests.trace.runs import run_of_recording

NOT_IN_A_TRACE = {"allocs", "free_queue"}  # a scheduler's insides
ONLY_IN_OURS = {"budget_used", "blocked_reason", "t_start", "t_end"}


@pytest.mark.parametrize("path", CLEAR_FORM, ids=lambda path: path.stem)
def test_a_trace_says_what_vllm_said(path):
    real, loop = read_recording(path)["trace"], run_of_recording(path)
    for number, (ours, recorded) in enumerate(zip(loop.trace.steps, real["steps"], strict=True)):
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
