"""Three hints an exercise, one on each call: the idea, the shape, the pseudo-code. Never the solution. All chapters."""

import textwrap

from mini_vllm.grading.bank import find_exercise

STEPS = ("the idea", "the shape", "the pseudo-code")
WIDTH = 82  # a notebook shows so many characters without a scroll bar

_shown: dict[str, int] = {}


def hint(exercise_id: str, number: int | None = None) -> None:
    """Print the next of three hints: the idea, the shape, the pseudo-code. `number` (1 to 3) prints that one."""
    exercise = find_exercise(exercise_id)
    last = len(STEPS)
    if number is None:
        number = min(_shown.get(exercise_id, 0) + 1, last)
    if number not in range(1, last + 1):
        raise ValueError(f"hint number {number} of {exercise_id} does not exist; there are 1 to {last}")
    _shown[exercise_id] = max(number, _shown.get(exercise_id, 0))
    print(f"Hint {number} of {last}, {STEPS[number - 1]}:")
    text = exercise.hints[number - 1]
    print(textwrap.indent(text if number == last else textwrap.fill(text, WIDTH), "  "))
    if number == last:
        print("That was the last one. A solved notebook lies in solutions/, for when you have tried.")


def next_hint(exercise_id: str) -> str:
    """The line under a check that is not passed."""
    seen = _shown.get(exercise_id, 0)
    if seen == len(STEPS):
        return f'You have seen all three hints; hint("{exercise_id}", 1) shows the first again.'
    return f'Next hint, {STEPS[seen]}: hint("{exercise_id}")'
