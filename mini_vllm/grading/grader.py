"""Grades learners' notebooks: overlay, run outside, judge here. Knows statuses; prints nothing. All chapters."""

import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mini_vllm.errors import GradingError
from mini_vllm.grading.bank import chapter_module, chapter_of
from mini_vllm.grading.diagnosis import CELLS_ARE_ALONE, is_empty, why_no_answer
from mini_vllm.grading.exercise import Exercise
from mini_vllm.grading.judging import ERROR, MISSING, PASS, TIMEOUT, Verdict, judge
from mini_vllm.grading.overlay import (
    Answers,
    exercise_ids,
    find_answers,
    find_pristine,
    overlay,
    read_notebook,
)
from mini_vllm.grading.runner import KERNEL_ENDED, OUT_OF_TIME, PACKAGE_ROOT, Limits, Run, run_notebook

REFERENCE_USED = "reference used"


@dataclass(frozen=True)
class ExerciseReport:
    """One exercise of one notebook. `points` is all of `out_of`, or 0."""

    exercise_id: str
    title: str
    status: str  # pass | wrong | error | timeout | missing | reference used
    points: int
    out_of: int
    message: str


@dataclass
class NotebookReport:
    """One notebook. `error` says why nothing could be graded; then there are no exercises."""

    path: str
    seed: int
    exercises: list[ExerciseReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    error: str | None = None

    @property
    def points(self) -> int:
        return sum(e.points for e in self.exercises)

    @property
    def out_of(self) -> int:
        return sum(e.out_of for e in self.exercises)

    @property
    def percent(self) -> int:
        return round(100 * self.points / self.out_of) if self.out_of else 0

    @property
    def mark(self) -> str:
        return "not graded" if self.error else f"{self.percent} %"

    def to_json(self) -> dict:
        return {**asdict(self), "points": self.points, "out_of": self.out_of, "percent": self.percent}


def grade_paths(
    paths: Iterable[Path],
    *,
    seed: int | None = None,
    timeout_s: float = 120,
    limits: Limits | None = None,
    pristine: Path | None = None,
    workers: int = 1,
    on_done: Callable[[NotebookReport], None] = lambda report: None,
) -> list[NotebookReport]:
    """Grade notebooks, and all notebooks of folders, in the order given.

    seed: of the hidden cases; drawn at random by default and kept in each report, so that a run can be repeated.
    timeout_s: for one run of one notebook; `limits` sets the limits within it as well.
    pristine: a folder of untouched notebooks instead of those in the package.
    workers: notebooks graded at the same time.
    """
    limits = limits or Limits.within(timeout_s)
    folder = Path(pristine).resolve() if pristine else None
    if folder and not any(folder.glob("*.ipynb")):
        raise GradingError(f"{folder} holds no .ipynb file; give the folder of the untouched exercises: --pristine DIR")
    seed = secrets.randbelow(2**31) if seed is None else seed

    def grade_one(path: Path) -> NotebookReport:
        start = time.monotonic()
        try:
            report = _grade(path, folder, seed, limits)
        except GradingError as error:
            report = NotebookReport(str(path), seed, error=str(error))
        report.seconds = round(time.monotonic() - start, 1)
        on_done(report)
        return report

    with ThreadPoolExecutor(max_workers=workers) as pool:
        return list(pool.map(grade_one, expand(paths)))


def expand(paths: Iterable[Path]) -> list[Path]:
    """The notebooks meant by files and folders."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise GradingError(f"{path} does not exist; give notebooks or folders of notebooks")
        inside = sorted(path.rglob("*.ipynb")) if path.is_dir() else [path]
        inside = [p for p in inside if ".ipynb_checkpoints" not in p.parts]
        if not inside:
            raise GradingError(f"the folder {path} holds no .ipynb file")
        found += inside
    return found


def _grade(path: Path, folder: Path | None, seed: int, limits: Limits) -> NotebookReport:
    learner_nb = read_notebook(path)
    pristine_nb = find_pristine(path, learner_nb, folder)
    answers = find_answers(learner_nb)
    chapters = dict.fromkeys(chapter_of(i) for i in exercise_ids(pristine_nb))
    exercises = [e for chapter in chapters for e in chapter_module(chapter).EXERCISES]
    given = find_answers(pristine_nb).sources
    verdicts = _before_running(exercises, answers, given)
    to_run = [e for e in exercises if e.exercise_id not in verdicts]
    hide = [root / "solutions" for root in (PACKAGE_ROOT, *([folder.parent] if folder else []))]

    def run_some(some: list[Exercise]) -> dict[str, Verdict]:
        nb, numbers = overlay(pristine_nb, some, answers.sources)
        run = run_notebook(nb, some, seed, limits, hide=hide)
        whole = len(some) == 1 or not (run.ended or {OUT_OF_TIME, KERNEL_ENDED} & set(run.failures.values()))
        return {e.exercise_id: v for e in some if (v := _verdict(e, answers, seed, run, numbers, whole))}

    if to_run:
        verdicts |= run_some(to_run)
        # One exercise ended the run or blocked it. Which one it was shows when each of the others runs by itself.
        undecided = [exercise for exercise in to_run if exercise.exercise_id not in verdicts]
        for exercise in undecided:
            verdicts |= run_some([exercise])
        if undecided:
            answers.notes.append("Some cells were run by themselves: together they did not come to the end.")
    return NotebookReport(str(path), seed, [_report(e, verdicts[e.exercise_id]) for e in exercises], answers.notes)


def _before_running(exercises: list[Exercise], answers: Answers, given: dict[str, str]) -> dict[str, Verdict]:
    """Exercises that need no run: without a marked cell, or with the cell as it was given."""
    verdicts = {}
    for exercise in exercises:
        name = exercise.exercise_id
        if name not in answers.sources:
            text = f"{name} – no cell is marked # EXERCISE {name}. Put that line back on top of your cell."
            verdicts[name] = Verdict(MISSING, text)
        elif _is_as_given(exercise, answers, given):
            verdicts[name] = _not_started(exercise)
        elif is_empty(answers.sources[name]):
            text = f"{name} – not started yet: your cell is empty; {exercise.function} is asked for."
            verdicts[name] = Verdict(MISSING, text)
    return verdicts


def _is_as_given(exercise: Exercise, answers: Answers, given: dict[str, str]) -> bool:
    mine, stub = (sources.get(exercise.exercise_id, "") for sources in (answers.sources, given))
    return mine.split() == stub.split()


def _not_started(exercise: Exercise) -> Verdict:
    return Verdict(MISSING, f"{exercise.exercise_id} – not started yet: the cell is as it was given.")


def _verdict(
    exercise: Exercise, answers: Answers, seed: int, run: Run, numbers: dict[str, list[int]], whole: bool
) -> Verdict | None:
    """Right answers, judged here, and a check cell that ran to its end. None: a run that is not `whole` cannot say."""
    name = exercise.exercise_id
    answer_cell, check_cell = numbers[name]
    if name in run.hidden_used:
        text = (
            f"{name} ✗ {run.hidden_used[name]} was reached for, which holds the answer. "
            "Write it yourself: the points are for the thinking."
        )
        return Verdict(REFERENCE_USED, text)
    if name in run.outcomes:
        verdict = judge(exercise, exercise.cases(seed), run.outcomes[name])
        if verdict.status == ERROR and run.outcomes[name][-1].get("error", "").startswith("NameError"):
            return Verdict(ERROR, f"{verdict.message}\n  {CELLS_ARE_ALONE}")
        if verdict.status != PASS or check_cell in run.passed:
            return verdict
    if not whole:
        return None
    in_cell, in_check = run.failures.get(answer_cell), run.failures.get(check_cell)
    why = in_cell or in_check or run.ended
    if name in run.outcomes:
        return Verdict(ERROR, f"{name} ✗ the answers are right, but the check cell failed: {why}.")
    if why == OUT_OF_TIME:
        return Verdict(TIMEOUT, f"{name} ✗ the cell did not come to its end. Does every loop end?")
    if why == KERNEL_ENDED:
        return Verdict(ERROR, f"{name} ✗ the cell ended the whole kernel (os._exit, or out of memory?).")
    if why.startswith("NotImplementedError"):
        return Verdict(MISSING, f"{name} – not started yet: {exercise.function} is still the empty stub.")
    return Verdict(ERROR, f"{name} ✗ {why_no_answer(exercise, answers.sources[name], in_cell, in_check)}")


def _report(exercise: Exercise, verdict: Verdict) -> ExerciseReport:
    points = exercise.points if verdict.status == PASS else 0
    return ExerciseReport(
        exercise.exercise_id, exercise.title, verdict.status, points, exercise.points, verdict.message
    )
