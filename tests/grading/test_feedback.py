"""check and the judge behind it, as a notebook sees them: functions, values, blanks, mistakes."""

import json
import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_vllm.errors import GradingError
from mini_vllm.grading import GradeFailed, check, feedback, hint, hints
from mini_vllm.grading.bank import chapter_module, find_exercise
from mini_vllm.grading.calling import NotPlain, call_all, call_once, to_plain
from mini_vllm.grading.checkers import one_of, parts, sequence
from mini_vllm.grading.exercise import KINDS, Exercise
from mini_vllm.grading.judging import explain, judge
from mini_vllm.grading.limits import Limits
from mini_vllm.grading.quantities import numeric
from mini_vllm.grading.reference import answer
from mini_vllm.stages.ch04_admit_retire import Scheduler as Stage4

from .conftest import right


@pytest.fixture(autouse=True)
def no_hint_seen(monkeypatch):
    monkeypatch.setattr(hints, "_shown", {})


def test_a_right_answer_prints_one_line(capsys):
    check("c01-e1", right("c01-e1"))
    assert capsys.readouterr().out == "c01-e1 ✓ 40 cases, 10 points\n"


def test_a_wrong_answer_shows_case_values_and_the_next_hint():
    with pytest.raises(GradeFailed) as caught:
        check("c01-e1", lambda output_lens, batch_size: 0.5)
    message = str(caught.value)
    assert "static_waste([3], 1)\n  expected 0, got 0.5" in message
    assert message.endswith('Next hint, the idea: hint("c01-e1")')
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


def test_after_the_hints_were_seen_check_names_the_next():
    for step in ("the shape", "the pseudo-code", "You have seen all three hints"):
        hint("c01-e1")
        with pytest.raises(GradeFailed, match=step):
            check("c01-e1", lambda output_lens, batch_size: 0.5)


def test_only_plain_data_is_an_answer():
    assert to_plain((1, (2.0, None), {"a": range(2)})) == [1, [2.0, None], {"a": [0, 1]}]

    class MyInt(int):
        __eq__ = __ne__ = lambda *a: True
        __hash__ = int.__hash__

    for value in (float("nan"), float("inf"), MyInt(3), {1: 2}, {1}, object()):
        with pytest.raises(NotPlain):
            to_plain(value)


# --- exercises whose answer is a value ------------------------------------------------------------------------

BASE = {"stars": 1, "points": 5, "minutes": 5, "needs": "chapter 2", "hints": ("a", "b", "c")}
PREDICT = Exercise(
    exercise_id="c99-e1",
    title="The first steps",
    kind="predict",
    function="first_steps",
    compare=sequence("step"),
    **BASE,
)
ANALYSE = Exercise(
    exercise_id="c99-e2", title="What binds?", kind="analyse", function="findings", **BASE,
    compare=parts(bound=one_of("memory", "compute"), step=numeric("ms")),
)  # fmt: skip
RIGHT = {"c99-e1": [["A", "B"], ["A", "C"]], "c99-e2": {"bound": "memory", "step": 14.0}}


@pytest.fixture
def values(monkeypatch):
    exercises = {"c99-e1": PREDICT, "c99-e2": ANALYSE}
    monkeypatch.setattr(feedback, "find_exercise", exercises.__getitem__)
    monkeypatch.setattr(hints, "find_exercise", exercises.__getitem__)
    monkeypatch.setattr("mini_vllm.grading.reference.answer", lambda name: lambda: RIGHT[name])
    monkeypatch.setattr(
        "mini_vllm.grading.reference.mistakes", lambda name: [("As in static batching.", lambda: [["A", "B"], ["A"]])]
    )
    monkeypatch.setattr(feedback, "hidden_modules", lambda ids: [])


def test_a_value_is_checked_as_it_is(values, capsys):
    check("c99-e1", (("A", "B"), ["A", "C"]))
    assert capsys.readouterr().out == "c99-e1 ✓ 5 points\n"
    check("c99-e2", {"bound": "memory", "step": 14})
    assert capsys.readouterr().out == "c99-e2 ✓ 5 points\n"
    with pytest.raises(
        GradeFailed, match=r"(?s)first_steps\n  first difference in step 1: expected .*As in static batching"
    ):
        check("c99-e1", [["A", "B"], ["A"]])
    with pytest.raises(
        GradeFailed, match=r"step: expected 14 ms, got 0\.014: off by 1000: seconds instead of milliseconds"
    ):
        check("c99-e2", {"bound": "memory", "step": 0.014})
    with pytest.raises(GradeFailed, match=r'a function; the answer is a value: write check\("c99-e1", first_steps\)'):
        check("c99-e1", len)


