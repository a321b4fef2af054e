"""Puts a learner's cells into an untouched notebook. Knows the notebook format; runs and judges nothing. All chapters.

Cells are found by the comment `# EXERCISE c01-e1` alone. Ids, tags and their order do not matter: editors, Colab and
nbformat 4.0 lose them.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from mini_vllm.errors import GradingError
from mini_vllm.grading.exercise import Exercise
from mini_vllm.grading.pieces import defines, joined

MARKER = re.compile(r"^[ \t]*#[ \t]*EXERCISE[ \t]+(c\d\d-[eb]\d+)\b.*$", re.MULTILINE)
NBVAL_COMMENT = re.compile(r"^[ \t]*#+[ \t]*(NBVAL_|PYTEST_VALIDATE_).*$", re.MULTILINE)  # it would steer nbval
CHECK_CALL = re.compile(r"\bcheck\(\s*[\"'](c\d\d-[eb]\d+)[\"']")
STEERING_TAGS = ("nbval-skip", "nbval-raises-exception", "raises-exception", "nbval-ignore-output")
PACKAGED = Path(__file__).resolve().parent / "notebooks"  # the exercises as tools/make_exercises.py made them
PREAMBLE = "from mini_vllm.grading import check, hint, predict, reveal"
OWN_CHECK = "\nfrom mini_vllm.grading import check\ncheck("  # a learner may have used the name for something else


def parse_notebook(data: bytes, name: str) -> dict:
    """The notebook as a dict; GradingError says what to do about a file that is none."""
    if not data.strip():
        raise GradingError(f"{name} is empty; save the notebook again, or download it again")
    try:
        nb = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise GradingError(f"{name} is no UTF-8 text, as notebooks are; save it again from Jupyter or Colab") from error
    except (ValueError, RecursionError) as error:
        raise GradingError(
            f"{name} is no notebook (not JSON: {error}); download it again as .ipynb, not as .py or .html"
        ) from error
    if not isinstance(nb, dict) or not isinstance(nb.get("cells"), list):
        raise GradingError(f"{name} has no list of cells; save it in notebook format 4 (any Jupyter of today does)")
    if nb.get("nbformat", 4) != 4:
        raise GradingError(f"{name} is in notebook format {nb['nbformat']!r}; save it in format 4 (any Jupyter does)")
    return nb


def read_notebook(path: Path) -> dict:
    """`parse_notebook` of a file of ours."""
    try:
        return parse_notebook(path.read_bytes(), str(path))
    except OSError as error:
        raise GradingError(f"{path} cannot be read ({error.strerror}); give the path of an .ipynb file") from error


def source_of(cell: dict) -> str:
    """A cell's source as one text with \\n line ends; notebooks store it as text or as a list of lines."""
    source = cell.get("source", "")
    lines = [source] if isinstance(source, str) else source if isinstance(source, list) else []
    return "".join(line for line in lines if isinstance(line, str)).replace("\r\n", "\n").replace("\r", "\n")


def is_code(cell) -> bool:
    return isinstance(cell, dict) and cell.get("cell_type") == "code"


def code_cells(nb: dict) -> list[dict]:
    return [cell for cell in nb["cells"] if is_code(cell)]


@dataclass
class Answers:
    """What a learner's notebook holds: the source for each exercise id, and what was odd about it."""

    sources: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def find_answers(nb: dict, names: dict[str, str] | None = None) -> Answers:
    """The marked cells. Of several with one marker the last wins, as it does when a notebook is run.

    names: exercise id -> the name that its answer defines; with it, an answer that was split is joined again.
    """
    answers, cells = Answers(), nb["cells"]
    marked: dict[str, list[int]] = {}
    for place, cell in enumerate(cells):
        for exercise_id in dict.fromkeys(MARKER.findall(source_of(cell)) if is_code(cell) else []):
            marked.setdefault(exercise_id, []).append(place)
    for exercise_id, places in marked.items():
        name = (names or {}).get(exercise_id)
        with_name = [p for p in places if name and defines(source_of(cells[p]), name)]
        main = (with_name or places)[-1]
        pieces = _pieces(cells, main, exercise_id, name) if name else [main]
        answers.sources[exercise_id] = "\n".join(source_of(cells[place]) for place in pieces)
        if len(pieces) > 1:
            answers.notes.append(f"{exercise_id} was put together from {len(pieces)} cells; make them one cell")
        elif len(places) > 1:
            text = f"{len(places)} cells are marked # EXERCISE {exercise_id}; the last one counts, delete the others"
            answers.notes.append(text)
    return answers


