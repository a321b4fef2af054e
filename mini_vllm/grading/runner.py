"""Runs one notebook under nbval, watched and jailed, and reads what it left. Knows processes; judges nothing.

The supervisor (`mini_vllm.sandbox.supervise`) starts pytest with nbval, which starts the kernel through the jail.
pytest and its log are the grader's own: only the kernel runs what a learner wrote. All chapters.
"""

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mini_vllm.errors import GradingError
from mini_vllm.grading import run_folder
from mini_vllm.grading.bank import hidden_modules
from mini_vllm.grading.exercise import Exercise
from mini_vllm.grading.limits import Limits
from mini_vllm.grading.run_folder import PACKAGE_ROOT, RunFolder
from mini_vllm.sandbox import protection, users
from mini_vllm.sandbox.protection import Protection
from mini_vllm.sandbox.supervise import OUT_OF_TIME

BEYOND_THE_LIMIT_S, POLL_S = 30, 0.2
OUTCOME_KEYS = {"value", "error", "refused", "stub", "timeout"}
TEXT_KEYS = ("error", "refused", "line", "printed")
interrupted = threading.Event()  # set on Ctrl-C: whoever runs a notebook ends it


@dataclass(frozen=True)
class CellResult:
    """How one code cell ended. status: "ok" or "error" from the kernel's own reply; None where it never replied."""

    status: str | None = None
    nbval: str = "failed"
    why: str = ""  # nbval's report, where it called the cell red
    ename: str = ""
    evalue: str = ""
    traceback: str = ""


@dataclass
class Run:
    """What a run left behind."""

    outcomes: dict[str, list[dict]] = field(default_factory=dict)  # exercise -> what its function returned
    hidden_used: dict[str | None, str] = field(default_factory=dict)  # exercise -> hidden module it reached for
    forged: set[str | None] = field(default_factory=set)  # exercises with a line that no check writes
    cells: dict[int, CellResult] = field(default_factory=dict)  # code cells that came to their end
    at_work: int | None = None  # the cell that was running when the run was ended
    ended: str = ""  # why the whole run was ended, see `supervise`


def run_notebook(
    nb: dict,
    exercises: list[Exercise],
    seed: int,
    limits: Limits,
    *,
    hide: Sequence[Path] = (),
    shield: Protection | None = None,
) -> Run:
    """Run `nb` on cases drawn from `seed`. hide: folders not to be opened from inside. shield: see `protection`."""
    shield = shield or protection.available()
    asked: dict[str, Any] = {
        "cases": {exercise.exercise_id: exercise.cases(seed) for exercise in exercises},
        "limit_s": limits.calls_s,
        "hidden_modules": hidden_modules([exercise.exercise_id for exercise in exercises]),
    }
    with _TemporaryFolder() as base:
        asked["hidden_paths"] = _without_what_is_needed([*_copies_of_this_package(), *hide], base)
        folder = run_folder.make(base, users.pick() if shield.own_user else None, nb, asked, limits, shield)
        run = Run(ended=_supervised(folder, limits))
        _read_cells(folder, run)
        _read_answers(folder, set(asked["cases"]), run)
        if not run.cells and run.at_work is None and run.ended != OUT_OF_TIME:
            raise GradingError(f"no cell was run; the last words were: {folder.last_words()[-600:] or 'none'}")
    return run


def _copies_of_this_package() -> list[Path]:
    """The one in use, and any other that could be imported: a clone often runs beside an installed copy."""
    return [Path(entry or ".", "mini_vllm") for entry in dict.fromkeys([str(PACKAGE_ROOT), *sys.path])]


def _without_what_is_needed(hide: list[Path], base: Path) -> list[str]:
    """Paths that can be hidden: a class folder may be the home folder, with Python and the run itself in it."""
    needed = (base, Path(sys.prefix), Path(sys.base_prefix))
    folders = [path.resolve() for path in hide]
    return [str(path) for path in folders if not any(place.is_relative_to(path) for place in needed)]


class _TemporaryFolder(tempfile.TemporaryDirectory):
    """Removed at the end, as far as possible: a folder nested ten thousand deep is left behind, not tripped over."""

    def __init__(self):
        super().__init__(prefix="grade-", ignore_cleanup_errors=True)

    def __enter__(self):
        return Path(super().__enter__()).resolve()

    def cleanup(self) -> None:
        with suppress(RecursionError):
            super().cleanup()


def _supervised(folder: RunFolder, limits: Limits) -> str:
    """Run the plan of `folder`; why it was ended, or "". The supervisor ends everything when its input is closed."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "mini_vllm.sandbox.supervise", str(folder.supervise_plan)],
        env=json.loads(folder.supervise_plan.read_text(encoding="utf-8"))["env"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    waited = 0.0
    while process.poll() is None and waited < limits.run_s + BEYOND_THE_LIMIT_S and not interrupted.is_set():
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
        waited += POLL_S
    output, errors = process.communicate()
    try:
        return json.loads(output)["ended"]
    except (ValueError, KeyError) as error:
        raise GradingError(f"the supervisor of a run failed: {errors.strip()[-600:]}") from error


def _read_cells(folder: RunFolder, run: Run) -> None:
    for entry in folder.cells():
        if "nbval" in entry:
            number = entry.pop("cell")
            run.cells[number] = CellResult(**entry)
            run.at_work = None
        else:
            run.at_work = entry["cell"]


def _read_answers(folder: RunFolder, asked: set[str], run: Run) -> None:
    """Lines that the kernel wrote. They come from the learner's process: anything may stand in them."""
    for entry in folder.answers():
        named = entry.get("exercise") if entry else None
        exercise = named if isinstance(named, str) and named in asked else None
        if entry and isinstance(entry.get("hidden"), str) and entry.keys() == {"exercise", "hidden"}:
            run.hidden_used[exercise] = entry["hidden"][:200]
        elif entry and exercise and entry.keys() == {"exercise", "outcomes"} and _are_outcomes(entry["outcomes"]):
            run.outcomes[exercise] = entry["outcomes"]
        else:
            run.forged.add(exercise)


def _are_outcomes(outcomes) -> bool:
    """Shape of a list of outcomes, see `calling`. json.loads builds only exact built-in types; NaN is refused later."""
    return isinstance(outcomes, list) and all(
        isinstance(o, dict)
        and o.keys() & OUTCOME_KEYS
        and all(isinstance(o[key], str) for key in TEXT_KEYS if key in o)
        and isinstance(o.get("timeout", 0), int | float)
        for o in outcomes
    )
