"""From a run to a verdict on each exercise. Knows what the parts of a run mean; starts nothing. All chapters."""

from dataclasses import dataclass

from mini_vllm.grading.diagnosis import CELLS_ARE_ALONE, is_empty, why_no_answer, why_red
from mini_vllm.grading.exercise import Exercise
from mini_vllm.grading.judging import ERROR, MISSING, PASS, TIMEOUT, Verdict, judge
from mini_vllm.grading.report import REFERENCE_USED, SKIPPED, TAMPERED
from mini_vllm.grading.runner import CellResult, Run
from mini_vllm.sandbox.supervise import KERNEL_ENDED, OUT_OF_TIME, TOO_MANY_PROCESSES, TOO_MUCH_MEMORY

ENDED_BY = {
    OUT_OF_TIME: (TIMEOUT, "the cell did not come to its end. Does every loop end?"),
    KERNEL_ENDED: (ERROR, "the cell ended the whole kernel (os._exit, or a crash?)."),
    TOO_MUCH_MEMORY: (ERROR, "the cell took more memory, or printed more, than a graded run may. Does it stop?"),
    TOO_MANY_PROCESSES: (ERROR, "the cell started more processes than a graded run may."),
}


@dataclass(frozen=True)
class Attempt:
    """One run, the cell numbers [answer, check] of each exercise in it, and what stood in the answer cells."""

    run: Run
    numbers: dict[str, list[int]]
    sources: dict[str, str]
    seed: int

    def cells(self, exercise: Exercise) -> list[CellResult | None]:
        return [self.run.cells.get(number) for number in self.numbers[exercise.exercise_id]]


def before_running(exercise: Exercise, source: str | None, given: str | None) -> Verdict | None:
    """The verdict on an exercise that need not be run. source: the answer cell; given: the cell as handed out."""
    name = exercise.exercise_id
    if source is None:
        text = f"{name} – no cell is marked # EXERCISE {name}. Put that line back on top of your cell."
        return Verdict(MISSING, text)
    if given is not None and source.split() == given.split():
        return Verdict(MISSING, f"{name} – not started yet: the cell is as it was given.")
    if is_empty(source):
        return Verdict(MISSING, f"{name} – not started yet: your cell is empty; {exercise.function} is asked for.")
    if exercise.missing_packages:
        lacking = " and ".join(exercise.missing_packages)
        return Verdict(SKIPPED, f"{name} – skipped, not passed: it needs {lacking}, not installed with this grader.")
    return None


def verdict_on(exercise: Exercise, attempt: Attempt) -> Verdict | None:
    """What a run says about an exercise; None where the run did not get that far.

    Right answers count when the check also came to its end. Whatever it printed beside its line does not matter: a
    warning of a library is no mistake.
    """
    name, run = exercise.exercise_id, attempt.run
    if name in run.hidden_used:
        text = "was reached for, which holds the answer. Write it yourself: the points are for the thinking."
        return Verdict(REFERENCE_USED, f"{name} ✗ {run.hidden_used[name]} {text}")
    if name in run.forged:
        return Verdict(TAMPERED, f"{name} ✗ a result was written for it that no check writes.")
    in_cell, in_check = attempt.cells(exercise)
    if name in run.outcomes:
        verdict = _judged(exercise, attempt)
        if verdict.status != PASS or (in_check and in_check.status == "ok"):
            return verdict
    if ended := _ended_the_run(exercise, attempt):
        return ended
    if in_check is None or (in_check.status is None and "Kernel dead" in in_check.why):
        return None
    return _without_answers(exercise, attempt, why_red(in_cell), why_red(in_check))


def _ended_the_run(exercise: Exercise, attempt: Attempt) -> Verdict | None:
    """The verdict on the exercise whose cell was at work when the run ended, or ran out of its own time."""
    run, numbers = attempt.run, attempt.numbers[exercise.exercise_id]
    status, text = ENDED_BY.get(run.ended, ENDED_BY[KERNEL_ENDED])
    if run.at_work in numbers:
        return Verdict(status, f"{exercise.exercise_id} ✗ {text}")
    for cell in attempt.cells(exercise):
        if cell and "Timeout of" in cell.why:
            return Verdict(TIMEOUT, f"{exercise.exercise_id} ✗ {ENDED_BY[OUT_OF_TIME][1]}")
        if cell and cell.status is None and "Kernel dead" not in cell.why:
            return Verdict(ERROR, f"{exercise.exercise_id} ✗ {ENDED_BY[KERNEL_ENDED][1]}")
    return None


def _judged(exercise: Exercise, attempt: Attempt) -> Verdict:
    outcomes = attempt.run.outcomes[exercise.exercise_id]
    try:
        verdict = judge(exercise, exercise.cases(attempt.seed), outcomes)
    except (RecursionError, MemoryError, ValueError, TypeError, ArithmeticError) as error:
        # Plain data of a shape that no comparer expected: wrong, and no reason to stop a whole class.
        return Verdict(ERROR, f"{exercise.exercise_id} ✗ the result cannot be compared ({type(error).__name__}).")
    if verdict.status == ERROR and outcomes and outcomes[-1].get("error", "").startswith("NameError"):
        return Verdict(ERROR, f"{verdict.message}\n  {CELLS_ARE_ALONE}")
    return verdict


def _without_answers(exercise: Exercise, attempt: Attempt, in_cell: str | None, in_check: str | None) -> Verdict:
    """Both cells came to an end, but no right answers arrived from a check that passed."""
    name = exercise.exercise_id
    if name in attempt.run.outcomes:
        return Verdict(TAMPERED, f"{name} ✗ the answers are right, but the check did not come to its end: {in_check}.")
    if (in_cell or in_check or "").startswith("NotImplementedError"):
        return Verdict(MISSING, f"{name} – not started yet: {exercise.function} is still the empty stub.")
    if in_check is None and in_cell is None:
        return Verdict(TAMPERED, f"{name} ✗ the check ran and noted nothing: was check() replaced?")
    return Verdict(ERROR, f"{name} ✗ {why_no_answer(exercise, attempt.sources[name], in_cell, in_check or '')}")
