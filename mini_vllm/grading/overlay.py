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

MARKER = re.compile(r"^[ \t]*#[ \t]*EXERCISE[ \t]+(c\d\d-[eb]\d+)\b.*$", re.MULTILINE)
NBVAL_COMMENT = re.compile(r"^[ \t]*#[ \t]*(NBVAL_|PYTEST_VALIDATE_).*$", re.MULTILINE)  # it would steer nbval
CHECK_CALL = re.compile(r"\bcheck\(\s*[\"'](c\d\d-[eb]\d+)[\"']")
PACKAGED = Path(__file__).resolve().parent / "notebooks"  # the exercises as tools/make_exercises.py made them
PREAMBLE = "from mini_vllm.grading import check, hint, predict, reveal"


def read_notebook(path: Path) -> dict:
    """The notebook as a dict; GradingError says what to do about a file that is none."""
    try:
        nb = json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise GradingError(f"{path} cannot be read ({error.strerror}); give the path of an .ipynb file") from error
    except ValueError as error:
        raise GradingError(
            f"{path} is no notebook (not JSON: {error}); download it again as .ipynb, not as .py or .html"
        ) from error
    if not isinstance(nb, dict) or not isinstance(nb.get("cells"), list):
        raise GradingError(f"{path} has no list of cells; save it in notebook format 4 (any Jupyter of today does)")
    return nb


def source_of(cell: dict) -> str:
    """A cell's source as one text with \\n line ends; notebooks store it as text or as a list of lines."""
    source = cell.get("source", "")
    text = source if isinstance(source, str) else "".join(line for line in source if isinstance(line, str))
    return text.replace("\r\n", "\n").replace("\r", "\n")


def code_cells(nb: dict) -> list[dict]:
    return [cell for cell in nb["cells"] if isinstance(cell, dict) and cell.get("cell_type") == "code"]


@dataclass
class Answers:
    """What a learner's notebook holds: the source for each exercise id, and what was odd about it."""

    sources: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def find_answers(nb: dict) -> Answers:
    """The marked cells. Of several cells with one marker the last wins, as it does when a notebook is run."""
    answers, count = Answers(), dict[str, int]()
    for cell in code_cells(nb):
        source = source_of(cell)
        for exercise_id in MARKER.findall(source):
            answers.sources[exercise_id] = source
            count[exercise_id] = count.get(exercise_id, 0) + 1
    for exercise_id, times in count.items():
        if times > 1:
            answers.notes.append(
                f"{times} cells are marked # EXERCISE {exercise_id}; the last one counts, delete the others"
            )
    return answers


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
    for cell in pristine["cells"]:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = source_of(cell)
        ids = [i for i in MARKER.findall(source) if i in by_id and i not in numbers]
        if not ids:
            if not MARKER.search(source) and not CHECK_CALL.search(source):
                cells.append(code_cell(source))
            continue
        for exercise_id in ids:
            cells.append(code_cell(NBVAL_COMMENT.sub("", answers.get(exercise_id, source))))
            exercise = by_id[exercise_id]
            cells.append(code_cell(exercise.check_source, exercise.passed_line + "\n"))
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


def find_pristine(learner_path: Path, nb: dict, folder: Path | None) -> dict:
    """The untouched notebook with the same exercises: from `folder`, by default the package's own copy.

    Never the graded file itself: a learner's file holds answers and play cells, and is no measure of anything.
    """
    wanted = set(exercise_ids(nb)) | {i for cell in code_cells(nb) for i in CHECK_CALL.findall(source_of(cell))}
    if not wanted:
        raise GradingError(
            f"{learner_path}: this is not an exercise notebook: no cell is marked, for instance, # EXERCISE c01-e1. "
            "`make work` copies the exercises to work/"
        )
    paths = sorted(folder.glob("*.ipynb") if folder else PACKAGED.glob("*.json"))
    candidates = {path: read_notebook(path) for path in paths}
    shared = {path: len(wanted & set(exercise_ids(candidates[path]))) for path in paths}
    best = max(paths, key=shared.__getitem__, default=None)
    if best is None or not shared[best]:
        where = folder or "this mini_vllm; is it older than the notebook?"
        raise GradingError(f"{learner_path}: no notebook with {', '.join(sorted(wanted))} in {where}")
    if best.resolve() == learner_path.resolve():
        raise GradingError(f"{best} is the graded notebook and cannot be the untouched one too; leave --pristine out")
    return candidates[best]
