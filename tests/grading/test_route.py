"""The notebook route, once: overlay, fresh process, nbval, verdict outside. Knows chapter 1's answers."""

import json

import pytest

from mini_vllm.grading.command import grade_command
from mini_vllm.grading.grader import grade_paths
from mini_vllm.grading.overlay import code_cells, fill_in, read_notebook, source_of

from .conftest import ROOT, load, unwrapped

NAME = "01-static-batching.ipynb"
BLANK = read_notebook(ROOT / "exercises" / NAME)
MUTANTS = load("mutants", "ch01", "MUTANTS")
ALTERNATIVES = load("alternatives", "ch01", "ALTERNATIVES")
ONE_MUTANT_EACH = ("e1-mean-of-wastes", "e2-shortest-first", "e3-slot-one-step-late", "b1-rows-only")
ONE_ALTERNATIVE_EACH = ("e1-step-by-step", "e2-part-filled-batch-first", "e3-slots-by-number", "b1-by-index")


def save(nb: dict, path) -> None:
    path.write_text(json.dumps(nb), encoding="utf-8")


def saved_after_a_run(nb: dict) -> dict:
    """As if the learner had run it: the check cells show what the wrong answer gave, as if it were right."""
    for number, cell in enumerate(code_cells(nb), start=1):
        cell["execution_count"] = number
        if "check(" in source_of(cell):
            cell["source"] = source_of(cell).replace("check(", "print('fine') #")
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": "fine\n"}]
    return nb


def as_colab_4_0_with_crlf(nb: dict) -> dict:
    """No ids, no tags, nbformat 4.0, Windows line ends, one cell twice with the older version first."""
    cells = []
    for cell in nb["cells"]:
        cell = {**cell, "metadata": {}, "source": source_of(cell).replace("\n", "\r\n")}
        cell.pop("id", None)
        if "EXERCISE c01-b1" in cell["source"]:
            cells.append({**cell, "source": "# EXERCISE c01-b1\r\ndef deliver(*a): return 1"})
        cells.append(cell)
    return {**nb, "cells": cells, "nbformat": 4, "nbformat_minor": 0, "metadata": {"colab": {"provenance": []}}}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class")
    wrong = fill_in(BLANK, {MUTANTS[n].exercise_id: MUTANTS[n].source for n in ONE_MUTANT_EACH})
    other = fill_in(BLANK, {ALTERNATIVES[n][0]: ALTERNATIVES[n][2] for n in ONE_ALTERNATIVE_EACH})
    save(read_notebook(ROOT / "solutions" / NAME), folder / "01-solution.ipynb")
    save(BLANK, folder / "02-blank.ipynb")
    save(wrong, folder / "03-mutants.ipynb")
    save(saved_after_a_run(wrong), folder / "04-saved-wrong.ipynb")
    save(as_colab_4_0_with_crlf(other), folder / "05-colab.ipynb")
    (folder / "06-broken.ipynb").write_text("{", encoding="utf-8")
    save({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, folder / "07-empty.ipynb")
    graded = grade_paths([folder], seed=5, timeout_s=60, pristine=ROOT / "exercises", workers=2)
    return {report.path.rsplit("/", 1)[-1][:2]: report for report in graded}


def statuses(report) -> list[str]:
    return [exercise.status for exercise in report.exercises]


def test_solution_gets_everything(reports):
    assert statuses(reports["01"]) == ["pass"] * 4, reports["01"]
    assert (reports["01"].points, reports["01"].percent) == (60, 100)


def test_blank_gets_nothing_and_is_told_so_kindly(reports):
    assert statuses(reports["02"]) == ["missing"] * 4
    assert reports["02"].percent == 0
    assert all("not started yet" in exercise.message for exercise in reports["02"].exercises)


def test_mutants_are_red_and_told_their_mistake(reports):
    assert statuses(reports["03"]) == ["wrong"] * 4
    for exercise, name in zip(reports["03"].exercises, ONE_MUTANT_EACH, strict=True):
        assert MUTANTS[name].says in unwrapped(exercise.message)


def test_saved_wrong_answers_are_red(reports):
    assert statuses(reports["04"]) == ["wrong"] * 4
    assert reports["04"].percent == 0


def test_other_right_answers_survive_colab_and_windows(reports):
    assert statuses(reports["05"]) == ["pass"] * 4, reports["05"]
    assert "2 cells are marked # EXERCISE c01-b1; the last one counts" in reports["05"].notes[0]


def test_unreadable_files_are_said_and_stop_nobody(reports):
    assert "no notebook (not JSON" in reports["06"].error
    assert "# EXERCISE c01-e1" in reports["07"].error


def test_command_writes_json_and_its_exit_code_is_about_grading(tmp_path, capsys):
    save(fill_in(BLANK, {"c01-e1": "x = 1", "c01-e2": "def bucket(:"}), tmp_path / "a.ipynb")
    code = grade_command([tmp_path / "a.ipynb"], tmp_path / "report.json", 3, 60, ROOT / "exercises")
    assert code == 0
    report = json.loads((tmp_path / "report.json").read_text())["notebooks"][0]
    assert (report["seed"], report["points"], report["out_of"]) == (3, 0, 60)
    assert [e["status"] for e in report["exercises"]] == ["missing", "missing", "missing", "missing"]
    assert "0 of 60 points (0 %)" in capsys.readouterr().out
    assert grade_command([tmp_path / "nowhere.ipynb"], None, None, 60, ROOT / "exercises") == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "b.ipynb").write_text("[]")
    assert grade_command([tmp_path / "b.ipynb"], None, None, 60, ROOT / "exercises") == 1
    assert grade_command([tmp_path / "b.ipynb"], None, None, 60, tmp_path / "none") == 2


def test_a_pristine_file_that_was_worked_in_loses_no_check(tmp_path):
    """Learners edit exercises/ itself: check cells come from the package, not from the file."""
    folder = tmp_path / "exercises"
    folder.mkdir()
    nb = fill_in(BLANK, {MUTANTS["e1-mean-of-wastes"].exercise_id: MUTANTS["e1-mean-of-wastes"].source})
    nb = fill_in(nb, {"c01-b1": ALTERNATIVES["b1-by-index"][2]})
    nb["cells"] = [cell for cell in nb["cells"] if "check(" not in source_of(cell)]
    nb["cells"].insert(3, {"cell_type": "code", "metadata": {}, "outputs": [], "source": "my_scratch = 1 / 0"})
    save(nb, folder / NAME)
    report = grade_paths([folder / NAME], seed=1, timeout_s=60, pristine=folder)[0]
    assert statuses(report) == ["wrong", "missing", "missing", "pass"], report
