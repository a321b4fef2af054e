"""The `mini-vllm` command as a user types it: a process, its standard output, its exit code."""

import importlib.util
import io
import json
import subprocess
import sys

import pytest

from mini_vllm import cli
from mini_vllm.roofline import read_samples
from mini_vllm.trace.recorder import Trace
from tests.viz.player_traces import SMALL


def run(*args, stdin=""):
    command = [sys.executable, "-m", "mini_vllm.cli", *map(str, args)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("command", ["", "doctor", "fetch", "model", "generate", "chat", "play", "trace", "grade"])
def test_help_helps(command):
    result = run(*command.split(), "--help")
    assert result.returncode == 0
    assert "Usage" in result.stdout


def test_doctor_names_versions_and_device():
    result = run("doctor")
    assert result.returncode == 0
    assert "mini_vllm 0.1.0" in result.stdout
    assert "torch" in result.stdout
    assert "GPU:" in result.stdout


def test_doctor_says_what_works():
    *_, book, engine, exercises, kernels = run("doctor").stdout.splitlines()
    assert book.startswith("read the book (make serve-book): ")
    assert engine == "engine on this CPU (mini-vllm chat): ok"
    assert exercises.startswith("exercises and grading (make work, make grade): ")
    assert kernels.startswith("our GPU kernels (--attention-backend triton): ")


def test_doctor_names_what_is_missing(monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jinja2" else find_spec(name))
    cli.doctor()
    assert "engine on this CPU (mini-vllm chat): not yet, no jinja2; " in capsys.readouterr().out


def test_an_error_of_ours_is_one_line_without_a_traceback():
    result = run("generate", "hello", "--model", "gpt-17")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error:")
    assert "smollm2-135m" in result.stderr


def test_play_refuses_a_broken_trace_by_file_and_line(tmp_path):
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"format": "mini_vllm.trace", "version": 1}\n{"step": 0\n')
    result = run("play", broken, "--no-open")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "broken.jsonl" in result.stderr and "2" in result.stderr


def is_one_line(result, *words, code=1):
    """A refusal: one line on standard error with these words in it, and nothing on standard output."""
    line = result.stderr.rstrip("\n")
    assert (result.returncode, result.stdout) == (code, "")
    return line.startswith("error: ") and "\n" not in line and all(word in line for word in words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["play", "nope.jsonl"], ["nope.jsonl does not exist", "`mini-vllm generate … --trace nope.jsonl`"]),
        (["play", "{tmp}"], ["{tmp} is a folder", "generate"]),
        (["play", SMALL, "--out", "{tmp}/none/x.html"], ["--out {tmp}/none/x.html", "no folder {tmp}/none"]),
        (["play", SMALL, "--out", "{tmp}"], ["--out {tmp} is a folder"]),
        (["play", "{tmp}/bytes"], ["bytes is no UTF-8 text"]),
        (
            ["generate", "hi", "--trace", "{tmp}/none/t.jsonl", "-m", "none"],
            ["--trace", "no folder {tmp}/none"],
        ),
        (["generate", "hi", "--trace", "{tmp}", "-m", "none"], ["--trace {tmp} is a folder"]),
        (["generate", "hi", "--samples", "{tmp}", "-m", "none"], ["--samples {tmp} is a folder"]),
        (
            ["generate", "hi", "--trace", "{tmp}/x", "--samples", "{tmp}/x", "-m", "none"],
            ["--trace {tmp}/x and --samples {tmp}/x are one file"],
        ),
        (["grade", "{tmp}", "--json", "{tmp}/none/r.json"], ["--json {tmp}/none/r.json", "no folder"]),
        (["generate", "-m", "none"], ["no prompts: give them as arguments"]),
    ],
    ids=lambda value: " ".join(map(str, value)).replace(str(SMALL), "SMALL"),
)
def test_what_cannot_work_is_refused_in_one_line_before_the_model_is_loaded(tmp_path, arguments, words):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    result = run(*(str(a).replace("{tmp}", str(tmp_path)) for a in arguments))
    code = 2 if arguments[0] == "grade" else 1
    assert is_one_line(result, *(word.replace("{tmp}", str(tmp_path)) for word in words), code=code), result.stderr


