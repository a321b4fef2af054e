"""Small comparers from which exercises are built. Each says what is wrong, or None. Knows no exercise. All chapters.

A comparer takes (case, got, expected). `got` is plain data (see `calling`), but nothing else is known of it: a comparer
never raises and never passes what it cannot read. Numbers with a sign and a unit: `quantities`. Rules that need no
right answer: `properties`. Traces and the work in them: `step_traces`. Tensors: `tensors`.
"""

from collections.abc import Sequence
from typing import Any

from mini_vllm.grading.exercise import Case, Comparer

LONGEST_SHOWN = 120
COLUMN = 34


def shown(value: Any, longest: int = LONGEST_SHOWN) -> str:
    """repr, cut where it gets too long for one line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of 5,000 digits; a list inside a list inside a list …
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= longest else text[: longest - 1] + "…"


def kind_of(value: Any) -> str:
    """A value with its type, in words: "the list [1, 2]"."""
    if value is None:
        return "None: is a return missing?"
    return f"the {type(value).__name__} {shown(value)}"


def is_number(value: Any) -> bool:
    """A finite int or float; True is none, and neither is an int beyond all floats."""
    return type(value) in (int, float) and -1e300 < value < 1e300


def same(got: Any, expected: Any) -> bool:
    """Equal in value and in type, all the way down: 1 is not True, and [1] is not [1.0]."""
    if type(got) is not type(expected):
        return False
    if type(got) is list:
        return len(got) == len(expected) and all(map(same, got, expected))
    if type(got) is dict:
        return got.keys() == expected.keys() and all(same(got[key], expected[key]) for key in got)
    return got == expected


def exact(case: Case, got: Any, expected: Any) -> str | None:
    """The same value of the same type."""
    if same(got, expected):
        return None
    return f"expected {shown(expected)}, got {kind_of(got) if got is None else shown(got)}"


def one_of(*choices: str) -> Comparer:
    """One of a few words, the right one; another word is told which there are."""

    def compare(case: Case, got: Any, expected: Any) -> str | None:
        if type(got) is not str or got not in choices:
            return f"expected one of {', '.join(map(repr, choices))}, got {kind_of(got)}"
        return None if got == expected else f"{got!r} is not right"

    return compare


def sequence(unit: str, of: Comparer = exact) -> Comparer:
    """Lists, entry by entry with `of`; names the first `unit` ("step") that differs, and shows those around it."""

    def compare(case: Case, got: Any, expected: Sequence) -> str | None:
        if type(got) is not list:
            return f"expected a list with one entry a {unit}, got {kind_of(got)}"
        for index, (mine, right) in enumerate(zip(got, expected, strict=False)):
            if complaint := of(case, mine, right):
                return f"first difference in {unit} {index}: {complaint}{side_by_side(got, expected, index, unit)}"
        at = min(len(got), len(expected))
        table = side_by_side(got, expected, at, unit)
        if len(got) < len(expected):
            return f"{unit} {at} is missing: expected {shown(expected[at])} ({len(expected)} {unit}s in all){table}"
        if len(got) > len(expected):
            return f"{unit} {at} is one too many: {len(expected)} are right, got {shown(got[at])}{table}"
        return None

    return compare


def side_by_side(
    got: Sequence, expected: Sequence, at: int, unit: str, heads: tuple[str, str] = ("expected", "yours")
) -> str:
    """Entries around number `at` in two columns, as lines to be put under a message; "" if there is only one."""
    if max(len(got), len(expected)) < 2:
        return ""
    first, last = max(0, at - 2), min(at + 3, max(len(got), len(expected)))
    rows = [(unit, *heads), *((str(i), _entry(expected, i), _entry(got, i)) for i in range(first, last))]
    name, wide = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "".join(
        f"\n{'>' if number == str(at) else ' '} {number:>{name}}   {right:<{wide}}   {mine}".rstrip()
        for number, right, mine in rows
    )


def _entry(items: Sequence, index: int) -> str:
    return shown(items[index], COLUMN) if index < len(items) else "–"


def parts(**of: Comparer) -> Comparer:
    """A dict with just these keys, each value by its own comparer; names every part that is not right."""

    def compare(case: Case, got: Any, expected: dict) -> str | None:
        if type(got) is not dict:
            return f"expected a dict with {', '.join(map(repr, of))}, got {kind_of(got)}"
        if got.keys() != of.keys():
            lacking, extra = [key for key in of if key not in got], [key for key in got if key not in of]
            said = [f"{shown(lacking[0])} is not in it"] if lacking else []
            said += [f"{shown(extra[0])} is not asked for"] if extra else []
            return f"{' and '.join(said)}: expected a dict with {', '.join(map(repr, of))}"
        complaints = {key: one(case, got[key], expected[key]) for key, one in of.items()}
        return "\n".join(f"{key}: {complaint}" for key, complaint in complaints.items() if complaint) or None

    return compare


def all_of(*comparers: Comparer) -> Comparer:
    """The first complaint of several; later ones may rely on what earlier ones have made sure of."""

    def compare(case: Case, got: Any, expected: Any) -> str | None:
        return next((complaint for one in comparers if (complaint := one(case, got, expected))), None)

    return compare
