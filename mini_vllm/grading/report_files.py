"""Reports for other programs: JSON, a spreadsheet, Gradescope, GitHub Classroom. Grades nothing. All chapters."""

import csv
import io
import json
from collections.abc import Collection
from pathlib import Path

from mini_vllm.errors import GradingError
from mini_vllm.grading.judging import PASS
from mini_vllm.grading.report import NotebookReport

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
GRADESCOPE_OUTPUT_CHARS, CLASSROOM_VERSION = 20_000, 1


def as_json(reports: list[NotebookReport]) -> str:
    """Everything. The same bytes for the same notebooks and seed."""
    return json.dumps({"notebooks": [r.to_json() for r in reports]}, indent=1, ensure_ascii=False) + "\n"


def as_csv(reports: list[NotebookReport]) -> str:
    """One row a notebook: points, and for each exercise points and status. Opens in Excel, LibreOffice, Google Sheets.

    Begins with a byte order mark, without which Excel takes UTF-8 for Latin-1.
    """
    ids = sorted({e.exercise_id for r in reports for e in r.exercises}, key=_chapter_then_kind)
    text = io.StringIO(newline="")
    write = csv.writer(text).writerow
    columns = [column for i in ids for column in (f"{i} points", f"{i} status")]
    write(["student", "chapter", "points", "out of", "percent", *columns, "seed", "file", "notes"])
    for report in sorted(reports, key=lambda r: (r.student.casefold(), r.chapter, r.path)):
        by_id = {e.exercise_id: e for e in report.exercises}
        cells: list[object] = []
        for i in ids:
            cells += [by_id[i].points, by_id[i].status] if i in by_id else ["", ""]
        totals = ["", "", ""] if report.error else [report.points, report.out_of, report.percent]
        notes = " | ".join([report.error] if report.error else report.notes)
        last = [report.seed, _cell(report.path), _cell(notes)]
        write([_cell(report.student), _cell(report.chapter), *totals, *cells, *last])
    return "\ufeff" + text.getvalue()


def _chapter_then_kind(exercise_id: str) -> tuple[str, bool, str]:
    """c01-e1, c01-e2, …, c01-b1, c02-e1: as they stand in the notebooks."""
    chapter, _, rest = exercise_id.partition("-")
    return chapter, rest.startswith("b"), rest


def _cell(text: str) -> str:
    """Text that no spreadsheet takes for a formula: a student named "=HYPERLINK(…)" stays a name."""
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA_STARTS) else text


def refuse_several(students: Collection[str]) -> None:
    if len(students) > 1:
        first, second, *more = sorted(students)
        raise GradingError(
            f"Gradescope takes one submission a file, and these are of {len(students)} students ({first}, {second}"
            f"{', …' if more else ''}); give the notebooks of one, or use --csv for a class"
        )


def as_gradescope(reports: list[NotebookReport]) -> str:
    """results.json of one submission: https://gradescope-autograders.readthedocs.io/en/latest/specs/"""
    refuse_several({report.student for report in reports if not report.error})
    tests = [
        {
            "name": f"{e.exercise_id} {e.title}",
            "number": e.exercise_id,
            "score": e.points,
            "max_score": e.out_of,
            "status": "passed" if e.status == PASS else "failed",
            "output": (e.message or e.status)[:GRADESCOPE_OUTPUT_CHARS],
            "output_format": "text",
            "visibility": "visible",
        }
        for report in reports
        for e in report.exercises
    ]
    words = [text for report in reports for text in [*([report.error] if report.error else []), *report.notes]]
    results = {
        "score": sum(report.points for report in reports),
        "execution_time": round(sum(report.seconds for report in reports)),
        "output": "\n".join(words),
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "extra_data": {"seed": reports[0].seed if reports else None},
        "tests": tests,
    }
    return json.dumps(results, indent=1, ensure_ascii=False) + "\n"


def as_classroom(reports: list[NotebookReport]) -> str:
    """What GitHub Classroom's grading reporter reads (in base64): points and a message for each exercise."""
    tests = [
        {
            "name": f"{e.exercise_id} {e.title}",
            "status": "pass" if e.status == PASS else "fail",
            "score": e.points,
            "message": e.message or None,
            "test_code": "",
            "filename": report.path,
            "line_no": 0,
            "duration": 0,
        }
        for report in reports
        for e in report.exercises
    ]
    tests += [
        {"name": r.path, "status": "error", "score": 0, "message": r.error, "test_code": "", "duration": 0}
        for r in reports
        if r.error
    ]
    failed = any(test["status"] != "pass" for test in tests)
    results = {
        "version": CLASSROOM_VERSION,
        "status": "fail" if failed else "pass",
        "max_score": sum(report.out_of for report in reports),
        "tests": tests,
    }
    return json.dumps(results, ensure_ascii=False) + "\n"


def write(path: Path, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise GradingError(f"cannot write the report to {path}: {error.strerror}; choose another file") from error
