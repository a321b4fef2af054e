"""Runs one notebook under nbval in a fresh process with limits. Knows processes; reads no answer. All chapters."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mini_vllm.errors import GradingError
from mini_vllm.grading.bank import hidden_modules
from mini_vllm.grading.diagnosis import one_line
from mini_vllm.grading.exercise import Exercise
from mini_vllm.grading.feedback import GRADED_FOLDER
from mini_vllm.grading.overlay import code_cell
from mini_vllm.grading.processes import end_with_descendants

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
KERNEL_SITE = Path(__file__).resolve().parent / "kernel_site"
MAX_ANSWERS_BYTES = 64 * 1024 * 1024
POLL_S, AFTER_KERNEL_S = 0.1, 3.0
LAST_CELL = f"import os, pathlib; pathlib.Path(os.environ[{GRADED_FOLDER!r}], 'finished').touch()"
OUT_OF_TIME, KERNEL_ENDED = "it ran out of time", "the kernel had ended"


@dataclass(frozen=True)
class Limits:
    """Seconds that a run of one notebook, one of its cells, and all calls of one check may take."""

    run_s: float = 120
    cell_s: float = 30
    calls_s: float = 10

    @classmethod
    def within(cls, run_s: float) -> "Limits":
        return cls(run_s, min(cls.cell_s, run_s / 2), min(cls.calls_s, run_s / 4))


@dataclass
class Run:
    """What a run left behind."""

    outcomes: dict[str, list[dict]] = field(default_factory=dict)  # exercise -> what its function returned
    hidden_used: dict[str | None, str] = field(default_factory=dict)  # exercise -> hidden module it reached for
    failures: dict[int, str] = field(default_factory=dict)  # code cell -> why nbval called it red
    passed: set[int] = field(default_factory=set)  # code cells
    ended: str = ""  # why the whole run was ended: OUT_OF_TIME or KERNEL_ENDED


def run_notebook(nb: dict, exercises: list[Exercise], seed: int, limits: Limits, *, hide: Sequence[Path] = ()) -> Run:
    """Run `nb` on cases drawn from `seed`. `hide`: folders that may not be opened from inside."""
    with tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        _write_inputs(nb, exercises, seed, limits, hide, folder)
        log, ended = _run_nbval(folder, limits)
        run = Run(ended=ended)
        _read_report(folder / "report.xml", run)
        _read_answers(folder / "answers.jsonl", run)
    if not run.passed and not run.failures and not ended:
        raise GradingError(f"nbval did not run the notebook; its last words: {log.strip()[-600:]}")
    return run


def _write_inputs(nb, exercises, seed, limits, hide, folder: Path) -> None:
    nb = {**nb, "cells": [*nb["cells"], code_cell(LAST_CELL)]}
    (folder / "graded.ipynb").write_text(json.dumps(nb), encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    modules = hidden_modules([exercise.exercise_id for exercise in exercises])
    asked = {
        "cases": {exercise.exercise_id: exercise.cases(seed) for exercise in exercises},
        "limit_s": limits.calls_s,
        "hidden_modules": modules,
        "hidden_paths": [str(PACKAGE_ROOT.joinpath(*m.split("."))) for m in modules] + [str(p) for p in hide],
    }
    (folder / "cases.json").write_text(json.dumps(asked), encoding="utf-8")


def _environment(folder: Path) -> dict[str, str]:
    """This process's environment, less what could steer pytest, IPython or the notebook's outputs."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_", "NBVAL_"))}
    path = [str(KERNEL_SITE), str(PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **kept,
        GRADED_FOLDER: str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_PLATFORM_DIRS": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "NO_COLOR": "1",
    }


def _run_nbval(folder: Path, limits: Limits) -> tuple[str, str]:
    """(what pytest printed, why it was ended or ""). Whatever the notebook started is ended with it."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", "--rootdir", ".", "-p", "nbval.plugin"]
    command += ["-p", "no:cacheprovider", "--nbval-lax", "--nbval-current-env", "--junitxml=report.xml"]
    command += ["--nbval-cell-timeout", str(limits.cell_s), "graded.ipynb"]
    with open(folder / "log.txt", "w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            ended = _wait(process, folder, limits.run_s)
        finally:
            end_with_descendants(process, mark=f"{GRADED_FOLDER}={folder}")
        log.seek(0)
        return log.read()[-20_000:], ended


def _wait(process: subprocess.Popen, folder: Path, run_s: float) -> str:
    """Wait for pytest. Returns "", or why it has to be ended: nbval does not notice that its kernel is gone."""
    deadline = time.monotonic() + run_s
    kernel_seen = False
    while process.poll() is None:
        if time.monotonic() > deadline:
            return OUT_OF_TIME
        held = _is_locked(folder / "alive")
        if kernel_seen and not held and not (folder / "finished").exists():
            with suppress(subprocess.TimeoutExpired):  # nbval itself stops a kernel that it cannot interrupt
                process.wait(AFTER_KERNEL_S)
            return "" if process.poll() is not None else KERNEL_ENDED
        kernel_seen = kernel_seen or held
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
    return ""


def _is_locked(path: Path) -> bool:
    if fcntl is None or not path.exists():
        return False
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _read_report(path: Path, run: Run) -> None:
    """Which code cells nbval passed. A cell that it only expected to fail, after a timeout, counts as neither."""
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError):  # the run was ended before the report was written
        return
    for case in cases:
        number = re.search(r"Cell (\d+)$", case.get("name", ""))
        if not number:
            continue
        trouble = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        if trouble is None:
            run.passed.add(int(number[1]))
        else:
            run.failures[int(number[1])] = _short_reason(trouble.text or trouble.get("message") or "")


def _short_reason(text: str) -> str:
    if "Timeout of" in text:
        return OUT_OF_TIME
    if "Kernel dead" in text or "Kernel died" in text:
        return KERNEL_ENDED
    return one_line(text)


def _read_answers(path: Path, run: Run) -> None:
    """Lines that the kernel wrote. They come from the learner's process: anything may stand in them."""
    if not path.is_file() or path.stat().st_size > MAX_ANSWERS_BYTES:
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(entry, dict):
            continue
        if isinstance(entry.get("hidden"), str):
            key = entry.get("exercise")
            run.hidden_used[key if isinstance(key, str) else None] = entry["hidden"][:200]
        elif isinstance(entry.get("exercise"), str) and _are_outcomes(entry.get("outcomes")):
            run.outcomes[entry["exercise"]] = entry["outcomes"]


def _are_outcomes(outcomes) -> bool:
    """Shape of a list of outcomes, see `calling`. json.loads builds only exact built-in types; NaN is refused later."""
    texts = ("error", "refused", "line", "printed")
    return isinstance(outcomes, list) and all(
        isinstance(o, dict)
        and o.keys() & {"value", "error", "refused", "stub", "timeout"}
        and all(isinstance(o[key], str) for key in texts if key in o)
        and isinstance(o.get("timeout", 0), int | float)
        for o in outcomes
    )
