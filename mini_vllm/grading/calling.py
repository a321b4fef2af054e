"""Calls what a learner defined and turns what comes back into plain data. Judges nothing. All chapters.

An outcome is one of
    {"value": plain data, "printed": text}
    {"error": "ZeroDivisionError: …", "line": "return a / 0", "printed": text}     it raised
    {"refused": "…"}                                                              not plain data
    {"stub": True}                                                                 still the empty stub
    {"timeout": seconds}
"""

import contextlib
import io
import itertools
import json
import math
import signal
import threading
import traceback
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from mini_vllm.grading.exercise import Case, Exercise

MAX_RESULT_CHARS = 1_000_000
MAX_PRINTED_CHARS = 2_000
MOST_ITEMS = MAX_RESULT_CHARS  # of a lazy sequence; an endless one ends there
LARGEST_INT = 10**300
DICTS = (dict, defaultdict, OrderedDict, Counter)
VIEWS: tuple = ({}.keys(), {}.values(), {}.items(), iter([]), iter(()), iter({}), iter(range(0)), reversed([]))
LAZY = {types.GeneratorType, range, map, filter, zip, enumerate, reversed, *map(type, VIEWS)}
ARRAYS = ("numpy", "torch")  # whose scalars and arrays have tolist()
TO_BE_FILLED_IN = "there is still a … in it, the mark for what is to be filled in"


class NotPlain(Exception):
    """A result that cannot be compared as data; the message says what to return instead."""


class OutOfTime(BaseException):
    """Raised inside a learner's function that runs for too long. No `except Exception` catches it."""


def to_plain(value: Any) -> Any:
    """`value` as exact built-in types: tuples and lazy sequences become lists, numpy values their built-in twins.

    The test is type(x) is …, not isinstance: an object of the learner's own could claim to equal everything.
    """
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        if abs(value) > LARGEST_INT:
            raise NotPlain("the result holds a whole number of over 300 digits")
        return value
    if kind is float:
        if not math.isfinite(value):
            raise NotPlain(f"the result holds {value!r}, which is no finite number")
        return value
    if kind in (list, tuple, deque):
        return [to_plain(item) for item in value]
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):  # a named tuple, read as the tuple that it is
        return [to_plain(item) for item in tuple.__iter__(value)]
    if kind in DICTS:
        return {_key(key): to_plain(item) for key, item in value.items()}
    if kind in LAZY or kind.__module__ == "itertools":
        return to_plain(list(itertools.islice(value, MOST_ITEMS)))
    if kind.__module__ in ARRAYS and hasattr(value, "tolist"):
        return to_plain(value.tolist())
    if kind in (Fraction, Decimal):
        return to_plain(float(value))
    if value is ...:
        raise NotPlain(TO_BE_FILLED_IN)
    if kind in (set, frozenset):
        raise NotPlain("the result holds a set, which has no order; return a list")
    raise NotPlain(f"the result holds an object of type {kind.__name__}; return numbers, strings, lists and dicts")


def _key(key: Any) -> str:
    plain = to_plain(key)
    if type(plain) is not str:
        raise NotPlain(f"the result is a dict with the key {plain!r}, which is no string")
    return plain


def _is_blank(value: Any) -> bool:
    """A value as it was given to the learner: …, or nothing but … in it, all the way down."""
    if type(value) not in (dict, list, tuple):
        return value is ...
    items = value.values() if type(value) is dict else value
    return len(items) > 0 and all(map(_is_blank, items))


class _Printed(io.TextIOBase):
    """Keeps the first characters that a function prints, so that print() for debugging harms nothing."""

    def __init__(self):
        self.text = ""

    def write(self, text: str) -> int:
        self.text = (self.text + text)[:MAX_PRINTED_CHARS]
        return len(text)


def call_once(exercise: Exercise, fn: Callable, case: Case) -> dict:
    """The outcome of one call. KeyboardInterrupt and OutOfTime pass through."""
    printed = _Printed()
    try:
        with contextlib.redirect_stdout(printed):
            result = exercise.result_of(fn, case)
            if exercise.takes_value and _is_blank(result):
                return {"stub": True}
            value = to_plain(result)
        if len(json.dumps(value)) > MAX_RESULT_CHARS:
            raise NotPlain(f"the result has over {MAX_RESULT_CHARS:,} characters")
    except NotImplementedError:
        return {"stub": True}
    except NotPlain as error:
        return {"refused": str(error), "printed": printed.text}
    except (KeyboardInterrupt, OutOfTime):
        raise
    except BaseException as error:  # sys.exit() in a learner's function ends the call, not the check
        last = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error}".rstrip(": ")
        return {"error": message[:500], "line": (last.line or "")[:200], "printed": printed.text}
    return {"value": value, "printed": printed.text}


def call_all(
    exercise: Exercise, fn: Callable, cases: list[Case], limit_s: float | None = None, cpu_only: bool = False
) -> list[dict]:
    """Outcomes in the order of `cases`; stops after a stub, an exception or the time limit (see `time_limit`)."""
    outcomes: list[dict] = []
    try:
        with time_limit(limit_s, cpu_only):
            for case in cases:
                outcomes.append(call_once(exercise, fn, case))
                if "value" not in outcomes[-1] and "refused" not in outcomes[-1]:
                    break
    except OutOfTime:
        outcomes.append({"timeout": limit_s})
    return outcomes


@contextlib.contextmanager
def time_limit(seconds: float | None, cpu_only: bool = False) -> Iterator[None]:
    """Raise OutOfTime in the block after `seconds`. Without effect on Windows and outside the main thread.

    cpu_only: seconds in which this process computes, so that a learner may stop in a debugger and think.
    """
    usable = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not seconds or not usable:
        yield
        return

    def end_it(signum, frame):
        raise OutOfTime

    timer, alarm = (signal.ITIMER_PROF, signal.SIGPROF) if cpu_only else (signal.ITIMER_REAL, signal.SIGALRM)
    before = signal.signal(alarm, end_it)
    # Again every second: a bare `except:` in an endless loop swallows one OutOfTime, and nbval's limit takes over.
    signal.setitimer(timer, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(alarm, before)
