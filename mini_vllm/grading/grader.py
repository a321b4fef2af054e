"""Grades one learner's notebook: overlay, run outside, judge here. Knows one notebook; prints nothing. All chapters."""

import time
from pathlib import Path

from mini_vllm.errors import GradingError
from mini_vllm.grading.bank import chapter_module, chapter_of
from mini_vllm.grading.diagnosis import why_red
from mini_vllm.grading.exercise import Exercise
from mini_vllm.grading.judging import ERROR, PASS, Verdict
from mini_vllm.grading.limits import Limits
from mini_vllm.grading.overlay import check_cell_notes, exercise_ids, find_answers, overlay, parse_notebook
from mini_vllm.grading.pristine import Pristine, find_pristine
from mini_vllm.grading.report import ExerciseReport, NotebookReport, printable
from mini_vllm.grading.run_folder import PACKAGE_ROOT
from mini_vllm.grading.runner import run_notebook
from mini_vllm.grading.submissions import Submission
from mini_vllm.grading.verdicts import Attempt, before_running, verdict_on
from mini_vllm.sandbox import protection
from mini_vllm.sandbox.protection import Protection

RUN_AGAIN = "A cell ended the whole run; the others were run again without it."


class Grader:
    """Grades submissions one by one, all with the same seed, limits and untouched notebooks."""

    def __init__(self, known: list[Pristine], seed: int, limits: Limits, shield: Protection | None = None):
        self.known = known
        self.seed = seed
        self.limits = limits
        self.shield = shield

    def grade(self, submission: Submission) -> NotebookReport:
        """The report on one submission. Whatever is wrong with it stands in the report; nothing is raised."""
        start = time.monotonic()
        report = NotebookReport(submission.path, submission.student, self.seed)
        try:
            if submission.error:
                raise GradingError(submission.error)
            self._grade(submission, report)
        except GradingError as error:
            report.error = printable(str(error))
        except Exception as error:  # a fault of ours must not cost a class its report
            report.error = printable(f"{submission.path}: the grader failed, please report it: {error!r}")
        report.notes = [printable(note) for note in report.notes]
        report.seconds = round(time.monotonic() - start, 1)
        return report

    def _grade(self, submission: Submission, report: NotebookReport) -> None:
        nb = parse_notebook(submission.data, submission.path)
        pristine = find_pristine(submission.path, nb, self.known)
        asked = exercise_ids(pristine.nb)
        chapters = dict.fromkeys(chapter_of(exercise_id) for exercise_id in asked)
        known = [e for chapter in chapters for e in chapter_module(chapter).EXERCISES]
        exercises = [e for e in known if e.exercise_id in asked]
        answers = find_answers(nb, {e.exercise_id: e.function for e in exercises})
        given = find_answers(pristine.nb).sources
        verdicts: dict[str, Verdict] = {}
        for e in exercises:
            if verdict := before_running(e, answers.sources.get(e.exercise_id), given.get(e.exercise_id)):
                verdicts[e.exercise_id] = verdict
        to_run = [e for e in exercises if e.exercise_id not in verdicts]
        report.chapter, report.checks_expected = pristine.chapter, len(to_run)
        report.jail = (self.shield or protection.available()).name
        answered = [e for e in exercises if e.exercise_id in answers.sources]
        report.notes += answers.notes + check_cell_notes(nb, answered)
        verdicts |= self._run(pristine, to_run, answers.sources, submission, report)
        report.exercises = [_exercise_report(e, verdicts[e.exercise_id]) for e in exercises]

    def _run(
        self,
        pristine: Pristine,
        to_run: list[Exercise],
        sources: dict[str, str],
        submission: Submission,
        report: NotebookReport,
    ) -> dict[str, Verdict]:
        """Run all of `to_run` together; where a cell ended the run, the rest is run again without it."""
        verdicts: dict[str, Verdict] = {}
        solved = [root / "solutions" for root in (PACKAGE_ROOT, pristine.path.parent.parent)]
        hide = [*solved, Path(submission.folder)]
        groups = [to_run] if to_run else []
        while groups:
            some = groups.pop(0)
            nb, numbers = overlay(pristine.nb, some, sources)
            run = run_notebook(nb, some, self.seed, self.limits, hide=hide, shield=self.shield)
            attempt = Attempt(run, numbers, sources, self.seed)
            report.notes += [note for note in _own_cells_that_failed(attempt) if note not in report.notes]
            report.checks_run += sum(1 for e in some if (cell := attempt.cells(e)[1]) and cell.status)
            if None in run.hidden_used:
                report.notes.append(f"{run.hidden_used[None]} was reached for, by no cell in particular")
            new = {e.exercise_id: v for e in some if (v := verdict_on(e, attempt))}
            verdicts |= new
            left = [e for e in some if e.exercise_id not in new]
            if left and not new and len(some) > 1:
                groups += [[exercise] for exercise in left]
            elif left and not new:
                name = left[0].exercise_id
                verdicts[name] = Verdict(ERROR, f"{name} ✗ the run did not get to it ({run.ended or 'no reason'}).")
            elif left:
                groups.append(left)
            if left and RUN_AGAIN not in report.notes:
                report.notes.append(RUN_AGAIN)
        return verdicts


def _own_cells_that_failed(attempt: Attempt) -> list[str]:
    """Cells of the untouched notebook, such as its imports: when one fails, answers fail for no fault of theirs."""
    learners = {number for pair in attempt.numbers.values() for number in pair}
    reasons = [why_red(cell) for number, cell in attempt.run.cells.items() if number not in learners]
    return [f"a cell of the untouched notebook failed: {reason}" for reason in reasons if reason]


def _exercise_report(exercise: Exercise, verdict: Verdict) -> ExerciseReport:
    points = exercise.points if verdict.status == PASS else 0
    message = printable(verdict.message)
    return ExerciseReport(exercise.exercise_id, exercise.title, verdict.status, points, exercise.points, message)
