"""What benchmarks/gpu.py found, and how a notebook starts it. Knows its result files; measures nothing. Chapter 13."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from mini_vllm.errors import ConfigError
from mini_vllm.setup_cell import repository_url
from mini_vllm.viz.stored_results import FOLDER, ResultTable, results_folder

FILES = "*-20??-??-??*.json"  # <gpu>-<date>.json
NOTHING_YET = "No results of a GPU are stored yet: we have run nothing of this page on one."
NO_T4 = "Not yet run by us on a T4."


class Sentence(str):
    """A text that is shown without quotes as the last value of a cell."""

    __repr__ = str.__str__


def stored_runs(folder: Path) -> list[dict[str, Any]]:
    """The stored runs of benchmarks/gpu.py, oldest first; smoke runs, which measure nothing, are not among them."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(FILES))]
    return sorted((run for run in runs if "gpu" in run and not run.get("smoke")), key=lambda run: run["date"])


def gpu_results(folder: Path | None = None) -> ResultTable | Sentence:
    """A row for each figure of each stored run, with its target; in words where there is no run, or none on a T4."""
    folder = folder or results_folder()
    if folder is None:
        return Sentence(f"There is no clone here. The stored results are in\n{repository_url()}/tree/HEAD/{FOLDER}")
    runs = stored_runs(folder)
    if not runs:
        return Sentence(f"{NOTHING_YET}\n{NO_T4}")
    rows = [
        (f"{run['gpu']}, {run['date']}", part.replace("_", " "), figure["name"], _value(figure), _target(figure))
        for run in runs
        for part, found in run["parts"].items()
        for figure in found.get("figures", [])
    ]
    has_t4 = any("t4" in run["gpu"].lower().split() for run in runs)
    header = ["card", "part", "figure", "value", "target"]
    return ResultTable(header, rows, align="lllrl", note="" if has_t4 else NO_T4)


def _value(figure: dict[str, Any]) -> str:
    value = figure["value"]
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.3g} {figure.get('unit', '')}".strip()


def _target(figure: dict[str, Any]) -> str:
    if "target" not in figure:
        return ""
    wanted = "yes" if figure["target"] is True else f"≥ {figure['target']:,.3g}"
    return f"{wanted}: {'met' if figure['met'] else 'missed'}"


def run_gpu_benchmark(*options: str) -> Path:
    """Runs benchmarks/gpu.py of this notebook's clone, or of a fresh one beside it; returns its results folder.

    Its lines are printed as they come. Raises ConfigError where git or the benchmark fails.
    """
    folder = results_folder()
    if folder is None:
        clone = Path.cwd() / repository_url().rsplit("/", 1)[1]
        _run(["git", "clone", "--quiet", "--depth", "1", repository_url(), str(clone)], Path.cwd())
        folder = clone / "benchmarks" / "results"
    root = folder.parent.parent
    _run([sys.executable, str(root / "benchmarks" / "gpu.py"), *options], root)
    return folder


def _run(command: list[str], folder: Path) -> None:
    """A command whose output appears in the notebook; a child writes past it otherwise."""
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
    if process.returncode:
        raise ConfigError(f"{' '.join(command[:3])} ended with {process.returncode}; the lines above say why")
