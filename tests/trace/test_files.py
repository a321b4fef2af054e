"""Trace files: what is written can be read, also while it is written, and what is broken is named by file and line."""

import gzip
import json
import random
import tracemalloc
from functools import partial
from itertools import pairwise

import pytest

from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.errors import ConfigError, TraceFormatError
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sim.fake_runner import FakeModelRunner
from mini_vllm.trace.recorder import TraceRecorder
from mini_vllm.trace.trace import Trace
from mini_vllm.trace.writer import GZ_FLUSH_STEPS, TraceWriter
from tests.trace.runs import TINY, random_trace, tiny_trace


@pytest.fixture(scope="module")
def trace():
    return tiny_trace()


@pytest.fixture
def file(trace, tmp_path):
    return trace.save(tmp_path / "run.jsonl")


def lines_of(file):
    return file.read_text(encoding="utf-8").splitlines()


def refusal(file, **options):
    with pytest.raises(TraceFormatError) as error:
        Trace.load(file, **options)
    return str(error.value).removeprefix(str(file))


# --- what is saved is what is loaded ---


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_what_is_saved_is_what_is_loaded(trace, tmp_path, name):
    file = trace.save(tmp_path / name)
    assert Trace.load(file) == trace
    assert Trace.load(str(file)) == trace


def test_the_file_is_one_object_a_line(trace, file):
    header, *steps = map(json.loads, lines_of(file))
    assert header["format"] == "mini_vllm.trace"
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert ("blocks" in steps[0], "blocks" in steps[1]) == (True, False), "later lines say what changed"


def test_the_name_says_whether_a_file_is_compressed_and_the_content_when_it_is_read(trace, tmp_path):
    packed = trace.save(tmp_path / "run.jsonl.gz")
    assert packed.read_bytes()[:2] == b"\x1f\x8b"
    assert Trace.load(packed.rename(tmp_path / "renamed.jsonl")) == trace


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_the_same_trace_gives_the_same_bytes(trace, tmp_path, name):
    once = trace.save(tmp_path / name).read_bytes()
    assert Trace.load(tmp_path / name).save(tmp_path / name).read_bytes() == once


@pytest.mark.parametrize("seed", range(20))
def test_random_runs_survive_the_file(tmp_path, seed):
    trace = random_trace(seed)
    assert Trace.load(trace.save(tmp_path / "run.jsonl")) == trace


@pytest.mark.parametrize(
    "text", ["naïve 中文 🙂", 'quote " and \\ and \n newline', "a\u2028b", "a\x85b", "half \ud83d"]
)
def test_text_survives_the_file(trace, tmp_path, text):
    with_text = Trace({**trace.header, "prompt": text}, [*trace.steps[:2], {**trace.steps[2], "pieces": {"B": text}}])
    assert Trace.load(with_text.save(tmp_path / "run.jsonl")) == with_text


def test_a_run_without_steps_or_requests_is_a_run(trace, tmp_path):
    empty = Trace({**trace.header, "requests": {}})
    assert Trace.load(empty.save(tmp_path / "run.jsonl")) == empty
    bare = Trace({"format": "mini_vllm.trace", "version": 1}, [{"step": 3, "scheduled": []}])
    assert Trace.load(bare.save(tmp_path / "run.jsonl")) == bare
    assert (bare.outputs(), bare.first_token_step(), bare.finish_step()) == ({}, {}, {})


def test_two_compressed_files_in_one_are_read_as_one(trace, tmp_path):
    text = trace.save(tmp_path / "run.jsonl").read_bytes()
    (tmp_path / "both.gz").write_bytes(gzip.compress(text[:400]) + gzip.compress(text[400:]))
    assert Trace.load(tmp_path / "both.gz") == trace


def test_blank_lines_and_windows_line_ends_do_no_harm(trace, file):
    header, *steps = lines_of(file)
    file.write_text("\ufeff" + "\r\n".join([header, "", *steps]) + "\r\n\r\n", encoding="utf-8", newline="")
    assert Trace.load(file) == trace


