"""Makes exercises/ out of solutions/: the only writer of exercises/. Knows the markers; knows no answer.

    make_exercises.py           write what changed
    make_exercises.py --check   write nothing; exit 1 if a file is not what would be written
    make_exercises.py --force   write even over code that somebody typed into exercises/

Each notebook is written twice with the same bytes: to exercises/, and into the package as the untouched one that the
grader starts from. A notebook in exercises/ with a code cell that no version of this tool made is somebody's work: it
is not overwritten. Beside them, the instructor page's table of mutants (tools/mutant_table.py).

In a cell with the comment `# EXERCISE c01-e1`, what stands between `### BEGIN SOLUTION` and `### END SOLUTION` becomes
    raise NotImplementedError("c01-e1: write static_waste")      where a function or a class is asked for
    first_steps = ...  # your answer                             where a value is asked for
or, where the block ends with `### GIVEN` and commented lines, those lines without their comment signs (a bug hunt
starts from code that runs). Check cells keep what they printed; all other outputs go, and whatever an editor or a
machine has left in a cell's metadata. Cells tagged solution-only go.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from mutant_table import MUTANT_TABLE, mutant_table  # noqa: E402
from notebook_format import NOTEBOOK_METADATA  # noqa: E402

from mini_vllm.errors import GradingError  # noqa: E402
from mini_vllm.grading.bank import find_exercise  # noqa: E402
from mini_vllm.grading.exercise import Exercise  # noqa: E402
from mini_vllm.grading.overlay import MARKER, code_cells, read_notebook, source_of  # noqa: E402

EXERCISES, PACKAGED = "exercises", "mini_vllm/grading/notebooks"
SOLUTION_ONLY = "solution-only"
HIDDEN_ON_THE_PAGE = "remove-output"  # a tick under an empty stub would puzzle the reader; the grader wants it stored
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
    exercise = find_exercise(exercise_id)
    name = exercise.function
    defines = rf"^{name} *=" if exercise.takes_value else rf"^(def|class) {name}\b"
    if not re.search(defines, source, re.MULTILINE):
        raise Malformed(f"the cell of {exercise_id} does not define {name}")
    blocks = list(BLOCK.finditer(source))
    if len(blocks) != 1:
        raise Malformed(f"the cell of {exercise_id} has {len(blocks)} blocks from ### BEGIN to ### END SOLUTION, not 1")
    block = blocks[0]
    if block["given"]:
        new = COMMENT_SIGN.sub(r"\1", block["given"]).rstrip("\n")
    else:
        stub_line = f'raise NotImplementedError("{exercise_id}: write {name}")'
        new = block["indent"] + (f"{name} = ...  # your answer" if exercise.takes_value else stub_line)
    return source[: block.start()] + new + source[block.end() :]


def make_exercise(solution: dict) -> dict:
    """The learner's notebook for a solved and executed one."""
    cells, asked, checked, prose = [], [], [], ""
    for number, stored in enumerate(solution["cells"]):
        tags = stored["metadata"].get("tags", [])
        if SOLUTION_ONLY in tags:
            continue
        source = source_of(stored)
        cell = {"cell_type": stored["cell_type"], "id": stored["id"], "metadata": {}, "source": source}
        if stored["cell_type"] == "code":
            ids = MARKER.findall(source)
            if len(ids) > 1:
                raise Malformed(f"cell {number} is marked for {' and '.join(ids)}; one exercise a cell")
            is_check = source.startswith(CHECK_COMMENT)
            if ids:
                _expect_label(ids[0], prose)
                cell["source"] = stub(source, ids[0])
                asked += ids
            elif "### BEGIN SOLUTION" in source:
                raise Malformed(f"cell {number} holds a solution but no marker # EXERCISE …")
            cell["outputs"], cell["execution_count"] = [], None
            if is_check:
                exercise = _checked_exercise({**stored, "source": source}, number)
                checked.append(exercise.exercise_id)
                printed = {"name": "stdout", "output_type": "stream", "text": exercise.passed_line + "\n"}
                cell["outputs"], cell["execution_count"] = [printed], stored["execution_count"]
                tags = [*tags, HIDDEN_ON_THE_PAGE]
        else:
            prose = source
        if tags:
            cell["metadata"]["tags"] = list(dict.fromkeys(tags))
        cells.append(cell)
    if asked != checked:
        raise Malformed(f"exercises {asked} and checks {checked} differ; each answer cell is followed by its check")
    return {"cells": cells, "metadata": NOTEBOOK_METADATA, "nbformat": 4, "nbformat_minor": 5}


