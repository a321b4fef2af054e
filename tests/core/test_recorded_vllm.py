"""Our schedulers against recorded runs of the real one: **vLLM 0.33.0**, decision by decision, block id by block id.

`tests/data/vllm_traces/` holds 99 recordings (its README.md has the format); `mini_vllm.trace.replay` feeds their
arrivals and aborts to a scheduler of ours and compares what is recorded of every step. Beyond it, compared here: after
every step our books add up, each request ends as it did, and a run that vLLM ended, stalled or cut short does so too.
"""

import pytest

from mini_vllm.core.scheduler import Scheduler
from mini_vllm.stages.ch10_priority_aging import Scheduler as ClearScheduler
from mini_vllm.trace.replay import TIERS, Replay, first_difference, read_recording
from tests.core.recordings import CLEAR_FORM, FOLDER, RECORDINGS

NUM_RECORDINGS, NUM_FOR_THE_CLEAR_FORM, NUM_STEPS = 99, 84, 4327
by_name = pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)


@by_name
def test_every_decision_is_vllms(path):
    assert first_difference(read_recording(path), tier=3) is None


@pytest.mark.parametrize("path", CLEAR_FORM, ids=lambda path: path.stem)
def test_the_clear_form_decides_the_same(path):
    assert first_difference(read_recording(path), tier=3, scheduler_cls=ClearScheduler) is None


@by_name
def test_the_books_add_up_and_each_request_ends_as_in_vllm(path):
    data = read_recording(path)
    real, replay = data["trace"], Replay(data["scenario"], data["trace"]["config"])
    first_step, finish_step, steps = {}, {}, []
    for number, recorded in enumerate(real["steps"]):
        assert recorded["step"] == number
        steps.append(replay.step())
        replay.scheduler.check_integrity()
        for req_id, _ in steps[-1]["scheduled"]:
            first_step.setdefault(req_id, number)
        # A late abort of a request that has ended changes nothing, so the first end counts.
        finish_step = dict.fromkeys(steps[-1]["finished"] + steps[-1]["aborted"], number) | finish_step
    for req_id, recorded in real["requests"].items():
        request = replay.objects[req_id]
        ours = {
            "output": request.output_token_ids,
            "first_step": first_step.get(req_id),
            "finish_step": finish_step.get(req_id),
            "status": request.status.name,
            "preemptions": request.num_preemptions,
        }
        assert ours == recorded, req_id
    assert len(steps) == real["num_steps"]
    assert replay.config.watermark_blocks == real["watermark_blocks"]
    assert replay.scheduler.has_unfinished_requests() == (real["end"] != "finished")
    if real["end"] == "stalled":
        assert [step["scheduled"] for step in steps[-3:]] == [[], [], []]


class SpoilsTheFastPath(Scheduler):
    """Right, but for the order in which its fast path lists the requests."""

    def schedule(self):
        plan, pieces = super().schedule(), {}
        if self.fast_path:
            pieces = dict(reversed(plan.num_scheduled_tokens.items()))
            plan.num_scheduled_tokens.clear()
            plan.num_scheduled_tokens.update(pieces)
        return plan


def test_each_recording_is_replayed_with_the_fast_path_too():
    data = read_recording(FOLDER / "00_fcfs_plain.json")
    assert first_difference(data, tier=3, scheduler_cls=Scheduler) is None
    assert "scheduled (with the fast path): ours [['" in first_difference(data, 3, SpoilsTheFastPath)


class QuietReplay(Replay):
    """Lets the scheduler skip `allocate_slots` where it knows the answer, as it does outside of a replay."""

    def _watch_allocations(self):
        pass


@by_name
def test_what_the_scheduler_skips_to_be_fast_changes_no_decision(path):
    data = read_recording(path)
    replay = QuietReplay(data["scenario"], data["trace"]["config"])
    for number, recorded in enumerate(data["trace"]["steps"]):
        ours = replay.step()
        for field in recorded.keys() - {"step", "allocs"}:
            assert ours[field] == recorded[field], f"step {number}, {field}"


# --- what the comparison is worth ---


def test_the_folder_holds_what_this_page_says():
    assert (len(RECORDINGS), len(CLEAR_FORM)) == (NUM_RECORDINGS, NUM_FOR_THE_CLEAR_FORM)
    traces = [read_recording(path)["trace"] for path in RECORDINGS]
    assert {trace["vllm_version"] for trace in traces} == {"0.33.0"}
    assert sum(len(trace["steps"]) for trace in traces) == NUM_STEPS


def test_the_recordings_exercise_the_rules():
    """A recording that preempts nobody proves nothing about preemption."""
    steps = [step for path in RECORDINGS for step in read_recording(path)["trace"]["steps"]]
    assert sum(len(step["scheduled"]) for step in steps) == 9594
    assert sum(len(step["preempted"]) for step in steps) == 390
    assert sum(len(step["resumed"]) for step in steps) == 387
    assert sum(hit > 0 for step in steps for hit in step["hits"].values()) == 192
    assert sum(alloc[2] == 0 for step in steps for alloc in step["allocs"]) == 1444
    assert sum("free_queue" in step for step in steps) == 4170
    assert sum("cached_blocks" in step for step in steps) == 1587


def test_every_recorded_field_is_compared_at_some_tier():
    recorded = {name for path in RECORDINGS for step in read_recording(path)["trace"]["steps"] for name in step}
    assert recorded - {"step"} == {name for names in TIERS.values() for name in names}
