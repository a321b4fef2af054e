"""The replay tool: what it reports of a recording that differs, and what it refuses. The recordings themselves are
compared in tests/core/test_recorded_vllm.py.
"""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import TraceFormatError
from mini_vllm.stages.ch10_priority_aging import Scheduler as ClearScheduler
from mini_vllm.trace.replay import TIERS, Replay, first_difference, main, read_recording
from tests.core.recordings import FOLDER, RECORDINGS

# Preemption, cached blocks and a free queue in one small run; and one run of each other mode.
SMALL = FOLDER / "27_prefix_preempt_full.json"
MODES = ("27_prefix_preempt_full", "34_priority_preempt_chunk", "47_async_preempt", "53_spec_preempt_lookahead")


@pytest.fixture
def recording():
    return copy.deepcopy(read_recording(SMALL))


def write(folder: Path, name: str, content) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def another(value):
    """The same kind of thing, but different."""
    if isinstance(value, int):
        return value + 1
    return [*value, "X"] if isinstance(value, list) else {**value, "X": 0}


# --- a difference ---


def test_the_first_difference_names_step_field_and_both_sides(recording):
    recording["trace"]["steps"][3]["free"] += 1
    recording["trace"]["steps"][5]["waiting"] = ["X"]
    free = recording["trace"]["steps"][3]["free"]
    assert first_difference(recording, tier=3) == f"step 3, free: ours {free - 1}, vLLM {free}"


def test_the_order_of_a_plan_is_compared_too(recording):
    step, number = next((s, i) for i, s in enumerate(recording["trace"]["steps"]) if len(s["scheduled"]) > 1)
    step["scheduled"].reverse()
    assert first_difference(recording, tier=1).startswith(f"step {number}, scheduled: ours [[")