def _expect_label(exercise_id: str, prose: str) -> None:
    """The text above an exercise's cell has its title and, right under it, the one line about it."""
    exercise = find_exercise(exercise_id)
    if f"{exercise.title}\n{exercise.label}\n" not in prose:
        raise Malformed(f"above the cell of {exercise_id}, put under its title:\n{exercise.title}\n{exercise.label}")


def _checked_exercise(cell: dict, number: int) -> Exercise:
    """The exercise of a check cell that stands and printed as it must."""
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
    return exercise


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


def wanted_files(root: Path) -> dict[Path, str]:
    """Every file that this tool writes -> its text."""
    made = texts(root / "solutions")
    wanted = {root / EXERCISES / name: text for name, text in made.items()}
    wanted |= {packaged(root, name): text for name, text in made.items()}
    return wanted | {root / MUTANT_TABLE: mutant_table(root / "solutions" / "mutants")}


def packaged(root: Path, name: str) -> Path:
    """The grader's copy of a notebook: .json, so that nobody works in it."""
    return root / PACKAGED / Path(name).with_suffix(".json").name


def in_last_commit(path: Path, root: Path) -> str:
    """The file's text in git's HEAD; empty without git, or where it is not in it."""
    command = ["git", "show", f"HEAD:./{path.relative_to(root).as_posix()}"]
    try:
        shown = subprocess.run(command, cwd=root, capture_output=True, text=True, encoding="utf-8", timeout=30)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return shown.stdout if shown.returncode == 0 else ""


def code_of(text: str) -> dict[str, str] | None:
    """The code cells of a notebook, source without white space -> source; None if it is not JSON, as after a merge."""
    try:
        sources = [source_of(cell) for cell in code_cells(json.loads(text))]
    except json.JSONDecodeError:
        return None
    except (KeyError, TypeError):  # JSON, but no notebook
        return {}
    return {"".join(source.split()): source for source in sources}


def own_work(path: Path, wanted: str, root: Path) -> str | None:
    """What in an exercise notebook this tool never wrote, in words; None if all of it can be made again."""
    present = code_of(path.read_text(encoding="utf-8", errors="replace"))
    if present is None:
        return "it cannot be read (a merge?)"
    copy = packaged(root, path.name)
    versions = [wanted, in_last_commit(path, root), copy.read_text(encoding="utf-8") if copy.exists() else ""]
    made = {"", *(key for version in versions for key in code_of(version) or {})}
    for key, source in present.items():
        if key not in made:
            ids = MARKER.findall(source)
            return f"somebody has worked in {f'the cell of {ids[0]}' if ids else 'a cell without a marker'}"
    return None


def write(changed: list[Path], wanted: dict[Path, str], root: Path) -> None:
    for path in changed:
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
            print(f"{path.relative_to(root)}: written")
        else:
            path.unlink()
            print(f"{path.relative_to(root)}: removed, it has no solution any more")


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Makes exercises/ out of solutions/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on a difference")
    parser.add_argument("--force", action="store_true", help="write even over answers in exercises/")
    options = parser.parse_args(arguments)
    try:
        wanted = wanted_files(root)
    except Malformed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    present = {*(root / EXERCISES).glob("*.ipynb"), *(root / PACKAGED).glob("*.json")}
    present |= {path for path in [root / MUTANT_TABLE] if path.exists()}
    stored = {path: path.read_text(encoding="utf-8", errors="replace") for path in present}
    changed = [path for path in sorted(wanted.keys() | present) if wanted.get(path) != stored.get(path)]
    if options.check:
        for path in changed:
            print(f"{path.relative_to(root)} is not what tools/make_exercises.py writes; run it")
    else:
        at_stake = [path for path in changed if path in present and path.suffix == ".ipynb" and not options.force]
        refused = {path: why for path in at_stake if (why := own_work(path, wanted.get(path, ""), root))}
        for path, why in refused.items():
            name = path.relative_to(root).as_posix()
            print(
                f"error: {name} would be overwritten, and {why}\n"
                f"  keep it: mkdir -p work && mv {name} work/{path.stem}-mine.ipynb, then run this again\n"
                "  drop it: tools/make_exercises.py --force",
                file=sys.stderr,
            )
        if refused:
            return 1
        write(changed, wanted, root)
    notebooks = sum(path.suffix == ".ipynb" for path in wanted)
    print(f"{notebooks} exercise notebooks, {len(changed)} files {'differ' if options.check else 'changed'}")
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
