"""Judges outcomes against the right answers and names known mistakes. Runs no learner's code. All chapters.

It imports the reference answers, so it works in the notebook and in the grader, never in a graded kernel.
"""

import json
import textwrap
from dataclasses import dataclass
from typing import Any

from mini_vllm.grading.exercise import Case, Exercise

PASS, WRONG, ERROR, TIMEOUT, MISSING = "pass", "wrong", "error", "timeout", "missing"


@dataclass(frozen=True)
class Verdict:
    """What became of one answer. `message` is for the learner; empty where it is right."""

    status: str
    message: str = ""


def judge(exercise: Exercise, cases: list[Case], outcomes: list[dict]) -> Verdict:
    """The verdict over all cases. Shows the smallest failing one, and the known mistake that explains them all."""
    name = exercise.exercise_id
    if not outcomes:
        return Verdict(MISSING, f"{name} – no answer arrived.")
    outcomes = outcomes[: len(cases)]
    stopped = (i for i, outcome in enumerate(outcomes) if not outcome.keys() & {"value", "refused"})
    where = next(stopped, len(outcomes) - 1)
    last, case = outcomes[where], cases[where]
    if "stub" in last:
        return Verdict(MISSING, f"{name} – not started yet: {exercise.function} is still the empty stub.")
    if "timeout" in last:
        return Verdict(
            TIMEOUT,
            f"{name} ✗ not done after {last['timeout']:g} s, in {exercise.call_text(case)}\n"
            "  Does every loop come to its end? Look at what it waits for.",
        )
    if "error" in last:
        lines = [f"{name} ✗ {exercise.call_text(case)} raised", f"  {last['error']}"]
        lines += [f"  in the line: {last['line']}"] if last.get("line") else []
        lines += [_wrapped(why)] if (why := explain(exercise, cases, outcomes[: where + 1])) else []
        return Verdict(ERROR, "\n".join(lines + _printed(last)))
    return _judge_values(exercise, cases, outcomes)


def _judge_values(exercise: Exercise, cases: list[Case], outcomes: list[dict]) -> Verdict:
    from mini_vllm.grading.reference import answer

    right_answer = answer(exercise.exercise_id)
    expected = [right_answer(*exercise.arguments(case)) for case in cases]
    failing: list[tuple[int, str]] = []
    for i, (case, outcome) in enumerate(zip(cases, outcomes, strict=False)):
        complaint = outcome.get("refused") or exercise.compare(case, outcome["value"], expected[i])
        if complaint:
            failing.append((i, complaint))
    missing = len(cases) - len(outcomes)
    if not failing and not missing:
        return Verdict(PASS)
    if not failing:
        return Verdict(ERROR, f"{exercise.exercise_id} ✗ {missing} of {len(cases)} answers did not arrive.")

    smallest, complaint = min(failing, key=lambda item: len(json.dumps(cases[item[0]])))
    num_right = len(outcomes) - len(failing)
    many = f"{num_right} of {len(cases)} cases are right. The smallest that is not:"
    lines = [
        f"{exercise.exercise_id} ✗ {'the value is not right:' if exercise.takes_value else many}",
        f"  {exercise.call_text(cases[smallest])}",
        *(f"  {line}" for line in complaint.splitlines()),
        *_printed(outcomes[smallest]),
    ]
    mistake = explain(exercise, cases, outcomes)
    if mistake:
        lines.append(_wrapped(mistake))
    return Verdict(WRONG, "\n".join(lines))


def _wrapped(sentence: str) -> str:
    """In lines that a notebook shows without a scroll bar."""
    return textwrap.fill(sentence, 84, initial_indent="  ", subsequent_indent="  ")


def explain(exercise: Exercise, cases: list[Case], outcomes: list[dict]) -> str | None:
    """The sentence of the known mistake that would give the learner's results in every single case, if there is one.

    Where the last case raised: what that error says about the answer.
    """
    from mini_vllm.grading.reference import mistakes

    if error := outcomes[-1].get("error"):
        return next((why for start, why in exercise.raised if error.startswith(start)), None)
    if not all("value" in outcome for outcome in outcomes):
        return None
    answered = [(case, outcome["value"]) for case, outcome in zip(cases, outcomes, strict=False)]
    for sentence, wrong_answer in mistakes(exercise.exercise_id):
        if all(_agree(exercise, case, value, wrong_answer) for case, value in answered):
            return sentence
    return None


def _agree(exercise: Exercise, case: Case, value: Any, wrong_answer) -> bool:
    try:
        mine = exercise.essence(case, value)
        theirs = exercise.essence(case, wrong_answer(*exercise.arguments(case)))
    except (TypeError, ValueError, IndexError, KeyError, AttributeError):  # a value of another shape is another mistake
        return False
    return mine == theirs


def _printed(outcome: dict) -> list[str]:
    lines = outcome.get("printed", "").splitlines()
    return ["  Your function printed there:", *(f"    {line}" for line in lines[:10])] if lines else []
