"""The `mini-vllm` command as a user types it: a process, its standard output, its exit code."""

import json
import subprocess
import sys

import pytest

from mini_vllm.trace.recorder import Trace


def run(*args, stdin=""):
    command = [sys.executable, "-m", "mini_vllm.cli", *map(str, args)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("command", ["", "doctor", "fetch", "model", "generate", "chat", "play", "grade"])
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


@pytest.mark.model
def test_generate_then_play(tmp_path):
    trace = tmp_path / "run.jsonl"
    result = run("generate", "The capital of Italy is", "1, 2, 3, 4,", "-n", 4, "--json", "--trace", trace)
    assert result.returncode == 0, result.stderr
    first, second = map(json.loads, result.stdout.splitlines())
    assert first["text"].startswith(" Rome")
    assert second["request_id"] == "R2"
    assert Trace.load(trace).header["kind"] == "engine"
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
    assert "Paris" in result.stdout


@pytest.mark.model
def test_chat_survives_a_message_beyond_the_context():
    result = run("chat", "-n", 5, stdin="word " * 3000 + "\nSay hello.\n\n")
    assert result.returncode == 0, result.stderr
    assert "max_model_len is 2048" in result.stderr
    assert len(result.stdout.splitlines()) >= 2


@pytest.mark.model
def test_model_inspect_tells_shape_and_kv_cost():
    result = run("model", "inspect")
    assert result.returncode == 0, result.stderr
    assert "30" in result.stdout and "23,040" in result.stdout
