"""What `make test` runs: every stage in turn, timed, whatever failed before it. Knows commands, not tests.

    check.py              all stages
    check.py lint book    these stages
    check.py --all        all stages with the tests marked slow
On Linux with CI=true the tests that were skipped must be exactly those in tests/expected_skips.txt.
"""

import argparse
import math
import os
import platform
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from notebook_env import notebook_env

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "_build" / "reports"
TOTAL_LIMIT_MIN = 70  # all stages together; make test-all may take twice that
EXPECTED_SKIPS = ROOT / "tests" / "expected_skips.txt"
NBVAL = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout", "120"]


@dataclass
class Stage:
    """One command. `reports` names the pytest report it writes, if it is a pytest run."""

    name: str
    command: list[str]
    limit_min: int
    reports: bool = False
    env: dict[str, str] = field(default_factory=dict)


@dataclass
class Result:
    name: str
    ok: bool
    seconds: float
    passed: int = 0
    failed: int = 0
    skips: dict[str, str] = field(default_factory=dict)  # test -> reason


def stages(run_all: bool) -> list[Stage]:
    python = [sys.executable, "-m"]
    pytest = [*python, "pytest", "-q"]
    all_tests = "not browser" if run_all else "not browser and not slow"
    notebooks = [folder for folder in ("notebooks", "solutions") if any(ROOT.glob(f"{folder}/*.ipynb"))]
    return [
        Stage("lint", [*python, "ruff", "check", "."], 5),
        Stage("types", [*python, "mypy"], 10),
        Stage("dead-code", [sys.executable, "tools/dead_code.py"], 5),
        # Two processes, a file to each: half of the time goes to waiting for children and to code of one thread.
        Stage(
            "tests",
            [*pytest, "-n", "2", "--dist", "loadfile", "-m", all_tests, "tests"],
            40 if not run_all else 70,
            reports=True,
        ),
        Stage(
            "notebooks",
            [*pytest, *NBVAL, *(notebooks or ["notebooks"])],
            20,
            reports=True,
            env=notebook_env(),
        ),
        Stage("book", [sys.executable, "tools/build_book.py"], 15),
        Stage("browser", [*pytest, "-m", "browser", "tests/book"], 15, reports=True),
    ]


def run(stage: Stage, left_min: float = math.inf) -> Result:
    """Runs one stage to its end or its limit; a stage past its limit is ended with all that it started."""
    limit_min = max(0.0, min(stage.limit_min, left_min))
    print(f"\n=== {stage.name}: {' '.join(stage.command[1:])}", flush=True)
    report = REPORTS / f"{stage.name}.xml"
    report.unlink(missing_ok=True)
    command = stage.command + ([f"--junitxml={report}"] if stage.reports else [])
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **stage.env},
        start_new_session=True,
    )
    try:
        code = process.wait(limit_min * 60)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as reason:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(reason, KeyboardInterrupt):
            raise
        print(f"{stage.name}: not done after {limit_min:.0f} min, ended")
        code = 124
    if code < 0:
        print(f"{stage.name}: ended from outside by signal {-code}")
    result = Result(stage.name, code == 0, time.monotonic() - start)
    if stage.reports and report.exists():
        read_report(report, result)
    print(f"=== {stage.name}: {'ok' if result.ok else 'FAILED'} in {result.seconds:.0f} s", flush=True)
    return result


def read_report(report: Path, result: Result) -> None:
    """Counts what pytest wrote; an expected failure counts as a skip, so that it must be listed too."""
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            result.failed += 1
        elif skipped is not None:
            result.skips[f"{case.get('classname')}::{case.get('name')}"] = skipped.get("message", "")
        else:
            result.passed += 1


def unexpected_skips(results: list[Result]) -> list[str]:
    """Lines that say how the skipped tests differ from the committed list."""
    expected = {
        line.strip()
        for line in EXPECTED_SKIPS.read_text(encoding="utf-8").splitlines()
        if line.strip() and not line.startswith("#")
    }
    skipped = {test: reason for result in results for test, reason in result.skips.items()}
    return [f"skipped, not listed: {test}: {skipped[test]}" for test in sorted(skipped.keys() - expected)] + [
        f"listed, not skipped: {test}" for test in sorted(expected - skipped.keys())
    ]


def main() -> int:
    known = stages(run_all=False)
    parser = argparse.ArgumentParser(description="Runs the checks of the repository.")
    parser.add_argument("stage", nargs="*", help=f"stages to run: {', '.join(s.name for s in known)}")
    parser.add_argument("--all", action="store_true", help="the slow matrix too")
    arguments = parser.parse_args()
    unknown = set(arguments.stage) - {stage.name for stage in known}
    if unknown:
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in known)}")

    REPORTS.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * TOTAL_LIMIT_MIN * (2 if arguments.all else 1)
    wanted = [stage for stage in stages(arguments.all) if stage.name in (arguments.stage or [stage.name])]
    results = [run(stage, left_min=(end - time.monotonic()) / 60) for stage in wanted]
    print("\nstage       result   seconds   passed   failed   skipped")
    for r in results:
        word = "ok" if r.ok else "FAILED"
        print(f"{r.name:<12}{word:<8}{r.seconds:>8.0f}{r.passed:>9}{r.failed:>9}{len(r.skips):>10}")
    for test, reason in sorted((t, why) for r in results for t, why in r.skips.items()):
        print(f"skipped: {test}: {reason}")

    broken = [r.name for r in results if not r.ok]
    if not arguments.stage and os.environ.get("CI") == "true" and platform.system() == "Linux":
        for line in unexpected_skips(results):
            print(f"{line}  (the list: {EXPECTED_SKIPS.relative_to(ROOT)})")
            broken.append("skip list")
    print("FAILED: " + ", ".join(dict.fromkeys(broken)) if broken else "all stages ok")
    totals = [
        sum(r.passed for r in results),
        sum(r.failed for r in results),
        sum(len(r.skips) for r in results),
    ]
    print("{} passed, {} failed, {} skipped".format(*totals))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
