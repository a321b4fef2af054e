"""`check` and `hint`, as a notebook calls them. Knows where a verdict is reached: here, or outside. All chapters.

In a learner's notebook `check` judges at once. In a graded kernel it only writes down what the learner's function
returned; the right answers are not in that process, and the verdict is reached outside it.
"""

import json
import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mini_vllm.grading import ledger
from mini_vllm.grading.bank import find_exercise, hidden_modules
from mini_vllm.grading.calling import call_all
from mini_vllm.grading.exercise import Exercise
from mini_vllm.grading.reach import hidden_reach

GRADED_FOLDER = "MINI_VLLM_GRADED_FOLDER"  # set by the grader: a folder with cases.json; answers.jsonl goes there
NOTEBOOK_SEED = "notebook"

_hints_shown: dict[str, int] = {}


class GradeFailed(AssertionError):
    """A check that is not passed. A notebook shows its message, without a traceback."""

    def _render_traceback_(self) -> list[str]:  # IPython asks for this
        return str(self).splitlines()


def check(exercise_id: str, fn: Callable[..., Any]) -> None:
    """Run `fn` on the exercise's cases: tiny ones first, then random ones (the same in every run).

    Prints one line when all are right, and a second where a graded run would refuse what the function uses.
    Raises GradeFailed with the smallest case that is not right.
    """
    exercise = find_exercise(exercise_id)
    if not callable(fn):
        call = f'check("{exercise_id}", {exercise.function})'
        raise GradeFailed(f"{exercise_id} ✗ the second argument is {type(fn).__name__}, not a function; write {call}")
    graded_folder = os.environ.get(GRADED_FOLDER)
    if graded_folder:
        _write_answers(exercise, fn, Path(graded_folder))
    else:
        _judge_here(exercise, fn)


def _judge_here(exercise: Exercise, fn: Callable) -> None:
    from mini_vllm.grading.judging import MISSING, PASS, judge

    cases = exercise.cases(NOTEBOOK_SEED)
    verdict = judge(exercise, cases, call_all(exercise, fn, cases))
    next_hint = f'Next hint: hint("{exercise.exercise_id}")'
    if verdict.status == PASS:
        print(exercise.passed_line)
        used = hidden_reach(fn, hidden_modules([exercise.exercise_id]))
        if used:
            print(f"this uses {used}, which graded runs hide: it will not count")
        else:
            ledger.passed(exercise)
    elif verdict.status == MISSING:  # no exception: "run all cells" should reach the exercises after this one
        print(f"{verdict.message}\n{next_hint}")
    else:
        raise GradeFailed(f"{verdict.message}\n{next_hint}")


def _write_answers(exercise: Exercise, fn: Callable, folder: Path) -> None:
    asked = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    cases = asked["cases"][exercise.exercise_id]
    outcomes = call_all(exercise, fn, cases, asked["limit_s"])
    line = json.dumps({"exercise": exercise.exercise_id, "outcomes": outcomes})
    with open(folder / "answers.jsonl", "a", encoding="utf-8") as answers:
        answers.write(line + "\n")
    if any("value" not in outcome for outcome in outcomes):
        raise GradeFailed(f"{exercise.exercise_id} ✗ the grader's report says why")
    print(exercise.passed_line)


def hint(exercise_id: str, number: int | None = None) -> None:
    """Print the next of three hints: the idea, the shape, the pseudo-code. `number` prints that one."""
    exercise = find_exercise(exercise_id)
    last = len(exercise.hints)
    if number is None:
        number = min(_hints_shown.get(exercise_id, 0) + 1, last)
    if number not in range(1, last + 1):
        raise ValueError(f"hint number {number} of {exercise_id} does not exist; there are 1 to {last}")
    _hints_shown[exercise_id] = max(number, _hints_shown.get(exercise_id, 0))
    print(f"Hint {number} of {last}:")
    text = exercise.hints[number - 1]
    print(textwrap.indent(text, "  ") if number == last else textwrap.indent(textwrap.fill(text, 82), "  "))
    if number == last:
        print("That was the last one. A solved notebook lies in solutions/, for when you have tried.")
