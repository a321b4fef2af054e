"""Ends a process with everything that it started. Knows processes; knows nothing of notebooks. All chapters."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path


def end_with_descendants(process: subprocess.Popen, mark: str) -> None:
    """Kill `process`, its descendants, and on Linux whoever carries `mark` in its environment.

    A process group is not enough: jupyter_client starts each kernel in a session of its own. Children of a process
    that has ended already belong to init, so they are found by the mark alone.
    """
    pids = [*_descendants(process.pid), *_marked(mark)]
    with suppress(ProcessLookupError):
        process.kill()
    for pid in set(pids) - {os.getpid()}:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    process.wait()


def _descendants(root: int) -> list[int]:
    """Process ids below `root`; empty where the system has no `ps`."""
    try:
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return []
    children: dict[int, list[int]] = {}
    for line in listing.stdout.splitlines():
        pid, parent = map(int, line.split()[:2])
        children.setdefault(parent, []).append(pid)
    found, to_visit = [], [root]
    while to_visit:
        below = children.get(to_visit.pop(), [])
        found += below
        to_visit += below
    return found


def _marked(mark: str) -> list[int]:
    """Process ids that inherited an environment with `mark` in it (from /proc, so on Linux only)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found
