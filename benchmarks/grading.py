"""What grading costs: one notebook on one core, and a class with hanging, forking and broken notebooks in it.

    python benchmarks/grading.py [--class-size 100] [--json FILE]

The class is chapter 1's solved notebook, in every fifth copy with one answer replaced by something that never ends,
forks, leaves, or fills memory. Every report must be what such a notebook deserves, and no process may be left behind.
"""

import argparse
import collections
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.yardstick import yardstick_ms  # noqa: E402
from mini_vllm.grading.class_run import grade_paths, usable_cpus  # noqa: E402
from mini_vllm.grading.overlay import fill_in, find_answers, read_notebook  # noqa: E402
from mini_vllm.sandbox import protection  # noqa: E402

NAME = "01-static-batching.ipynb"
SOLVED = read_notebook(ROOT / "solutions" / NAME)
RIGHT = find_answers(SOLVED).sources
WITH_TORCH = {"c01-e1": RIGHT["c01-e1"] + "\nimport torch\ntorch.ones(1000, 1000) @ torch.ones(1000, 1000)\n"}
HOSTILE = {
    "a loop that never ends": ("c01-e1", "while True:\n    pass", "timeout"),
    "a function that never ends": (
        "c01-e1",
        "def static_waste(*a):\n    while True:\n        pass",
        "timeout",
    ),
    "a hundred forks": (
        "c01-e2",
        "import os, time\nfor _ in range(100):\n    if os.fork() == 0:\n        time.sleep(600)",
        "error",
    ),
    "the kernel ended": ("c01-e3", "import os\nos._exit(0)", "error"),
    "memory without end": ("c01-b1", "kept = []\nwhile True:\n    kept.append(bytearray(b'x') * 200_000_000)", "error"),
}


def seconds_and_cpu(nb: dict, folder: Path) -> tuple[float, float]:
    """Of one notebook, graded on one core."""
    path = folder / "one.ipynb"
    path.write_text(json.dumps(nb), encoding="utf-8")
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if allowed:
        os.sched_setaffinity(0, {min(allowed)})
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    (report,) = grade_paths([path], seed=1)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if allowed:
        os.sched_setaffinity(0, allowed)
    assert report.percent == 100, report
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def one_notebook(what: str, nb: dict, limit_s: float, folder: Path, rounds: int = 3) -> dict:
    walls, cpus = zip(*(seconds_and_cpu(nb, folder) for _ in range(rounds)), strict=True)
    row = {"what": what, "wall_s": statistics.median(walls), "cpu_s": statistics.median(cpus), "limit_s": limit_s}
    return {key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}


def class_of(size: int, folder: Path) -> dict:
    kinds = list(HOSTILE)
    wanted = {}
    for number in range(size):
        path = folder / f"student{number:03}.ipynb"
        kind = kinds[number // 5 % len(kinds)] if number % 5 == 4 else None
        exercise_id, source, status = HOSTILE[kind] if kind else ("c01-e1", "", "pass")
        answer = f"# EXERCISE {exercise_id}\n{source}\n" if kind else RIGHT[exercise_id]
        path.write_text(json.dumps(fill_in(SOLVED, {exercise_id: answer})), encoding="utf-8")
        wanted[str(path)] = {i: status if i == exercise_id else "pass" for i in RIGHT}
    done = 0

    def on_done(report):
        nonlocal done
        done += 1
        print(f"\r{done}/{size}", end="", file=sys.stderr, flush=True)

    start = time.monotonic()
    reports = grade_paths([folder], seed=1, on_done=on_done)
    wall = time.monotonic() - start
    print(file=sys.stderr)
    got = {report.path: {e.exercise_id: e.status for e in report.exercises} for report in reports}
    wrong = [path for path in wanted if got[path] != wanted[path]]
    left = [p.pid for p in psutil.process_iter(["cmdline"]) if "ipykernel_launcher" in " ".join(p.info["cmdline"] or [])
            and "grade-" in " ".join(p.info["cmdline"])]  # fmt: skip
    return {
        "notebooks": size,
        "workers": usable_cpus(),
        "wall_s": round(wall, 1),
        "longest_s": max(report.seconds for report in reports),
        "statuses": dict(collections.Counter(status for row in got.values() for status in row.values())),
        "not_as_deserved": {Path(path).stem: got[path] for path in wrong},
        "processes_left": len(left),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="What grading costs.")
    parser.add_argument("--class-size", type=int, default=100)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "grading.json")
    options = parser.parse_args()
    before, load = yardstick_ms(), round(os.getloadavg()[0], 1)  # wall times only say something on an idle machine
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "one").mkdir()
        (folder / "class").mkdir()
        alone = [
            one_notebook("four exercises, without torch", SOLVED, 5, folder / "one"),
            one_notebook("four exercises, one with torch", fill_in(SOLVED, WITH_TORCH), 15, folder / "one"),
        ]
        for row in alone:
            took = f"{row['wall_s']:6.2f} s on one core, {row['cpu_s']:.2f} s of CPU"
            print(f"{row['what']:<34}{took}, {row['limit_s']} allowed")
        many = class_of(options.class_size, folder / "class")
    print(
        f"{many['notebooks']} notebooks, one in five hostile, {many['workers']} workers: {many['wall_s']} s, the "
        f"longest {many['longest_s']} s; {many['statuses']}; {many['processes_left']} processes left"
    )
    result = {
        "what": "grading chapter 1's exercise notebook",
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "load_average": load,
        "jail": protection.available().name,
        "yardstick_ms": [round(before, 3), round(yardstick_ms(), 3)],
        "one_notebook": alone,
        "class": many,
    }
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written: {options.json}")
    return 1 if many["not_as_deserved"] or many["processes_left"] else 0


if __name__ == "__main__":
    sys.exit(main())
