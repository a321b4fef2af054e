"""What `mini-vllm grade` prints and writes. Knows tables and files; the grading is in `grader`. All chapters."""

import json
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from mini_vllm.errors import GradingError
from mini_vllm.grading.grader import NotebookReport, expand, grade_paths


def grade_command(
    paths: list[Path],
    json_out: Path | None = None,
    seed: int | None = None,
    timeout_s: int = 120,
    pristine: Path | None = None,
) -> int:
    """Grade, print one table, write JSON if asked to. 0 when every notebook could be graded, whatever its marks."""
    if timeout_s < 4:
        print(f"error: timeout_s={timeout_s} is below 4 s, in which no kernel starts; leave it out", file=sys.stderr)
        return 2
    try:
        notebooks = expand(paths)
        with _progress(len(notebooks)) as on_done:
            reports = grade_paths(notebooks, seed=seed, timeout_s=timeout_s, pristine=pristine, on_done=on_done)
        if json_out:
            _write_json(json_out, reports)
    except GradingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _print_table(reports)
    return 1 if any(report.error for report in reports) else 0


def _write_json(path: Path, reports: list[NotebookReport]) -> None:
    text = json.dumps({"notebooks": [report.to_json() for report in reports]}, indent=1, ensure_ascii=False)
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise GradingError(f"cannot write the report to {path}: {error.strerror}; choose another file") from error


@contextmanager
def _progress(total: int):
    """A bar for a class folder, where rich is there and somebody watches; a line a notebook otherwise."""
    if total < 2:
        yield lambda report: None
        return
    if find_spec("rich") is None or not sys.stderr.isatty():
        yield lambda report: print(f"{report.path}: {report.mark}", file=sys.stderr)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("grading", total=total)
        yield lambda report: bar.advance(task)


def _rows(report: NotebookReport) -> list[tuple[str, str, str, str]]:
    return [(e.exercise_id, e.status, f"{e.points}/{e.out_of}", e.title) for e in report.exercises]


def _print_table(reports: list[NotebookReport]) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        _print_plain(reports)
        return
    console = Console()
    for report in reports:
        if report.error:
            console.print(f"error: {report.error}", style="red", markup=False, highlight=False, soft_wrap=True)
            continue
        title = f"{report.path}: {report.points} of {report.out_of} points ({report.percent} %)"
        table = Table(title=title, title_justify="left", title_style="bold")
        for heading in ("exercise", "status", "points", "title"):
            table.add_column(heading)
        for row in _rows(report):
            table.add_row(*row, style="green" if row[1] == "pass" else "")
        console.print(table)
        for text in _texts(report):
            console.print(text, markup=False, highlight=False, soft_wrap=True)


def _print_plain(reports: list[NotebookReport]) -> None:
    for report in reports:
        if report.error:
            print(f"error: {report.error}")
            continue
        print(f"{report.path}: {report.points} of {report.out_of} points ({report.percent} %)")
        for exercise_id, status, points, title in _rows(report):
            print(f"  {exercise_id:8}{status:16}{points:>8}  {title}")
        for text in _texts(report):
            print(text)


def _texts(report: NotebookReport) -> list[str]:
    """What stands under the table: messages, notes, and how to repeat the run."""
    texts = [e.message for e in report.exercises if e.message] + [f"note: {note}" for note in report.notes]
    return [*texts, f"{report.seconds} s; the hidden cases came from --seed {report.seed}"]
