"""Starts a command with limits and without rights, in its own place. Knows the plan, not who made it. Grading.

    python -m mini_vllm.sandbox.jail plan.json FILE…     the plan's command with the files behind it

Standard library only, and nothing of the site: it runs once for each kernel, before that can start.
"""

import json
import os
import resource
import sys
from pathlib import Path

from mini_vllm.sandbox import landlock, users


def main(plan_path: str, *files: str) -> None:
    plan = json.loads(Path(plan_path).read_text(encoding="utf-8"))
    # Whoever starts this hears nothing of its standard error, so what goes wrong is kept in a file.
    log = os.open(plan["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        _give_up_rights(plan, files)
        os.execve(plan["command"][0], [*plan["command"], *files], plan["env"])
    except Exception as error:
        os.write(log, f"{type(error).__name__}: {error}\n".encode())
        raise SystemExit(1) from error


def _give_up_rights(plan: dict, files: tuple[str, ...]) -> None:
    os.umask(0o077)
    os.chdir(plan["cwd"])
    if plan["uid"] is not None:
        for file in files:
            os.chown(file, plan["uid"], plan["uid"])
    for name, value in plan["limits"].items():
        _lower(getattr(resource, name, None), value)
    if plan["landlock"]:
        landlock.restrict([*plan["readable"], *files], plan["writable"], plan["hidden"])
    elif sys.platform == "linux":
        landlock.no_new_privileges()
    if os.geteuid() == 0 or plan["uid"] is not None:
        users.become(plan["uid"], reads_everywhere=plan["reads_everywhere"])


def _lower(kind: int | None, value: int) -> None:
    """Lower one limit; one that is lower already stays."""
    if kind is None:  # this system does not have it
        return
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    try:
        resource.setrlimit(kind, (value, value))
    except (ValueError, OSError):  # macOS refuses some
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
