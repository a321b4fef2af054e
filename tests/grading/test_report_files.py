"""Reports as other programs read them: a spreadsheet, Gradescope, GitHub Classroom, JSON. Starts no kernel."""

import csv
import io
import json
from dataclasses import replace

import pytest

from mini_vllm.errors import GradingError
from mini_vllm.grading import report_files
from mini_vllm.grading.report import ExerciseReport, NotebookReport, printable

EVIL = '=HYPERLINK("http://evil.example","Ada")'


def report(student: str = "Åsa", chapter: str = "01-static-batching", seconds: float = 3.4) -> NotebookReport:
    number = chapter[:2]
    exercises = [
        ExerciseReport(f"c{number}-e1", "The waste", "pass", 10, 10, ""),
        ExerciseReport(f"c{number}-e10", "Tenth", "wrong", 0, 15, "c01-e10 ✗ 3 of 40\n  line two"),
        ExerciseReport(f"c{number}-b1", "Bug, hunt", "reference used", 0, 15, "-1 is no index"),
    ]
    return NotebookReport(
        f"class/{student}.ipynb", student, 7, chapter, exercises, 3, 3, notes=["a note"], seconds=seconds
    )


def failed(student: str = "Bob") -> NotebookReport:
    return NotebookReport(f"class/{student}.ipynb", student, 7, error="class/Bob.ipynb is empty")


def rows(reports: list[NotebookReport]) -> list[dict[str, str]]:
    text = report_files.as_csv(reports)
    assert text[0] == "\ufeff", "Excel reads UTF-8 only with a byte order mark"
    return list(csv.DictReader(io.StringIO(text[1:])))


def test_the_spreadsheet_has_a_row_a_notebook_and_columns_an_exercise():
    table = rows([report(), failed(), report("ada", "02-roofline")])
    assert [row["student"] for row in table] == ["ada", "Bob", "Åsa"]
    asa = table[2]
    assert list(asa) == [
        *("student", "chapter", "points", "out of", "percent"),
        *("c01-e1 points", "c01-e1 status", "c01-e10 points", "c01-e10 status", "c01-b1 points", "c01-b1 status"),
        *("c02-e1 points", "c02-e1 status", "c02-e10 points", "c02-e10 status", "c02-b1 points", "c02-b1 status"),
        *("seed", "file", "notes"),
    ]
    assert (asa["points"], asa["out of"], asa["percent"], asa["c01-e10 status"]) == ("10", "40", "25", "wrong")
    assert asa["c02-e1 points"] == asa["c02-e1 status"] == ""
    assert table[1]["points"] == "" and table[1]["notes"] == "class/Bob.ipynb is empty"


@pytest.mark.parametrize("name", [EVIL, "+1", "-1+1", "@SUM(A1)", "\tx", "\r=1", "  =1+1", "\n=1"])
def test_no_cell_is_a_formula(name):
    (row,) = rows([replace(report(name), notes=[name])])
    for column in ("student", "notes", "file", "chapter"):
        assert not row[column].lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "\n")), row[column]
    assert row["student"].lstrip("'") == name


def test_gradescope_has_the_fields_of_its_specification():
    result = json.loads(report_files.as_gradescope([report(), report("Åsa", "02-roofline")]))
    assert (result["score"], result["execution_time"], result["visibility"]) == (20, 7, "visible")
    assert result["extra_data"] == {"seed": 7}
    assert len(result["tests"]) == 6
    first, second = result["tests"][:2]
    assert (first["score"], first["max_score"], first["status"], first["number"]) == (10, 10, "passed", "c01-e1")
    assert second["status"] == "failed" and "line two" in second["output"]
    allowed = {
        *("score", "max_score", "status", "name", "name_format", "number", "output", "output_format", "tags"),
        *("visibility", "extra_data"),
    }
    assert all(test.keys() <= allowed for test in result["tests"])
    assert all(test["status"] in ("passed", "failed") for test in result["tests"])


def test_gradescope_takes_one_student_and_says_what_is_wrong_with_a_file():
    with pytest.raises(GradingError, match=r"2 students \(Bob, Åsa\).*--csv"):
        report_files.as_gradescope([report(), report("Bob")])
    with pytest.raises(GradingError, match=r"3 students \(Ada, Bob, …\)"):
        report_files.as_gradescope([report(), report("Bob"), report("Ada")])
    beside = json.loads(report_files.as_gradescope([report(), failed()]))
    assert (beside["score"], beside["output"]) == (10, "a note\nclass/Bob.ipynb is empty")
    result = json.loads(report_files.as_gradescope([failed()]))
    assert (result["score"], result["tests"], result["output"]) == (0, [], "class/Bob.ipynb is empty")


def test_classroom_sums_to_the_points():
    result = json.loads(report_files.as_classroom([report()]))
    assert (result["version"], result["status"], result["max_score"]) == (1, "fail", 40)
    assert sum(test["score"] for test in result["tests"]) == 10
    assert {test["status"] for test in result["tests"]} == {"pass", "fail"}
    assert json.loads(report_files.as_classroom([failed()]))["tests"][0]["message"] == "class/Bob.ipynb is empty"
    passed = replace(report(), exercises=report().exercises[:1])
    assert json.loads(report_files.as_classroom([passed]))["status"] == "pass"


def test_json_is_the_same_whatever_the_time_it_took():
    assert report_files.as_json([report(seconds=1)]) == report_files.as_json([report(seconds=2)])
    entry = json.loads(report_files.as_json([report()]))["notebooks"][0]
    assert (entry["student"], entry["points"], entry["out_of"], entry["percent"]) == ("Åsa", 10, 40, 25)
    assert (entry["checks_run"], entry["checks_expected"]) == (3, 3)


def test_what_a_learner_writes_steers_no_terminal_and_breaks_no_file(tmp_path):
    text = printable("\x1b[31mred\x07 \ud800 \u202egnirts é 李\n\tok")
    assert text == "\\x1b[31mred\\x07 \\xd800 \\x202egnirts é 李\n\tok"
    report_files.write(tmp_path / "x.json", text)


def test_a_report_that_cannot_be_written_is_an_error_with_a_way_out(tmp_path):
    with pytest.raises(GradingError, match=r"cannot write the report to .*choose another file"):
        report_files.write(tmp_path / "no" / "x.json", "{}")
