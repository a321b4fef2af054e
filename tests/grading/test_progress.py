"""hint, predict, reveal and progress: what a learner is told, and what is kept over a restart."""

import json
import re

import numpy as np
import pytest

from mini_vllm.errors import GradingError
from mini_vllm.grading import (
    check,
    hint,
    hints,
    load_progress,
    predict,
    progress,
    progress_file,
    quiz,
    reveal,
    save_progress,
)
from mini_vllm.grading.bank import chapter_module, chapter_of, chapters, find_exercise
from mini_vllm.grading.overlay import find_answers
from mini_vllm.sim.driver import SimRequest, simulate

from .conftest import notebook, right, verdict_of

EXERCISES = [exercise for chapter in chapters() for exercise in chapter_module(chapter).EXERCISES]
ALL = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.exercise_id)


def restart(monkeypatch):
    """As if the kernel were new."""
    monkeypatch.setattr(progress_file, "_state", {"passed": [], "predictions": {}, "quiz": {}})
    monkeypatch.setattr(hints, "_shown", {})


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    restart(monkeypatch)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A learner's file, as in a real notebook."""
    monkeypatch.delenv("PYTEST_VERSION", raising=False)
    monkeypatch.setenv("MINI_VLLM_PROGRESS", str(tmp_path / "deep" / "progress.json"))
    return tmp_path / "deep" / "progress.json"


# --- hint -----------------------------------------------------------------------------------------------------


def test_hints_come_one_after_the_other(capsys):
    for number, step in ((1, "the idea"), (2, "the shape"), (3, "the pseudo-code"), (3, "the pseudo-code")):
        hint("c01-e2")
        assert capsys.readouterr().out.startswith(f"Hint {number} of 3, {step}:\n")
    hint("c01-e2", 1)
    assert "Hint 1 of 3" in capsys.readouterr().out
    for number in (0, 4):
        with pytest.raises(ValueError, match=f"hint number {number} of c01-e2 does not exist; there are 1 to 3"):
            hint("c01-e2", number)


@ALL
def test_every_exercise_has_three_hints_that_fit_the_page(exercise, capsys):
    assert len(exercise.hints) == 3 and all(len(text) > 40 for text in exercise.hints)
    for _ in range(3):
        hint(exercise.exercise_id)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 90


@ALL
def test_no_hint_is_the_solution(exercise):
    source = find_answers(notebook("solutions", chapter_of(exercise.exercise_id))).sources[exercise.exercise_id]
    block = re.search(r"### BEGIN SOLUTION\n(.*?)### (?:GIVEN|END)", source, re.DOTALL)[1]
    code = {line.strip() for line in block.splitlines() if len(line.strip()) > 30}
    assert not [line for line in code if any(line in text for text in exercise.hints)]
    if exercise.takes_value:
        return
    head = re.match(r"(?s)# EXERCISE.*?\n(?:def|class) [^\n]+:\n", source)[0]
    for text in exercise.hints:
        pasted = head + "".join(f"    {line}\n" for line in text.splitlines())
        try:
            assert verdict_of(exercise.exercise_id, pasted).status != "pass"
        except SyntaxError:
            pass


# --- predict and reveal ---------------------------------------------------------------------------------------


def test_predict_and_reveal_a_number(capsys):
    reveal("never asked", 3)
    assert "never asked: it is 3. (Nothing predicted" in capsys.readouterr().out
    predict("waste", 0.25)
    assert capsys.readouterr().out == "waste: noted, 0.25. Read on; reveal comes below.\n"
    reveal("waste", 0.3)
    assert capsys.readouterr().out == "waste: you said 0.25, it is 0.3, 0.05 more than you said.\n"
    predict("steps", steps=100)
    reveal("steps", steps=68)
    assert capsys.readouterr().out.endswith("steps: you said 100, it is 68, 32 less than you said.\n")
    predict("steps", steps=np.int64(5))
    reveal("steps", 5)
    assert capsys.readouterr().out.endswith("you said 5, it is 5, exactly.\n")
    predict("who", "static")
    reveal("who", "continuous")
    assert capsys.readouterr().out.endswith("who: you said static, it is continuous.\n")


