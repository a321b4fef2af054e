"""Whose notebook it is, and files that are none: each is named, and the others go on. Starts no kernel."""

import json
import os
from pathlib import Path

import pytest

from mini_vllm.errors import GradingError
from mini_vllm.grading import submissions
from mini_vllm.grading.command import Options, grade_command
from mini_vllm.grading.grader import Grader
from mini_vllm.grading.limits import Limits
from mini_vllm.grading.pristine import load_all
from mini_vllm.grading.submissions import collect, student_of, students_to_grade

from .classes import BLANK, NAME, save

EMPTY_NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.mark.parametrize(
    ("path", "student"),
    [
        ("01-static-batching.ipynb", "class"),
        ("ada.ipynb", "ada"),
        ("ada_01-static-batching.ipynb", "ada"),
        ("01-static-batching-ada.ipynb", "ada"),
        ("01-static-batching (1).ipynb", "class"),
        ("ada 01-static-batching-Copy1.ipynb", "ada"),
        ("ada/01-static-batching.ipynb", "ada"),
        ("ada/week1/01-static-batching.ipynb", "ada"),
        ("Ada Lovelace_123456_assignsubmission_file_/01-static-batching.ipynb", "Ada Lovelace"),
        ("Ada Lovelace_123456_assignsubmission_file_01-static-batching.ipynb", "Ada Lovelace"),
        ("lovelaceada_12345_67890_01-static-batching.ipynb", "lovelaceada"),
        ("lovelaceada_LATE_12345_67890_01-static-batching-1.ipynb", "lovelaceada"),
        ("Åsa Öberg_李.ipynb", "Åsa Öberg_李"),
        ("=HYPERLINK(1).ipynb", "=HYPERLINK"),
    ],
)
def test_student(path, student):
    assert student_of(Path("x/class") / path, Path("x/class")) == student


def test_a_folder_is_read_in_order_and_every_file_once(tmp_path):
    for name in ("b/01.ipynb", "a/01.ipynb", "a/.ipynb_checkpoints/01.ipynb", "a/._01.ipynb", "c.txt", "z.ipynb"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "again.ipynb").symlink_to(tmp_path / "z.ipynb")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    found = collect([tmp_path, tmp_path / "z.ipynb"])
    assert [Path(s.path).relative_to(tmp_path).as_posix() for s in found] == [
        "again.ipynb",
        "a/01.ipynb",
        "b/01.ipynb",
    ]


def bad_files(folder: Path) -> dict[str, str]:
    """Writes one of each; name -> what must be said of it."""
    texts = {
        "empty": (b"", "is empty"),
        "blank": (b" \n", "is empty"),
        "json": (b"{", "no notebook (not JSON"),
        "deep": (b"[" * 100_000, "no notebook (not JSON"),
        "list": (b"[]", "has no list of cells"),
        "latin": ('{"cells": "é"}'.encode("latin-1"), "no UTF-8 text"),
        "utf16": ("\ufeff" + json.dumps(EMPTY_NOTEBOOK)).encode("utf-16"),
        "old": (json.dumps({"worksheets": [], "nbformat": 3}).encode(), "has no list of cells"),
        "new": (json.dumps({**EMPTY_NOTEBOOK, "nbformat": 5}).encode(), "in notebook format 5"),
        "none": (json.dumps(EMPTY_NOTEBOOK).encode(), "this is not an exercise notebook"),
        "odd": (json.dumps({**EMPTY_NOTEBOOK, "cells": [1, None, {"cell_type": "code", "source": 3}]}).encode(),
                "this is not an exercise notebook"),
    }  # fmt: skip
    texts["utf16"] = (texts["utf16"], "no UTF-8 text")  # type: ignore[assignment]
    for name, (data, _) in texts.items():
        (folder / f"{name}.ipynb").write_bytes(data)
    (folder / "loop.ipynb").symlink_to("loop.ipynb")
    (folder / "gone.ipynb").symlink_to("nowhere")
    (folder / "folder.ipynb").mkdir()
    os.mkfifo(folder / "pipe.ipynb")
    said = {name: says for name, (_, says) in texts.items()}
    return said | {"loop": "cannot be read", "gone": "cannot be read", "pipe": "is no file"}


def test_bad_files_are_named_and_stop_nobody(tmp_path):
    said = bad_files(tmp_path)
    save(BLANK, tmp_path / "good.ipynb")
    grader = Grader(load_all(None), 1, Limits())
    reports = {Path(s.path).stem: grader.grade(s) for s in collect([tmp_path])}
    assert reports.keys() == said.keys() | {"good"}
    for name, says in said.items():
        assert says in reports[name].error and f"{name}.ipynb" in reports[name].error, reports[name]
    assert not reports["good"].error and reports["good"].out_of == 60


def test_a_huge_notebook_is_refused_before_it_is_read(tmp_path, monkeypatch):
    with open(tmp_path / "huge.ipynb", "wb") as file:
        file.truncate(100_000_000)
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("read"))
    (submission,) = collect([tmp_path / "huge.ipynb"])
    assert "has 100 MB and 50 are read; clear its outputs" in submission.error
    assert submissions.MAX_NOTEBOOK_BYTES == 50_000_000