# --- what is broken ---


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ('{"step": 0, "sched', "not JSON (Unterminated string starting at column 13)"),
        ("[1, 2]", "not a JSON object; a step record needs an integer 'step'"),
        ('{"step": 1, "scheduled": [], "free": NaN}', "not JSON (NaN is no number)"),
        ('{"scheduled": []}', "a step record needs 'step'"),
        ('{"step": 1}', "a step record needs 'scheduled'"),
        ('{"step": true, "scheduled": []}', "a field has the wrong shape: step is true, not a whole number"),
        ('{"step": -1, "scheduled": []}', "step is -1, at least 0 is needed"),
        ('{"step": 1, "scheduled": [["A"]]}', 'scheduled[0] is ["A"], a list of 2 is needed'),
        ('{"step": 1, "scheduled": [["A", 1.5]]}', "scheduled[0][1] is 1.5, not a whole number"),
        ('{"step": 1, "scheduled": [], "computed": {"A": 3}}', "computed.A is 3, not a list"),
        ('{"step": 1, "scheduled": [], "same": ["allocs"]}', "says that 'allocs' changed or stayed, but the step"),
        ('{"step": 1, "scheduled": [], "blocks_change": {"Z": null}}', "says that 'Z' changed or stayed"),
    ],
)
def test_a_broken_line_is_refused_by_file_and_number(file, broken, why):
    lines = lines_of(file)
    file.write_text("\n".join([*lines[:2], broken, *lines[3:]]) + "\n", encoding="utf-8")
    message = refusal(file)
    assert message.startswith(", line 3: ") and why in message


def test_a_line_nested_beyond_reason_is_refused(file):
    file.write_text("\n".join([*lines_of(file)[:2], "[" * 200_000]) + "\n", encoding="utf-8")
    assert refusal(file).startswith(", line 3: not JSON (maximum recursion depth")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", " is empty: line 1 must be the header"),
        ("\n \n", " is empty: line 1 must be the header"),
        ('{"step": 0, "scheduled": []}\n', ", line 1: expected the header"),
        ("[]\n", ", line 1: expected the header"),
        ('{"format": "something.else", "version": 1}\n', ", line 1: format 'something.else' version 1"),
        ('{"format": "mini_vllm.trace", "version": 1, "kind": "dream"}\n', 'kind is "dream", not "sim" or "engine" or'),
        ('{"format": "mini_vllm.trace", "version": 1, "requests": {"A": 3}}\n', "requests.A is 3, not an object"),
    ],
)
def test_a_file_without_our_header_is_refused(file, text, why):
    file.write_text(text, encoding="utf-8")
    assert why in refusal(file)


@pytest.mark.parametrize(("version", "shown"), [(2, "2"), (None, "None"), ("1", "'1'")])
def test_another_version_is_refused_with_both_numbers(trace, file, version, shown):
    Trace({**trace.header, "version": version}, trace.steps).save(file)
    expected = f", line 1: format 'mini_vllm.trace' version {shown}; this package reads 'mini_vllm.trace' version 1"
    assert refusal(file) == expected


def test_steps_that_do_not_rise_are_refused(file):
    header, *steps = lines_of(file)
    file.write_text("\n".join([header, steps[0], steps[1], steps[0]]) + "\n", encoding="utf-8")
    assert refusal(file) == ", line 4: step 0 stands after step 1; steps must rise"


def test_a_missing_line_is_noticed_where_the_next_leans_on_it(file):
    header, *steps = lines_of(file)
    file.write_text("\n".join([header, steps[0], steps[2]]) + "\n", encoding="utf-8")
    assert refusal(file).startswith(", line 3: step 2 stands after step 0 and says only what changed")
    file.write_text("\n".join([header, *steps[1:]]) + "\n", encoding="utf-8")
    assert refusal(file).startswith(", line 2: step 1 stands after the header and says only what changed")


def test_steps_that_stand_alone_may_have_gaps(tmp_path):
    steps = [{"step": 3, "scheduled": []}, {"step": 9, "scheduled": [["A", 1]]}]
    gaps = Trace({"format": "mini_vllm.trace", "version": 1}, steps)
    file = tmp_path / "run.jsonl"
    file.write_text("\n".join(map(json.dumps, [gaps.header, *steps])), encoding="utf-8")
    assert Trace.load(file) == gaps


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b'{"format": "mini_vllm.trace", "version": 1}\n{"step": "\xff"}\n'])
def test_a_file_that_is_no_text_is_refused(file, data):
    file.write_bytes(data)
    assert refusal(file).startswith(" is no UTF-8 text (line ")


def test_damaged_compression_is_refused(trace, tmp_path):
    file = trace.save(tmp_path / "run.jsonl.gz")
    data = bytearray(file.read_bytes())
    data[60:70] = b"\xff" * 10
    file.write_bytes(data)
    assert refusal(file).startswith(": damaged gzip data (")


def test_a_file_that_is_not_there_is_the_systems_own_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        Trace.load(tmp_path / "none.jsonl")


# --- a file that was cut off ---


