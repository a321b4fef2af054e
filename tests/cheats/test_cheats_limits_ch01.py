"""Answers that never end, fork, fill memory or print without end: each is ended by itself. Chapter 1.

The right answers in the same notebook keep their points, and nothing is left running.
"""

import sys

import psutil
import pytest

from tests.grading.classes import by_id, graded, with_answers

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes of a dead parent are followed on Linux only")

LOOPS_FOR_EVER = """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    while True:
        pass
"""
KILLS_THE_KERNEL = """
# EXERCISE c01-e2
import os
os._exit(0)
"""
LOOPS_IN_THE_CELL = """
# EXERCISE c01-e3
while True:
    pass
"""
FORKS = """
# EXERCISE c01-e1
import os, time
for _ in range(100):
    if os.fork() == 0:
        os.setsid()
        os.environ.clear()
        time.sleep(600)
"""
FILLS_MEMORY = """
# EXERCISE c01-e2
kept = []
while True:
    kept.append(bytearray(b"x") * 300_000_000)
"""
PRINTS_WITHOUT_END = """
# EXERCISE c01-e3
while True:
    print("x" * 1_000_000)
"""
SWALLOWS_THE_TIME_LIMIT = """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
"""
KILLS_NBVAL = """
# EXERCISE c01-e2
import os, signal
try:
    os.kill(os.getppid(), signal.SIGKILL)
except OSError:
    pass
def bucket(output_lens, batch_size):
    return []
"""
LEAVES_A_DAEMON = """
# EXERCISE c01-e3
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "987654"], {})
    os._exit(0)
def continuous_schedule(requests, num_slots):
    return []
"""
PRINTS_A_LOT = """
# EXERCISE c01-b1
def deliver(plan, rows, sampled, prompt_left):
    print("y" * 1_000_000)
    return {name: token for name, token in zip(rows, sampled) if prompt_left[name] == 0}
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """{notebook: {exercise id: report}}"""
    notebooks = {
        "f": with_answers(LOOPS_FOR_EVER, KILLS_THE_KERNEL, LOOPS_IN_THE_CELL),
        "g": with_answers(FORKS, FILLS_MEMORY, PRINTS_WITHOUT_END),
        "h": with_answers(SWALLOWS_THE_TIME_LIMIT, KILLS_NBVAL, LEAVES_A_DAEMON, PRINTS_A_LOT),
    }
    return {name: by_id(r) for name, r in graded(tmp_path_factory.mktemp("limits"), notebooks).items()}


@pytest.mark.parametrize(
    ("notebook", "exercise_id", "status", "says"),
    [
        ("f", "c01-e1", "timeout", "Does every loop come to its end?"),
        ("f", "c01-e2", "error", "ended the whole kernel"),
        ("f", "c01-e3", "timeout", "did not come to its end"),
        ("g", "c01-e1", "error", "more processes"),
        ("g", "c01-e2", "error", "emory"),
        ("g", "c01-e3", "error", "printed more"),
        ("h", "c01-e1", "timeout", "to its end"),  # whichever of the two limits is first
        ("h", "c01-e3", "wrong", "continuous_schedule("),
    ],
)
def test_it_is_ended_and_named(reports, notebook, exercise_id, status, says):
    report = reports[notebook][exercise_id]
    assert (report.status, report.points) == (status, 0), report
    assert says in report.message


def test_c01_endless_loops_are_ended_named_and_the_next_cell_still_runs(reports):
    """In the function, in the cell, one that cannot be interrupted, and one that prints for ever."""
    report = reports["f"]
    assert [e.status for e in report.values()] == ["timeout", "error", "timeout", "pass"]
    assert "static_waste(" in report["c01-e1"].message, "the case on which it did not come to its end"
    assert reports["g"]["c01-e3"].status == "error" and reports["g"]["c01-b1"].status == "pass"


def test_killing_nbval_ends_no_grader(reports):
    """With a user of its own, or rules for signals, it kills nobody; else its own run, and is told so."""
    assert reports["h"]["c01-e2"].status in ("wrong", "error") and reports["h"]["c01-e2"].points == 0


@pytest.mark.parametrize("notebook", ["f", "g", "h"])
def test_the_right_answer_beside_them_keeps_its_points(reports, notebook):
    assert reports[notebook]["c01-b1"].status == "pass", reports[notebook]["c01-b1"]


@linux
def test_nobody_is_left_behind(reports):
    left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if "987654" in (p.info["cmdline"] or [])]
    assert not left
