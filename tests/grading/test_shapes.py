"""Notebooks that editors, Colab, Windows or a slip of the hand have changed. Right answers pass, wrong ones do not.

The ids c01, c02, … in names of tests are those of public reports on notebooks and graders:
c01 an endless loop, or one that prints: tests/cheats/test_cheats_limits_ch01.py
c02 warnings and progress bars: here
c04 silenced tracebacks: tests/cheats/test_cheats_ch01.py
c06 a stub or a wrong answer accepted: here, and all blanks, mutants and alternatives in test_answers_ch01.py
c07 ids and metadata edited: here
c13 no Triton, no GPU: here
c15 the check cell skipped or removed: here
Not about the grader: c08 widgets in the built book (tests/book), c09 a build that hides failures
(tests/repo/test_execute.py), c11 versions on Colab (tests/repo/test_setup_cell.py).
"""

import subprocess
import sys

import pytest

from mini_vllm.grading.overlay import code_cell, code_cells, source_of
from tests.grading.classes import BLANK, IDS, RIGHT, SOLVED, by_id, copy_of, graded, marked, statuses, with_answers

WRONG = {
    "c01-e1": "def static_waste(output_lens, batch_size):\n    return 0.5",
    "c01-e2": "def bucket(output_lens, batch_size):\n    return [[i] for i in range(len(output_lens))]",
    "c01-e3": "def continuous_schedule(requests, num_slots):\n    return [[requests[0][0]]]",
    "c01-b1": "def deliver(plan, rows, sampled, prompt_left):\n    return dict(zip(plan, sampled))[:0]",
}


def wrong() -> dict:
    return with_answers(*(marked(i, source) for i, source in WRONG.items()))


def checks(nb: dict) -> list[dict]:
    return [cell for cell in code_cells(nb) if "NBVAL_CHECK_OUTPUT" in source_of(cell)]


def checks_tampered_with(nb: dict) -> dict:
    """c15: one check deleted, one skipped by a comment, one by a tag, one expects to raise."""
    deleted, commented, tagged, raising = checks(nb)
    nb["cells"].remove(deleted)
    commented["source"] = "# NBVAL_SKIP\n" + source_of(commented)
    tagged["metadata"] = {"tags": ["nbval-skip"]}
    raising["source"] = "# NBVAL_RAISES_EXCEPTION\n" + source_of(raising)
    return nb


def saved_after_a_run(nb: dict) -> dict:
    """The learner ran it: the check cells show what a wrong answer gave, as if it were right."""
    for number, cell in enumerate(code_cells(nb), start=1):
        cell["execution_count"] = number
    for cell in checks(nb):
        cell["source"] = source_of(cell).replace("check(", "print('fine') #")
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": "fine\n"}]
    return nb


def as_colab_on_windows(nb: dict) -> dict:
    """No ids, no tags, nbformat 4.0, widget metadata without its state, Windows line ends, an older cell before one."""
    cells = []
    for cell in nb["cells"]:
        cell = {**cell, "metadata": {"id": "x1", "colab": {}}, "source": source_of(cell).replace("\n", "\r\n")}
        cell.pop("id", None)
        if "EXERCISE c01-b1" in cell["source"]:
            cells.append({**cell, "source": "# EXERCISE c01-b1\r\ndef deliver(*a): return 1"})
        cells.append(cell)
    metadata = {"colab": {"provenance": []}, "widgets": {"application/vnd.jupyter.widget-state+json": {}}}
    return {**nb, "cells": cells, "nbformat": 4, "nbformat_minor": 0, "metadata": metadata}


def split(nb: dict) -> dict:
    """e1: a helper in the cell above; e2: cut in the middle of the function; e3: a helper, and a play cell, below."""
    at = {i: place for place, cell in enumerate(nb["cells"]) for i in IDS if f"# EXERCISE {i}" in source_of(cell)}
    wait, helper = code_cell("limit = 1 / 0"), code_cell("import math\ndef useful(lens):\n    return math.fsum(lens)")
    e1 = RIGHT["c01-e1"].replace("sum(output_lens)", "useful(output_lens)")
    assert e1 != RIGHT["c01-e1"]
    e2 = marked(
        "c01-e2",
        """
def bucket(output_lens, batch_size):
    order = sorted(range(len(output_lens)), key=output_lens.__getitem__, reverse=True)
""",
    )
    rest = "    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]"
    e3 = RIGHT["c01-e3"].rstrip()
    renamed = e3.replace("def continuous_schedule", "def everybody").replace("# EXERCISE c01-e3\n", "")
    call = marked("c01-e3", "def continuous_schedule(requests, num_slots):\n    return everybody(requests, num_slots)")
    new = {
        at["c01-e1"]: [helper, code_cell(e1)],
        at["c01-e2"]: [code_cell(e2), code_cell(rest)],
        at["c01-e3"]: [code_cell(call), wait, code_cell(renamed)],
    }
    cells = [new_cell for place, cell in enumerate(nb["cells"]) for new_cell in new.get(place, [cell])]
    return {**nb, "cells": cells}


