"""`mini-vllm trace …` and `mini-vllm play` as typed: what they print, their exit codes, and never a traceback."""

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mini_vllm.cli import app
from mini_vllm.trace import command
from mini_vllm.trace.convert import from_vllm_recording
from mini_vllm.trace.trace import Trace
from tests.core.recordings import FOLDER
from tests.trace.runs import tiny_trace

EXAMPLE = FOLDER / "97_worked_example_first_chunk.json"
FULL = FOLDER / "98_worked_example_full.json"
OTHER = FOLDER / "12_kv_preempt_chunk.json"


def run(*arguments, code=0):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


def refusal(*arguments, code=1):
    """One line on standard error, nothing on standard output."""
    result = run(*arguments, code=code)
    assert result.stdout == "" and result.stderr.count("\n") == 1 and result.stderr.startswith("error: ")
    return result.stderr


@pytest.fixture
def file(tmp_path):
    return tiny_trace().save(tmp_path / "run.jsonl")


@pytest.fixture
def cut(file):
    file.write_bytes(file.read_bytes()[:-20])
    return file


# --- show ---


def test_show_says_what_a_run_is(file):
    assert run("trace", "show", file).stdout.splitlines() == [
        "sim, Scheduler, 3 steps (0 to 2), 2 requests",
        "limits: max_num_seqs 2, max_num_batched_tokens 8, max_model_len 256, num_gpu_blocks 2, block_size 4",
        "14 tokens scheduled, 4 sampled; 1 preempted, 0 aborted, 2 finished",
        "the head of the queue waited: 1 step for preempted_this_step",
        "request  arrives  prompt  max_tokens  first token  finishes  preempted",
        "A              0       4           2            0         1          0",
        "B              0       4           2            0         2          1",
    ]


def test_show_names_limits_that_are_not_the_usual_ones():
    text = run("trace", "show", EXAMPLE).stdout
    assert "reserve_full_isl False" in text and "enable_chunked_prefill" not in text
    assert "vllm, Scheduler, 83 steps (0 to 82), 5 requests, vLLM 0.33.0" in text
    assert text.startswith("the course's five requests")


@pytest.mark.parametrize(
    ("steps", "numbers"), [("9", [9]), ("9-11", [9, 10, 11]), ("all", range(83)), ("81-", [81, 82])]
)
def test_show_tells_the_chosen_steps_in_words(steps, numbers):
    told = re.findall(r"^step (\d+): .*$", run("trace", "show", EXAMPLE, "--steps", steps).stdout, re.MULTILINE)
    assert told == [str(number) for number in numbers]


@pytest.mark.parametrize("steps", ["x", "3-2-1", "-3", "1.5", "", "99", "83-"])
def test_show_refuses_steps_that_are_none_before_it_says_anything(steps):
    message = refusal("trace", "show", EXAMPLE, f"--steps={steps}")
    assert message.startswith(f"error: --steps {steps}: ")
    if steps in ("99", "83-"):
        assert message.endswith(": the steps are 0 to 82\n")


def test_show_says_that_a_range_of_steps_runs_backwards():
    assert refusal("trace", "show", EXAMPLE, "--steps", "5-3") == "error: --steps 5-3 begins after it ends\n"


def test_show_of_steps_where_there_are_none(tmp_path):
    bare = Trace({"format": "mini_vllm.trace", "version": 1}).save(tmp_path / "run.jsonl")
    for steps in ("all", "3"):
        assert refusal("trace", "show", bare, "--steps", steps) == f"error: --steps {steps}: this run has no steps\n"


def test_show_of_a_bare_trace(tmp_path):
    bare = Trace({"format": "mini_vllm.trace", "version": 1}).save(tmp_path / "run.jsonl")
    assert run("trace", "show", bare).stdout.splitlines()[:2] == ["0 steps, 0 requests", "limits: not recorded"]


# --- validate ---


def test_validate_says_ok_file_by_file(file):
    lines = run("trace", "validate", file, EXAMPLE).stdout.splitlines()
    assert lines[0] == f"{file}: ok, sim, Scheduler, 3 steps (0 to 2), 2 requests"
    assert lines[1].startswith(f"{EXAMPLE}: ok, vllm")