def test_a_list_shows_where_the_two_first_differ(capsys):
    predict("door", steps=[["A", "B"], ["A"], ["A"]])
    capsys.readouterr()
    reveal("door", steps=[["A", "B"], ["A", "C"], ["A", "C"]])
    assert capsys.readouterr().out == (
        "door: you said [['A', 'B'], ['A'], ['A']], it is [['A', 'B'], ['A', 'C'], ['A', 'C']]; "
        "the first difference is in step 1\n"
        "  step   it is        you said\n"
        "     0   ['A', 'B']   ['A', 'B']\n"
        ">    1   ['A', 'C']   ['A']\n"
        "     2   ['A', 'C']   ['A']\n"
    )
    reveal("door", steps=[["A", "B"], ["A"], ["A"], []])
    assert "first difference is in step 3" in capsys.readouterr().out
    reveal("door", steps=[["A", "B"], ["A"], ["A"]])
    assert capsys.readouterr().out.endswith("exactly.\n")


def test_the_truth_may_be_a_trace(capsys):
    trace = simulate([SimRequest("A", 2, 2), SimRequest("B", 2, 1)])
    predict("run", steps=[["A", "B"], ["A", "B"]])
    reveal("run", steps=trace)
    assert ">    1   ['A']        ['A', 'B']" in capsys.readouterr().out


def test_several_named_values_are_compared_one_by_one(capsys):
    predict("ttft", static=20, continuous=2)
    assert capsys.readouterr().out == "ttft: noted, static 20, continuous 2. Read on; reveal comes below.\n"
    reveal("ttft", static=20, continuous=1.5)
    assert capsys.readouterr().out == (
        "ttft: the first difference is in continuous\n"
        "               you said   it is\n"
        "  static             20      20   exactly\n"
        "  continuous          2     1.5   0.5 less than you said\n"
    )
    reveal("ttft", static=20, continuous=2)
    assert capsys.readouterr().out.startswith("ttft: all exactly\n")


@pytest.mark.parametrize("guess", [3, 0.5, [3, 1], "the door", True, {"a": 1}, np.float64(2), range(3)])
def test_a_guess_is_plain(guess, capsys):
    predict("any", it=guess)
    assert "noted" in capsys.readouterr().out


@pytest.mark.parametrize("guess", [..., None, len, {3}, float("nan")])
def test_what_cannot_be_a_guess_is_refused(guess):
    for arguments in [{"values": (guess,), "named": {}}, {"values": (), "named": {"steps": guess}}]:
        with pytest.raises(ValueError, match=r"takes a number, a text, a list, a dict, True or False, and "):
            predict("any", *arguments["values"], **arguments["named"])
    with pytest.raises(ValueError, match="takes one value, or named values, got 0"):
        predict("waste")
    with pytest.raises(ValueError, match="takes one value, or named values, got 2"):
        predict("waste", 1, 2)


def test_a_prediction_survives_a_restart(kept, monkeypatch, capsys):
    predict("door", steps=[["A"]])
    restart(monkeypatch)
    reveal("door", steps=[["A"]])
    assert capsys.readouterr().out.endswith("exactly.\n")


# --- progress -------------------------------------------------------------------------------------------------


def test_a_new_learner_sees_what_there_is(capsys):
    progress()
    said = capsys.readouterr().out
    assert "Nothing passed yet. A check that says ✓ is noted here." in said
    for exercise in EXERCISES:
        assert f"· {exercise.exercise_id}" in said and exercise.title in said


def test_progress_shows_what_is_done_and_what_comes_next(kept, capsys):
    check("c01-e1", right("c01-e1"))
    check("c01-b1", right("c01-b1"))
    predict("waste", 0.25)
    quiz(2, "a")
    capsys.readouterr()
    progress()
    said = capsys.readouterr().out
    assert re.search(r"chapter 1 +█{8}░{12} 2 of 4 passed, 25 of 60 points", said)
    assert "  ✓ c01-e1   10 points  The waste of a static batch\n" in said
    assert "  · c01-e2   15 points  Bucketing by length   ★★, 15 minutes\n" in said
    assert "predictions made: 1\n" in said and re.search(r"quiz: roofline [01] of 1 right at the first try", said)
    assert f"next: c01-e2, Bucketing by length ({find_exercise('c01-e2').label})" in said


