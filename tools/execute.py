"""Runs notebooks and stores their outputs: the only writer of outputs. Knows kernels; knows no chapter.

    execute.py --changed               those whose code changed since they were last run
    execute.py notebooks/01-*.ipynb    these
    execute.py --all --check           run all and say which stored outputs are stale; writes nothing

A cell tagged nbval-ignore-output (it measures something) keeps its stored output while its code, and all code
before it, is unchanged; --force takes the new one.
"""

import argparse
import copy
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from notebook_env import notebook_env  # noqa: E402
from notebook_format import (  # noqa: E402
    code_cells,
    executed_chain,
    give_ids,
    keep_measured,
    normalise,
    problems,
    source_chain,
)

from mini_vllm.setup_cell import setup_cell  # noqa: E402

FOLDERS = ("notebooks", "solutions")
CELL_LIMIT_S = 120
SETUP_TAGS = ["setup", "nbval-ignore-output", "hide-input"]


class NotebookFailed(Exception):
    """A notebook that did not run to its end, or whose outputs must not be stored."""


def read(path: Path) -> nbformat.NotebookNode:
    """The notebook, with ids given before nbformat can invent random ones."""
    data = json.loads(path.read_text(encoding="utf-8"))
    give_ids(data["cells"])
    data["nbformat"], data["nbformat_minor"] = 4, 5
    return nbformat.reads(json.dumps(data), as_version=4)


def refresh_setup_cell(nb: dict) -> None:
    """Brings the first code cell up to date, where it is the set-up cell."""
    first = next(iter(code_cells(nb)), None)
    if first and ("setup" in first["metadata"].get("tags", []) or first["source"].startswith("# Set-up")):
        first["source"] = setup_cell()
        first["metadata"]["tags"] = SETUP_TAGS


def run(nb: dict, folder: Path, name: str) -> None:
    """Executes every cell in a fresh kernel, in the notebook's own folder."""
    total = len(nb["cells"])

    def show(cell: dict, cell_index: int) -> None:
        if sys.stdout.isatty():
            print(f"\r{name}: cell {cell_index + 1}/{total} ", end="", flush=True)

    client = NotebookClient(
        nb,
        kernel_name="python3",
        timeout=CELL_LIMIT_S,
        record_timing=False,
        extra_arguments=["--IPKernelApp.log_level=40"],
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=show,
    )
    try:
        client.execute(env=notebook_env())
    except CellTimeoutError as error:
        raise NotebookFailed(f"a cell ran over {CELL_LIMIT_S} s: {str(error).strip()[:300]}") from error
    except (CellExecutionError, DeadKernelError) as error:
        raise NotebookFailed(str(error)) from error


def execute(path: Path, force: bool = False) -> tuple[str, int]:
    """(the text that the file should have, how many measured outputs were kept); writes nothing."""
    old = read(path)
    new = copy.deepcopy(old)
    refresh_setup_cell(new)
    for cell in code_cells(new):
        cell["outputs"], cell["execution_count"] = [], None
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    run(new, path.parent, name)
    kept = 0 if force else keep_measured(new, old)
    normalise(new)
    if bad := problems(new, ROOT):
        raise NotebookFailed("\n  ".join(bad))
    return nbformat.writes(new) + "\n", kept


def is_changed(path: Path) -> bool:
    nb = read(path)
    before = executed_chain(nb)
    refresh_setup_cell(nb)
    return source_chain(nb) != before


def chosen(arguments: argparse.Namespace) -> list[Path]:
    if arguments.notebook:
        return [Path(name).resolve() for name in arguments.notebook]
    everything = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.ipynb"))]
    return everything if arguments.all else [path for path in everything if is_changed(path)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs notebooks and stores their outputs.")
    parser.add_argument("notebook", nargs="*", help="paths of notebooks")
    parser.add_argument("--changed", action="store_true", help="those whose code changed")
    parser.add_argument("--all", action="store_true", help="all of notebooks/ and solutions/")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file would change")
    parser.add_argument("--force", action="store_true", help="store new measured values too")
    arguments = parser.parse_args()
    if sum(map(bool, (arguments.notebook, arguments.changed, arguments.all))) != 1:
        parser.error("give notebooks, or --changed, or --all")

    failed = stale = 0
    paths = chosen(arguments)
    for path in paths:
        start = time.monotonic()
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        try:
            # A process for each notebook: a kernel that hangs or dies takes nothing along.
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                text, kept = pool.submit(execute, path, arguments.force).result()
        except (NotebookFailed, BrokenProcessPool) as error:
            failed += 1
            print(f"\r{name}: FAILED, not written\n  {error}", flush=True)
            continue
        same = text == path.read_text(encoding="utf-8")
        if not same and not arguments.check:
            path.write_text(text, encoding="utf-8")
        stale += not same
        word = "unchanged" if same else "stale" if arguments.check else "written"
        print(f"\r{name}: {word}, {kept} measured kept, {time.monotonic() - start:.1f} s", flush=True)
    print(f"{len(paths)} run, {failed} failed, {stale} {'stale' if arguments.check else 'written'}")
    return 1 if failed or (arguments.check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())
