"""Answers of every sort, and a judge for them in this process. Knows where they lie in the repository."""

import runpy
from pathlib import Path

import pytest

from mini_vllm.grading.bank import chapter_of, find_exercise
from mini_vllm.grading.calling import call_all
from mini_vllm.grading.judging import Verdict, judge
from mini_vllm.grading.overlay import find_answers, read_notebook
from tools.mutant_table import mutants_of

ROOT = Path(__file__).resolve().parents[2]


def load(folder: str, chapter: str, name: str) -> dict:
    """MUTANTS or ALTERNATIVES of a chapter."""
    if name == "MUTANTS":
        return mutants_of(ROOT / "solutions" / folder, chapter)
    return runpy.run_path(str(ROOT / "solutions" / folder / f"{chapter}.py"))[name]


def notebook(folder: str, chapter: str) -> dict:
    """The notebook of a chapter such as ch01 in solutions/, exercises/ or notebooks/."""
    [solved] = (ROOT / "solutions").glob(f"{chapter[2:]}-*.ipynb")  # notebooks/ may hold a review page beside it
    return read_notebook(ROOT / folder / solved.name)


def define(exercise_id: str, source: str):
    """The function, class or value that a learner's cell defines."""
    namespace: dict = {"__name__": "__main__"}
    exec(compile(source, f"<cell of {exercise_id}>", "exec"), namespace)
    return namespace[find_exercise(exercise_id).function]


def right(exercise_id: str):
    """A right answer as a learner would write it: the solved notebook's."""
    solved = notebook("solutions", chapter_of(exercise_id))
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
