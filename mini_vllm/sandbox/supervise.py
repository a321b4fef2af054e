"""Runs a command and ends it, with all that it started, when it goes over a limit. Knows processes only. Grading.

    python -m mini_vllm.sandbox.supervise plan.json

Prints {"ended": why, or ""} as JSON when everything is gone. It also ends everything when its own standard input is
closed, so whoever started it may die without leaving anybody behind.
"""

import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

OUT_OF_TIME, KERNEL_ENDED = "out of time", "kernel ended"
TOO_MUCH_MEMORY, TOO_MANY_PROCESSES, ABANDONED = "too much memory", "too many processes", "abandoned"
POLL_S, AFTER_KERNEL_S, ROUNDS = 0.1, 1.0, 200
PR_SET_CHILD_SUBREAPER = 36
MEBIBYTE = 1 << 20


def main(plan_path: str) -> None:
    plan = json.loads(Path(plan_path).read_text(encoding="utf-8"))
    _adopt_orphans()
    with open(plan["log"], "wb") as log:
        process = subprocess.Popen(
            plan["command"],
            cwd=plan["cwd"],
            env=plan["env"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        ended = Watch(process, plan).wait()
    finally:
        left = end_everything(plan["uid"])
    print(json.dumps({"ended": ended, "left": left}))


def _adopt_orphans() -> None:
    """On Linux whoever loses its parent becomes our child, not init's: a double fork hides nobody."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Watch:
    """Looks at the process tree every 0.1 s. The first grandchild is the kernel: without it nothing more will come."""

    def __init__(self, process: subprocess.Popen, plan: dict):
        self.process = process
        self.deadline = time.monotonic() + plan["run_s"]
        self.memory_bytes = plan["memory_mb"] * MEBIBYTE
        self.max_processes = plan["processes"]
        self.kernel: psutil.Process | None = None
        self.kernel_gone_at: float | None = None

    def wait(self) -> str:
        """Why the command has to be ended; empty when it came to its end."""
        while self.process.poll() is None:
            why = self._over_a_limit()
            if why:
                return why
            if select.select([sys.stdin], [], [], POLL_S)[0] and not os.read(0, 1):
                return ABANDONED
        return ""

    def _over_a_limit(self) -> str:
        now = time.monotonic()
        if now > self.deadline:
            return OUT_OF_TIME
        below = descendants()
        if len(below) - 2 > self.max_processes:  # the command and its kernel are not counted
            return TOO_MANY_PROCESSES
        if _bytes(below, "rss") > self.memory_bytes and _bytes(below, "pss") > self.memory_bytes:
            return TOO_MUCH_MEMORY
        if self.kernel is None:
            with suppress(psutil.Error):
                self.kernel = next(iter(psutil.Process(self.process.pid).children()), None)
        elif self.kernel_gone_at is None and _is_gone(self.kernel):
            self.kernel_gone_at = now
        if self.kernel_gone_at is not None and now > self.kernel_gone_at + AFTER_KERNEL_S:
            return KERNEL_ENDED
        return ""


def descendants() -> list[psutil.Process]:
    try:
        return psutil.Process().children(recursive=True)
    except psutil.Error:
        return []


def _bytes(processes: list[psutil.Process], what: str) -> int:
    """Memory in use. rss counts a page for each process that shares it; pss once in all, but takes longer."""
    total = 0
    for process in processes:
        with suppress(psutil.Error):
            total += _pss(process) if what == "pss" else process.memory_info().rss
    return total


def _pss(process: psutil.Process) -> int:
    try:
        full = process.memory_full_info()
    except psutil.AccessDenied:  # macOS tells this to root alone, and knows no pss
        return process.memory_info().rss
    return getattr(full, "pss", full.rss)


def _is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def end_everything(uid: int | None) -> int:
    """Kill until nobody is left: descendants, and whoever has the run's own user. How many would not go."""
    for _ in range(ROUNDS):
        alive = [p for p in [*descendants(), *_of_user(uid)] if not _is_gone(p)]
        for victim in alive:
            with suppress(psutil.Error):
                victim.kill()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not alive:
            return 0
        time.sleep(0.01)
    return len(alive)


def _of_user(uid: int | None) -> list[psutil.Process]:
    if uid is None:
        return []
    return [p for p in psutil.process_iter(["uids"]) if p.info["uids"] and p.info["uids"].real == uid]


if __name__ == "__main__":
    main(*sys.argv[1:])
