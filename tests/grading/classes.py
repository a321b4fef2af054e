"""Classes to grade: chapter 1's notebook with any cells in it, and a grader for tests. Knows where both lie."""

import json
from pathlib import Path

from mini_vllm.grading.class_run import grade_paths
from mini_vllm.grading.limits import Limits
from mini_vllm.grading.overlay import code_cells, find_answers, read_notebook, source_of
from mini_vllm.grading.report import ExerciseReport, NotebookReport

ROOT = Path(__file__).resolve().parents[2]
NAME = "01-static-batching.ipynb"
BLANK = read_notebook(ROOT / "exercises" / NAME)
SOLVED = read_notebook(ROOT / "solutions" / NAME)
RIGHT = find_answers(SOLVED).sources
IDS = ("c01-e1", "c01-e2", "c01-e3", "c01-b1")
LONG = Limits()
SHORT = Limits(run_s=60, cell_s=5, calls_s=2, memory_mb=700, processes=20)


def copy_of(nb: dict) -> dict:
    return json.loads(json.dumps(nb))


def marked(exercise_id: str, source: str) -> str:
    return f"# EXERCISE {exercise_id}\n{source.strip()}\n"


def with_answers(*answers: str) -> dict:
    """The exercise notebook with these marked cells; where none is given, the right one."""
    sources = {**RIGHT, **{answer.split()[2]: answer.strip() + "\n" for answer in answers}}
    nb = copy_of(BLANK)
    for cell in code_cells(nb):
        words = source_of(cell).split()
        if words[:2] == ["#", "EXERCISE"]:
            cell["source"] = sources[words[2]]
    return nb


def save(nb: dict, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(nb), encoding="utf-8")
    return path


def graded(folder: Path, notebooks: dict[str, dict], limits: Limits = SHORT, **options) -> dict[str, NotebookReport]:
    """Grade a class, two notebooks at a time. Keys are file names without .ipynb."""
    for name, nb in notebooks.items():
        save(nb, folder / f"{name}.ipynb")
    reports = grade_paths([folder], seed=11, limits=limits, workers=2, **options)
    return {Path(report.path).stem: report for report in reports}


def by_id(report: NotebookReport) -> dict[str, ExerciseReport]:
    assert not report.error, report.error
    return {e.exercise_id: e for e in report.exercises}


def statuses(report: NotebookReport) -> list[str]:
    assert not report.error, report.error
    return [e.status for e in report.exercises]
