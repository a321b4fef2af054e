"""The supervisor ends what goes over a limit, with all that it started. Its command is a tiny Python program."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

IN_FORTY = "import time; time.sleep(40)"
LINUX = sys.platform == "linux"


def child(code: str) -> str:
    """A program that runs `code` in a child, as pytest runs a kernel, and waits for ever."""
    return f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {code!r}]); time.sleep(40)"


def supervise(tmp_path, code: str, **limits) -> tuple[dict, float]:
    """(what the supervisor said, seconds)"""
    start = time.monotonic()
    process = started(tmp_path, code, **limits)
    output, errors = process.stdout.read(), process.stderr.read()  # communicate() would close its input
    process.wait(60)
    assert output, errors
    return json.loads(output), time.monotonic() - start


def started(tmp_path, code: str, **limits) -> subprocess.Popen:
    plan = {
        "command": [sys.executable, "-c", code],
        "cwd": str(tmp_path),
        "env": dict(os.environ),
        "log": str(tmp_path / "log.txt"),
        "uid": None,
        "run_s": 20,
        "memory_mb": 500,
        "processes": 8,
        **limits,
    }
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    return subprocess.Popen(
        [sys.executable, "-m", "mini_vllm.sandbox.supervise", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("code", "limits", "ended"),
    [
        pytest.param("print('hello')", {}, "", id="to its end"),
        pytest.param("raise SystemExit(3)", {}, "", id="to a bad end"),
        pytest.param(IN_FORTY, {"run_s": 0.5}, "out of time", id="too long"),
        pytest.param(child("pass"), {}, "kernel ended", id="kernel gone"),
        pytest.param(child("x = bytearray(b'x') * 300_000_000; " + IN_FORTY), {"memory_mb": 200}, "too much memory",
                     id="memory"),
        pytest.param(child(f"import os; [os.fork() for _ in range(4)]; {IN_FORTY}"), {}, "too many processes",
                     id="forks"),
        pytest.param(child(f"import os; [os.fork() for _ in range(3)]; {IN_FORTY}"), {"run_s": 1.5}, "out of time",
                     id="as many as allowed"),
    ],
)  # fmt: skip
def test_it_ends(tmp_path, code, limits, ended):
    said, seconds = supervise(tmp_path, code, **limits)
    assert said == {"ended": ended, "left": 0}
    assert seconds < 10
    assert (tmp_path / "log.txt").read_text() == ("hello\n" if "hello" in code else "")


@pytest.mark.skipif(not LINUX, reason="pages are told apart on Linux only")
def test_pages_shared_by_forks_count_once(tmp_path):
    shared = "x = bytearray(b'x') * 120_000_000; import os; [os.fork() for _ in range(2)]; "
    said, _ = supervise(tmp_path, child(shared + IN_FORTY), memory_mb=300, run_s=2)
    assert said["ended"] == "out of time"


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "876543"], {})
    os._exit(0)
os.wait()
time.sleep(0.3)
"""


def sleepers() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if "876543" in (p.info["cmdline"] or [])]


@pytest.mark.skipif(not LINUX, reason="orphans are adopted on Linux only")
def test_a_daemon_with_a_clean_environment_is_ended_too(tmp_path):
    said, _ = supervise(tmp_path, DAEMON)
    assert said == {"ended": "", "left": 0} and not sleepers()


def test_whoever_started_it_may_die(tmp_path):
    process = started(tmp_path, child(IN_FORTY))
    deadline = time.monotonic() + 20
    while len(psutil.Process(process.pid).children(recursive=True)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) == 2
    process.stdin.close()
    assert json.loads(process.stdout.read())["ended"] == "abandoned"
    process.wait(10)
    assert not psutil.wait_procs(below, timeout=5)[1]