def test_validate_goes_on_after_a_broken_one(file, cut, tmp_path):
    missing = tmp_path / "none.jsonl"
    result = run("trace", "validate", cut, missing, EXAMPLE, code=1)
    assert [line.startswith("error: ") for line in result.stderr.splitlines()] == [True, True]
    assert "line 4: the file is cut off here" in result.stderr and "none.jsonl does not exist" in result.stderr
    assert result.stdout.startswith(f"{EXAMPLE}: ok")
    assert "2 steps" in run("trace", "validate", "--partial", cut).stdout


def test_validate_names_fields_that_it_does_not_know(tmp_path):
    trace = tiny_trace()
    trace.steps[1]["mood"] = "fine"
    text = run("trace", "validate", trace.save(tmp_path / "run.jsonl")).stdout
    assert text.endswith("; fields that the schema does not know: mood\n")


# --- diff ---


def test_diff_of_the_same_run_is_0_and_says_what_was_compared(file, tmp_path):
    other = tiny_trace().save(tmp_path / "other.jsonl.gz")
    lines = run("trace", "diff", file, other).stdout.splitlines()
    assert lines[0] == f"A  {file}: sim, Scheduler, 3 steps (0 to 2), 2 requests"
    assert lines[2] == "no difference in 3 steps"
    assert lines[3].startswith("compared: arrivals, aborted, waiting_before")
    assert lines[4:] == [
        "not compared: blocked_reason (a reason, not a decision)",
        "not compared: t_start, t_end (measured, not decided)",
    ]


def test_diff_of_different_runs_is_1_and_shows_the_place():
    lines = run("trace", "diff", EXAMPLE, FULL, code=1).stdout.splitlines()
    assert lines[2:6] == [
        "note: reserve_full_isl is False in A and True in B",
        "first difference: step 30, scheduled",
        "  A  [['R1', 1], ['R4', 1], ['R5', 6]]",
        "  B  [['R1', 1], ['R4', 1]]",
    ]
    assert lines[6].startswith("  the same step also differs in: resumed, allocs, hits")
    assert lines[7] == "  the same before it: 30 steps"


def test_diff_compares_reasons_if_asked_to(file, tmp_path):
    trace = tiny_trace()
    trace.steps[1]["blocked_reason"] = "another"
    other = trace.save(tmp_path / "other.jsonl")
    run("trace", "diff", file, other)
    assert "step 1, blocked_reason" in run("trace", "diff", file, other, "--reasons", code=1).stdout


def test_diff_of_files_that_cannot_be_compared_is_2(file, tmp_path):
    assert "does not exist" in refusal("trace", "diff", file, tmp_path / "none.jsonl", code=2)
    assert "is a folder" in refusal("trace", "diff", tmp_path, file, code=2)
    empty = Trace(tiny_trace().header).save(tmp_path / "empty.jsonl")
    assert "no step in common" in run("trace", "diff", file, empty, code=2).stderr


# --- export and replay ---


def test_export_writes_beside_the_file(file):
    target = file.with_name("run.perfetto.json")
    assert run("trace", "export", file).stdout == f"perfetto: {target}; open it at https://ui.perfetto.dev\n"
    assert json.loads(target.read_text())["displayTimeUnit"] == "ms"


def test_export_turns_a_recording_into_a_trace(tmp_path):
    out = tmp_path / "vllm.jsonl.gz"
    run("trace", "export", EXAMPLE, "--format", "jsonl", "-o", out)
    assert Trace.load(out) == from_vllm_recording(EXAMPLE)


