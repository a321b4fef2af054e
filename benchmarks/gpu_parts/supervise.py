"""Each part in a process of its own, within its share of the time; results in one file. Knows no GPU. Chapter 13.

After an illegal memory access every CUDA call of a process fails, and a kernel that never ends cannot be stopped from
within. So a part that crashes or hangs ends itself alone, what it had written counts, and the next one starts afresh.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts.parts import Part
from benchmarks.gpu_parts.report import read_json, write_json
from benchmarks.gpu_parts.system import nvidia_smi

NO_GPU = 3  # exit code of a process that found none
STATUSES = ("ok", "out of time", "failed")  # the worst piece gives the part its status
SPARE_S = 5.0  # between a part's own end and the moment when it is killed
Command = Callable[[Part, tuple[int, int], float, Path], list[str]]  # part, piece, seconds, its JSON file


class NoGPU(Exception):
    """A part found no GPU: the others would not find one, either."""


def run_parts(
    parts: Sequence[Part], command: Command, minutes: float, result: dict[str, Any], save: Callable[[], None]
) -> None:
    """Fills result["parts"] and calls `save` after each. Time that a part leaves over is shared among the later ones.

    Raises NoGPU. A KeyboardInterrupt passes through, with what was found until then in `result`.
    """
    ends = time.monotonic() + 60 * minutes
    for number, part in enumerate(parts):
        left = ends - time.monotonic()
        seconds = left * part.share / sum(later.share for later in parts[number:])
        print(f"\n=== {part.name}: {part.what} (up to {max(0, seconds):.0f} s of {max(0, left):.0f})", flush=True)
        if seconds < 2 * SPARE_S:
            result["parts"][part.name] = {
                "part": part.name,
                "status": "out of time",
                "error": "no time was left for it",
            }
            save()
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                found, code = _run_part(part, command, seconds, Path(folder))
            except KeyboardInterrupt:
                result["parts"][part.name] = merged([_ended(data, "interrupted") for data in _read(Path(folder))])
                save()
                raise
        if code == NO_GPU:
            raise NoGPU(part.name)
        result["parts"][part.name] = found
        save()
        print(f"=== {part.name}: {found['status']} in {found['seconds']:.0f} s", flush=True)


def _run_part(part: Part, command: Command, seconds: float, folder: Path) -> tuple[dict[str, Any], int]:
    count = max(1, min(part.processes, (os.cpu_count() or 2) // 2))
    start, before = time.monotonic(), nvidia_smi()
    environment = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "MINI_VLLM_FORCE_INTERPRET")}
    environment["HF_HUB_OFFLINE"] = "1"  # transformers would look for kernels of others in the network
    processes = [
        subprocess.Popen(
            command(part, (i, count), seconds - SPARE_S, folder / f"{i}.json"), start_new_session=True, env=environment
        )
        for i in range(count)
    ]
    pieces = []
    try:
        for i, process in enumerate(processes):
            try:
                code = process.wait(max(0.1, start + seconds - time.monotonic()))
                reason = "" if code in (0, 1) else f"ended with exit code {code}"
                if code < 0:
                    reason = f"ended by signal {-code} ({signal.Signals(-code).name})"
            except subprocess.TimeoutExpired:
                reason = f"killed after {seconds:.0f} s: it hung, or one step took too long"
            pieces.append(_ended(read_json(folder / f"{i}.json"), reason))
    finally:
        for process in processes:
            _kill(process)
    codes = [process.returncode for process in processes]
    found = merged(pieces)
    found |= {"part": part.name, "seconds": round(time.monotonic() - start, 1), "nvidia_smi": [before, nvidia_smi()]}
    return found, NO_GPU if NO_GPU in codes else 0


def _kill(process: subprocess.Popen) -> None:
    """With all that it started: a compiler of Triton's may still run."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _read(folder: Path) -> list[dict[str, Any] | None]:
    return [read_json(path) for path in sorted(folder.glob("*.json"))]


def _ended(data: dict[str, Any] | None, reason: str) -> dict[str, Any]:
    """What a piece wrote; where it did not end by itself, with the reason."""
    data = data or {"status": "failed", "error": "it wrote nothing: see its messages above"}
    if data["status"] == "running" or reason:
        data |= {"status": "failed", "error": reason or "it ended without a word"}
    return data


def merged(pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One part of several pieces: rows and samples in a row; of figures with one name the worst."""
    whole: dict[str, Any] = {"status": "ok", "tables": {}, "figures": [], "skipped": [], "samples": []}
    for data in pieces or [_ended(None, "")]:
        whole["status"] = max(whole["status"], data["status"], key=STATUSES.index)
        for name, rows in data.get("tables", {}).items():
            whole["tables"].setdefault(name, []).extend(rows)
        for figure in data.get("figures", []):
            _add_figure(whole["figures"], figure)
        for name in ("skipped", "samples"):
            whole[name] += data.get(name, [])
        if "error" in data:
            whole["error"] = "\n".join(filter(None, [whole.get("error"), data["error"]]))
        whole |= {name: data[name] for name in ("about", "calibration") if name in data}
    return whole


def _add_figure(figures: list[dict[str, Any]], figure: dict[str, Any]) -> None:
    same = next((other for other in figures if other["name"] == figure["name"]), None)
    if same is None:
        figures.append(dict(figure))
        return
    is_proof = isinstance(figure["value"], bool)
    same["value"] = same["value"] and figure["value"] if is_proof else max(same["value"], figure["value"])
    if is_proof:
        same["met"] = same["value"]
    notes = [note for note in (same.get("note"), figure.get("note")) if note]
    if notes:
        same["note"] = "; ".join(notes)


def write_result(path: Path, result: dict[str, Any]) -> None:
    """One JSON file; the samples of all parts go to a file beside it, one a line, as the simulator reads them."""
    samples = [row for part in result["parts"].values() for row in part.get("samples", [])]
    parts = {name: {k: v for k, v in part.items() if k != "samples"} for name, part in result["parts"].items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    if samples:
        beside = path.with_suffix(".samples.jsonl")
        beside.write_text("".join(json.dumps(row) + "\n" for row in samples), encoding="utf-8")
        result = result | {"samples": beside.name}
    write_json(path, result | {"parts": parts})
