"""The timeline for Perfetto: a tiny run slice by slice, then what the Trace Event Format asks of any file.

What is asked is what Perfetto's importer needs: known phases, whole numbers, `ts` before `args`, slices of a track that
do not overlap, track numbers that no two processes share.
"""

import gzip
import json
from collections import defaultdict
from itertools import pairwise

import pytest

from mini_vllm.errors import TraceFormatError
from mini_vllm.trace.convert import from_vllm_recording
from mini_vllm.trace.perfetto import export_perfetto
from mini_vllm.trace.trace import Trace
from tests.core.recordings import FOLDER, RECORDINGS
from tests.trace.runs import random_trace, tiny_trace

NEEDED = {"M": {"args"}, "X": {"ts", "dur", "cat", "args"}, "C": {"ts", "args"}, "i": {"ts", "cat", "s"}}


def exported(trace, folder):
    return json.loads(export_perfetto(trace, folder / "run.perfetto.json").read_text(encoding="ascii"))


def tracks(events):
    """Per (pid, tid), its slices as (name, start, end)."""
    found = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            found[e["pid"], e["tid"]].append((e["name"], e["ts"], e["ts"] + e["dur"]))
    return found


def named(events):
    """Slices per track name."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return {names[track]: sorted(slices, key=lambda s: s[1]) for track, slices in tracks(events).items()}


def check_format(document):
    assert document["displayTimeUnit"] == "ms" and isinstance(document["otherData"], dict)
    events = document["traceEvents"]
    for e in events:
        assert {"ph", "name", "pid", "tid"} | NEEDED[e["ph"]] == e.keys(), e
        assert all(type(e[name]) is int and e[name] >= 0 for name in ("pid", "tid", "ts", "dur") if name in e), e
        assert type(e["name"]) is str and e["name"], e
        if "args" in e:
            assert list(e)[-1] == "args", "ts and dur stand before the first bracket"
        if e["ph"] == "C":
            assert e["args"] and all(type(value) is int for value in e["args"].values()), e
        if e["ph"] == "i":
            assert e["s"] == "t"
    used = {(e["pid"], e["tid"]) for e in events}
    with_name = {(e["pid"], e["tid"]) for e in events if e["name"] in ("thread_name", "process_name")}
    assert used == with_name, "every track and process has a name"
    tids = [tid for _, tid in {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}]
    assert len(set(tids)) == len(tids), "a track number belongs to one process"
    for slices in tracks(events).values():
        for (_, _, end), (_, start, _) in pairwise(sorted(slices, key=lambda s: s[1:])):
            assert end <= start, "slices of a track lie beside each other"


# --- a tiny run ---


def test_every_request_has_a_track_that_tells_its_story(tmp_path):
    events = exported(tiny_trace(), tmp_path)["traceEvents"]
    assert named(events) == {
        "steps": [("step 0", 0, 1000), ("step 1", 1000, 2000), ("step 2", 2000, 3000)],
        "A": [("prefill", 0, 1000), ("decode", 1000, 2000)],
        "B": [("prefill", 0, 1000), ("preempted", 1000, 2000), ("recompute", 2000, 3000)],
    }


def test_a_wait_is_one_slice_with_its_reasons(tmp_path):
    trace = from_vllm_recording(FOLDER / "97_worked_example_first_chunk.json")
    for step, reason in ((0, "token_budget"), (1, "token_budget"), (2, "kv_chunk")):
        trace.steps[step]["blocked_reason"] = reason
    events = exported(trace, tmp_path)["traceEvents"]
    [wait] = [e for e in events if e["name"] == "waiting" and e["ts"] == 0 and e["tid"] == 12]
    assert (wait["dur"], wait["args"]) == (2000, {"steps": 2, "token_budget": 2}), "R2 heads the queue in two steps"
    [behind] = [e for e in events if e["name"] == "waiting" and e["ts"] == 0 and e["tid"] == 13]
    assert behind["args"] == {"steps": 3, "kv_chunk": 1}, "R3 heads it in the third"


def test_what_a_piece_and_a_step_carry(tmp_path):
    events = exported(tiny_trace(), tmp_path)["traceEvents"]
    args = {(e["name"], e["tid"]): e["args"] for e in events if e["ph"] == "X"}
    assert args["prefill", 11] == {"tokens": 4, "computed": 4, "cached": 0, "sampled": [1000]}
    assert args["preempted", 12] == {"lost_tokens": 4}
    assert args["recompute", 12] == {"tokens": 5, "computed": 5, "cached": 0, "sampled": [1001]}
    assert args["step 1", 1] == {
        "preempted": ["B"], "finished": ["A"], "blocked_reason": "preempted_this_step", "requests": 1, "tokens": 1,
    }  # fmt: skip


def test_first_token_and_end_are_marked(tmp_path):
    marks = [(e["name"], e["tid"], e["ts"]) for e in exported(tiny_trace(), tmp_path)["traceEvents"] if e["ph"] == "i"]
    assert marks == [
        ("first token", 11, 1000), ("first token", 12, 1000), ("finished", 11, 2000), ("finished", 12, 3000),
    ]  # fmt: skip


def test_counters_follow_the_run_and_end_with_it(tmp_path):
    events = exported(tiny_trace(), tmp_path)["traceEvents"]
    counters = defaultdict(list)
    for e in events:
        for key, value in e["args"].items() if e["ph"] == "C" else ():
            counters[f"{e['name']} {key}"].append((e["ts"], value))
    assert counters == {
        "tokens scheduled": [(0, 8), (1000, 1), (2000, 5), (3000, 0)],
        "KV blocks free": [(0, 0), (1000, 0), (2000, 0), (3000, 2)],
        "requests waiting": [(0, 0), (1000, 1), (2000, 0), (3000, 0)],
        "requests running": [(0, 2), (1000, 1), (2000, 1), (3000, 0)],
    }


def test_the_file_says_what_a_millisecond_is(tmp_path):
    assert exported(tiny_trace(), tmp_path)["otherData"]["time"].startswith("1 step = 1 ms")
    timed = with_times([(0.0, 0.5), (0.5, 0.75), (0.75, 1.0)])
    assert exported(timed, tmp_path)["otherData"]["time"] == "wall time of the run"


def with_times(spans):
    trace = tiny_trace()
    trace.header["clock"] = "seconds"
    for step, (start, end) in zip(trace.steps, spans, strict=True):
        step["t_start"], step["t_end"] = start, end
    return trace


def test_a_run_on_a_clock_is_drawn_in_its_own_time(tmp_path):
    document = exported(with_times([(0.25, 0.5), (0.5000004, 0.75), (1.0, 1.0000003)]), tmp_path)
    check_format(document)
    steps = named(document["traceEvents"])["steps"]
    assert steps == [
        ("step 0", 250_000, 500_000), ("step 1", 500_000, 750_000), ("step 2", 1_000_000, 1_000_000),
    ]  # fmt: skip


@pytest.mark.parametrize("spans", [[(0, 1), (0.5, 2), (2, 3)], [(0, 1), (1, 0.5), (2, 3)], [(0, 1), (2, 3), (1, 2)]])
def test_times_that_overlap_are_refused_and_no_file_is_left(tmp_path, spans):
    with pytest.raises(TraceFormatError, match=r"step [12] lasts from .* cannot be laid out"):
        export_perfetto(with_times(spans), tmp_path / "run.json")
    assert not (tmp_path / "run.json").exists()


def test_an_abort_ends_the_track(tmp_path):
    trace = from_vllm_recording(FOLDER / "44_abort.json")
    events = exported(trace, tmp_path)["traceEvents"]
    aborted = [(step["step"], req_id) for step in trace.steps for req_id in step["aborted"]]
    assert aborted
    for number, req_id in aborted:
        assert all(end <= number * 1000 for _, _, end in named(events).get(req_id, []))
    assert sorted(e["ts"] for e in events if e["name"] == "aborted") == sorted(n * 1000 for n, _ in aborted)


# --- any run ---


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_every_recorded_run_is_a_valid_file(path, tmp_path):
    trace = from_vllm_recording(path)
    document = exported(trace, tmp_path)
    check_format(document)
    check_story(trace, document["traceEvents"])


@pytest.mark.parametrize("seed", range(15))
def test_random_runs_are_valid_files(seed, tmp_path):
    trace = random_trace(seed)
    document = exported(trace, tmp_path)
    check_format(document)
    check_story(trace, document["traceEvents"])


def check_story(trace, events):
    """Every planned piece is a slice of its step; and from arrival to end a track has no gap (on the step clock)."""
    by_name = named(events)
    pieces = [
        (e["tid"], e["ts"], e["args"]["tokens"])
        for e in events
        if e["name"] in ("prefill", "recompute", "decode") and e["pid"] == 2
    ]
    tids = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name" and e["pid"] == 2}
    planned = [(tids[r], step["step"] * 1000, n) for step in trace.steps for r, n in step["scheduled"]]
    assert sorted(pieces) == sorted(planned)
    ends = trace.finish_step()
    for req_id, facts in trace.header["requests"].items():
        if req_id in ends:
            slices = by_name[req_id]
            assert (slices[0][1], slices[-1][2]) == (facts["arrival_step"] * 1000, (ends[req_id] + 1) * 1000), req_id
            assert all(one[2] == other[1] for one, other in pairwise(slices)), req_id


def test_the_same_trace_gives_the_same_bytes_also_compressed(tmp_path):
    files = [export_perfetto(tiny_trace(), tmp_path / name) for name in ("a.json", "b.json")]
    assert files[0].read_bytes() == files[1].read_bytes()
    packed = export_perfetto(tiny_trace(), tmp_path / "a.json.gz").read_bytes()
    assert export_perfetto(tiny_trace(), tmp_path / "a.json.gz").read_bytes() == packed
    assert gzip.decompress(packed) == files[0].read_bytes()


def test_where_counts_are_not_recorded_they_are_added_up(tmp_path):
    trace = tiny_trace()
    pieces = [e["args"] for e in exported(trace, tmp_path)["traceEvents"] if e["ph"] == "X"]
    for step in trace.steps:
        del step["computed"]
    assert [e["args"] for e in exported(trace, tmp_path)["traceEvents"] if e["ph"] == "X"] == pieces


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [{"step": 4, "scheduled": []}],
        [{"step": 0, "scheduled": [["A", 3]], "finished": ["Z"], "preempted": ["Y"], "sampled": {"W": [1]}}],
    ],
    ids=["no steps", "nothing done", "strangers"],
)
def test_a_bare_trace_is_a_valid_file(tmp_path, steps):
    check_format(exported(Trace({"format": "mini_vllm.trace", "version": 1}, steps), tmp_path))


def test_text_of_any_kind_is_plain_in_the_file(tmp_path):
    trace = tiny_trace()
    trace.header["title"] = 'quote " 🙂 \u2028 \ud83d'
    trace.steps[0]["pieces"] = {"A": "naïve\n"}
    document = exported(trace, tmp_path)
    assert document["otherData"]["title"] == trace.header["title"]
    assert [e["args"]["text"] for e in document["traceEvents"] if "text" in e.get("args", {})] == ["naïve\n"]
