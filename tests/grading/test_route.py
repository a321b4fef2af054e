"""The notebook route, once: overlay, fresh process, nbval, verdict outside. Knows chapter 1's answers."""

import json

import pytest

from mini_vllm.errors import GradingError
from mini_vllm.grading.command import grade_command
from mini_vllm.grading.grader import grade_paths
from mini_vllm.grading.overlay import (
    code_cell,
    code_cells,
    fill_in,
    find_answers,
    find_pristine,
    read_notebook,
    source_of,
)

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
    graded = grade_paths([folder], seed=5, timeout_s=60, workers=2)
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
    assert "this is not an exercise notebook" in reports["07"].error and "# EXERCISE c01-e1" in reports["07"].error


def test_a_chapter_is_no_exercise_notebook_and_is_told_so_once(capsys):
    assert grade_command([ROOT / "notebooks" / NAME]) == 1
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("this is not an exercise notebook") == 1
    assert "missing" not in printed.out


def test_an_unknown_chapter_names_its_exercises():
    nb = {"cells": [code_cell("# EXERCISE c77-e1\n")], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    with pytest.raises(GradingError, match=r"no notebook with c77-e1 in this mini_vllm; is it older"):
        find_pristine(ROOT / "x.ipynb", nb, None)


def test_command_writes_json_and_its_exit_code_is_about_grading(tmp_path, capsys):
    save(fill_in(BLANK, {"c01-e1": "x = 1", "c01-e2": "def bucket(:"}), tmp_path / "a.ipynb")
    code = grade_command([tmp_path / "a.ipynb"], tmp_path / "report.json", 3, 60)
    assert code == 0
    report = json.loads((tmp_path / "report.json").read_text())["notebooks"][0]
    assert (report["seed"], report["points"], report["out_of"]) == (3, 0, 60)
    assert [e["status"] for e in report["exercises"]] == ["missing", "missing", "missing", "missing"]
    assert "0 of 60 points (0 %)" in capsys.readouterr().out
    assert grade_command([tmp_path / "nowhere.ipynb"], None, None, 60) == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "b.ipynb").write_text("[]")
    assert grade_command([tmp_path / "b.ipynb"], None, None, 60) == 1
    assert grade_command([tmp_path / "b.ipynb"], None, None, 60, tmp_path / "none") == 2


HELPED = "# EXERCISE c01-e1\ndef static_waste(output_lens, batch_size):\n    return helper(output_lens, batch_size)\n"


def test_graded_in_place_is_graded_alike(tmp_path):
    """A learner works in exercises/ itself: helper cells are missing, play cells do not run, a blank is a blank."""
    source = find_answers(read_notebook(ROOT / "solutions" / NAME)).sources["c01-e1"]
    nb = fill_in(BLANK, {"c01-e1": HELPED, "c01-e2": MUTANTS["e2-shortest-first"].source})
    nb["cells"] = [cell for cell in nb["cells"] if "check(" not in source_of(cell)]
    nb["cells"].insert(3, code_cell("play = 1 / 0"))
    nb["cells"].insert(3, code_cell(source.replace("# EXERCISE c01-e1", "").replace("static_waste", "helper")))
    reports = []
    for folder in ("exercises", "work"):
        (tmp_path / folder).mkdir()
        save(nb, tmp_path / folder / NAME)
        reports.append(grade_paths([tmp_path / folder / NAME], seed=1, timeout_s=60)[0])
    for report in reports:
        assert statuses(report) == ["error", "wrong", "missing", "missing"], report
        assert "name 'helper' is not defined" in report.exercises[0].message
        assert "cells without a marker are not graded" in report.exercises[0].message
        assert "not started yet" in report.exercises[3].message
    report = grade_paths([tmp_path / "work" / NAME], seed=1, timeout_s=60, pristine=tmp_path / "work")[0]
    assert "leave --pristine out" in report.error


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """Messages about cells that do not run, or define something else."""
    cells = {
        "a": {
            "c01-e1": "def static_wast(output_lens, batch_size):\n    return 0",
            "c01-e2": "",
            "c01-e3": "\nclass Slot:\n    pass\ncontinuous = None",
            "c01-b1": "def deliver(plan, rows, sampled, prompt_left)\n    return {}",
        },
        "b": {
            "c01-e1": "waste = 0.3",
            "c01-e2": "  def bucket(a, b):\nreturn 3",
            "c01-e3": "import numpyy\ndef continuous_schedule(a, b):\n    return []",
            "c01-b1": "deliver = {}",
        },
    }
    folder = tmp_path_factory.mktemp("broken")
    for name, sources in cells.items():
        marked = {i: f"# EXERCISE {i}\n{source}" for i, source in sources.items()}
        save(fill_in(BLANK, marked), folder / f"{name}.ipynb")
    reports = grade_paths([folder], seed=1, timeout_s=60, workers=2)
    return {name: {e.exercise_id: e for e in r.exercises} for name, r in zip(cells, reports, strict=True)}


@pytest.mark.parametrize(
    ("notebook", "exercise_id", "status", "first_line"),
    [
        ("a", "c01-e1", "error", "✗ your cell defines static_wast; static_waste is asked for"),
        ("a", "c01-e2", "missing", "– not started yet: your cell is empty; bucket is asked for."),
        ("a", "c01-e3", "error", "✗ your cell defines Slot; continuous_schedule is asked for"),
        ("a", "c01-b1", "error", "✗ your cell does not run: SyntaxError: expected ':' (line 2)"),
        ("b", "c01-e1", "error", "✗ your cell defines no function; static_waste is asked for"),
        ("b", "c01-e2", "error", "✗ your cell does not run: IndentationError: unexpected indent (line 2)"),
        ("b", "c01-e3", "error", "✗ your cell does not run: ModuleNotFoundError: No module named 'numpyy' (line 2)"),
        ("b", "c01-b1", "error", '✗ the second argument is dict, not a function; write check("c01-b1", deliver)'),
    ],
)
def test_a_cell_that_does_not_run_is_told_why_in_one_clean_line(broken, notebook, exercise_id, status, first_line):
    report = broken[notebook][exercise_id]
    assert report.status == status
    assert report.message.splitlines()[0] == f"{exercise_id} {first_line}"
    assert "[0m" not in report.message and "x1B" not in report.message