def test_it_survives_a_restart_and_goes_to_another_machine_as_a_file(kept, tmp_path, monkeypatch, capsys):
    check("c01-e1", right("c01-e1"))
    assert json.loads(kept.read_text(encoding="utf-8"))["passed"] == ["c01-e1"]
    assert [path.name for path in kept.parent.iterdir()] == ["progress.json"], "nothing half-written is left"
    restart(monkeypatch)
    save_progress(tmp_path / "mine.json")
    assert "1 passed, saved to" in capsys.readouterr().out

    restart(monkeypatch)
    monkeypatch.setenv("MINI_VLLM_PROGRESS", "/proc/nowhere/progress.json")  # a folder that cannot be written to
    check("c01-b1", right("c01-b1"))
    load_progress(tmp_path / "mine.json")
    assert "2 of 4 passed, 25 of 60 points" in capsys.readouterr().out


def test_it_goes_to_another_machine_as_a_text(kept, tmp_path, monkeypatch, capsys):
    check("c01-e1", right("c01-e1"))
    predict("größe", "größer")
    save_progress(tmp_path / "mine.json")
    printed = capsys.readouterr().out
    pasted = re.search(r'(?s)load_progress\(""".*?"""\)', printed)[0]
    restart(monkeypatch)
    kept.unlink()
    exec(pasted, {"load_progress": load_progress})
    assert "✓ c01-e1" in capsys.readouterr().out
    assert progress_file.known()["predictions"] == {"größe": {"": "größer"}}
    assert json.loads(kept.read_text(encoding="utf-8"))["passed"] == ["c01-e1"], "kept on the new machine"

    text = progress_file.as_text()
    for damaged in (
        text[:-5],
        text.replace("progress-", "progress-0", 1),
        text[:-3] + "AAA",
        "progress-",
        "progress-x-y",
    ):
        with pytest.raises(GradingError, match="cut off or changed: copy all of it"):
            load_progress(damaged)


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"format": "another"}', '{"format": "mini_vllm.progress 1", "passed": 3}', ""]
)
def test_a_file_that_is_none_is_named_and_never_lost(kept, tmp_path, content, capsys):
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(GradingError, match=r"other.json is no progress that save_progress\(\) wrote"):
        load_progress(tmp_path / "other.json")
    with pytest.raises(GradingError, match="cannot be read"):
        load_progress(tmp_path / "none.json")
    kept.parent.mkdir()
    kept.write_text(content)
    check("c01-e1", right("c01-e1"))
    assert json.loads(kept.read_text(encoding="utf-8"))["passed"] == ["c01-e1"]
    assert kept.with_name("progress.json.unreadable").read_text() == content


def test_a_place_that_cannot_be_written_is_named(capsys):
    with pytest.raises(OSError, match=r"cannot write /proc/nowhere\.json"):
        save_progress("/proc/nowhere.json")


def test_two_notebooks_add_up(kept, monkeypatch):
    check("c01-e1", right("c01-e1"))
    restart(monkeypatch)  # another kernel, which has not read the file yet
    check("c01-b1", right("c01-b1"))
    assert json.loads(kept.read_text(encoding="utf-8"))["passed"] == ["c01-b1", "c01-e1"]


def test_a_graded_run_writes_no_learner_s_progress(kept, monkeypatch, tmp_path):
    monkeypatch.setenv("MINI_VLLM_GRADED_FOLDER", str(tmp_path))
    predict("waste", 1)
    assert not kept.exists()


def test_when_all_is_done_it_says_so(capsys):
    progress_file._state["passed"] = [exercise.exercise_id for exercise in EXERCISES]
    progress()
    said = capsys.readouterr().out
    assert said.endswith("All of them passed.\n") and "·" not in said and "░" not in said


def test_an_exercise_of_a_newer_book_is_kept(capsys):
    progress_file._state["passed"] = ["c77-e1"]
    progress()
    assert "passed elsewhere, not known to this mini_vllm: c77-e1" in capsys.readouterr().out
