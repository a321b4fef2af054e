"""Makes .venv and installs a group of packages into it. Knows pip and the groups; nothing of the course.

Standard library only, and plain enough for Python 3.8: it must be able to say that the Python is wrong.
A second run with nothing changed only compares one hash.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
OLDEST, NEWEST = (3, 11), (3, 13)
CANDIDATES = ("python3.13", "python3.12", "python3.11", "python3")
INSTALL_LIMIT_S = 30 * 60

# group: (extras, other groups that it contains, what is downloaded the first time)
GROUPS = {
    "book": ("book", (), "about 110 MB from PyPI (Jupyter Book, matplotlib; no torch)"),
    "engine": ("engine", (), "{torch}"),
    "lab": ("engine,book,lab", ("book", "engine"), "about 130 MB from PyPI and {torch}"),
    "test": (
        "engine,book,dev",
        ("book", "engine"),
        "about 230 MB from PyPI (with a browser driver) and {torch}",
    ),
}
TORCH_SIZE = {
    "cpu": "PyTorch's CPU build and triton (about 400 MB)",
    "cuda": "PyTorch with CUDA and triton (about 3 GB)",
    "mac": "PyTorch (about 110 MB)",
}
NO_NETWORK = (
    "connection error:",
    "connection broken by",
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeout",
    "Network is unreachable",
    "ProxyError",
    "Read timed out",
)


def stop(message: str) -> None:
    """Ends the run with one line that says what to do."""
    sys.exit(f"set-up: {message}")


def probe(python: str) -> tuple[tuple[int, ...], bool] | None:
    """(version, can make environments) of an interpreter, or None where it does not run."""
    code = (
        "import sys, importlib.util as u\n"
        "print(*sys.version_info[:3], int(all(map(u.find_spec, ['venv', 'ensurepip']))))"
    )
    try:
        done = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
        *version, ok = (int(word) for word in done.stdout.split())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return tuple(version), bool(ok)


def in_range(version: tuple[int, ...]) -> bool:
    return OLDEST <= version[:2] <= NEWEST


def choose_python() -> str:
    """The interpreter for .venv: the one that PYTHON names, else the first candidate that fits."""
    asked = os.environ.get("PYTHON", "").strip()
    seen, without_venv = [], None
    for name in [asked] if asked else CANDIDATES:
        path = shutil.which(name)
        found = probe(path) if path else None
        if not found:
            continue
        version, can_make_venv = found
        seen.append(f"{name} is {'.'.join(map(str, version))}")
        if in_range(version):
            if can_make_venv:
                return path
            without_venv = without_venv or (path, version)
    if without_venv:
        path, version = without_venv
        package = f"python{version[0]}.{version[1]}-venv"
        stop(f"{path} has no venv module. Debian or Ubuntu: apt install {package}; then run this again.")
    stop(
        f"needs Python 3.11, 3.12 or 3.13; found: {', '.join(seen) or f'no {asked or CANDIDATES[-1]}'}. "
        "Install one (Debian or Ubuntu: apt install python3 python3-venv; macOS: brew install python@3.13) "
        "or name one: make ... PYTHON=/path/to/python3.12"
    )


def make_venv() -> Path:
    """The interpreter in .venv, made anew where there is none or where it is of the wrong version."""
    python = VENV / "bin" / "python"
    found = probe(str(python)) if python.exists() else None
    if not (found and in_range(found[0])):
        chosen = choose_python()
        print(f"set-up: making .venv with {chosen}", flush=True)
        done = subprocess.run([chosen, "-m", "venv", "--clear", str(VENV)], timeout=600)
        if done.returncode:
            stop(f"{chosen} -m venv failed (see above). Debian or Ubuntu: apt install python3-venv.")
    return python


def torch_kind() -> str:
    if platform.system() != "Linux":
        return "mac"
    return "cpu" if os.environ.get("TORCH") == "cpu" else "cuda"


def fingerprint(group: str) -> str:
    """Changes when an install could give something else: dependencies, pins, the choice of torch."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split("[tool.ruff]")[0]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    torch = "" if group == "book" else torch_kind()
    return hashlib.sha256("\n".join([str(ROOT), project, pins, torch]).encode()).hexdigest()


def stamp(group: str) -> Path:
    return VENV / f".installed-{group}"


def is_current(group: str) -> bool:
    path = stamp(group)
    return path.exists() and path.read_text() == fingerprint(group)


def pip_install(python: Path, *arguments: str) -> None:
    """pip with the pins; its own progress bars on a terminal, one line a download in a log."""
    log = VENV / "pip.log"
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--retries",
        "3",
        "--log",
        str(log),
        "--no-input",
        "--disable-pip-version-check",
        "-c",
        str(ROOT / "constraints.txt"),
        *arguments,
    ]
    log.unlink(missing_ok=True)
    own_output = None if sys.stdout.isatty() else subprocess.PIPE
    run = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=own_output, text=True, errors="replace")
    limit = threading.Timer(INSTALL_LIMIT_S, run.kill)
    limit.start()
    for line in run.stdout or ():
        if line.lstrip().startswith(("Downloading", "ERROR", "Installing")) and "metadata" not in line:
            print("  " + line.strip()[:100], flush=True)
    code = run.wait()
    limit.cancel()
    if code == 0:
        log.unlink(missing_ok=True)  # it is tens of MB
        return
    said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if code == -signal.SIGKILL:
        stop(f"pip was ended after {INSTALL_LIMIT_S // 60} min. Run this again: downloads are kept.")
    if any(word in said for word in NO_NETWORK):
        stop(
            "pip could not reach the package index. Check the network (pypi.org; behind a proxy set "
            "HTTPS_PROXY), then run the same command again."
        )
    stop(f"pip failed; the lines above say why (in full: {log.relative_to(ROOT)}).")


def install(group: str) -> None:
    extras, contains, size = GROUPS[group]
    python = make_venv()
    if is_current(group):
        return
    print(
        f"set-up: installing '{group}' into .venv; downloads the first time: "
        + size.format(torch=TORCH_SIZE[torch_kind()]),
        flush=True,
    )
    if group != "book":
        if torch_kind() == "cuda" and not shutil.which("nvidia-smi") and not os.environ.get("TORCH"):
            print(
                "set-up: no NVIDIA GPU found: `make ... TORCH=cpu` takes PyTorch's CPU build instead, "
                "about 200 MB instead of several GB",
                flush=True,
            )
        if torch_kind() == "cpu":
            # Only torch itself comes from PyTorch's index; what it needs comes from PyPI below.
            pip_install(python, "--no-deps", "--index-url", os.environ["TORCH_CPU_INDEX"], "torch")
    start = time.monotonic()
    pip_install(python, "--editable", f".[{extras}]")
    for done in (group, *contains):
        stamp(done).write_text(fingerprint(done))
    print(f"set-up: '{group}' is installed ({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in GROUPS:
        stop(f"give one group of {', '.join(GROUPS)}")
    install(sys.argv[1])
