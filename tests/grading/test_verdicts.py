"""What each way for a run to end means for each exercise. Runs are made up; starts no kernel."""

import json

import pytest

from mini_vllm.grading import grader as grader_module
from mini_vllm.grading.bank import find_exercise
from mini_vllm.grading.grader import Grader
from mini_vllm.grading.limits import Limits
from mini_vllm.grading.pristine import load_all
from mini_vllm.grading.reference import answer
from mini_vllm.grading.runner import CellResult, Run
from mini_vllm.grading.submissions import Submission
from mini_vllm.grading.verdicts import Attempt, verdict_on

from .classes import BLANK, IDS, RIGHT, SOLVED, save

NUMBERS = {i: [10 * n, 10 * n + 1] for n, i in enumerate(IDS)}
OK = CellResult("ok", "passed")
PRINTED_MORE = CellResult("ok", "failed", "Cell outputs differ")
RAISED = CellResult("error", "failed", "…", "ValueError", "no\nmore", "Cell In[1], line 3, in f")
SILENT = CellResult("error", "passed", "", "NameError", "name 'static_waste' is not defined")
DEAD = CellResult(None, "failed", "plugin exception: Kernel dead on test start")
LATE = CellResult(None, "failed", "Timeout of 5 seconds exceeded executing cell")


def right_outcomes(exercise_id: str) -> list[dict]:
    exercise = find_exercise(exercise_id)
    return [{"value": answer(exercise_id)(*exercise.arguments(case))} for case in exercise.cases(1)]


RIGHT_E1 = {"c01-e1": right_outcomes("c01-e1")}
NONE = [{"value": None}] * 40


@pytest.mark.parametrize(
    ("run", "status", "says"),
    [
        pytest.param(Run(RIGHT_E1, cells={0: OK, 1: OK}), "pass", "", id="right"),
        pytest.param(Run(RIGHT_E1, cells={0: OK, 1: PRINTED_MORE}), "pass", "", id="right, and something printed"),
        pytest.param(Run(RIGHT_E1, cells={0: RAISED, 1: OK}), "pass", "", id="right, the cell raised behind it"),
        pytest.param(Run(RIGHT_E1, cells={0: OK, 1: RAISED}), "tampered", "did not come to its end", id="check raised"),
        pytest.param(Run({"c01-e1": NONE}, cells={0: OK, 1: OK}), "wrong", "static_waste(", id="wrong"),
        pytest.param(
            Run({"c01-e1": RIGHT_E1["c01-e1"][:3]}, cells={0: OK, 1: OK}), "error", "did not arrive", id="few"
        ),
        pytest.param(Run({"c01-e1": []}, cells={0: OK, 1: OK}), "missing", "no answer arrived", id="none"),
        pytest.param(Run(cells={0: OK, 1: OK}), "tampered", "was check() replaced?", id="no outcomes"),
        pytest.param(
            Run(RIGHT_E1, forged={"c01-e1"}, cells={0: OK, 1: OK}), "tampered", "no check writes", id="forged"
        ),
        pytest.param(Run(RIGHT_E1, forged={None}, cells={0: OK, 1: OK}), "pass", "", id="forged for nobody"),
        pytest.param(Run(RIGHT_E1, {"c01-e1": "m"}, cells={0: OK, 1: OK}), "reference used", "m was", id="reference"),
        pytest.param(Run(RIGHT_E1, {"c01-e2": "m"}, cells={0: OK, 1: OK}), "pass", "", id="another's reference"),
        pytest.param(Run(cells={0: RAISED, 1: SILENT}), "error", "ValueError: no (line 3)", id="cell raised"),
        pytest.param(Run(cells={0: OK, 1: SILENT}), "error", "is not there once your cell has run", id="deleted"),
        pytest.param(Run(cells={0: LATE, 1: SILENT}), "timeout", "did not come to its end", id="cell late"),
        pytest.param(Run(cells={0: OK, 1: LATE}), "timeout", "did not come to its end", id="check late"),
        pytest.param(Run(RIGHT_E1, cells={0: OK}, at_work=1, ended="kernel ended"), "error", "whole kernel", id="exit"),
        pytest.param(Run(cells={}, at_work=0, ended="out of time"), "timeout", "every loop", id="run out of time"),
        pytest.param(Run(cells={}, at_work=0, ended="too much memory"), "error", "more memory", id="memory"),
        pytest.param(Run(cells={}, at_work=0, ended="too many processes"), "error", "more processes", id="forks"),
        pytest.param(Run(cells={}, at_work=0), "error", "whole kernel", id="nbval was killed"),
        pytest.param(Run(cells={}, at_work=10, ended="kernel ended"), None, "", id="another ended the run"),
        pytest.param(Run(cells={0: DEAD, 1: DEAD}), None, "", id="the kernel was dead before"),
        pytest.param(Run({"c01-e1": [{"value": [[]] * 3}] * 40}, cells={0: OK, 1: OK}), "wrong", "", id="odd data"),
    ],
)
def test_verdict(run, status, says):
    verdict = verdict_on(find_exercise("c01-e1"), Attempt(run, NUMBERS, RIGHT, 1))
    assert (verdict and verdict.status) == status, verdict
    assert verdict is None or says in verdict.message


