"""Builds the book strictly into _build/html. Knows Jupyter Book's command line; nothing of what pages say.

Strict: any Sphinx warning fails. Always --all: an incremental strict build can pass over an old failure.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 15 * 60


def build(source: Path = ROOT, output: Path | None = None) -> int:
    """Builds `source` into `output`/_build/html (`source`/_build/html if None); returns the exit code."""
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    command = [str(jupyter_book), "build", ".", "--all", "-W", "-n", "--keep-going"]
    if output is not None:
        command += ["--path-output", str(output)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    try:
        run = subprocess.run(command, cwd=source, env=environment, stdin=subprocess.DEVNULL, timeout=LIMIT_S)
        return run.returncode
    except subprocess.TimeoutExpired:
        print(f"book: not built after {LIMIT_S} s, given up", file=sys.stderr)
        return 124


def main() -> int:
    start = time.monotonic()
    code = build()
    seconds = time.monotonic() - start
    if code:
        print(f"book: the strict build failed after {seconds:.0f} s; see WARNING: and ERROR: above")
        return code
    print(f"book: built in {seconds:.0f} s. Open {ROOT / '_build/html/index.html'} or run: make serve-book")
    return 0


if __name__ == "__main__":
    sys.exit(main())