@pytest.mark.parametrize(
    ("name", "blank"),
    [
        ("c99-e1", ...),
        ("c99-e2", {"bound": ..., "step": ...}),
        ("c99-e1", [..., ...]),
        ("c99-e2", {"bound": {"a": ...}, "step": ...}),
    ],
)
def test_a_blank_value_is_not_started(values, capsys, name, blank):
    check(name, blank)
    assert "not started yet" in capsys.readouterr().out


def test_a_half_filled_value_is_told_so(values):
    with pytest.raises(GradeFailed, match="to be filled in"):
        check("c99-e2", {"bound": "memory", "step": ...})


def test_in_a_graded_kernel_a_value_is_only_written_down(values, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv(feedback.GRADED_FOLDER, str(tmp_path))
    monkeypatch.delattr("mini_vllm.grading.reference.answer")
    (tmp_path / "cases.json").write_text(json.dumps({"cases": {"c99-e1": PREDICT.cases(7)}, "limit_s": None}))
    check("c99-e1", [["Z"]])
    assert json.loads((tmp_path / "answers.jsonl").read_text()) == {
        "exercise": "c99-e1", "outcomes": [{"value": [["Z"]], "printed": ""}],
    }  # fmt: skip
    assert capsys.readouterr().out == "c99-e1 ✓ 5 points\n"


def test_the_label_says_all_in_one_line():
    assert PREDICT.label == "★ · predict · 5 points · 5 minutes · CPU · needs: chapter 2"
    assert KINDS == ("predict", "analyse", "code", "bug hunt", "extend")
    with pytest.raises(ValueError, match="of kind 'riddle'; there are predict"):
        Exercise(**{**vars(PREDICT), "kind": "riddle"})
    with pytest.raises(ValueError, match="draws 2 cases; it should be 1"):
        Exercise(**{**vars(PREDICT), "draw_cases": lambda rng: [[], []]}).cases(1)


def test_a_return_that_is_missing_is_asked_for():
    with pytest.raises(GradeFailed, match="is a return missing"):
        check("c01-e1", lambda output_lens, batch_size: None)


def test_a_mistake_is_named_only_if_it_explains_every_case():
    exercise = find_exercise("c01-e1")
    cases = exercise.cases(1)
    outcomes = [{"refused": "the result holds nan, which is no finite number"}] * len(cases)
    assert explain(exercise, cases, outcomes) is None
    assert judge(exercise, cases, outcomes).message.splitlines()[2:] == [
        "  the result holds nan, which is no finite number"
    ]
    outcomes = [call_once(exercise, lambda o, b: 1 - sum(o) / (b * max(o)), case) for case in cases]
    assert "takes the whole list as one batch" in explain(exercise, cases, outcomes)
    for odd in (0, len(cases) - 1):
        but_one = [*outcomes]
        but_one[odd] = {"value": 0.123}
        assert explain(exercise, cases, but_one) is None, f"the mistake does not explain case {odd}"


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


class Spins(Stage4):
    """Puts a held request back where it came from, and looks at it again: its schedule() never ends."""

    def schedule_waiting(self):
        while self.waiting:
            self.waiting.add(self.waiting.pop())


def test_check_gives_up_on_a_scheduler_that_never_ends_and_names_the_case(monkeypatch):
    """As a learner's notebook calls it: no limit is passed. The signal handlers are as before afterwards."""
    monkeypatch.setattr(feedback, "PATIENCE_S", 0.3)
    before = signal.getsignal(signal.SIGPROF)
    with pytest.raises(GradeFailed, match=r"c04-e3 ✗ not done after 0.3 s, in .*A \(2 \+ 2 tokens"):
        check("c04-e3", Spins)
    assert signal.getsignal(signal.SIGPROF) == before and signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def test_check_counts_no_time_in_which_nothing_is_computed(monkeypatch, capsys):
    """A learner who stops in a debugger is not interrupted."""
    static_waste = right("c01-e1")

    def thoughtful(output_lens, batch_size):
        time.sleep(0.02)
        return static_waste(output_lens, batch_size)

    monkeypatch.setattr(feedback, "PATIENCE_S", 0.4)
    check("c01-e1", thoughtful)  # 40 times 0.02 s
    assert capsys.readouterr().out.startswith("c01-e1 ✓")


def test_the_limit_of_a_check_is_that_of_a_graded_run():
    assert feedback.PATIENCE_S == Limits().calls_s


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


def test_an_error_that_says_something_about_the_answer_is_told_with_what_it_says():
    abort = find_exercise("c04-b1")
    cases = abort.cases(1)

    def wrong(gone, waiting, running, blocks, num_free):
        return waiting, running, blocks, num_free + sum(blocks.pop(name) for name in gone)

    def raises(*arguments):
        raise IndexError("no sentence about this one")

    outcomes = call_all(abort, wrong, cases)
    message = judge(abort, cases, outcomes).message
    assert "KeyError" in message and "Who waits owns no blocks" in message
    assert explain(abort, cases, call_all(abort, raises, cases)) is None