@pytest.mark.parametrize("name", ["play", "play B", "trace export", "trace export -f jsonl", "trace replay"])
@pytest.mark.parametrize("by", ["name", "link"])
def test_nothing_overwrites_what_it_reads(name, by, file, tmp_path):
    source = Path(shutil.copy(EXAMPLE, tmp_path)) if name == "trace replay" else file
    before, target = source.read_bytes(), source
    if by == "link":
        target = tmp_path / "other.name"
        target.symlink_to(source)
    inputs = [tiny_trace().save(tmp_path / "first.jsonl"), source] if name == "play B" else [source]
    command, *options = name.removesuffix(" B").split(" -")
    arguments = [*command.split(), *inputs, *" -".join(["", *options]).split()]
    assert refusal(*arguments, "-o", target) == f"error: --out {target} is the file that is read; give another name\n"
    assert source.read_bytes() == before


@pytest.mark.parametrize("name", ["play", "trace export", "trace export -f jsonl", "trace replay"])
@pytest.mark.parametrize("held", ["trace", "trace.gz", "recording", "another page"])
def test_another_run_is_not_lost_under_something_else(name, held, file, tmp_path):
    target = tmp_path / ("ours.gz" if held.endswith("gz") else "ours.jsonl")
    content = {"recording": FULL.read_bytes(), "another page": b"<html>\n"}.get(held)
    target.write_bytes(content) if content else tiny_trace().save(target)
    before = target.read_bytes()
    source = EXAMPLE if name == "trace replay" else file
    no_open = ["--no-open"] if name == "play" else []
    command, _, form = name.partition(" -f ")
    arguments = [*command.split(), source, "-o", target, *no_open, *(["-f", form] if form else [])]
    writes_traces = form == "jsonl" or name == "trace replay"
    if held == "another page" or (writes_traces and held.startswith("trace")):
        run(*arguments)  # the same command a second time
        assert target.read_bytes() != b"<html>\n"
    else:
        kind = "a recorded run of vLLM" if held == "recording" else "a trace"
        assert f"--out {target} holds {kind}; give another name" in refusal(*arguments)
        assert target.read_bytes() == before


def test_replay_writes_our_run_of_vllms_requests(tmp_path):
    out = tmp_path / "ours.jsonl"
    text = run("trace", "replay", EXAMPLE, "--out", out).stdout
    assert "against vLLM: no difference" in text and f"mini-vllm play {EXAMPLE} {out}" in text
    run("trace", "diff", EXAMPLE, out)
    assert Trace.load(out).header["kind"] == "sim"


def test_replay_of_nothing_says_where_recordings_are(tmp_path):
    nope = tmp_path / "nope"
    way_out = "recorded runs are in the repository, in tests/data/vllm_traces"
    assert refusal("trace", "replay", nope, "-o", tmp_path / "x.jsonl") == f"error: {nope} does not exist; {way_out}\n"
    assert FOLDER.parts[-3:] == ("tests", "data", "vllm_traces")


def test_replay_of_a_trace_is_refused(file, tmp_path):
    assert "is no recorded run of vLLM" in refusal("trace", "replay", file, "-o", tmp_path / "x.jsonl")


# --- play ---


def test_play_writes_a_page_of_its_own_beside_the_file(file):
    page = file.with_name("run.html")
    assert run("play", file, "--no-open").stdout == f"player: {page}\n"
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "<script" in text
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", text), "it loads nothing"


def test_play_takes_a_recording_and_a_compressed_trace(tmp_path):
    run("play", EXAMPLE, "--no-open", "--out", tmp_path / "vllm.html")
    packed = tiny_trace().save(tmp_path / "my.run.jsonl.gz")
    assert run("play", packed, "--no-open").stdout == f"player: {tmp_path / 'my.run.html'}\n"


def test_play_of_two_runs_says_where_they_part(tmp_path):
    out = tmp_path / "both.html"
    text = run("play", EXAMPLE, FULL, "--no-open", "--out", out).stdout
    assert "step 30" in text and text.endswith(f"player: {out}\n")
    ours = tmp_path / "ours.jsonl"
    run("trace", "replay", EXAMPLE, "-o", ours)
    text = run("play", EXAMPLE, ours, "--no-open", "--out", out).stdout
    assert "No divergence in 83 steps" in text


def test_play_of_two_files_of_one_name_tells_them_apart(file, tmp_path):
    (tmp_path / "other").mkdir()
    same_name = tiny_trace().save(tmp_path / "other" / "run.jsonl")
    page = run("play", file, same_name, "--no-open").stdout.splitlines()[-1]
    assert page == f"player: {tmp_path / 'run-against-run.html'}"
    run("play", file, file, "--no-open")


