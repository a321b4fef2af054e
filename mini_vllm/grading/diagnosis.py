"""Says in one line why a cell gave no answer. Knows how IPython and nbval report a failure. All chapters."""

import ast
import re

from mini_vllm.grading.exercise import Exercise
from mini_vllm.grading.runner import CellResult

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FILE_AND_LINE = re.compile(r"\s*\([^()]*, line \d+\)$")  # IPython names its own temporary file there
LINE_IN_CELL = re.compile(r"Cell In\[\d+\], line (\d+)")
CELLS_ARE_ALONE = "Put all that the answer needs into its own cell: cells without a marker are not graded."
MAGIC_LINE = re.compile(r"^([ \t]*)[%!].*$", re.MULTILINE)


def why_red(cell: CellResult | None) -> str | None:
    """The exception of a cell as "SyntaxError: expected ':' (line 2)"; None if it came to its end."""
    if cell is None or cell.status == "ok":
        return None
    if cell.status is None:
        return cell.why.strip().splitlines()[-1][:300] if cell.why.strip() else "it did not come to its end"
    said = FILE_AND_LINE.sub("", COLOUR.sub("", cell.evalue).strip())
    if cell.ename == "GradeFailed":
        return said
    where = LINE_IN_CELL.search(COLOUR.sub("", cell.traceback))
    text = f"{cell.ename}: {said}".rstrip(": ").splitlines()[0][:300]
    return f"{text} (line {where[1]})" if where else text


def is_empty(source: str) -> bool:
    """Nothing but comments and blank lines."""
    return all(not line.strip() or line.strip().startswith("#") for line in source.splitlines())


def parsed(source: str) -> ast.Module | None:
    """The syntax tree of a cell, with its magics and shell lines as `pass`; None if it is no Python."""
    try:
        return ast.parse(MAGIC_LINE.sub(r"\1pass", source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def defined_in(source: str) -> list[str]:
    """Names of the functions and classes that a cell defines at its top."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    tree = parsed(source)
    return list(dict.fromkeys(node.name for node in tree.body if isinstance(node, kinds))) if tree else []


def why_no_answer(exercise: Exercise, source: str, in_cell: str | None, in_check: str) -> str:
    """What to tell the learner. in_cell, in_check: why the answer cell and its check cell are red."""
    if in_cell:
        more = f"\n  {CELLS_ARE_ALONE}" if in_cell.startswith(("NameError", "ModuleNotFoundError")) else ""
        return f"your cell does not run: {in_cell}{more}"
    if not in_check.startswith(f"NameError: name '{exercise.function}' is not defined"):
        return in_check.removeprefix(f"{exercise.exercise_id} ✗ ")
    defined = defined_in(source)
    if exercise.function in defined:
        return f"{exercise.function} is not there once your cell has run"
    if defined:
        return f"your cell defines {', '.join(defined)}; {exercise.function} is asked for"
    what = "no value" if exercise.takes_value else "no function"
    return f"your cell defines {what}; {exercise.function} is asked for"
