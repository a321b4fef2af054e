"""Makes exercises/ out of solutions/: the only writer of exercises/. Knows the markers; knows no answer.

    make_exercises.py           write what changed
    make_exercises.py --check   write nothing; exit 1 if a file is not what would be written

In a cell with the comment `# EXERCISE c01-e1`, what stands between `### BEGIN SOLUTION` and `### END SOLUTION` becomes
    raise NotImplementedError("c01-e1: write static_waste")
or, where the block ends with `### GIVEN` and commented lines, those lines without their comment signs (a bug hunt
starts from code that runs). Check cells keep what they printed; all other outputs go. Cells tagged solution-only go.
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from notebook_format import NOTEBOOK_METADATA  # noqa: E402

from mini_vllm.errors import GradingError  # noqa: E402
from mini_vllm.grading.bank import find_exercise  # noqa: E402
from mini_vllm.grading.overlay import MARKER, code_cells, read_notebook, source_of  # noqa: E402

SOLUTION_ONLY = "solution-only"
CHECK_COMMENT = "# NBVAL_CHECK_OUTPUT"
BLOCK = re.compile(
    r"^(?P<indent>[ \t]*)### BEGIN SOLUTION[ \t]*\n.*?"
    r"(?:^[ \t]*### GIVEN[ \t]*\n(?P<given>.*?))?^[ \t]*### END SOLUTION[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
COMMENT_SIGN = re.compile(r"^([ \t]*)# ?", re.MULTILINE)


class Malformed(Exception):
    """A solution notebook from which no exercise can be made; the message says which cell and why."""


def stub(source: str, exercise_id: str) -> str:
    """The learner's cell: the answer cell without its answer."""
    function = find_exercise(exercise_id).function
    if f"def {function}(" not in source:
        raise Malformed(f"the cell of {exercise_id} does not define {function}")
    blocks = list(BLOCK.finditer(source))
    if len(blocks) != 1:
        raise Malformed(f"the cell of {exercise_id} has {len(blocks)} blocks from ### BEGIN to ### END SOLUTION, not 1")
    block = blocks[0]
    if block["given"]:
        new = COMMENT_SIGN.sub(r"\1", block["given"]).rstrip("\n")
    else:
        new = f'{block["indent"]}raise NotImplementedError("{exercise_id}: write {function}")'
    return source[: block.start()] + new + source[block.end() :]


def make_exercise(solution: dict) -> dict:
    """The learner's notebook for a solved and executed one."""
    cells, asked, checked = [], [], []
    for number, cell in enumerate(solution["cells"]):
        if SOLUTION_ONLY in cell["metadata"].get("tags", []):
            continue
        cell = {**cell, "source": source_of(cell)}
        if cell["cell_type"] == "code":
            ids = MARKER.findall(cell["source"])
            if len(ids) > 1:
                raise Malformed(f"cell {number} is marked for {' and '.join(ids)}; one exercise a cell")
            is_check = cell["source"].startswith(CHECK_COMMENT)
            if ids:
                cell["source"] = stub(cell["source"], ids[0])
                asked += ids
            elif "### BEGIN SOLUTION" in cell["source"]:
                raise Malformed(f"cell {number} holds a solution but no marker # EXERCISE …")
            if is_check:
                checked.append(_checked_exercise(cell, number))
            else:
                cell["outputs"], cell["execution_count"] = [], None
        cells.append(cell)
    if asked != checked:
        raise Malformed(f"exercises {asked} and checks {checked} differ; each answer cell is followed by its check")
    return {"cells": cells, "metadata": NOTEBOOK_METADATA, "nbformat": 4, "nbformat_minor": 5}


def _checked_exercise(cell: dict, number: int) -> str:
    """The id of a check cell that stands and printed as it must."""
    found = re.search(r'check\("([^"]+)"', cell["source"])
    exercise = find_exercise(found[1]) if found else None
    if exercise is None or cell["source"] != exercise.check_source:
        raise Malformed(f"cell {number} is no check cell as it should be, e.g. {exercise and exercise.check_source!r}")
    printed = "".join("".join(output.get("text", "")) for output in cell["outputs"])
    if printed != exercise.passed_line + "\n" or cell["execution_count"] is None:
        raise Malformed(
            f"cell {number} printed {printed!r}, not {exercise.passed_line!r}: "
            "run tools/execute.py, or mend the solution"
        )
    return exercise.exercise_id


def as_text(nb: dict) -> str:
    """The bytes that nbformat would write."""
    return json.dumps(nb, ensure_ascii=False, indent=1, sort_keys=True, separators=(",", ": ")) + "\n"


def with_lists_of_lines(nb: dict) -> dict:
    """Sources and printed text as lists of lines, as notebooks are stored."""
    nb = json.loads(json.dumps(nb))
    for cell in nb["cells"]:
        cell["source"] = source_of(cell).splitlines(keepends=True)
    for cell in code_cells(nb):
        for output in cell["outputs"]:
            if isinstance(output.get("text"), str):
                output["text"] = output["text"].splitlines(keepends=True)
    return nb


def texts(solutions: Path) -> dict[str, str]:
    """File name -> text of every exercise notebook."""
    made = {}
    for path in sorted(solutions.glob("*.ipynb")):
        try:
            made[path.name] = as_text(with_lists_of_lines(make_exercise(read_notebook(path))))
        except (Malformed, GradingError) as error:
            raise Malformed(f"solutions/{path.name}: {error}") from error
    return made


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Makes exercises/ out of solutions/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on a difference")
    check_only = parser.parse_args(arguments).check
    folder = root / "exercises"
    try:
        wanted = texts(root / "solutions")
    except Malformed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    present = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.ipynb"))}
    changed = [name for name in sorted(wanted.keys() | present.keys()) if wanted.get(name) != present.get(name)]
    for name in changed:
        if check_only:
            print(f"exercises/{name} is not what tools/make_exercises.py writes; run it")
        elif name in wanted:
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(wanted[name], encoding="utf-8")
            print(f"exercises/{name}: written")
        else:
            (folder / name).unlink()
            print(f"exercises/{name}: removed, it has no solution any more")
    print(f"{len(wanted)} exercise notebooks, {len(changed)} {'differ' if check_only else 'changed'}")
    return 1 if check_only and changed else 0


if __name__ == "__main__":
    sys.exit(main())
