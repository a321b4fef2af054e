"""Compares numbers that have a sign and a unit, and guesses what went wrong. Knows no exercise. All chapters."""

import math
from collections.abc import Mapping
from typing import Any

from mini_vllm.grading.checkers import is_number, kind_of
from mini_vllm.grading.exercise import Case, Comparer

# unit -> (what it measures, how many of the smallest one it is, its name in words)
UNITS = {
    "ns": ("time", 1e-9, "nanoseconds"),
    "µs": ("time", 1e-6, "microseconds"),
    "ms": ("time", 1e-3, "milliseconds"),
    "s": ("time", 1.0, "seconds"),
    "min": ("time", 60.0, "minutes"),
    "bits": ("data", 1 / 8, "bits"),
    "bytes": ("data", 1.0, "bytes"),
    "KB": ("data", 1e3, "KB (1000)"),
    "KiB": ("data", 1024.0, "KiB (1024)"),
    "MB": ("data", 1e6, "MB (1000²)"),
    "MiB": ("data", 1024.0**2, "MiB (1024²)"),
    "GB": ("data", 1e9, "GB (1000³)"),
    "GiB": ("data", 1024.0**3, "GiB (1024³)"),
    "TB": ("data", 1e12, "TB (1000⁴)"),
    "FLOP": ("arithmetic", 1.0, "FLOP"),
    "GFLOP": ("arithmetic", 1e9, "GFLOP"),
    "TFLOP": ("arithmetic", 1e12, "TFLOP"),
    "share": ("share", 1.0, "a share between 0 and 1"),
    "percent": ("share", 0.01, "percent"),
}
SUFFIX = {"": "", "share": "", "percent": " %"}
GUESS_TOLERANCE = 1e-6


def numeric(unit: str = "", tolerance: float = 1e-9, slips: Mapping[float, str] | None = None) -> Comparer:
    """A finite number within `tolerance` of the expected one, relative to it. NaN is never right, nor the wrong sign.

    unit: of the expected number: a key of UNITS, a rate such as "tokens/s", a noun such as "blocks", or nothing.
    slips: factor -> what somebody did who is wrong by it, for instance {0.5: "K and V are two tensors"}.
    """

    def compare(case: Case, got: Any, expected: float) -> str | None:
        if not is_number(got):
            return f"expected the number {_number(expected)}{_suffix(unit)}, got {kind_of(got)}"
        if _close(got, expected, tolerance):
            return None
        right, mine = _number(expected), _number(got)
        if right == mine:
            right, mine = repr(expected), repr(got)
        guess = _guess(got, expected, unit, tolerance, slips or {})
        return f"expected {right}{_suffix(unit)}, got {mine}{f': {guess}' if guess else ''}"

    return compare


def _close(got: float, expected: float, tolerance: float) -> bool:
    # 1e-12: what floats leave of a sum that should be 0.
    return abs(got - expected) <= max(tolerance * abs(expected), 1e-12)


def _guess(got: float, expected: float, unit: str, tolerance: float, slips: Mapping[float, str]) -> str:
    if type(got) is int and type(expected) is float and got == math.floor(expected):
        return "a whole number; does // stand where / is meant?"
    if not expected or not got:
        return ""
    near = max(tolerance, GUESS_TOLERANCE)
    sign = "right size, wrong sign" if (got < 0) != (expected < 0) else ""
    mine, right = abs(got), abs(expected)
    if _close(mine, right, near):
        return sign
    factor = next((text for value, text in slips.items() if _close(mine, right * value, near)), "")
    factor = factor or _other_unit(mine, right, unit, near)
    if not factor and not sign and type(got) is type(expected) is int and abs(got - expected) == 1:
        factor = "one too many" if got > expected else "one too few"
    if not factor and got in [round(expected, digits) for digits in range(1, 7)]:
        factor = "rounded; give the number in full"
    return f"wrong sign, and {factor}" if sign and factor else factor


def _other_unit(mine: float, right: float, unit: str, near: float) -> str:
    """ "off by 1000: seconds instead of milliseconds?" if another unit of the same kind explains the number."""
    top, _, below = unit.partition("/")
    for name, power in ((top, 1), (below, -1)):
        kind, size, words = UNITS.get(name, ("", 1.0, ""))
        for other_kind, other_size, other_words in UNITS.values():
            if other_kind == kind and _close(mine, right * (size / other_size) ** power, near):
                by = max(mine / right, right / mine)
                if power < 0:
                    words, other_words = (f"per {word.removesuffix('s')}" for word in (words, other_words))
                return f"off by {by:.6g}: {other_words} instead of {words}?"
    return ""


def _number(value: float) -> str:
    return f"{value:,}" if type(value) is int else f"{value:.6g}"


def _suffix(unit: str) -> str:
    return SUFFIX.get(unit, f" {unit}")
