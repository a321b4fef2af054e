"""`predict` before an explanation, `reveal` after it: the guess beside the truth. Knows no exercise. All chapters."""

import numbers
from typing import Any

_predictions: dict[str, Any] = {}


def predict(question: str, *values: Any, **named_values: Any) -> None:
    """Write down what you expect: predict("waste-8", 0.5) or predict("lift-2", seconds=60)."""
    guess = _only_value("predict", question, values, named_values)
    if not isinstance(guess, numbers.Number | list | str):  # a bool is a number
        kind = type(guess).__name__
        raise ValueError(f"predict({question!r}, …) takes a number, a list, a string, True or False, not {kind}")
    _predictions[question] = guess
    print(f"{question}: noted, {_text(guess)}. Read on; reveal comes below.")


def reveal(question: str, *values: Any, **named_values: Any) -> None:
    """Print the prediction beside the truth, given as in `predict`. Without a prediction it says only how it is."""
    truth = _only_value("reveal", question, values, named_values)
    if question not in _predictions:
        print(f"{question}: it is {_text(truth)}. (Nothing predicted; a guess made first makes the number stick.)")
        return
    guess = _predictions[question]
    print(f"{question}: you said {_text(guess)}, it is {_text(truth)}{_distance(guess, truth)}.")


def _only_value(call: str, question: str, values: tuple[Any, ...], named_values: dict[str, Any]) -> Any:
    answers = [*values, *named_values.values()]
    if len(answers) != 1:
        raise ValueError(f"{call}({question!r}, …) takes one value, got {len(answers)}")
    return answers[0]


def _distance(guess: Any, truth: Any) -> str:
    if guess == truth:
        return ", exactly"
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in (guess, truth)):
        return ""
    return f", {_text(abs(guess - truth))} {'more' if truth > guess else 'less'} than you said"


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