def test_a_cut_off_file_is_refused_with_what_is_whole_and_how_to_read_it(trace, file):
    file.write_bytes(file.read_bytes()[:-20])
    message = refusal(file)
    assert message.startswith(", line 4: the file is cut off here. 2 whole steps before it can be read: ")
    assert "Trace.load(path, partial=True)" in message and "--partial" in message
    assert Trace.load(file, partial=True) == Trace(trace.header, trace.steps[:2])


def test_wherever_a_file_is_cut_the_whole_steps_before_can_be_read(trace, file):
    data = file.read_bytes()
    ends = [i for i, byte in enumerate(data) if byte == ord("\n")]
    for size in range(ends[0] + 1, len(data)):
        file.write_bytes(data[:size])
        whole = sum(end <= size for end in ends[1:])  # a line that lacks only its newline is whole
        assert Trace.load(file, partial=True).steps == trace.steps[:whole], size


def test_a_cut_inside_a_character_is_a_cut(trace, tmp_path):
    file = Trace(trace.header, [{**trace.steps[0], "pieces": {"A": "🙂"}}]).save(tmp_path / "run.jsonl")
    file.write_bytes(file.read_bytes().split("🙂".encode())[0] + b"\xf0\x9f")
    assert Trace.load(file, partial=True).steps == []


def test_damage_in_the_middle_is_no_cut(file):
    lines = lines_of(file)
    file.write_text("\n".join([*lines[:2], lines[2][:-5], *lines[3:]]) + "\n", encoding="utf-8")
    assert refusal(file, partial=True).startswith(", line 3: not JSON")


def test_a_header_that_is_cut_leaves_nothing_to_read(file):
    file.write_bytes(file.read_bytes()[:30])
    assert refusal(file, partial=True).startswith(", line 1: not JSON")


def test_a_cut_off_gz_gives_its_whole_steps(tmp_path):
    trace = random_trace(3)
    file = trace.save(tmp_path / "run.jsonl.gz")
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    assert "the file is cut off here" in refusal(file)
    whole = Trace.load(file, partial=True).steps
    assert 0 < len(whole) < len(trace.steps) and whole == trace.steps[: len(whole)]


# --- written while the run goes on ---


def loop_into(writer, **options):
    return StepLoop(
        Scheduler(TINY), TINY, FakeModelRunner().execute, kind="sim", clock=None,
        make_recorder=partial(TraceRecorder, writer=writer, **options),
    )  # fmt: skip


def run(writer, num_steps, **options):
    """One request a step, each with one token; one is aborted now and then."""
    loop = loop_into(writer, **options)
    for i in range(num_steps):
        loop.add_request(Request(f"R{i}", [10, 20], SamplingParams(max_tokens=1 + i % 2, ignore_eos=True)))
        if i % 5 == 4:
            loop.abort([f"R{i}"])
        loop.step()
    return loop


def test_a_file_written_step_by_step_holds_the_run(tmp_path):
    loop = run(TraceWriter(tmp_path / "run.jsonl"), 30)
    loop.recorder.close()
    assert Trace.load(tmp_path / "run.jsonl") == loop.trace


def test_every_step_but_the_last_is_in_the_file_while_the_run_goes_on(tmp_path):
    loop = run(TraceWriter(tmp_path / "run.jsonl"), 30)
    assert Trace.load(tmp_path / "run.jsonl").steps == loop.trace.steps[:-1]


def test_a_gz_can_be_read_while_it_is_written(tmp_path):
    loop = run(TraceWriter(tmp_path / "run.jsonl.gz"), GZ_FLUSH_STEPS + 30)
    assert Trace.load(tmp_path / "run.jsonl.gz").steps == loop.trace.steps[:GZ_FLUSH_STEPS]
    loop.recorder.close()
    assert Trace.load(tmp_path / "run.jsonl.gz") == loop.trace


def test_a_long_run_fills_a_row_of_files_each_readable_by_itself(tmp_path):
    loop = run(TraceWriter(tmp_path / "run.jsonl", max_bytes=4000, keep_files=3), 200)
    loop.recorder.close()
    files = [tmp_path / name for name in ("run.3.jsonl", "run.2.jsonl", "run.1.jsonl", "run.jsonl")]
    assert sorted(tmp_path.iterdir()) == sorted(files), "no more are kept"
    parts = [Trace.load(file) for file in files]
    steps = [step for part in parts for step in part.steps]
    assert steps == loop.trace.steps[-len(steps) :] and len(steps) < 200
    for part, file in zip(parts, files, strict=True):
        assert file.stat().st_size < 4000 + 1000
        seen = {r for step in part.steps for r in (*step["arrivals"], *step["running_before"], *step["waiting_before"])}
        first = part.steps[0]["step"]
        assert part.header.get("dropped_steps", 0) == first
        facts = {r: dict(entry) for r, entry in loop.trace.header["requests"].items() if r in seen}
        for record in loop.trace.steps[:first]:
            for r in record["sampled"].keys() & facts.keys():
                facts[r]["sampled_before"] = facts[r].get("sampled_before", 0) + len(record["sampled"][r])
        assert part.header["requests"] == facts, "those of its own steps"


