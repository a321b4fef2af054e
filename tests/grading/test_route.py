"""The notebook route, once a chapter: overlay, fresh process, nbval, verdict outside. Knows chapter 1's answers."""

import json

import pytest

from mini_vllm.errors import GradingError
from mini_vllm.grading.command import Options, grade_command
from mini_vllm.grading.overlay import code_cell, fill_in, find_answers, read_notebook, source_of
from mini_vllm.grading.pristine import find_pristine, load_all

from .classes import BLANK, IDS, LONG, NAME, RIGHT, ROOT, SOLVED, by_id, copy_of, graded, save, statuses
from .conftest import load, unwrapped

MUTANTS = load("mutants", "ch01", "MUTANTS")
ALTERNATIVES = load("alternatives", "ch01", "ALTERNATIVES")
ONE_MUTANT_EACH = ("e1-mean-of-wastes", "e2-shortest-first", "e3-slot-one-step-late", "b1-rows-only")
ONE_ALTERNATIVE_EACH = ("e1-step-by-step", "e2-part-filled-batch-first", "e3-slots-by-number", "b1-by-index")
HELPED = "# EXERCISE c01-e1\ndef static_waste(output_lens, batch_size):\n    return helper(output_lens, batch_size)\n"


def helpers_elsewhere() -> dict:
    """Worked on in exercises/ itself: a helper far from its cell, a play cell that fails, one answer wrong."""
    nb = fill_in(BLANK, {"c01-e1": HELPED, "c01-e2": MUTANTS["e2-shortest-first"].source})
    nb["cells"] = [cell for cell in nb["cells"] if "check(" not in source_of(cell)]
    nb["cells"].insert(3, code_cell("play = 1 / 0"))
    helper = RIGHT["c01-e1"].replace("# EXERCISE c01-e1", "").replace("static_waste", "helper")
    nb["cells"].insert(3, code_cell(helper))
    return nb


def with_cells(sources: dict[str, str]) -> dict:
    return fill_in(BLANK, {i: f"# EXERCISE {i}\n{source}" for i, source in sources.items()})


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    other = {ALTERNATIVES[n][0]: ALTERNATIVES[n][2] for n in ONE_ALTERNATIVE_EACH}
    notebooks = {
        "mutants": fill_in(BLANK, {MUTANTS[n].exercise_id: MUTANTS[n].source for n in ONE_MUTANT_EACH}),
        "alternatives": fill_in(BLANK, other),
        "in-place": helpers_elsewhere(),
        "broken": with_cells(
            {
                "c01-e1": "def static_wast(output_lens, batch_size):\n    return 0",
                "c01-e2": "\n# nothing\n",
                "c01-e3": "class Slot:\n    pass\ndef continuous_schedul(requests, num_slots):\n    return []",
                "c01-b1": "def deliver(plan, rows, sampled, prompt_left)\n    return {}",
            }
        ),
        "odd": with_cells(
            {
                "c01-e1": "waste = 0.3",
                "c01-e2": "  def bucket(a, b):\nreturn 3",
                "c01-e3": "import numpyy\ndef continuous_schedule(a, b):\n    return []",
                "c01-b1": "deliver = {}",
            }
        ),
    }
    return graded(tmp_path_factory.mktemp("route"), notebooks)


