"""The untouched notebook that belongs to a learner's. Knows where those lie; judges nothing. All chapters."""

from dataclasses import dataclass
from pathlib import Path

from mini_vllm.errors import GradingError
from mini_vllm.grading.overlay import CHECK_CALL, PACKAGED, code_cells, exercise_ids, read_notebook, source_of


@dataclass(frozen=True)
class Pristine:
    """An untouched exercise notebook. `chapter` is its name, 01-static-batching."""

    path: Path
    chapter: str
    nb: dict


def load_all(folder: Path | None) -> list[Pristine]:
    """The notebooks in `folder`, by default the package's own copies."""
    paths = sorted(folder.glob("*.ipynb") if folder else PACKAGED.glob("*.json"))
    if folder and not paths:
        raise GradingError(f"{folder} holds no .ipynb file; give the folder of the untouched exercises: --pristine DIR")
    return [Pristine(path.resolve(), path.stem, read_notebook(path)) for path in paths]


def find_pristine(name: str, nb: dict, known: list[Pristine]) -> Pristine:
    """The one that shares most exercises with the learner's notebook `nb`.

    Never the graded file itself: a learner's file holds answers and play cells, and is no measure of anything.
    """
    wanted = set(exercise_ids(nb)) | {i for cell in code_cells(nb) for i in CHECK_CALL.findall(source_of(cell))}
    if not wanted:
        raise GradingError(
            f"{name}: this is not an exercise notebook: no cell is marked, for instance, # EXERCISE c01-e1. "
            "`make work` copies the exercises to work/"
        )
    shared = [len(wanted & set(exercise_ids(pristine.nb))) for pristine in known]
    if not any(shared):
        ids = ", ".join(sorted(wanted))
        raise GradingError(f"{name}: no notebook with {ids} in this mini_vllm; is it older than the notebook?")
    best = known[shared.index(max(shared))]
    if best.path == Path(name).resolve():
        raise GradingError(f"{name} is the graded notebook and cannot be the untouched one too; leave --pristine out")
    return best
