"""What `mini-vllm grade` prints. Knows tables and exit codes; the grading is in `class_run`. All chapters."""

import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from mini_vllm.errors import GradingError, MiniVLLMError
from mini_vllm.grading import report_files
from mini_vllm.grading.class_run import BACKENDS, grade_submissions, usable_cpus
from mini_vllm.grading.grader import Grader
from mini_vllm.grading.judging import ERROR, MISSING, PASS, TIMEOUT, WRONG
from mini_vllm.grading.limits import Limits
from mini_vllm.grading.pristine import load_all
from mini_vllm.grading.report import REFERENCE_USED, SKIPPED, TAMPERED, NotebookReport
from mini_vllm.grading.submissions import Submission, collect, students_to_grade
from mini_vllm.output_file import refuse_if_not_writable, refuse_same_file
from mini_vllm.sandbox import protection

ALL_GRADED, SOME_NOT_GRADED, NOTHING_GRADED = 0, 1, 2
ANSWERS = Path(__file__).resolve().parent / "reference" / "__init__.py"
WIDE = 160  # columns of a table that goes into a file or a pipe
STYLES = {PASS: "green", WRONG: "red", TIMEOUT: "red", ERROR: "red", MISSING: "dim"} | dict.fromkeys(
    (TAMPERED, REFERENCE_USED), "bold magenta"
)
SHORT = {PASS: "✓", MISSING: "–", REFERENCE_USED: "reference", SKIPPED: "skipped"}


@dataclass(frozen=True)
class Options:
    """What the command line said. The files are None where they were not asked for."""

    json: Path | None = None
    csv: Path | None = None
    gradescope: Path | None = None
    classroom: Path | None = None
    seed: int | None = None
    timeout_s: int = 120
    memory_mb: int = Limits.memory_mb
    pristine: Path | None = None
    workers: int | None = None
    backend: str = BACKENDS[0]
    require_jail: bool = False

    def check(self) -> None:
        if self.timeout_s < 4:
            raise GradingError(f"timeout_s={self.timeout_s} is below 4 s, in which no kernel starts; leave it out")
        if self.memory_mb < 256:
            raise GradingError(f"memory_mb={self.memory_mb} is below 256, which a kernel needs by itself; leave it out")
        if self.workers is not None and self.workers < 1:
            raise GradingError(f"workers={self.workers}: 1 or more; by default one for each CPU, {usable_cpus()} here")
        if self.require_jail and (gap := protection.available().gap(ANSWERS)):
            raise GradingError(f"--require-jail: {gap}")

    def check_files(self, submissions: Sequence[Submission]) -> None:
        """That the reports can be written, over no notebook, is known before the first notebook is graded."""
        notebooks = [Path(submission.path) for submission in submissions]
        files = {f"--{name}": getattr(self, name) for name in ("json", "csv", "gradescope", "classroom")}
        outputs = {option: path for option, path in files.items() if path}
        for option, path in outputs.items():
            refuse_if_not_writable(path, option, notebooks)
        refuse_same_file(outputs)
        if self.gradescope:
            report_files.refuse_several(students_to_grade(submissions))

    def files(self) -> list[tuple[Path, Callable[[list[NotebookReport]], str]]]:
        every = [
            (self.json, report_files.as_json),
            (self.csv, report_files.as_csv),
            (self.gradescope, report_files.as_gradescope),
            (self.classroom, report_files.as_classroom),
        ]
        return [(path, text_of) for path, text_of in every if path]


def grade_command(paths: list[Path], options: Options = Options()) -> int:
    """Grade, print, write the files that were asked for. Returns the exit code."""
    try:
        options.check()
        options.check_files([])  # before a large class is read
        submissions = collect(paths)
        options.check_files(submissions)
        seed = secrets.randbelow(2**31) if options.seed is None else options.seed
        known = load_all(options.pristine.resolve() if options.pristine else None)
        grader = Grader(known, seed, Limits.within(options.timeout_s, options.memory_mb))
        with _progress(len(submissions)) as on_done:
            reports = grade_submissions(
                submissions, grader, workers=options.workers, backend=options.backend, on_done=on_done
            )
        for path, text_of in options.files():
            report_files.write(path, text_of(reports))
    except MiniVLLMError as error:
        print(f"error: {error}", file=sys.stderr)
        return NOTHING_GRADED
    show(reports)
    graded = [report for report in reports if not report.error]
    return NOTHING_GRADED if not graded else ALL_GRADED if len(graded) == len(reports) else SOME_NOT_GRADED


@contextmanager
def _progress(total: int) -> Iterator[Callable[[NotebookReport], None]]:
    """A bar for a class folder where somebody watches; a line a notebook otherwise."""
    if total < 2:
        yield lambda report: None
    elif not sys.stderr.isatty():
        yield lambda report: print(f"{report.path}: {report.mark}", file=sys.stderr, flush=True)
    else:
        columns = (TextColumn("grading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("grading", total=total)
            yield lambda report: bar.advance(task)


def show(reports: list[NotebookReport]) -> None:
    """One learner sees every message; a class is shown in one table a chapter."""
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    graded = [report for report in reports if not report.error]
    if len({report.student for report in reports}) == 1:
        for report in graded:
            _show_one(console, report)
    else:
        for chapter in sorted({report.chapter for report in graded}):
            console.print(_class_table(chapter, [r for r in graded if r.chapter == chapter]))
        for report in graded:
            for note in report.notes:
                _plain(console, f"note: {report.student}: {note}")
    for report in reports:
        if report.error:
            _plain(console, f"error: {report.error}", style="red")
    if graded:
        seconds = sum(report.seconds for report in reports)
        jails = ", ".join(sorted({report.jail for report in graded}))
        seed = graded[0].seed
        _plain(console, f"{seconds:.1f} s of runs; jail: {jails}; the hidden cases came from --seed {seed}")
        if gap := protection.available().gap(ANSWERS):
            _plain(console, f"note: {gap}")


def _plain(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _show_one(console: Console, report: NotebookReport) -> None:
    title = f"{report.path}: {report.points} of {report.out_of} points ({report.percent} %)"
    table = Table(title=Text(title), title_justify="left", title_style="bold")
    for heading in ("exercise", "status", "points", "title"):
        table.add_column(heading)
    for e in report.exercises:
        table.add_row(e.exercise_id, e.status, f"{e.points}/{e.out_of}", e.title, style=STYLES.get(e.status, ""))
    console.print(table)
    for text in [*(e.message for e in report.exercises if e.message), *(f"note: {note}" for note in report.notes)]:
        _plain(console, text)


def _class_table(chapter: str, reports: list[NotebookReport]) -> Table:
    title = f"{chapter}: {len(reports)} notebooks. ✓ passed, – not started; messages: --json, --csv"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("student")
    for e in reports[0].exercises:
        table.add_column(e.exercise_id)
    table.add_column("points", justify="right")
    table.add_column("%", justify="right")
    for report in sorted(reports, key=lambda r: (r.student.casefold(), r.path)):
        marks = [Text(SHORT.get(e.status, e.status), style=STYLES.get(e.status, "")) for e in report.exercises]
        table.add_row(Text(report.student), *marks, f"{report.points}/{report.out_of}", str(report.percent))
    return table
