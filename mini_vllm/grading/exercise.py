"""What an exercise is: its cases, its comparer, its hints. Knows no chapter and no right answer. All chapters."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Case = list  # positional arguments as plain JSON; `Exercise.prepare` turns them into what the learner's function gets
NUM_CASES = 40


def _as_they_are(case: Case) -> tuple:
    return tuple(case)


def _whole_value(case: Case, value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Exercise:
    """One graded exercise.

    draw_cases: a seeded generator -> NUM_CASES cases, tiny readable ones first.
    compare: (case, got, expected) -> None, or what is wrong in one or two lines.
    essence: what of an answer decides whether it is right (all of it, or only its cost); by it an answer is
        compared with known mistakes.
    """

    exercise_id: str
    title: str
    kind: str  # "code" or "bug hunt"
    function: str  # the name that the learner's cell defines
    stars: int
    points: int
    minutes: int
    hints: tuple[str, str, str]  # the idea, the shape, the pseudo-code
    draw_cases: Callable[[random.Random], list[Case]]
    compare: Callable[[Case, Any, Any], str | None]
    prepare: Callable[[Case], tuple] = _as_they_are
    essence: Callable[[Case, Any], Any] = _whole_value

    @property
    def label(self) -> str:
        """The line under the exercise's title, in the notebook and in the book."""
        return f"{'★' * self.stars} · {self.kind} · {self.points} points · {self.minutes} minutes · CPU"

    @property
    def passed_line(self) -> str:
        """What `check` prints for a right answer, the same on every machine."""
        return f"{self.exercise_id} ✓ {NUM_CASES} cases, {self.points} points"

    @property
    def check_source(self) -> str:
        """The check cell of this exercise."""
        return f'# NBVAL_CHECK_OUTPUT\ncheck("{self.exercise_id}", {self.function})'

    def cases(self, seed: int | str) -> list[Case]:
        cases = self.draw_cases(random.Random(f"{seed}/{self.exercise_id}"))
        if len(cases) != NUM_CASES:
            raise ValueError(f"{self.exercise_id} draws {len(cases)} cases; every exercise has {NUM_CASES}")
        return cases

    def arguments(self, case: Case) -> tuple:
        """Fresh arguments for one call: a function may change what it is given."""
        return self.prepare(json.loads(json.dumps(case)))

    def call_text(self, case: Case) -> str:
        return f"{self.function}({', '.join(repr(argument) for argument in self.arguments(case))})"
