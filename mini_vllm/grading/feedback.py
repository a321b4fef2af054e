"""`check`, as a notebook calls it. Knows where a verdict is reached: here, or outside. All chapters.

In a learner's notebook `check` judges at once. In a graded kernel it only writes down what the learner's function
returned; the right answers are not in that process, and the verdict is reached outside it.
"""

import json
import os
from pathlib import Path
from typing import Any

from mini_vllm.grading import progress_file
from mini_vllm.grading.bank import find_exercise, hidden_modules
from mini_vllm.grading.calling import call_all
from mini_vllm.grading.exercise import Exercise
from mini_vllm.grading.hints import next_hint
from mini_vllm.grading.limits import Limits
from mini_vllm.grading.my_stage import keep
from mini_vllm.grading.reach import hidden_reach

GRADED_FOLDER = "MINI_VLLM_GRADED_FOLDER"  # set by the grader: a folder with cases.json; answers.jsonl goes there
NOTEBOOK_SEED = "notebook"
PATIENCE_S = Limits.calls_s  # of CPU, for all calls of one check; a graded run has as many on the clock


class GradeFailed(AssertionError):
    """A check that is not passed. A notebook shows its message, without a traceback."""

    def _render_traceback_(self) -> list[str]:  # IPython asks for this
        return str(self).splitlines()


def check(exercise_id: str, given: Any) -> None:
    """Try what you wrote (a function, a class, or a value) on the exercise's cases: tiny ones first, then random ones.

    The cases are the same in every run. Prints one line when all are right, and a second where a graded run would
    refuse what the function uses. Raises GradeFailed with the smallest case that is not right, or with the case in
    which the function was after PATIENCE_S seconds of CPU.
    """
    exercise = find_exercise(exercise_id)
    call = f'check("{exercise_id}", {exercise.function})'
    if not exercise.takes_value and not callable(given):
        raise GradeFailed(
            f"{exercise_id} ✗ the second argument is {type(given).__name__}, not a function; write {call}"
        )
    if exercise.takes_value and callable(given):
        raise GradeFailed(f"{exercise_id} ✗ the second argument is a function; the answer is a value: write {call}")
    graded_folder = os.environ.get(GRADED_FOLDER)
    if graded_folder:
        _write_answers(exercise, given, Path(graded_folder))
    elif exercise.missing_packages:
        print(f"{exercise_id} – skipped, not passed: {_lacking(exercise)}")
    else:
        _judge_here(exercise, given)


def _lacking(exercise: Exercise) -> str:
    names = " and ".join(exercise.missing_packages)
    return f"it needs {names}, not installed here. In a clone, `make lab` installs what the notebooks need."


def _judge_here(exercise: Exercise, given: Any) -> None:
    from mini_vllm.grading.judging import MISSING, PASS, judge

    cases = exercise.cases(NOTEBOOK_SEED)
    verdict = judge(exercise, cases, call_all(exercise, given, cases, PATIENCE_S, cpu_only=True))
    hint_line = next_hint(exercise.exercise_id)
    if verdict.status == PASS:
        print(exercise.passed_line)
        used = hidden_reach(given, hidden_modules([exercise.exercise_id]))
        if used:
            print(f"this uses {used}, which graded runs hide: it will not count")
        else:
            progress_file.note_passed(exercise)
            if exercise.stage:
                keep(exercise.stage, given)
    elif verdict.status == MISSING:  # no exception: "run all cells" should reach the exercises after this one
        print(f"{verdict.message}\n{hint_line}")
    else:
        raise GradeFailed(f"{verdict.message}\n{hint_line}")


def _write_answers(exercise: Exercise, given: Any, folder: Path) -> None:
    asked = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    cases = asked["cases"][exercise.exercise_id]
    if exercise.missing_packages:
        outcomes = [{"error": f"skipped: {_lacking(exercise)}"}]
    else:
        outcomes = call_all(exercise, given, cases, asked["limit_s"])
    line = json.dumps({"exercise": exercise.exercise_id, "outcomes": outcomes})
    with open(folder / "answers.jsonl", "a", encoding="utf-8") as answers:
        answers.write(line + "\n")
    if any("value" not in outcome for outcome in outcomes):
        raise GradeFailed(f"{exercise.exercise_id} ✗ the grader's report says why")
    print(exercise.passed_line)
