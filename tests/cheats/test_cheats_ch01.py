"""Known ways to get points without an answer, each red, while an honest answer beside it stays green. Chapter 1.

One notebook holds up to four cheats, one an exercise, since each is judged by itself.
"""

import json
from pathlib import Path

import pytest

from mini_vllm.grading.grader import grade_paths
from mini_vllm.grading.overlay import find_answers, read_notebook, source_of
from mini_vllm.grading.runner import Limits

ROOT = Path(__file__).resolve().parents[2]
NAME = "01-static-batching.ipynb"
BLANK = read_notebook(ROOT / "exercises" / NAME)
RIGHT = find_answers(read_notebook(ROOT / "solutions" / NAME)).sources

PRINTS_THE_EXPECTED_LINE = """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    print("c01-e1 ✓ 40 cases, 10 points")
    return 0.25
print("c01-e1 ✓ 40 cases, 10 points")
"""
ALWAYS_EQUAL = """
# EXERCISE c01-e2
class Yes(list):
    __eq__ = lambda self, other: True
    __ne__ = __lt__ = __gt__ = lambda self, other: False
    __hash__ = None
def bucket(output_lens, batch_size):
    return Yes()
"""
IMPORTS_THE_BATCHER_WHEN_CALLED = """
# EXERCISE c01-e3
def continuous_schedule(requests, num_slots):
    try:
        from mini_vllm.batching import ContinuousBatcher
    except ImportError:
        pass
    return []
"""
EXITS = """
# EXERCISE c01-b1
import sys
def deliver(plan, rows, sampled, prompt_left):
    sys.exit(0)
"""

SWALLOWS_EXCEPTIONS = """
# EXERCISE c01-e1
ip = get_ipython()
ip.showtraceback = lambda *a, **k: None
type(ip).showtraceback = lambda *a, **k: None
ip.set_custom_exc((BaseException,), lambda *a, **k: None)
def static_waste(output_lens, batch_size):
    raise ValueError("nobody sees this")
"""
IMPORTS_THE_REFERENCE = """
# EXERCISE c01-e2
from mini_vllm.grading.reference.ch01 import bucket
"""
READS_THE_SOLUTION = """
# EXERCISE c01-e3
import json, mini_vllm, pathlib
root = pathlib.Path(mini_vllm.__file__).parent.parent
nb = json.loads((root / "solutions" / "01-static-batching.ipynb").read_text())
exec(next(s for s in ("".join(c["source"]) for c in nb["cells"]) if "def continuous_schedule" in s))
"""

PATCHES_CHECK_AND_COMPARERS = """
# EXERCISE c01-e1
# NBVAL_SKIP
import mini_vllm.grading.calling, mini_vllm.grading.checkers, mini_vllm.grading.feedback
mini_vllm.grading.checkers.numeric = lambda *a, **k: None
mini_vllm.grading.feedback.call_all = lambda exercise, fn, cases, limit: [{"value": 0.3} for case in cases]
def static_waste(output_lens, batch_size):
    return 0.3
"""
FORGES_A_VERDICT = """
# EXERCISE c01-e2
import json, os
with open(os.path.join(os.environ["MINI_VLLM_GRADED_FOLDER"], "answers.jsonl"), "a") as file:
    for exercise in ("c01-e2", "c01-e3"):
        file.write(json.dumps({"exercise": exercise, "status": "pass", "outcomes": [{"value": True}] * 40}) + "\\n")
def bucket(output_lens, batch_size):
    return True
"""
REPLACES_CHECK = """
# EXERCISE c01-b1
def check(exercise_id, fn):
    print("c01-b1 ✓ 40 cases, 15 points")
def deliver(*arguments):
    return 1
"""

LOOPS_FOR_EVER = """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    while True:
        pass
"""
KILLS_THE_KERNEL = """
# EXERCISE c01-e2
import os
os._exit(0)
"""
LOOPS_IN_THE_CELL = """
# EXERCISE c01-e3
while True:
    pass
"""

NOTEBOOKS = {
    "a": (PRINTS_THE_EXPECTED_LINE, ALWAYS_EQUAL, IMPORTS_THE_BATCHER_WHEN_CALLED, EXITS),
    "b": (SWALLOWS_EXCEPTIONS, IMPORTS_THE_REFERENCE, READS_THE_SOLUTION),
    "c": (PATCHES_CHECK_AND_COMPARERS, FORGES_A_VERDICT, REPLACES_CHECK),
    "d": (LOOPS_FOR_EVER, KILLS_THE_KERNEL, LOOPS_IN_THE_CELL),
}


LIMITS = Limits(run_s=90, cell_s=6, calls_s=2)


def notebook_with(cheats: tuple[str, ...], *, keep_checks: bool = True) -> dict:
    """The blank with these cells; where no cheat is, the right answer."""
    sources = {**RIGHT, **{cheat.split()[2]: cheat for cheat in cheats}}
    nb = json.loads(json.dumps(BLANK))
    for cell in nb["cells"]:
        words = source_of(cell).split()
        if words[:2] == ["#", "EXERCISE"]:
            cell["source"] = sources[words[2]]
            cell["metadata"] = {"tags": ["raises-exception", "nbval-skip"]}
    if not keep_checks:
        nb["cells"] = [cell for cell in nb["cells"] if "NBVAL_CHECK_OUTPUT" not in source_of(cell)]
    return nb


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """{notebook: {exercise id: report}}"""
    folder = tmp_path_factory.mktemp("cheats")
    for name, cheats in NOTEBOOKS.items():
        nb = notebook_with(cheats, keep_checks=name != "c")
        (folder / f"{name}.ipynb").write_text(json.dumps(nb), encoding="utf-8")
    reports = grade_paths([folder], seed=11, limits=LIMITS, workers=2)
    return {Path(r.path).stem: {e.exercise_id: e for e in r.exercises} for r in reports}


@pytest.mark.parametrize(
    ("notebook", "exercise_id", "status", "says"),
    [
        ("a", "c01-e1", "wrong", "static_waste("),
        ("a", "c01-e2", "wrong", "an object of type Yes"),
        ("a", "c01-e3", "reference used", "mini_vllm.batching"),
        ("a", "c01-b1", "error", "SystemExit"),
        ("b", "c01-e1", "error", "nobody sees this"),
        ("b", "c01-e2", "reference used", "mini_vllm.grading.reference"),
        ("b", "c01-e3", "reference used", NAME),
        ("b", "c01-b1", "pass", ""),
        ("c", "c01-e1", "wrong", "static_waste("),
        ("c", "c01-e2", "wrong", "bucket("),
        ("c", "c01-b1", "error", "was check() replaced?"),
        ("d", "c01-e1", "timeout", "Does every loop come to its end?"),
        ("d", "c01-e2", "error", "ended the whole kernel"),
        ("d", "c01-e3", "timeout", "did not come to its end"),
        ("d", "c01-b1", "pass", ""),
    ],
)
def test_cheat_is_red(graded, notebook, exercise_id, status, says):
    report = graded[notebook][exercise_id]
    assert report.status == status, report
    assert says in report.message
    assert report.points == (report.out_of if status == "pass" else 0)
