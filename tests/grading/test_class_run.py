"""Many notebooks: the same reports in the same order, whatever the workers and the backend. Starts no kernel."""

import json
import random
import sys
import time
import types
from pathlib import Path

import pytest

from mini_vllm.errors import GradingError
from mini_vllm.grading import class_run, command, grader
from mini_vllm.grading.class_run import grade_submissions
from mini_vllm.grading.grader import Grader
from mini_vllm.grading.limits import Limits
from mini_vllm.grading.pristine import load_all
from mini_vllm.grading.report import ExerciseReport, NotebookReport
from mini_vllm.grading.submissions import Submission

CLASS = [Submission(f"class/{i}.ipynb", f"s{i}", "class", json.dumps(i).encode()) for i in range(20)]


class Fake(Grader):
    """Takes a random time; its report is a function of the submission."""

    def grade(self, submission):
        time.sleep(random.uniform(0, 0.01))
        points = json.loads(submission.data) % 5
        report = NotebookReport(submission.path, submission.student, self.seed, "01-static-batching")
        report.exercises = [ExerciseReport("c01-e1", "t", "pass" if points else "wrong", points, 4, "")]
        return report


def fake_ray(monkeypatch, loses: int | None = None) -> types.ModuleType:
    """Ray's handful of calls, in this process. What is handed over is pickled, as for another machine."""
    import pickle

    ray = types.ModuleType("ray")
    ray.started = []
    ray.exceptions = types.SimpleNamespace(RayError=RuntimeError)
    ray.is_initialized = lambda: bool(ray.started)
    ray.init = lambda **options: ray.started.append(options)

    class Task:
        def __init__(self, function):
            self.function = function

        def remote(self, *arguments):
            sent = pickle.loads(pickle.dumps(arguments))
            place = int(Path(sent[1].path).stem)
            return (place, lambda: self.function(*sent))

    def get(reference):
        if reference[0] == loses:
            raise RuntimeError("node died\nworker crashed")
        return reference[1]()

    ray.remote = lambda **options: Task
    ray.wait = lambda waiting, num_returns: (waiting[-1:], waiting[:-1])
    ray.get = get
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


def run(**options) -> list[dict]:
    return [r.to_json() for r in grade_submissions(CLASS, Fake([], 3, Limits()), **options)]


def test_reports_are_the_same_whoever_grades(monkeypatch):
    one = run(workers=1)
    assert [entry["path"] for entry in one] == [s.path for s in CLASS]
    assert run(workers=8) == one
    ray = fake_ray(monkeypatch)
    assert run(backend="ray", workers=4) == one
    assert ray.started[0]["num_cpus"] == 4


def test_a_lost_ray_node_costs_one_notebook_and_is_named(monkeypatch):
    fake_ray(monkeypatch, loses=7)
    reports = run(backend="ray")
    assert [r["error"] for r in reports if r["error"]] == ["class/7.ipynb: its Ray task failed: worker crashed"]


def test_ray_that_is_not_there_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(GradingError, match=r"pip install -e '.\[scale\]'.*--backend local"):
        run(backend="ray")


def test_a_node_with_another_version_is_refused():
    with pytest.raises(GradingError, match=r"this node has mini_vllm .*, the grader 0\.0\.0"):
        class_run._grade_on_a_node(Fake([], 3, Limits()), CLASS[0], "0.0.0")


def test_ctrl_c_keeps_what_was_graded(monkeypatch):
    def on_done(report):
        if report.path == "class/2.ipynb":
            raise KeyboardInterrupt

    reports = grade_submissions(CLASS, Fake([], 3, Limits()), workers=1, on_done=on_done)
    assert len(reports) == len(CLASS)
    assert [r.error for r in reports[:3]] == [None] * 3
    assert reports[19].error == "class/19.ipynb: not graded, the run was interrupted"


def test_a_fault_of_the_grader_costs_one_notebook(monkeypatch):
    monkeypatch.setattr(grader, "find_answers", lambda *a: {}[3])
    report = Grader(load_all(None), 1, Limits()).grade(Submission("a.ipynb", "a", ".", _blank()))
    assert "a.ipynb: the grader failed, please report it: KeyError(3)" in report.error


def _blank() -> bytes:
    return json.dumps(load_all(None)[0].nb).encode()


def test_a_class_is_one_table_without_anybodys_markup(monkeypatch, capsys):
    reports = grade_submissions([*CLASS[:2], Submission("x", "[red]x[/] \\", "c", b"4")], Fake([], 3, Limits()))
    reports.append(NotebookReport("class/bad.ipynb", "bad", 3, error="class/bad.ipynb is empty"))
    command.show(reports)
    out = capsys.readouterr().out
    assert "01-static-batching: 3 notebooks" in out and "[red]x[/] \\" in out
    assert "error: class/bad.ipynb is empty" in out and "c01-e1" in out
    lines = [line for line in out.splitlines() if "│" in line]
    assert [line.split("│")[1].strip() for line in lines] == ["[red]x[/] \\", "s0", "s1"]
    assert ["✓" in line for line in lines] == [True, False, True]


def test_the_progress_bar_is_for_whoever_watches(monkeypatch, capsys):
    with command._progress(2) as on_done:
        on_done(NotebookReport("a.ipynb", "a", 1))
    assert "a.ipynb: 0 %" in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with command._progress(2) as on_done:
        on_done(NotebookReport("a.ipynb", "a", 1))
    assert "1/2" in capsys.readouterr().err
