"""What an exercise is: its cases, its comparer, its hints. Knows no chapter and no right answer. All chapters."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

Case = list  # positional arguments as plain JSON; `Exercise.prepare` turns them into what the learner's function gets
Comparer = Callable[[Case, Any, Any], str | None]  # (case, got, expected) -> None, or what is wrong
NUM_CASES = 40
VALUE_KINDS = ("predict", "analyse")  # the learner's cell defines a value
KINDS = (*VALUE_KINDS, "code", "bug hunt", "extend")  # … a function or a class


def no_arguments(rng: random.Random) -> list[Case]:
    """One case, for an exercise whose answer is a value."""
    return [[]]


def _as_they_are(case: Case) -> tuple:
    return tuple(case)


def _call(given: Callable, *arguments: Any) -> Any:
    return given(*arguments)


def _as_a_call(name: str, arguments: tuple) -> str:
    return f"{name}({', '.join(map(repr, arguments))})"


def _whole_value(case: Case, value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Exercise:
    """One graded exercise.

    needs: what to read or solve before it.
    draw_cases: a seeded generator -> `num_cases` cases, tiny readable ones first.
    compare: (case, got, expected) -> None, or what is wrong in a few lines; see `checkers`.
    prepare: a case -> the arguments. call: (what the learner defined, *arguments) -> what is compared; by default
        a plain call. show: (the exercise's name, arguments) -> the call as a learner would write it.
    essence: what of an answer decides whether it is right (all of it, or only its cost); by it an answer is
        compared with known mistakes.
    packages: without these the exercise is skipped, with the reason, and never passed.
    raised: (how the told error begins, what it says about the answer); the first that fits is told with the error.
    stage: "ch04" if what passes is the learner's scheduler of that chapter, to be kept for the next (`my_stage`).
    """

    exercise_id: str
    title: str
    kind: str
    function: str  # the name that the learner's cell defines
    stars: int
    points: int
    minutes: int
    needs: str
    hints: tuple[str, str, str]  # the idea, the shape, the pseudo-code
    compare: Comparer
    draw_cases: Callable[[random.Random], list[Case]] = no_arguments
    prepare: Callable[[Case], tuple] = _as_they_are
    call: Callable[..., Any] = _call
    essence: Callable[[Case, Any], Any] = _whole_value
    show: Callable[[str, tuple], str] = _as_a_call
    packages: tuple[str, ...] = ()
    raised: tuple[tuple[str, str], ...] = ()
    stage: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.exercise_id} is of kind {self.kind!r}; there are {', '.join(KINDS)}")

    @property
    def takes_value(self) -> bool:
        return self.kind in VALUE_KINDS

    @property
    def num_cases(self) -> int:
        return 1 if self.takes_value else NUM_CASES

    @property
    def label(self) -> str:
        """The one line about the exercise, the same in its notebook and in its chapter."""
        effort = f"{'★' * self.stars} · {self.kind} · {self.points} points · {self.minutes} minutes · CPU"
        return f"{effort} · needs: {self.needs}"

    @property
    def passed_line(self) -> str:
        """What `check` prints for a right answer, the same on every machine."""
        cases = "" if self.takes_value else f"{NUM_CASES} cases, "
        return f"{self.exercise_id} ✓ {cases}{self.points} points"

    @property
    def check_source(self) -> str:
        """The check cell of this exercise."""
        return f'# NBVAL_CHECK_OUTPUT\ncheck("{self.exercise_id}", {self.function})'

    @property
    def missing_packages(self) -> list[str]:
        return [name for name in self.packages if find_spec(name) is None]

    def cases(self, seed: int | str) -> list[Case]:
        cases = self.draw_cases(random.Random(f"{seed}/{self.exercise_id}"))
        if len(cases) != self.num_cases:
            raise ValueError(f"{self.exercise_id} draws {len(cases)} cases; it should be {self.num_cases}")
        return cases

    def arguments(self, case: Case) -> tuple:
        """Fresh arguments for one call: a function may change what it is given."""
        return self.prepare(json.loads(json.dumps(case)))

    def result_of(self, given: Any, case: Case) -> Any:
        """What the learner's value, function or class gives for a case."""
        return given if self.takes_value else self.call(given, *self.arguments(case))

    def call_text(self, case: Case) -> str:
        """The case as a learner would write it."""
        return self.function if self.takes_value else self.show(self.function, self.arguments(case))