@pytest.mark.parametrize("path", sorted((ROOT / "solutions").glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_chapters_solution_passes_the_whole_way(path, tmp_path):
    """Mutants, alternatives and blanks of all chapters are judged in-process; this is the way of a learner's file."""
    (report,) = graded(tmp_path, {path.stem: read_notebook(path)}, LONG).values()
    assert set(statuses(report)) == {"pass"} and report.percent == 100, report
    assert not report.notes, "nor does a cell of the untouched notebook fail"
    assert report.checks_run == report.checks_expected == len(report.exercises)


def test_mutants_are_red_and_told_their_mistake(reports):
    assert statuses(reports["mutants"]) == ["wrong"] * 4
    for exercise, name in zip(reports["mutants"].exercises, ONE_MUTANT_EACH, strict=True):
        assert MUTANTS[name].says in unwrapped(exercise.message)


def test_other_right_answers_pass(reports):
    assert statuses(reports["alternatives"]) == ["pass"] * 4, reports["alternatives"]


def test_helper_cells_far_away_are_missing_and_play_cells_do_not_run(reports):
    report = reports["in-place"]
    assert statuses(report) == ["error", "wrong", "missing", "missing"], report
    assert "name 'helper' is not defined" in report.exercises[0].message
    assert "cells without a marker are not graded" in report.exercises[0].message
    assert "not started yet" in report.exercises[3].message


@pytest.mark.parametrize(
    ("notebook", "exercise_id", "status", "first_line"),
    [
        ("broken", "c01-e1", "error", "✗ your cell defines static_wast; static_waste is asked for"),
        ("broken", "c01-e2", "missing", "– not started yet: your cell is empty; bucket is asked for."),
        (
            "broken",
            "c01-e3",
            "error",
            "✗ your cell defines Slot, continuous_schedul; continuous_schedule is asked for",
        ),
        ("broken", "c01-b1", "error", "✗ your cell does not run: SyntaxError: expected ':' (line 2)"),
        ("odd", "c01-e1", "error", "✗ your cell defines no function; static_waste is asked for"),
        ("odd", "c01-e2", "error", "✗ your cell does not run: IndentationError: unexpected indent (line 2)"),
        ("odd", "c01-e3", "error", "✗ your cell does not run: ModuleNotFoundError: No module named 'numpyy' (line 2)"),
        ("odd", "c01-b1", "error", '✗ the second argument is dict, not a function; write check("c01-b1", deliver)'),
    ],
)
def test_a_cell_that_does_not_run_is_told_why_in_one_clean_line(reports, notebook, exercise_id, status, first_line):
    report = by_id(reports[notebook])[exercise_id]
    assert report.status == status
    assert report.message.splitlines()[0] == f"{exercise_id} {first_line}"
    assert "[0m" not in report.message and "x1b" not in report.message


def test_the_graded_file_is_never_its_own_measure(tmp_path):
    save(copy_of(SOLVED), tmp_path / "work" / NAME)
    with pytest.raises(GradingError, match="leave --pristine out"):
        find_pristine(str(tmp_path / "work" / NAME), SOLVED, load_all(tmp_path / "work"))
    with pytest.raises(GradingError, match=r"holds no \.ipynb file"):
        load_all(tmp_path)


def test_an_unknown_chapter_names_its_exercises():
    nb = {"cells": [code_cell("# EXERCISE c77-e1\n")], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    with pytest.raises(GradingError, match=r"no notebook with c77-e1 in this mini_vllm; is it older"):
        find_pristine("x.ipynb", nb, load_all(None))


def test_a_chapter_is_no_exercise_notebook_and_is_told_so_once(capsys):
    assert grade_command([ROOT / "notebooks" / NAME]) == 2
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("this is not an exercise notebook") == 1
    assert "missing" not in printed.out


def test_one_learner_reads_every_message_and_every_file_is_written(tmp_path, capsys):
    save(fill_in(BLANK, {"c01-e1": "x = 1", "c01-e2": "def bucket(:"}), tmp_path / "a.ipynb")
    files = {name: tmp_path / f"{name}.out" for name in ("json", "csv", "gradescope", "classroom")}
    assert grade_command([tmp_path / "a.ipynb"], Options(**files, seed=3)) == 0
    report = json.loads(files["json"].read_text(encoding="utf-8"))["notebooks"][0]
    assert (report["seed"], report["points"], report["out_of"]) == (3, 0, 60)
    assert [e["status"] for e in report["exercises"]] == ["missing"] * 4
    assert all(path.stat().st_size for path in files.values())
    out = capsys.readouterr().out
    assert "0 of 60 points (0 %)" in out and out.count("no cell is marked # EXERCISE c01-e1") == 1
    assert "--seed 3" in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"timeout_s": 3}, "timeout_s=3 is below 4 s"),
        ({"memory_mb": 100}, "memory_mb=100 is below 256"),
        ({"workers": 0}, "workers=0: 1 or more"),
        ({"pristine": ROOT / "tests"}, "holds no .ipynb file"),
    ],
)
def test_options_that_cannot_work_are_refused(options, says, capsys):
    assert grade_command([ROOT / "exercises" / NAME], Options(**options)) == 2
    assert says in capsys.readouterr().err


def test_the_answers_found_are_those_of_the_solution():
    assert list(find_answers(read_notebook(ROOT / "solutions" / NAME)).sources) == list(IDS)
