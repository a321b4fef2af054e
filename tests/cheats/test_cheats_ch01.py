"""Known ways to get points without an answer, inside the kernel; each is red. Chapter 1.

One notebook holds up to four cheats, one an exercise, since each is judged by itself. Exercises that no cheat stands in
hold the right answer, which must stay green.
"""

import pytest

from mini_vllm.grading.overlay import code_cells, source_of
from tests.grading.classes import NAME, by_id, graded, with_answers

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

SILENCES_TRACEBACKS = """
# EXERCISE c01-e1
ip = get_ipython()
ip.showtraceback = lambda *a, **k: None
type(ip).showtraceback = lambda *a, **k: None
def static_waste(output_lens, batch_size):
    raise ValueError("nobody sees this")
"""
IMPORTS_THE_REFERENCE = """
# EXERCISE c01-e2
from mini_vllm.grading.reference.ch01 import bucket
"""
SUBCLASSES_UNCHANGED = """
# EXERCISE c01-e3
import mini_vllm.batching
class Mine(mini_vllm.batching.ContinuousBatcher):
    pass
def continuous_schedule(requests, num_slots):
    return mini_vllm.batching.run_batches(Mine, requests, num_slots)
"""
SILENT_AND_BROKEN = """
# EXERCISE c01-b1
1 / 0
"""

NOT_A_NUMBER = """
# EXERCISE c01-e1
def static_waste(output_lens, batch_size):
    return float("nan")
"""
FORGES_A_VERDICT = """
# EXERCISE c01-e2
import json, os
with open(os.path.join(os.environ["MINI_VLLM_GRADED_FOLDER"], "answers.jsonl"), "a") as file:
    file.write(json.dumps({"exercise": "c01-e2", "status": "pass", "outcomes": [{"value": True}] * 40}) + "\\n")
def bucket(output_lens, batch_size):
    return True
"""
EXECUTES_THE_PACKAGES_SOURCE = """
# EXERCISE c01-e3
import importlib, inspect
exec(inspect.getsource(importlib.import_module("mini_vllm.batching.batcher")))
def continuous_schedule(requests, num_slots):
    return ContinuousBatcher(requests, num_slots)
"""
SHADOWS_CHECK = """
# EXERCISE c01-b1
def check(exercise_id, fn):
    print("c01-b1 ✓ 40 cases, 15 points")
def deliver(*arguments):
    return 1
"""

HANDLES_EVERY_EXCEPTION = """
# EXERCISE c01-e1
get_ipython().set_custom_exc((BaseException,), lambda *a, **k: None)
def static_waste(output_lens, batch_size):
    raise ValueError("handled by nobody")
"""
FORGES_NAN = """
# EXERCISE c01-e2
import os
with open(os.path.join(os.environ["MINI_VLLM_GRADED_FOLDER"], "answers.jsonl"), "a") as file:
    file.write('{"exercise": "c01-e2", "outcomes": [' + ", ".join(['{"value": NaN}'] * 40) + "]}\\n")
def bucket(output_lens, batch_size):
    return [[]]
"""
READS_THE_SOLUTION = """
# EXERCISE c01-e3
import json, mini_vllm, pathlib
root = pathlib.Path(mini_vllm.__file__).parent.parent
places = [*root.glob("solutions/*.ipynb"), pathlib.Path(SOLUTION)]
nb = json.loads(places[0].read_text())
exec(next(s for s in ("".join(c["source"]) for c in nb["cells"]) if "def continuous_schedule" in s))
"""
PATCHES_CHECKER_AND_COMPARERS = """
# EXERCISE c01-b1
import mini_vllm.grading.calling, mini_vllm.grading.checkers, mini_vllm.grading.feedback
mini_vllm.grading.checkers.exact = mini_vllm.grading.checkers.same = lambda *a, **k: None
mini_vllm.grading.feedback.call_all = lambda exercise, fn, cases, limit: [{"value": {}} for case in cases]
def deliver(*arguments):
    return 1
"""

