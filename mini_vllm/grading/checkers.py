"""Small comparers from which exercises are built. Each returns None or says what is wrong. Knows no exercise."""

import math
from collections.abc import Callable
from typing import Any


def kind_of(value: Any) -> str:
    """A value with its type, in words: "the list [1, 2]"."""
    text = repr(value)
    return f"the {type(value).__name__} {text if len(text) <= 120 else text[:117] + '…'}"


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def exact(got: Any, expected: Any) -> str | None:
    """The same value of the same type: 1 is not True."""
    if type(got) is type(expected) and got == expected:
        return None
    return f"expected {expected!r}, got {got!r}"


def numeric(got: Any, expected: float, tolerance: float = 1e-9) -> str | None:
    """A finite number within `tolerance`, relative to values above 1. NaN is never right."""
    if not is_number(got):
        return f"expected the number {expected:.6g}, got {kind_of(got)}"
    if abs(got - expected) <= tolerance * max(1.0, abs(expected)):
        return None
    return f"expected {expected:.6g}, got {got:.6g}"


def first_difference(got: Any, expected: list, unit: str) -> str | None:
    """Two lists, item by item; names the first `unit` ("step") that differs."""
    if type(got) is not list:
        return f"expected a list with one entry a {unit}, got {kind_of(got)}"
    for index, (mine, right) in enumerate(zip(got, expected, strict=False)):
        if type(mine) is not type(right) or mine != right:
            return f"first difference in {unit} {index}: expected {right!r}, got {mine!r}"
    if len(got) < len(expected):
        return f"{unit} {len(got)} is missing: expected {expected[len(got)]!r} ({len(expected)} {unit}s in all)"
    if len(got) > len(expected):
        return f"{unit} {len(expected)} is one too many: the run is over, got {got[len(expected)]!r}"
    return None


def all_of(*rules: Callable[..., str | None]) -> Callable[..., str | None]:
    """The first complaint of several rules over the same arguments; later rules may rely on earlier ones."""

    def compare(*arguments: Any) -> str | None:
        return next((complaint for rule in rules if (complaint := rule(*arguments))), None)

    return compare
