"""What the instructor page and the files for GitHub Classroom say is what the code does. Starts no kernel."""

import re

import pytest
import yaml
from typer.testing import CliRunner

from mini_vllm.cli import app
from mini_vllm.grading import command, judging, report, run_folder, submissions
from mini_vllm.grading.limits import Limits

from .classes import ROOT

PAGE = (ROOT / "book" / "instructors.md").read_text(encoding="utf-8")
CLASSROOM = ROOT / ".github" / "classroom"
HELP = CliRunner().invoke(app, ["grade", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output


def first_columns(heading: str) -> list[str]:
    """The first cells of the table that begins with this heading."""
    table = PAGE.split(f"| {heading} |")[1].split("\n\n")[0]
    return [line.split("|")[1].strip() for line in table.splitlines()[2:]]


def test_every_status_is_explained():
    known = {getattr(judging, name) for name in ("PASS", "WRONG", "ERROR", "TIMEOUT", "MISSING")}
    known |= {getattr(report, name) for name in ("REFERENCE_USED", "TAMPERED", "SKIPPED")}
    assert set(first_columns("status")) == known


def test_every_option_is_there_and_explained():
    on_page = set(re.findall(r"--[a-z-]+", " ".join(first_columns("option"))))
    in_help = set(re.findall(r"--[a-z][a-z-]+", HELP)) - {"--help"}
    assert on_page == in_help, HELP


def test_exit_codes():
    assert first_columns("exit code") == ["0", "1", "2"]
    assert (command.ALL_GRADED, command.SOME_NOT_GRADED, command.NOTHING_GRADED) == (0, 1, 2)
    assert "0 all could be graded" in HELP and "2 nothing was graded" in HELP


def test_the_limits_are_those_of_the_code():
    limits = Limits()
    said = (
        f"{limits.run_s} s for a run of one notebook, {limits.cell_s} s for a cell, {limits.calls_s} s for all "
        f"calls of one check, {limits.memory_mb} MiB for all processes together, {limits.processes} processes beside "
        f"the kernel, {run_folder.MAX_FILE_BYTES >> 20} MiB for one file"
    )
    words = " ".join(PAGE.split())
    assert said in words
    assert f"at most {run_folder.MAX_THREADS} threads" in words
    assert f"larger than {submissions.MAX_NOTEBOOK_BYTES // 1_000_000} MB" in words


# The numbers are those in the names of the tests.
REPORTS = {
    "c01": "computationalmodelling/nbval/issues/41",
    "c02": "MDAnalysis/UserGuide/issues/357",
    "c04": "jupyter/nbgrader/pull/1324",
    "c06": "kaist-cp/cs420/issues/213",
    "c07": "jupyter/nbgrader/issues/108",
    "c08": "jupyter-book/jupyter-book/issues/1991",
    "c09": "jupyter-book/jupyter-book/issues/613",
    "c11": "TransformerLensOrg/TransformerLens/issues/1080",
    "c13": "microsoft/dion/pull/37",
    "c15": "jupyter/nbgrader/issues/6",
}


@pytest.mark.parametrize("number", REPORTS)
def test_every_public_report_has_a_test_or_a_reason(number):
    (row,) = [line for line in PAGE.splitlines() if f"https://github.com/{REPORTS[number]})" in line]
    paths = re.findall(r"`(tests/[\w/.]+)`", row)
    assert paths and all((ROOT / path).exists() for path in paths), row
    if "not the grader" not in row:
        assert any(f"def test_{number}_" in (ROOT / path).read_text(encoding="utf-8") for path in paths), row


def test_every_public_report_is_linked_and_one_a_row_is_dated():
    rows = PAGE.split("| about, and its test | reports |")[1].split("\n\n")[0].splitlines()[2:]
    assert len(rows) == len(REPORTS)
    for row in rows:
        about, reports = row.strip("|").split("|")
        links = re.findall(r"\[[\w. -]*#(\d+)\]\(https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/(\d+)\)", reports)
        assert links and len(links) == reports.count("#") and all(shown == number for shown, number in links), row
        assert re.search(r"\) \(20\d\d\)", reports) and not re.search(r"\bc\d\d\b", about.split("<br>")[0]), row


def test_the_classroom_workflow_is_wired_up():
    text = (CLASSROOM / "classroom.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    job = workflow["jobs"]["run-autograding-tests"]
    steps = {step.get("id") or step.get("name") or step["uses"]: step for step in job["steps"]}
    assert workflow["permissions"]["checks"] == "write", "the reporter writes the points into a check"
    assert "github-classroom[bot]" in job["if"]
    graded = steps["grade"]["run"]
    (line,) = [line for line in graded.splitlines() if "mini-vllm" in line]
    assert line.endswith('|| test -s "$RUNNER_TEMP/results.json"'), "ungradable files are a report, not a failure"
    assert graded.count("results.json") == graded.count("$RUNNER_TEMP/results.json"), "not in the student's folder"
    options = re.findall(r"--[a-z-]+", line)
    assert options == ["--require-jail", "--classroom"] and all(option in HELP for option in options)
    assert '>> "$GITHUB_OUTPUT"' in graded and "result=" in graded
    report_step = steps["Report"]
    runner = report_step["with"]["runners"]
    assert report_step["env"] == {f"{runner.upper()}_RESULTS": "${{ steps.grade.outputs.result }}"}
    assert '"every-step-a-new-batch[grading] @ $GRADER"' in text


def test_the_container_needs_nothing_but_the_grader():
    text = (CLASSROOM / "Containerfile").read_text(encoding="utf-8")
    assert "chmod -R o-rwx" in text and '"--require-jail"' in text and "[grading]" in text
    assert "literalinclude} ../.github/classroom/Containerfile" in PAGE
    assert "literalinclude} ../.github/classroom/classroom.yml" in PAGE