def ends_at(*killers: str):
    """A stand-in for `run_notebook`: each killer's cell ends the run in which it stands, at once."""
    runs = []

    def run_notebook(nb, exercises, seed, limits, **options):
        runs.append([e.exercise_id for e in exercises])
        # As `overlay` numbers them: a first cell and two of the pristine notebook, then answer and check in turn.
        sources = [cell["source"] for cell in nb["cells"]]
        run = Run()
        for place, source in enumerate(sources):
            if any(f"# EXERCISE {killer}" in source for killer in killers):
                run.at_work, run.ended = place, "kernel ended"
                return run
            run.cells[place] = OK
        return run

    return run_notebook, runs


def grade(monkeypatch, *killers: str):
    run_notebook, runs = ends_at(*killers)
    monkeypatch.setattr(grader_module, "run_notebook", run_notebook)
    data = json.dumps(SOLVED).encode()
    return Grader(load_all(None), 1, Limits()).grade(Submission("a.ipynb", "a", ".", data)), runs


def test_an_instructors_own_notebook_may_ask_for_less(monkeypatch, tmp_path):
    run_notebook, runs = ends_at()
    monkeypatch.setattr(grader_module, "run_notebook", run_notebook)
    fewer = [cell for cell in BLANK["cells"] if not any(i in "".join(cell["source"]) for i in IDS[1:])]
    save({**BLANK, "cells": fewer}, tmp_path / "mine.ipynb")
    data = json.dumps(SOLVED).encode()
    report = Grader(load_all(tmp_path), 1, Limits()).grade(Submission("a.ipynb", "a", ".", data))
    assert (report.chapter, report.out_of, runs) == ("mine", 10, [["c01-e1"]])


def test_a_failing_cell_of_ours_is_noted_once(monkeypatch):
    """Else a bank that hides what its own notebook imports would only show as wrong answers."""

    def run_notebook(nb, exercises, *rest, **options):
        return Run(cells={place: RAISED if place == 1 else OK for place in range(len(nb["cells"]))})

    monkeypatch.setattr(grader_module, "run_notebook", run_notebook)
    data = json.dumps(SOLVED).encode()
    report = Grader(load_all(None), 1, Limits()).grade(Submission("a.ipynb", "a", ".", data))
    assert report.notes == ["a cell of the untouched notebook failed: ValueError: no (line 3)"]


def test_whoever_ends_a_run_is_left_out_of_the_next(monkeypatch):
    report, runs = grade(monkeypatch, "c01-e2", "c01-b1")
    assert [e.status for e in report.exercises] == ["tampered", "error", "tampered", "error"]
    # e1 came to its end in the first run; e3 needs a second, in which b1 is found out.
    assert runs == [["c01-e1", "c01-e2", "c01-e3", "c01-b1"], ["c01-e3", "c01-b1"]]
    assert report.notes == ["A cell ended the whole run; the others were run again without it."]


def test_a_run_that_names_nobody_is_repeated_one_by_one_and_ends(monkeypatch):
    """The set-up cell, which is ours, ends the run: no exercise is to blame, and the grader comes to its end."""
    runs = []

    def run_notebook(nb, exercises, seed, limits, **options):
        runs.append([e.exercise_id for e in exercises])
        return Run(at_work=1, ended="out of time")

    monkeypatch.setattr(grader_module, "run_notebook", run_notebook)
    report = Grader(load_all(None), 1, Limits()).grade(Submission("a.ipynb", "a", ".", json.dumps(SOLVED).encode()))
    assert [e.status for e in report.exercises] == ["error"] * 4
    assert "the run did not get to it (out of time)" in report.exercises[0].message
    assert runs == [list(IDS), *([i] for i in IDS)]