def test_play_opens_the_page_and_says_so_where_no_browser_is(file, monkeypatch):
    opened = []
    monkeypatch.setattr(command.webbrowser, "open", lambda address: opened.append(address))
    result = run("play", file)
    assert opened == [file.with_name("run.html").as_uri()]
    assert result.stderr == f"no browser found; open it yourself: {opened[0]}\n"
    monkeypatch.setattr(command.webbrowser, "open", lambda address: True)
    assert run("play", file).stderr == ""


def test_play_refuses_two_runs_of_other_requests(tmp_path):
    assert "not of one workload" in refusal("play", EXAMPLE, OTHER, "--no-open", "--out", tmp_path / "x.html")


def test_play_of_a_run_without_steps_is_refused_or_empty_but_never_a_traceback(tmp_path):
    empty = Trace(tiny_trace().header).save(tmp_path / "run.jsonl")
    result = CliRunner().invoke(app, ["play", str(empty), "--no-open"])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.exit_code == 0 or "no steps" in result.stderr


# --- bad files, for every command ---


@pytest.mark.parametrize("name", ["play", "trace show", "trace validate", "trace diff", "trace export", "trace replay"])
@pytest.mark.parametrize(
    "damage",
    [
        "none", "folder", "empty", "text", "binary", "version", "unsorted", "cut", "truncated gz", "recording", "list",
        "no requests",
    ],
)  # fmt: skip
def test_bad_input_is_one_line_for_every_command(name, damage, file, tmp_path):
    header, *steps = file.read_text().splitlines()
    bad = tmp_path / "bad.jsonl"
    content = {
        "empty": b"",
        "text": b"hello\nthere\n",
        "binary": b"\xff\xfe\x00\x01",
        "version": header.replace('"version":1', '"version":2').encode(),
        "unsorted": "\n".join([header, steps[0], steps[0]]).encode(),
        "cut": file.read_bytes()[:-20],
        "truncated gz": tiny_trace().save(tmp_path / "t.gz").read_bytes()[:-30],
        "recording": EXAMPLE.read_bytes().replace(b'"num_steps":83', b'"num_steps":84'),
        "list": b"[]",
        "no requests": json.dumps({"scenario": {}, "trace": {"config": {}, "steps": []}}).encode(),
    }
    if damage == "folder":
        bad.mkdir()
    elif damage in content:
        bad.write_bytes(content[damage])
    more = {
        "play": ["--no-open", "--out", tmp_path / "p.html"],
        "trace diff": [file],
        "trace replay": ["-o", tmp_path / "o.jsonl"],
    }.get(name, [])
    message = refusal(*name.split(), bad, *more, code=2 if name == "trace diff" else 1)
    assert "bad.jsonl" in message
    assert not (tmp_path / "p.html").exists() and not (tmp_path / "o.jsonl").exists()


@pytest.mark.parametrize("arguments", [["play"], ["trace", "export"], ["trace", "replay"]])
def test_a_place_that_cannot_be_written_is_named(arguments, file, tmp_path):
    source = EXAMPLE if arguments[-1] == "replay" else file
    more = ["--no-open"] if arguments == ["play"] else []
    assert "there is no folder" in refusal(*arguments, source, "--out", tmp_path / "none" / "x", *more)
    assert "is a folder" in refusal(*arguments, source, "--out", tmp_path, *more)


def test_partial_takes_the_whole_steps(cut):
    for name in (["trace", "show"], ["trace", "validate"], ["trace", "export"], ["play", "--no-open"]):
        refusal(*name, cut)
        run(*name, cut, "--partial")
    assert "2 steps" in run("trace", "show", cut, "--partial").stdout


@pytest.mark.parametrize("name", ["show", "validate", "diff", "export", "replay", ""])
def test_help_says_what_a_command_does(name):
    text = run("trace", *name.split(), "--help").stdout
    assert "Usage" in text and len(text) > 300