@pytest.mark.parametrize("name", MODES)
def test_every_field_of_a_step_is_watched_at_its_tier_and_above(name):
    data = read_recording(FOLDER / f"{name}.json")
    steps = data["trace"]["steps"]
    for number in range(len(steps) // 2, len(steps) // 2 + 3):
        for field in steps[number].keys() - {"step"}:
            changed = copy.deepcopy(data)
            changed["trace"]["steps"][number][field] = another(steps[number][field])
            [tier] = [t for t in TIERS if field in TIERS[t]]
            for below in range(1, tier):
                assert first_difference(changed, below) is None, field
            for level in range(tier, 4):
                assert first_difference(changed, level).startswith(f"step {number}, {field}: "), field


def test_no_field_belongs_to_two_tiers():
    fields = [field for names in TIERS.values() for field in names]
    assert sorted(TIERS) == [1, 2, 3]
    assert len(fields) == len(set(fields))


class TakesTheTailOfTheFreeQueue(Scheduler):
    """Decides alike, in other blocks: only tier 3 sees it."""

    def __init__(self, config):
        super().__init__(config)
        pool = self.kv_cache_manager.block_pool

        def take(num_blocks):
            blocks = pool.free_queue()[::-1][:num_blocks]
            for block in blocks:
                pool._unlink(block)
                pool.ref_count[block] = 1
            return blocks

        pool.take = take


def test_other_blocks_are_a_difference_at_tier_3_only():
    data = read_recording(FOLDER / "00_fcfs_plain.json")
    assert first_difference(data, 2, TakesTheTailOfTheFreeQueue) is None
    assert first_difference(data, 3, TakesTheTailOfTheFreeQueue).startswith("step 0, blocks: ours {'r0': [64]")


class OldestFirst(ClearScheduler):
    """Evicts the head instead of the tail: a wrong decision."""

    def choose_victim(self):
        return self.running[0]


def test_a_wrong_decision_is_a_difference_at_every_tier():
    data = read_recording(FOLDER / "12_kv_preempt_chunk.json")
    for tier in TIERS:
        assert first_difference(data, tier, OldestFirst) is not None


def test_a_replay_steps_on_after_the_recording_has_ended(recording):
    replay = Replay(recording["scenario"], recording["trace"]["config"])
    for _ in recording["trace"]["steps"]:
        replay.step()
    assert replay.step()["scheduled"] == []


# --- the command ---


def test_a_folder_of_recordings_ends_with_the_count(capsys):
    assert main([str(FOLDER)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "00_fcfs_plain.json: identical"
    assert len(lines) == len(RECORDINGS) + 1
    assert lines[-1] == "99 of 99 identical at tier 3"


@pytest.mark.parametrize("tier", TIERS)
def test_the_last_line_names_the_tier(tier, capsys):
    assert main([str(SMALL), "--tier", str(tier)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"1 of 1 identical at tier {tier}"


def test_one_that_differs_is_named_and_the_others_are_still_compared(recording, tmp_path, capsys):
    recording["trace"]["steps"][2]["running"].append("X")
    write(tmp_path, "changed.json", recording)
    assert main([str(tmp_path / "changed.json"), str(SMALL)]) == 1
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("changed.json: step 2, running: ours [")
    assert (second, last) == (f"{SMALL.name}: identical", "1 of 2 identical at tier 3")


def test_a_difference_above_the_tier_asked_for_is_none(recording, tmp_path):
    recording["trace"]["steps"][2]["free_queue"] = [7]
    path = str(write(tmp_path, "changed.json", recording))
    assert [main([path, "--tier", str(tier)]) for tier in TIERS] == [0, 0, 1]


def test_an_empty_folder_is_no_success(tmp_path, capsys):
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == "0 of 0 identical at tier 3\n"


def test_it_runs_as_a_command():
    command = [sys.executable, "-m", "mini_vllm.trace.replay", str(SMALL), "--tier", "1"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=FOLDER.parents[2])
    assert (run.returncode, run.stdout.splitlines()[-1]) == (0, "1 of 1 identical at tier 1")


# --- broken files ---


def without(data: dict, *path: str | int) -> dict:
    data = copy.deepcopy(data)
    place = data
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return data


BROKEN = {
    "empty": lambda data: "",
    "cut short": lambda data: json.dumps(data)[:-20],
    "not an object": lambda data: [data],
    "no scenario": lambda data: without(data, "scenario"),
    "no requests": lambda data: without(data, "scenario", "requests"),
    "no trace": lambda data: without(data, "trace"),
    "no steps": lambda data: without(data, "trace", "steps"),
    "no config": lambda data: without(data, "trace", "config"),
    "requests are not a list": lambda data: {**data, "scenario": {"requests": {}}},
    "a request is a number": lambda data: {**data, "scenario": {"requests": [1]}},
    "a request without an id": lambda data: without(data, "scenario", "requests", 0, "id"),
    "a request without a prompt": lambda data: without(data, "scenario", "requests", 0, "prompt_token_ids"),
    "sync or async is not said": lambda data: without(data, "trace", "config", "async_scheduling"),
    "a step is missing": lambda data: without(data, "trace", "steps", -1),
    "no step at all": lambda data: {**data, "trace": {**data["trace"], "steps": [], "num_steps": 0}},
    "a step is a number": lambda data: {**data, "trace": {**data["trace"], "steps": [1], "num_steps": 1}},
    "a step without its plan": lambda data: without(data, "trace", "steps", 2, "scheduled"),
}


@pytest.mark.parametrize("spoil", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_by_name(spoil, recording, tmp_path, capsys):
    path = write(tmp_path, "broken.json", spoil(recording))
    with pytest.raises(TraceFormatError) as error:
        read_recording(path)
    assert str(error.value).startswith(f"{path} is not a recorded run: ")
    assert main([str(path), str(SMALL)]) == 1
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("broken.json: ") and "is not a recorded run" in first
    assert (second, last) == (f"{SMALL.name}: identical", "1 of 2 identical at tier 3")


def test_bytes_that_are_no_text_are_refused_by_name(tmp_path):
    (tmp_path / "broken.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceFormatError, match=r"broken\.json is not a recorded run"):
        read_recording(tmp_path / "broken.json")


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path, capsys):
    assert main([str(tmp_path / "gone.json")]) == 1
    assert "gone.json is not a recorded run: FileNotFoundError" in capsys.readouterr().out


def test_a_configuration_that_contradicts_itself_is_reported(recording, tmp_path, capsys):
    recording["trace"]["config"]["max_num_seqs"] = 0
    assert main([str(write(tmp_path, "zero.json", recording))]) == 1
    assert capsys.readouterr().out.startswith("zero.json: max_num_seqs=0 must be a whole number of at least 1")
