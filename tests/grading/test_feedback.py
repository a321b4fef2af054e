"""check, hint, predict and progress as a notebook sees them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_vllm.errors import GradingError
from mini_vllm.grading import (
    GradeFailed,
    check,
    feedback,
    hint,
    ledger,
    load_progress,
    predict,
    progress,
    reveal,
    save_progress,
)
from mini_vllm.grading.bank import chapter_module, find_exercise
from mini_vllm.grading.calling import NotPlain, call_all, to_plain
from mini_vllm.grading.judging import explain, judge
from mini_vllm.grading.reference import answer

from .conftest import right


def test_a_right_answer_prints_one_line(capsys):
    check("c01-e1", right("c01-e1"))
    assert capsys.readouterr().out == "c01-e1 ✓ 40 cases, 10 points\n"


def test_a_wrong_answer_shows_case_values_and_the_next_hint():
    with pytest.raises(GradeFailed) as caught:
        check("c01-e1", lambda output_lens, batch_size: 0.5)
    message = str(caught.value)
    assert "static_waste([3], 1)\n  expected 0, got 0.5" in message
    assert message.endswith('Next hint: hint("c01-e1")')
    assert caught.value._render_traceback_() == message.splitlines()


def test_an_exception_is_shown_with_its_line_and_what_was_printed():
    def static_waste(output_lens, batch_size):
        print("looking at", output_lens)
        return output_lens[7]

    with pytest.raises(GradeFailed, match=r"(?s)IndexError.*return output_lens\[7\].*looking at \[3\]"):
        check("c01-e1", static_waste)


def test_a_stub_is_no_failure_so_that_run_all_goes_on(capsys):
    def stub(*arguments):
        raise NotImplementedError("c01-e1: write static_waste")

    check("c01-e1", stub)
    assert "not started yet" in capsys.readouterr().out


def test_printing_for_debugging_does_not_change_the_line(capsys):
    def noisy(output_lens, batch_size):
        print("x" * 10_000)
        return solved(output_lens, batch_size)

    solved = right("c01-e1")

    check("c01-e1", noisy)
    assert capsys.readouterr().out == "c01-e1 ✓ 40 cases, 10 points\n"


def test_unknown_ids_and_values_instead_of_functions():
    with pytest.raises(GradingError, match="this chapter has c01-e1"):
        check("c01-e9", len)
    with pytest.raises(GradingError, match="no exercise id"):
        hint("e1")
    with pytest.raises(GradingError, match="no graded exercises"):
        hint("c77-e1")
    with pytest.raises(GradeFailed, match="write check"):
        check("c01-e1", 0.3)


def test_hints_come_one_after_the_other(capsys, monkeypatch):
    monkeypatch.setattr(feedback, "_hints_shown", {})
    for number in (1, 2, 3, 3):
        hint("c01-e2")
        assert capsys.readouterr().out.startswith(f"Hint {number} of 3:")
    hint("c01-e2", 1)
    assert "Hint 1 of 3" in capsys.readouterr().out
    with pytest.raises(ValueError, match="1 to 3"):
        hint("c01-e2", 4)


def test_predict_and_reveal(capsys):
    reveal("never asked", 3)
    assert "it is 3" in capsys.readouterr().out
    predict("waste", 0.25)
    reveal("waste", 0.3)
    assert "you said 0.25, it is 0.3, 0.05 more than you said" in capsys.readouterr().out
    predict("steps", steps=5)
    reveal("steps", 5)
    assert capsys.readouterr().out.endswith("exactly.\n")
    with pytest.raises(ValueError, match="one value"):
        predict("waste")


@pytest.mark.parametrize("guess", [3, 0.5, [3, 1], "the door", True])
def test_a_guess_is_plain(guess, capsys):
    predict("any", it=guess)
    assert "noted" in capsys.readouterr().out


@pytest.mark.parametrize("guess", [..., None, len, {"a": 1}, {3}])
def test_what_cannot_be_a_guess_is_refused(guess):
    for arguments in [{"values": (guess,), "named": {}}, {"values": (), "named": {"steps": guess}}]:
        with pytest.raises(ValueError, match=r"takes a number, a list, a string, True or False, not \w+"):
            predict("any", *arguments["values"], **arguments["named"])


def test_progress_survives_a_file_and_a_folder_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ledger, "_passed", {})
    monkeypatch.delenv("PYTEST_VERSION", raising=False)
    monkeypatch.setenv("MINI_VLLM_PROGRESS", str(tmp_path / "deep" / "progress.json"))
    progress()
    assert "Nothing passed yet" in capsys.readouterr().out
    check("c01-e1", right("c01-e1"))
    assert json.loads((tmp_path / "deep" / "progress.json").read_text())["c01-e1"]["points"] == 10
    save_progress(tmp_path / "mine.json")
    monkeypatch.setattr(ledger, "_passed", {})
    monkeypatch.setenv("MINI_VLLM_PROGRESS", "/proc/nowhere/progress.json")
    load_progress(tmp_path / "mine.json")
    check("c01-b1", right("c01-b1"))
    progress()
    assert "2 passed, 25 points" in capsys.readouterr().out


def test_only_plain_data_is_an_answer():
    assert to_plain((1, (2.0, None), {"a": range(2)})) == [1, [2.0, None], {"a": [0, 1]}]

    class MyInt(int):
        __eq__ = __ne__ = lambda *a: True
        __hash__ = int.__hash__

    for value in (float("nan"), float("inf"), MyInt(3), {1: 2}, {1}, object()):
        with pytest.raises(NotPlain):
            to_plain(value)


def test_a_time_limit_names_the_case_even_for_code_that_catches_exceptions():
    def static_waste(output_lens, batch_size):
        while True:
            try:
                pass
            except Exception:
                pass

    exercise = find_exercise("c01-e1")
    cases = exercise.cases(1)
    verdict = judge(exercise, cases, call_all(exercise, static_waste, cases, limit_s=0.2))
    assert verdict.status == "timeout" and "static_waste([3], 1)" in verdict.message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 30) | st.floats() | st.sampled_from(["A", "B", ""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["A", "B", "C"]), inner, max_size=3),
    max_leaves=12,
)


@given(json_values, st.sampled_from(chapter_module("ch01").EXERCISES))
def test_judging_survives_whatever_a_learner_returns(value, exercise):
    cases = exercise.cases(1)
    verdict = judge(exercise, cases, [{"value": value}] * (len(cases) + 1))
    assert verdict.status == "wrong"
    assert explain(exercise, cases, [{"value": value}] * len(cases)) is None or verdict.message


def test_true_is_no_number_and_a_missing_answer_is_no_pass():
    exercise = find_exercise("c01-e1")
    cases = exercise.cases(1)
    assert judge(exercise, cases, [{"value": True}] * len(cases)).status == "wrong"
    right = [{"value": answer("c01-e1")(*case)} for case in cases]
    assert judge(exercise, cases, right[:-1]).status == "error"
    assert judge(exercise, cases, []).status == "missing"