def backwards(nb: dict) -> dict:
    """Every cell in reverse order, each answer twice, and no check but one, which is there three times."""
    cells = [cell for cell in reversed(nb["cells"]) if cell not in checks(nb)[1:]]
    return {**nb, "cells": [*cells, *copy_of(nb)["cells"][:8], checks(nb)[0], checks(nb)[0]]}


NOISY = {
    "c01-e1": RIGHT["c01-e1"] + '\nimport warnings\nwarnings.warn("soon gone", DeprecationWarning, stacklevel=2)\n',
    "c01-e2": """
def bucket(output_lens, batch_size):
    import sys, warnings
    warnings.warn("this function is old", FutureWarning)
    print("\\r 50%", end="", file=sys.stderr)
    print("\\r100%")
    order = sorted(range(len(output_lens)), key=output_lens.__getitem__, reverse=True)
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
""",
    "c01-b1": """
import logging, threading
check = "a name that I like"
def deliver(plan, rows, sampled, prompt_left):
    logging.getLogger().warning("delivering")
    threading.Thread(target=print, args=("late",)).start()
    return {name: token for name, token in zip(rows, sampled) if prompt_left[name] == 0}
""",
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return graded(
        tmp_path_factory.mktemp("shapes"),
        {
            "solved": copy_of(SOLVED),
            "blank": copy_of(BLANK),
            "c15-wrong": checks_tampered_with(wrong()),
            "saved-wrong": saved_after_a_run(wrong()),
            "c07-colab": as_colab_on_windows(copy_of(SOLVED)),
            "split": split(with_answers()),
            "backwards": backwards(with_answers()),
            "c02-noisy": with_answers(*(marked(i, source) for i, source in NOISY.items())),
        },
    )


def test_c06_the_solution_gets_everything_and_the_stub_nothing(reports):
    assert statuses(reports["solved"]) == ["pass"] * 4, reports["solved"]
    assert (reports["solved"].points, reports["solved"].percent) == (60, 100)
    assert (reports["solved"].checks_expected, reports["solved"].checks_run) == (4, 4)
    assert statuses(reports["blank"]) == ["missing"] * 4
    assert all("not started yet" in e.message for e in reports["blank"].exercises)
    assert (reports["blank"].checks_expected, reports["blank"].checks_run) == (0, 0)


def test_c15_skipped_and_deleted_checks_help_nobody(reports):
    report = reports["c15-wrong"]
    assert statuses(report) == ["wrong", "wrong", "wrong", "error"]
    assert report.notes == [
        "the check cell of c01-e1 is gone; the original one was used",
        "the check cell of c01-e2 was changed; the original one was used",
        "the check cell of c01-e3 is tagged nbval-skip; the original one was used",
        "the check cell of c01-b1 was changed; the original one was used",
    ]
    assert report.checks_run == report.checks_expected == 4


def test_saved_wrong_outputs_are_no_reference(reports):
    assert statuses(reports["saved-wrong"]) == ["wrong", "wrong", "wrong", "error"]


def test_c07_ids_tags_and_line_ends_do_not_matter(reports):
    assert statuses(reports["c07-colab"]) == ["pass"] * 4, reports["c07-colab"]
    assert reports["c07-colab"].notes == [
        "2 cells are marked # EXERCISE c01-b1; the last one counts, delete the others"
    ]


def test_c07_a_split_answer_is_put_together_again(reports):
    assert statuses(reports["split"]) == ["pass"] * 4, reports["split"]
    assert [note for note in reports["split"].notes if "put together" in note] == [
        f"{i} was put together from 2 cells; make them one cell" for i in IDS[:3]
    ]


def test_order_and_copies_do_not_matter(reports):
    assert statuses(reports["backwards"]) == ["pass"] * 4, reports["backwards"]


def test_c02_warnings_and_progress_bars_change_no_verdict(reports):
    assert statuses(reports["c02-noisy"]) == ["pass"] * 4, reports["c02-noisy"]


def test_c13_exercises_of_scheduling_need_no_torch_and_no_triton():
    code = """
import sys
class Blocked:
    def find_spec(self, name, *where):
        if name.partition(".")[0] in ("torch", "triton"):
            raise ImportError(f"{name} is not installed")
sys.meta_path.insert(0, Blocked())
import mini_vllm, mini_vllm.batching, mini_vllm.core.scheduler, mini_vllm.grading
from mini_vllm.grading.bank import find_exercise
print(find_exercise("c01-e1").missing_packages)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_c13_an_exercise_without_its_packages_is_skipped_never_passed(monkeypatch, tmp_path):
    from mini_vllm.grading import bank
    from mini_vllm.grading.exercise import Exercise

    plain = bank.find_exercise("c01-e1")
    needy = Exercise(**{**vars(plain), "packages": ("triton_that_nobody_has",)})
    monkeypatch.setattr(bank.chapter_module("ch01"), "EXERCISES", (needy,))
    report = by_id(graded(tmp_path, {"solved": copy_of(SOLVED)})["solved"])["c01-e1"]
    assert (report.status, report.points) == ("skipped", 0)
    assert "it needs triton_that_nobody_has" in report.message