def test_a_second_run_keeps_the_first_only_where_files_are_kept(tmp_path):
    for max_bytes, names in ((None, ["run.jsonl"]), (10**6, ["run.1.jsonl", "run.jsonl"])):
        run(TraceWriter(tmp_path / "run.jsonl", max_bytes=max_bytes), 3).recorder.close()
        assert sorted(file.name for file in tmp_path.iterdir()) == names


def test_an_id_that_is_used_again_at_once_stays_in_the_next_header(tmp_path):
    loop = loop_into(TraceWriter(tmp_path / "run.jsonl", max_bytes=1))
    for prompt in ([1], [1, 2]):
        loop.abort(["A"])
        loop.add_request(Request("A", prompt, SamplingParams(max_tokens=5, ignore_eos=True)))
        loop.step()
    loop.step()
    loop.recorder.close()
    part = Trace.load(tmp_path / "run.jsonl")
    assert (part.steps[0]["step"], part.header["requests"]["A"]["prompt_len"]) == (2, 2)


@pytest.mark.parametrize("options", [{"max_bytes": 0}, {"keep_files": -1}], ids=str)
def test_limits_that_make_no_sense_are_refused(tmp_path, options):
    with pytest.raises(ConfigError, match="must be at least"):
        TraceWriter(tmp_path / "run.jsonl", **options)
    with pytest.raises(ConfigError, match="keep_steps=-1 must be at least 0"):
        TraceRecorder(TINY, "sim", "Scheduler", keep_steps=-1)


def test_a_run_without_steps_takes_no_older_files_place(tmp_path):
    writer = TraceWriter(tmp_path / "run.jsonl", max_bytes=10**6)
    for num_steps in (0, 3, 0, 0):
        run(writer, num_steps).recorder.close()
    assert [len(Trace.load(tmp_path / name).steps) for name in ("run.1.jsonl", "run.jsonl")] == [3, 0]
    assert not (tmp_path / "run.2.jsonl").exists()


def test_numbers_stand_before_the_ending_that_says_compressed(tmp_path):
    run(TraceWriter(tmp_path / "my.run.jsonl.gz", max_bytes=2000, keep_files=1), 40).recorder.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["my.run.1.jsonl.gz", "my.run.jsonl.gz"]


def test_what_a_writer_holds_does_not_grow_with_the_run(tmp_path):
    def held(num_steps):
        tracemalloc.start()
        run(TraceWriter(tmp_path / "run.jsonl", max_bytes=20_000), num_steps, keep_steps=0)
        ours = [tracemalloc.Filter(True, "*/mini_vllm/trace/*")]
        size = sum(entry.size for entry in tracemalloc.take_snapshot().filter_traces(ours).statistics("filename"))
        tracemalloc.stop()
        return size

    held(20)
    assert held(2000) < 1.2 * held(200)


def test_writing_before_a_run_began_is_refused(tmp_path):
    with pytest.raises(ValueError, match="begin"):
        TraceWriter(tmp_path / "run.jsonl").write({"step": 0, "scheduled": []})


def test_a_closed_writer_may_be_closed_again(tmp_path):
    with TraceWriter(tmp_path / "run.jsonl") as writer:
        writer.begin({"format": "mini_vllm.trace", "version": 1})
        writer.close()


# --- random damage never gives a traceback of another kind ---


@pytest.mark.parametrize("seed", range(60))
def test_random_damage_is_a_named_error_or_a_readable_trace(tmp_path, seed):
    rng = random.Random(seed)
    file = tiny_trace().save(tmp_path / ("run.jsonl" if seed % 3 else "run.jsonl.gz"))
    data = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data))
        data[place : place + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
    file.write_bytes(data)
    for partial_too in (False, True):
        try:
            trace = Trace.load(file, partial=partial_too)
        except TraceFormatError as error:
            assert str(file) in str(error)
        else:
            assert all(one["step"] < other["step"] for one, other in pairwise(trace.steps))