PATCHES_CHECK_IN_THE_PACKAGE = """
# EXERCISE c01-b1
import mini_vllm.grading
mini_vllm.grading.check = lambda exercise_id, fn: print("c01-b1 ✓ 40 cases, 15 points")
def deliver(*arguments):
    return 1
"""
PATCHES_THE_CASES = """
# EXERCISE c01-e1
import json, mini_vllm.grading.feedback as feedback
plain = json.loads
feedback.json = type("json", (), {"dumps": json.dumps, "loads": lambda text: plain(text) | {"cases": {
    "c01-e1": [[[3], 1]] * 40, "c01-e2": [[[3], 1]] * 40, "c01-e3": [[[["A", 0, 1]], 1]] * 40,
    "c01-b1": [[["A"], ["A"], [7], {"A": 0}]] * 40}}})
def static_waste(output_lens, batch_size):
    return 0.0
"""


def notebooks() -> dict[str, dict]:
    made = {
        "a": with_answers(PRINTS_THE_EXPECTED_LINE, ALWAYS_EQUAL, IMPORTS_THE_BATCHER_WHEN_CALLED, EXITS),
        "b": with_answers(SILENCES_TRACEBACKS, IMPORTS_THE_REFERENCE, SUBCLASSES_UNCHANGED, SILENT_AND_BROKEN),
        "c": with_answers(NOT_A_NUMBER, FORGES_A_VERDICT, EXECUTES_THE_PACKAGES_SOURCE, SHADOWS_CHECK),
        "d": with_answers(HANDLES_EVERY_EXCEPTION, FORGES_NAN, solution_path_in(READS_THE_SOLUTION),
                          PATCHES_CHECKER_AND_COMPARERS),
        "e": with_answers(PATCHES_THE_CASES, PATCHES_CHECK_IN_THE_PACKAGE),
    }  # fmt: skip
    for nb in made.values():
        for cell in code_cells(nb):
            if "EXERCISE" in source_of(cell):
                cell["metadata"] = {"tags": ["raises-exception", "nbval-skip"]}
    return made


def test_c04_a_silenced_traceback_is_no_pass(reports):
    """nbval sees no error message in either cell; the kernel's own reply says "error" all the same."""
    report = reports["b"]
    assert report["c01-e1"].status == "error" and "nobody sees this" in report["c01-e1"].message
    assert report["c01-b1"].message == "c01-b1 ✗ your cell does not run: ZeroDivisionError: division by zero"


def solution_path_in(cheat: str) -> str:
    from tests.grading.classes import ROOT

    return cheat.replace("SOLUTION", repr(str(ROOT / "solutions" / NAME)))


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """{notebook: {exercise id: report}}"""
    return {name: by_id(r) for name, r in graded(tmp_path_factory.mktemp("cheats"), notebooks()).items()}


@pytest.mark.parametrize(
    ("notebook", "exercise_id", "status", "says"),
    [
        ("a", "c01-e1", "wrong", "static_waste("),
        ("a", "c01-e2", "wrong", "an object of type Yes"),
        ("a", "c01-e3", "reference used", "mini_vllm.batching"),
        ("a", "c01-b1", "error", "SystemExit"),
        ("b", "c01-e1", "error", "nobody sees this"),
        ("b", "c01-e2", "reference used", "mini_vllm.grading.reference"),
        ("b", "c01-e3", "reference used", "mini_vllm.batching"),
        ("b", "c01-b1", "error", "ZeroDivisionError: division by zero"),
        ("c", "c01-e1", "wrong", "nan"),
        ("c", "c01-e2", "tampered", "that no check writes"),
        ("c", "c01-e3", "reference used", "mini_vllm.batching"),
        ("c", "c01-b1", "wrong", "deliver("),
        ("d", "c01-e1", "error", "handled by nobody"),
        ("d", "c01-e2", "wrong", "bucket("),
        ("d", "c01-e3", "reference used", NAME),
        ("d", "c01-b1", "wrong", "deliver("),
        ("e", "c01-e1", "wrong", "static_waste("),
        ("e", "c01-e2", "wrong", "bucket("),
        ("e", "c01-b1", "tampered", "was check() replaced?"),
    ],
)
def test_cheat_is_red(reports, notebook, exercise_id, status, says):
    report = reports[notebook][exercise_id]
    assert (report.status, report.points) == (status, 0), report
    assert says in report.message
