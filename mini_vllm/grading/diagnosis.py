"""Says in one line why a cell gave no answer. Knows how IPython and nbval report a failure. All chapters."""

import re

from mini_vllm.grading.exercise import Exercise

COLOUR = re.compile(r"(?:\x1b|#x1B)\[[0-9;]*m")  # junit XML writes the escape character as #x1B
EXCEPTION_LINE = re.compile(r"^\w*(?:Error|Exception|Exit|Interrupt|Warning)\b.*", re.MULTILINE)
FILE_AND_LINE = re.compile(r"\s*\([^()]*, line \d+\)$")  # IPython names its own temporary file there
LINE_IN_CELL = re.compile(r"Cell In\[\d+\], line (\d+)")
DEFINITION = re.compile(r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE)
CELLS_ARE_ALONE = "Put all that the answer needs into its own cell: cells without a marker are not graded."


def one_line(report: str) -> str:
    """nbval's report of a red cell as "SyntaxError: expected ':' (line 2)"."""
    text = COLOUR.sub("", report)
    if "outputs differ" in text:
        return "it printed something else than expected"
    _, _, traceback = text.rpartition("\nTraceback:")
    exceptions = [match[0] for match in EXCEPTION_LINE.finditer(traceback)]
    lines = [line for line in traceback.splitlines() if line.strip()]
    if not exceptions:
        return lines[-1].strip()[:300] if lines else "it failed, without a word"
    where = LINE_IN_CELL.search(traceback)
    said = FILE_AND_LINE.sub("", exceptions[-1])[:300]
    return f"{said} (line {where[1]})" if where else said


def is_empty(source: str) -> bool:
    """Nothing but comments and blank lines."""
    return all(not line.strip() or line.strip().startswith("#") for line in source.splitlines())


def why_no_answer(exercise: Exercise, source: str, in_cell: str | None, in_check: str | None) -> str:
    """What to tell the learner. in_cell, in_check: why the answer cell and its check cell are red, if they are."""
    if in_cell:
        more = f"\n  {CELLS_ARE_ALONE}" if in_cell.startswith(("NameError", "ModuleNotFoundError")) else ""
        return f"your cell does not run: {in_cell}{more}"
    if not in_check:
        return "the check was not run: was check() replaced?"
    if not in_check.startswith(f"NameError: name '{exercise.function}' is not defined"):
        return in_check.removeprefix(f"{exercise.exercise_id} ✗ ")
    defined = list(dict.fromkeys(DEFINITION.findall(source)))
    if exercise.function in defined:
        return f"{exercise.function} is not there once your cell has run"
    if defined:
        return f"your cell defines {', '.join(defined)}; {exercise.function} is asked for"
    return f"your cell defines no function; {exercise.function} is asked for"
