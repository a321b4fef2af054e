"""Answers of every sort, and a judge for them in this process. Knows where they lie in the repository."""

import runpy
from pathlib import Path

import pytest

from mini_vllm.grading.bank import find_exercise
from mini_vllm.grading.calling import call_all
from mini_vllm.grading.judging import Verdict, judge
from mini_vllm.grading.overlay import find_answers, read_notebook

ROOT = Path(__file__).resolve().parents[2]


def load(folder: str, chapter: str, name: str) -> dict:
    return runpy.run_path(str(ROOT / "solutions" / folder / f"{chapter}.py"))[name]


def define(exercise_id: str, source: str):
    """The function that a learner's cell defines."""
    namespace: dict = {"__name__": "__main__"}
    exec(compile(source, f"<cell of {exercise_id}>", "exec"), namespace)
    return namespace[find_exercise(exercise_id).function]


def right(exercise_id: str):
    """A right answer as a learner would write it: the solved notebook's."""
    solved = read_notebook(ROOT / "solutions" / "01-static-batching.ipynb")
    return define(exercise_id, find_answers(solved).sources[exercise_id])


def verdict_of(exercise_id: str, source: str, seed: int | str = 1) -> Verdict:
    exercise = find_exercise(exercise_id)
    cases = exercise.cases(seed)
    return judge(exercise, cases, call_all(exercise, define(exercise_id, source), cases))


def unwrapped(message: str) -> str:
    """Messages are wrapped for the screen; fragments are looked for in one line."""
    return " ".join(message.split())


@pytest.fixture(autouse=True)
def no_progress_file(monkeypatch):
    monkeypatch.setenv("MINI_VLLM_PROGRESS", "off")
