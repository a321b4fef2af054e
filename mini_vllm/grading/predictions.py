"""`predict` before an explanation, `reveal` after it: the guess beside the truth. Knows no exercise. All chapters."""

from typing import Any

from mini_vllm.grading import progress_file
from mini_vllm.grading.calling import NotPlain, to_plain
from mini_vllm.grading.checkers import exact, is_number, shown, side_by_side

YOURS = ("it is", "you said")


def predict(question: str, *values: Any, **named_values: Any) -> None:
    """Write down what you expect: predict("waste-8", 0.5), predict("lift-2", seconds=60), or several named values.

    A list is a prediction for every step: predict("door", steps=[["A", "B"], ["A", "C"]]).
    """
    answer = _only_answer("predict", question, values, named_values)
    try:
        guess = {name: _plain(value) for name, value in answer.items()}
    except NotPlain as error:
        raise ValueError(
            f"predict({question!r}, …) takes a number, a text, a list, a dict, True or False, and {error}"
        ) from None
    progress_file.note_prediction(question, guess)
    print(f"{question}: noted, {_text(guess)}. Read on; reveal comes below.")


def reveal(question: str, *values: Any, **named_values: Any) -> None:
    """Print the prediction beside the truth, given as in `predict`, and where they first differ.

    The truth may also be the trace of a run: then it is the ids that were scheduled, step by step. Without a
    prediction it says only how it is.
    """
    answer = _only_answer("reveal", question, values, named_values)
    truth = {name: _plain(_ids_by_step(value)) for name, value in answer.items()}
    guess = progress_file.known()["predictions"].get(question)
    if guess is None:
        print(f"{question}: it is {_text(truth)}. (Nothing predicted; a guess made first makes the number stick.)")
    elif len(guess) == len(truth) == 1:
        [(name, right)], [mine] = truth.items(), guess.values()
        print(f"{question}: you said {_text(guess)}, it is {_text(truth)}{_compared(mine, right, name)}")
    else:
        print(f"{question}: {_side_by_side(guess, truth)}")


def _only_answer(call: str, question: str, values: tuple[Any, ...], named_values: dict[str, Any]) -> dict[str, Any]:
    """The answer by name; "" is the name of one without."""
    if len(values) + bool(named_values) != 1:
        given = len(values) + len(named_values)
        raise ValueError(f"{call}({question!r}, …) takes one value, or named values, got {given}")
    return named_values or {"": values[0]}


def _plain(value: Any) -> Any:
    if value is None:
        raise NotPlain("not None")
    return to_plain(value)


def _ids_by_step(value: Any) -> Any:
    if type(value).__name__ != "Trace":
        return value
    return [[req_id for req_id, _ in record["scheduled"]] for record in value.steps]


def _compared(mine: Any, right: Any, name: str) -> str:
    """What follows "it is …": how far off, or from where on."""
    if exact([], mine, right) is None or (is_number(mine) and mine == right):
        return ", exactly."
    if is_number(mine) and is_number(right):
        return f", {_text({'': abs(mine - right)})} {'more' if right > mine else 'less'} than you said."
    if type(mine) is type(right) is list:
        unit = name.removesuffix("s") or "entry"
        pairs = enumerate(zip(mine, right, strict=False))
        at = next((i for i, (a, b) in pairs if exact([], a, b)), min(len(mine), len(right)))
        return f"; the first difference is in {unit} {at}{side_by_side(mine, right, at, unit, YOURS)}"
    return "."


def _side_by_side(guess: dict[str, Any], truth: dict[str, Any]) -> str:
    """One line for each named value."""
    names = list(dict.fromkeys([*truth, *guess]))
    rows = [["", "you said", "it is", ""]]
    wrong = []
    for name in names:
        note = ""
        if name in guess and name in truth:
            note = _compared(guess[name], truth[name], "").splitlines()[0].lstrip(",; ").rstrip(".")
        if note != "exactly":
            wrong.append(name)
        mine, right = (_text({"": answer[name]}) if name in answer else "–" for answer in (guess, truth))
        rows.append([name, mine, right, note])
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    head = f"the first difference is in {wrong[0]}" if wrong else "all exactly"
    lines = [f"  {a:<{wide[0]}}   {b:>{wide[1]}}   {c:>{wide[2]}}   {d}".rstrip() for a, b, c, d in rows]
    return "\n".join([head, *lines])


def _text(answer: dict[str, Any]) -> str:
    """A value as it is printed: {"steps": 68} is 68, several are named."""
    texts = {name: f"{v:.4g}" if type(v) is float else v if type(v) is str else shown(v) for name, v in answer.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items()) if len(texts) > 1 else next(iter(texts.values()))