def test_what_the_system_refuses_is_one_line(monkeypatch, capsys):
    def fails():
        raise PermissionError(13, "Permission denied", "secret.jsonl")

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert capsys.readouterr().err == "error: secret.jsonl: Permission denied\n"


def test_generate_on_a_terminal_says_what_it_waits_for(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("one\r\n\ntwo"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert cli._prompts_from_standard_input() == ["one", "two"]
    assert capsys.readouterr().err == "one prompt a line; Ctrl-D runs them\n"


def test_options_offer_what_the_engine_takes():
    from mini_vllm.engine.attention.select import ATTENTION_BACKENDS
    from mini_vllm.engine.device import DTYPES

    assert tuple(cli.Dtype) == DTYPES and tuple(cli.AttentionBackendName) == ATTENTION_BACKENDS


@pytest.mark.model
def test_generate_then_play(tmp_path):
    trace, samples = tmp_path / "run.jsonl", tmp_path / "steps.jsonl"
    records = ("--trace", trace, "--samples", samples, "--stats")
    result = run("generate", "The capital of Italy is", "1, 2, 3, 4,", "-n", 4, "--json", *records)
    assert result.returncode == 0, result.stderr
    rows = [(row.model, row.dtype, row.work.n_sampled) for row in read_samples(samples)]
    assert rows == [("smollm2-135m", "bfloat16", 2)] * 4
    assert "steps        4 in " in result.stderr and "sampled      8 tokens, " in result.stderr
    first, second = map(json.loads, result.stdout.splitlines())
    assert first["text"].startswith(" Rome")
    assert second["request_id"] == "R2"
    assert Trace.load(trace).header["kind"] == "engine" and len(Trace.load(trace).steps) == 4
    result = run("play", trace, "--no-open")
    assert result.returncode == 0, result.stderr
    assert "<iframe" in (tmp_path / "run.html").read_text() or "<script" in (tmp_path / "run.html").read_text()


@pytest.mark.model
def test_generate_reads_prompts_from_standard_input():
    result = run("generate", "-n", 2, "--json", stdin="one\n\ntwo\n")
    assert [json.loads(line)["prompt"] for line in result.stdout.splitlines()] == ["one", "two"]


@pytest.mark.model
def test_chat_answers_and_ends():
    result = run("chat", "-n", 20, "--dtype", "float32", stdin="What is the capital of France? One word.\n\n")
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout and "(cut" not in result.stdout


@pytest.mark.model
def test_chat_survives_a_message_beyond_the_context_and_says_where_an_answer_is_cut():
    talk = "word " * 3000 + "\nTell me a long story.\n/new\n/nwe\n/help\n /new is what?\nexit\nnot read\n"
    result = run("chat", "-n", 5, stdin=talk)
    assert result.returncode == 0, result.stderr
    too_long, unknown = result.stderr.splitlines()
    assert too_long.endswith(" tokens, and max_model_len is 2048: shorten it, or /new")
    assert unknown == "not sent: there is no command /nwe; /help lists them"
    assert result.stdout.count("(cut at 5 tokens)\n") == 2, "two messages were sent"
    assert "> new conversation\n" in result.stdout and "/quit" in result.stdout


@pytest.mark.model
def test_chat_says_when_the_conversation_is_full():
    # 2,037 tokens of 2,048, and an answer that the model begins by repeating: far from ending by itself.
    result = run("chat", "-n", 20, stdin="The cat sat on the mat. " * 286 + "Tell me about dogs.\n/quit\n")
    assert "(cut at 11 tokens: the conversation is as long as it may be; /new" in result.stdout, result


@pytest.mark.model
def test_model_inspect_tells_shape_and_kv_cost():
    result = run("model", "inspect")
    assert result.returncode == 0, result.stderr
    assert "30" in result.stdout and "23,040" in result.stdout
