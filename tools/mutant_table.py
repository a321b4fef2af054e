"""The instructor page's table of planted wrong answers: what each does, and what its author is told. Knows no answer.

Called by make_exercises.py. Every row is judged while the table is made, so the second column is what a learner reads.
"""

import runpy
from pathlib import Path
from typing import NamedTuple

from mini_vllm.grading.bank import chapter_module, chapters
from mini_vllm.grading.calling import call_all
from mini_vllm.grading.exercise import Exercise
from mini_vllm.grading.judging import explain, judge

MUTANT_TABLE = Path("book/_generated/mutants.md")
SEED = "the table of mutants"
NOTE = "<!-- written by tools/make_exercises.py out of solutions/mutants/ -->\n"
HEAD = "| a wrong answer that … | is told, beside the smallest case that shows it |\n|---|---|\n"


class Mutant(NamedTuple):
    """`says`: a part of the message that its author must be given. `source`: the cell."""

    exercise_id: str
    mistake: str
    says: str
    source: str


def mutants_of(folder: Path, chapter: str) -> dict[str, Mutant]:
    """Name -> mutant, from the chapter's files, one an exercise: ch01_e1.py, …"""
    found = [runpy.run_path(str(path))["MUTANTS"] for path in sorted(folder.glob(f"{chapter}_*.py"))]
    return {name: mutant for mutants in found for name, mutant in mutants.items()}


def mutant_table(folder: Path) -> str:
    """Markdown: a table for every exercise, in the order of the book."""
    parts = [NOTE]
    for chapter in chapters() if folder.exists() else []:
        mutants = mutants_of(folder, chapter).values()
        for exercise in chapter_module(chapter).EXERCISES:
            mine = [mutant for mutant in mutants if mutant.exercise_id == exercise.exercise_id]
            rows = [f"| {_cell(m.mistake)} | {_cell(told(exercise, m.source))} |\n" for m in mine]
            parts.append(f"**{exercise.exercise_id} · {exercise.title}**\n\n{HEAD}{''.join(rows)}")
    return "\n".join(parts)


def told(exercise: Exercise, source: str) -> str:
    """The sentence that names the mistake; without one of its own, the complaint about the smallest case."""
    namespace: dict = {"__name__": "__main__"}
    exec(compile(source, f"<mutant of {exercise.exercise_id}>", "exec"), namespace)
    cases = exercise.cases(SEED)
    outcomes = call_all(exercise, namespace[exercise.function], cases)
    complaints = [line.strip() for line in judge(exercise, cases, outcomes).message.splitlines()[1:3]]
    complaint = [line for line in complaints if not line.startswith("in the line:")][-1]  # after what was called
    return explain(exercise, cases, outcomes) or complaint


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
