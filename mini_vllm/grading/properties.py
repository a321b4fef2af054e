"""Rules that an answer must keep on every case, whatever the right answer looks like. Knows no exercise. All chapters.

The cases are drawn at random (`Exercise.draw_cases`), so a rule here is a property over random inputs. What it counts
or tests comes from the exercise and may assume the right shape; whatever has another shape is a complaint.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from mini_vllm.grading.checkers import is_number, kind_of, shown
from mini_vllm.grading.exercise import Case, Comparer

WRONG_SHAPE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


def holds(rule: Callable[[Case, Any], bool], says: str) -> Comparer:
    """`rule(case, got)` is true; `says` is what is wrong where it is not."""

    def compare(case: Case, got: Any, expected: Any) -> str | None:
        try:
            kept = rule(case, got) is True
        except WRONG_SHAPE:
            return f"{says} (and {kind_of(got)} has another shape than asked for)"
        return None if kept else f"{says}: got {shown(got)}"

    return compare


def each_once(
    items: Callable[[Any], Iterable[Hashable]], wanted: Callable[[Case], Iterable[Hashable]], noun: str, where: str
) -> Comparer:
    """Of the answer's `items`, each of `wanted(case)` occurs exactly once, and nothing else does."""

    def compare(case: Case, got: Any, expected: Any) -> str | None:
        try:
            found = list(items(got))
        except WRONG_SHAPE:
            return f"{kind_of(got)} has another shape than asked for"
        right = list(wanted(case))
        for item in right:
            times = sum(type(one) is type(item) and one == item for one in found)
            if times != 1:
                place = f"in no {where}" if not times else f"in {times} places"
                return f"{noun} {item} is {place}, each must be in exactly one: got {shown(got)}"
        if len(found) > len(right):
            odd = [one for one in found if not any(type(one) is type(item) and one == item for item in right)]
            return f"{shown(odd[0])} is no {noun}: got {shown(got)}"
        return None

    return compare


def least(count: Callable[[Case, Any], int], unit: str) -> Comparer:
    """As few as in the right answer by `count(case, answer)`: any answer of that cost is right."""

    def compare(case: Case, got: Any, expected: Any) -> str | None:
        try:
            mine = count(case, got)
        except WRONG_SHAPE:
            return f"{kind_of(got)} has another shape than asked for"
        fewest = count(case, expected)
        if not is_number(mine):
            return f"that takes {shown(mine)} {unit}, which is no number: got {shown(got)}"
        if mine < fewest:
            return f"got {shown(got)}\nthat takes {mine} {unit}, fewer than the {fewest} that are possible"
        if mine > fewest:
            return (
                f"got {shown(got)}\nthat takes {mine} {unit}, {fewest} are enough, for example with {shown(expected)}"
            )
        return None

    return compare