def _pieces(cells: list, main: int, exercise_id: str, name: str) -> list[int]:
    """Places of the cells that make up an answer, out of those around `main` with only code between."""

    def belongs(place: int) -> bool:
        if not 0 <= place < len(cells) or not is_code(cells[place]):
            return False
        source = source_of(cells[place])
        return not CHECK_CALL.search(source) and set(MARKER.findall(source)) <= {exercise_id}

    first, last = main, main
    while belongs(first - 1):
        first -= 1
    while belongs(last + 1):
        last += 1
    chosen = joined([source_of(cell) for cell in cells[first : last + 1]], main - first, name)
    return [first + place for place in chosen]


def check_cell_notes(nb: dict, exercises: list[Exercise]) -> list[str]:
    """What became of the check cells. None of it matters for the verdict: the original ones are used."""
    stored: dict[str, list[dict]] = {}
    for cell in code_cells(nb):
        for exercise_id in CHECK_CALL.findall(source_of(cell)):
            stored.setdefault(exercise_id, []).append(cell)
    notes = []
    for exercise in exercises:
        name, cells = exercise.exercise_id, stored.get(exercise.exercise_id, [])
        tags = {tag for cell in cells for tag in _tags(cell) if tag in STEERING_TAGS}
        if not cells:
            notes.append(f"the check cell of {name} is gone; the original one was used")
        elif not any(source_of(cell).split() == exercise.check_source.split() for cell in cells):
            notes.append(f"the check cell of {name} was changed; the original one was used")
        elif tags:
            notes.append(f"the check cell of {name} is tagged {', '.join(sorted(tags))}; the original one was used")
    return notes


def _tags(cell: dict) -> list:
    metadata = cell.get("metadata")
    tags = metadata.get("tags") if isinstance(metadata, dict) else None
    return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []


def exercise_ids(nb: dict) -> list[str]:
    """Ids in the order of their cells, each once."""
    return list(dict.fromkeys(i for cell in code_cells(nb) for i in MARKER.findall(source_of(cell))))


def overlay(pristine: dict, exercises: list[Exercise], answers: dict[str, str]) -> tuple[dict, dict[str, list[int]]]:
    """A notebook to run, and for each exercise the numbers of its code cells: [answer, check].

    Answer cells get the learner's source. Check cells and what they must print come from the exercise itself.
    Everything else is the pristine notebook.
    """
    by_id = {exercise.exercise_id: exercise for exercise in exercises}
    cells = [code_cell(PREAMBLE)]
    numbers: dict[str, list[int]] = {}
    for cell in code_cells(pristine):
        source = source_of(cell)
        ids = [i for i in MARKER.findall(source) if i in by_id and i not in numbers]
        if not ids and not MARKER.search(source) and not CHECK_CALL.search(source):
            cells.append(code_cell(source))
        for exercise_id in ids:
            exercise = by_id[exercise_id]
            check = exercise.check_source.replace("\ncheck(", OWN_CHECK, 1)
            cells.append(code_cell(NBVAL_COMMENT.sub("", answers.get(exercise_id, source))))
            cells.append(code_cell(check, exercise.passed_line + "\n"))
            numbers[exercise_id] = [len(cells) - 2, len(cells) - 1]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}, numbers


def code_cell(source: str, printed: str = "") -> dict:
    """A cell for nbval; `printed` is what it must print."""
    outputs = [{"name": "stdout", "output_type": "stream", "text": printed}] if printed else []
    return {
        "cell_type": "code",
        "execution_count": 1 if printed else None,
        "metadata": {},
        "outputs": outputs,
        "source": source,
    }


def fill_in(pristine: dict, answers: dict[str, str]) -> dict:
    """A copy of an exercise notebook with these sources in its marked cells, as a learner would save it."""
    nb = json.loads(json.dumps(pristine))
    for cell in code_cells(nb):
        for exercise_id in MARKER.findall(source_of(cell)):
            if exercise_id in answers:
                cell["source"] = answers[exercise_id]
    return nb
