"""Everything that only a GPU can tell, in nine minutes: are the kernels right, how fast are they, what does it give?

    python benchmarks/gpu.py                    all parts; writes benchmarks/results/<gpu>-<date>.json
    python benchmarks/gpu.py --quick            fewer sizes and requests, for a small card
    python benchmarks/gpu.py --only decode_bandwidth prefill
    python benchmarks/gpu.py --sweep            other tiles for decode and prefill, for tuning kernels/tiles.py
    python benchmarks/gpu.py --smoke            tiny sizes on the CPU through Triton's interpreter: tries this script

Needs this repository, torch with CUDA, triton and numpy; no network and no model files: weights are random, in real
shapes. transformers is measured beside ours where it is installed. Each part runs in a process of its own and has a
share of the time; one that fails or hangs is reported and the others go on. The JSON file is written after each part.
"""

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.gpu_parts.parts import PARTS, SWEEP, Part
from benchmarks.gpu_parts.ratios import ratios
from benchmarks.gpu_parts.report import Report, figure_line, read_json
from benchmarks.gpu_parts.supervise import NO_GPU, NoGPU, run_parts, write_result
from benchmarks.gpu_parts.system import commit

STARTED = time.monotonic()
HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
MAKERS = ("nvidia", "tesla", "geforce", "graphics", "device")  # words that name no card


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="for all parts together (default 9); a slow card needs more"
    )
    parser.add_argument("--quick", action="store_true", help="fewer sizes and 64 of the 256 requests")
    parser.add_argument("--only", nargs="+", metavar="PART", choices=[*PARTS], help="these parts; see --list")
    parser.add_argument("--sweep", action="store_true", help="time other tiles, instead of the parts")
    parser.add_argument("--list", action="store_true", help="the parts and their shares of the time")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="where the results go, by default benchmarks/results/<gpu>-<date>.json",
    )
    parser.add_argument("--seed", type=int, default=0, help="of all random inputs")
    parser.add_argument("--smoke", action="store_true", help="try every part on the CPU; its times mean nothing")
    parser.add_argument("--worker", choices=[*PARTS, *SWEEP], help=argparse.SUPPRESS)
    parser.add_argument("--piece", default="0/1", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=1e6, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.minutes > 0:
        parser.error(f"--minutes {options.minutes} must be above 0")
    if options.smoke and options.json and RESULTS in options.json.resolve().parents:
        parser.error(f"--json {options.json} lies in {RESULTS}: a smoke run gives no results; name a file elsewhere")
    if options.list:
        return list_parts(options.minutes)
    if options.worker:
        return work(options)
    return smoke(options) if options.smoke else measure(options)


def chosen(options: argparse.Namespace) -> list[Part]:
    if options.sweep:
        return [PARTS["machine"], *SWEEP.values()]
    if not options.only:
        return list(PARTS.values())
    # The card is always described: the file's name and the meaning of its numbers hang on it.
    return [part for part in PARTS.values() if part.name in ("machine", *options.only)]


def list_parts(minutes: float) -> int:
    total = sum(part.share for part in PARTS.values())
    for part in PARTS.values():
        print(f"{part.name:18} {60 * minutes * part.share / total:4.0f} s   {part.what}")
    for part in SWEEP.values():
        print(f"{part.name:18}    -     {part.what}; only with --sweep")
    return 0


def measure(options: argparse.Namespace) -> int:
    """All chosen parts on the GPU."""
    result: dict[str, Any] = {
        "what": "benchmarks/gpu.py", "smoke": False, "quick": options.quick, "minutes": options.minutes,
        "date": date.today().isoformat(), "seed": options.seed, "commit": commit(), "parts": {},
    }  # fmt: skip
    saved: dict[str, Any] = {}  # what an earlier run of today has stored, if this one is to be added to it

    def save() -> None:
        if not saved:  # the machine's part has just ended: now the card, and so the file, has a name
            if about := result["parts"].get("machine", {}).get("about"):
                result["gpu"] = about["gpu"]
            options.json = options.json or result_path(
                result.get("gpu", "gpu"), keep=bool(options.only or options.sweep)
            )
            stored = read_json(options.json) if options.only or options.sweep else None
            saved.update(stored if stored and stored.get("gpu") == result.get("gpu") else {"parts": {}})
        result["seconds"] = round(time.monotonic() - STARTED, 1)
        parts = saved["parts"] | result["parts"]
        if "transformers" in result["parts"]:
            result["parts"]["transformers"]["figures"] = ratios(parts)
        write_result(options.json, saved | result | {"parts": parts})

    def command(part: Part, piece: tuple[int, int], seconds: float, file: Path) -> list[str]:
        found = [sys.executable, str(HERE / "gpu.py"), "--worker", part.name, "--piece", "{}/{}".format(*piece)]
        found += ["--seconds", f"{seconds:.1f}", "--json", str(file), "--seed", str(options.seed)]
        return found + ["--quick"] * options.quick

    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        run_parts(chosen(options), command, options.minutes, result, save)
    except NoGPU:
        return 2
    except KeyboardInterrupt:
        print(f"\ninterrupted; what was measured until then: {options.json}")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    print_summary(result)
    print(f"\nwritten: {options.json}, after {time.monotonic() - STARTED:.0f} s")
    return int(bool(wrong_parts(result)))


def result_path(gpu: str, keep: bool) -> Path:
    """benchmarks/results/h200-2026-11-30.json; with -2 behind it where that exists, unless it is to be added to."""
    words = [word for word in gpu.lower().replace("_", " ").replace("-", " ").split() if word not in MAKERS]
    name = f"{'-'.join(words) or 'gpu'}-{date.today().isoformat()}"
    path, number = RESULTS / f"{name}.json", 1
    while path.exists() and not keep:
        number += 1
        path = RESULTS / f"{name}-{number}.json"
    return path


def work(options: argparse.Namespace) -> int:
    """One part, or a piece of it, in this process."""
    from benchmarks.gpu_parts.bench import NoGPUError, cuda_bench

    part = (PARTS | SWEEP)[options.worker]
    report = Report(part.name, options.json)
    first, step = map(int, options.piece.split("/"))
    seconds = options.seconds - (time.monotonic() - STARTED)
    try:
        return run_one(part, report, lambda: cuda_bench(report, seconds, options.seed, options.quick, (first, step)))
    except NoGPUError as error:
        print(error, file=sys.stderr)
        return NO_GPU


def run_one(part: Part, report: Report, make_bench: Callable[[], Any]) -> int:
    """The part in this process; whatever goes wrong ends in its report. Raises NoGPUError."""
    from benchmarks.gpu_parts.bench import NoGPUError

    try:
        part.load()(make_bench())
    except NoGPUError:
        raise
    except Exception:
        error = traceback.format_exc()
        print(error, file=sys.stderr, flush=True)
        report.end("failed", error)
        return 1
    is_cut = any(entry["reason"].startswith("out of time") for entry in report.data["skipped"])
    report.end("out of time" if is_cut else "ok")
    return 0


def smoke(options: argparse.Namespace) -> int:
    """Every chosen part with tiny sizes, in this process."""
    from benchmarks.gpu_parts.bench import smoke_bench

    print("SMOKE RUN on the CPU: it tries the script. Its times and rates mean nothing.")
    parts = chosen(options) if options.only or options.sweep else [*PARTS.values(), *SWEEP.values()]
    result: dict[str, Any] = {"what": "benchmarks/gpu.py", "smoke": True, "parts": {}}
    for part in parts:
        start = time.monotonic()
        print(f"\n=== {part.name}: {part.what}", flush=True)
        report = Report(part.name)
        run_one(part, report, lambda report=report: smoke_bench(report, options.seed, options.quick))
        result["parts"][part.name] = report.data
        print(f"=== {part.name}: {report.data['status']} in {time.monotonic() - start:.1f} s", flush=True)
    if options.json:
        write_result(options.json, result)
    wrong = wrong_parts(result)
    print(f"\nSMOKE RUN: {'wrong: ' + ', '.join(wrong) if wrong else 'every part ran to its end'}")
    return int(bool(wrong))


def print_summary(result: dict[str, Any]) -> None:
    print(f"\n{result.get('gpu', 'no GPU described')}, {result['date']}, {result['seconds']:.0f} s")
    for name, part in result["parts"].items():
        print(f"\n{name}: {part['status']}")
        for figure in part.get("figures", []):
            if "target" in figure:
                print("  " + figure_line(figure))
        for entry in part.get("skipped", []):
            print(f"  skipped: {entry['what']}: {entry['reason']}")
        if part.get("error"):
            print(f"  {part['error'].strip().splitlines()[-1]}")


def wrong_parts(result: dict[str, Any]) -> list[str]:
    """Parts that failed, or in which a proof did; a target of speed that was missed is a finding, not a failure."""
    return [
        name
        for name, part in result["parts"].items()
        if part["status"] == "failed" or any(f.get("target") is True and not f["met"] for f in part.get("figures", []))
    ]


if __name__ == "__main__":
    sys.exit(main())
