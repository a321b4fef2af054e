"""All graded exercises, by id. Knows where a chapter's exercises stand; holds no right answer. All chapters."""

import re
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules

from mini_vllm.errors import GradingError
from mini_vllm.grading.exercise import Exercise

EXERCISE_ID = re.compile(r"(c\d\d)-[eb]\d+")


def chapter_of(exercise_id: str) -> str:
    """c01-e2 -> ch01, the name of the module."""
    found = EXERCISE_ID.fullmatch(exercise_id)
    if not found:
        raise GradingError(f"{exercise_id!r} is no exercise id; ids look like c01-e1 or c01-b1 (a bug hunt)")
    return "ch" + found[1][1:]


def chapter_module(chapter: str):
    """The module with EXERCISES and HIDDEN of a chapter such as ch01."""
    name = f"{__name__}.{chapter}"
    if find_spec(name) is None:
        raise GradingError(f"no graded exercises are known for {chapter}; is this mini_vllm older than the notebook?")
    return import_module(name)


def chapters() -> list[str]:
    """The chapters with graded exercises, in order: ch01, …"""
    return sorted(module.name for module in iter_modules(__path__))


def find_exercise(exercise_id: str) -> Exercise:
    exercises = chapter_module(chapter_of(exercise_id)).EXERCISES
    for exercise in exercises:
        if exercise.exercise_id == exercise_id:
            return exercise
    known = ", ".join(e.exercise_id for e in exercises)
    raise GradingError(f"there is no exercise {exercise_id}; this chapter has {known}")


def hidden_modules(exercise_ids: list[str]) -> list[str]:
    """Modules that hold an answer to one of these exercises: not importable while they are graded."""
    chapters = sorted({chapter_of(exercise_id) for exercise_id in exercise_ids})
    return ["mini_vllm.grading.reference", *(name for c in chapters for name in chapter_module(c).HIDDEN)]