@pytest.mark.parametrize(("name", "says"), [("nowhere.ipynb", "does not exist"), ("", "holds no .ipynb file")])
def test_nothing_to_grade_is_exit_code_2(tmp_path, name, says, capsys):
    assert grade_command([tmp_path / name]) == 2
    assert says in capsys.readouterr().err


def test_some_that_cannot_be_graded_are_exit_code_1(tmp_path, capsys):
    (tmp_path / "bad.ipynb").write_text("[]")
    save(BLANK, tmp_path / "good.ipynb")
    assert grade_command([tmp_path]) == 1
    printed = capsys.readouterr()
    assert printed.out.count("has no list of cells") == 1 and "good" in printed.out


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"cells": [], "nbformat": 4}'])
def test_no_file_that_could_be_graded_is_exit_code_2(tmp_path, content, capsys):
    (tmp_path / "empty.jsonl").write_bytes(content)
    assert grade_command([tmp_path / "empty.jsonl"]) == 2
    assert "empty.jsonl" in capsys.readouterr().out


FILES = ("json", "csv", "gradescope", "classroom")


@pytest.fixture
def nothing_may_be_graded(monkeypatch):
    monkeypatch.setattr(Grader, "grade", lambda *_: pytest.fail("it began to grade"))


@pytest.mark.parametrize("option", FILES)
def test_a_report_is_never_written_over_a_notebook(tmp_path, option, capsys, nothing_may_be_graded):
    bob = save(BLANK, tmp_path / "class" / "bob.ipynb")
    before = bob.read_bytes()
    other_name = tmp_path / "report"
    other_name.symlink_to(bob)
    for paths, target in (([bob], bob), ([tmp_path / "class"], bob), ([bob], other_name)):
        assert grade_command(paths, Options(**{option: target})) == 2
        error = capsys.readouterr().err
        assert error == f"error: --{option} {target} is the file that is read; give another name\n"
    assert bob.read_bytes() == before


@pytest.mark.parametrize("option", FILES)
def test_a_report_that_cannot_be_written_is_exit_code_2(tmp_path, option, capsys, nothing_may_be_graded):
    save(BLANK, tmp_path / "bob.ipynb")
    assert grade_command([tmp_path], Options(**{option: tmp_path / "none" / "x"})) == 2
    assert f"error: --{option} {tmp_path / 'none' / 'x'}: there is no folder" in capsys.readouterr().err


def test_two_reports_in_one_file_are_refused_by_whatever_name(tmp_path, capsys, nothing_may_be_graded):
    save(BLANK, tmp_path / "bob.ipynb")
    marks, other_name = tmp_path / "marks", tmp_path / "other"
    other_name.symlink_to(marks)  # which does not exist yet
    for second in (marks, tmp_path / "." / "marks", tmp_path / "x" / ".." / "marks", other_name):
        (tmp_path / "x").mkdir(exist_ok=True)
        assert grade_command([tmp_path / "bob.ipynb"], Options(csv=second, json=marks)) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: --json {marks} and --csv {second} are one file") and "of its own" in error
    assert not marks.exists()
    marks.touch()
    other_name.unlink()
    other_name.hardlink_to(marks)
    assert grade_command([tmp_path / "bob.ipynb"], Options(gradescope=other_name, json=marks)) == 2
    assert "are one file" in capsys.readouterr().err


def test_reports_may_go_to_different_files_and_all_to_nowhere(tmp_path):
    Options(csv=tmp_path / "marks.csv", json=tmp_path / "marks.json").check_files([])
    Options(csv=Path(os.devnull), json=Path(os.devnull)).check_files([])


def test_a_class_for_gradescope_is_refused_before_it_is_graded(tmp_path, capsys, nothing_may_be_graded):
    for student in ("ada", "bob", "eve"):
        save(BLANK, tmp_path / "class" / student / NAME)
    assert grade_command([tmp_path / "class"], Options(gradescope=tmp_path / "g.json")) == 2
    assert "these are of 3 students (ada, bob, …)" in capsys.readouterr().err
    assert not (tmp_path / "g.json").exists()


def test_a_file_that_cannot_be_read_is_no_student(tmp_path):
    for student, content in (("bob", b""), ("eve", b"{"), ("mia", b"\xff\xfe")):
        (tmp_path / student).mkdir()
        (tmp_path / student / NAME).write_bytes(content)
    (tmp_path / "zoe").mkdir()
    (tmp_path / "zoe" / NAME).symlink_to("nowhere")
    save(BLANK, tmp_path / "ada" / NAME)
    assert students_to_grade(collect([tmp_path])) == {"ada"}


def test_a_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    def walk(top, onerror):
        onerror(PermissionError(13, "Permission denied", str(tmp_path / "private")))
        return iter(())

    monkeypatch.setattr(submissions.os, "walk", walk)
    with pytest.raises(GradingError, match=r"private cannot be read \(Permission denied\)"):
        collect([tmp_path])
