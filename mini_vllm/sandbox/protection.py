"""What this machine can put around a process that nobody trusts. Knows root, Landlock and file modes. Grading."""

import functools
import json
import os
import site
import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mini_vllm.sandbox import landlock, users

# Of /etc only what programs look up; a file with passwords is not among it.
SYSTEM = (
    *("/bin", "/lib", "/lib32", "/lib64", "/nix", "/opt", "/proc", "/sbin", "/sys", "/usr"),
    *("/etc/alternatives", "/etc/fonts", "/etc/group", "/etc/hosts", "/etc/ld.so.cache", "/etc/ld.so.conf"),
    *("/etc/ld.so.conf.d", "/etc/localtime", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/os-release"),
    *("/etc/passwd", "/etc/pki", "/etc/ssl", "/etc/timezone"),
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm", "/dev/dri", "/dev/kfd")


@dataclass(frozen=True)
class Protection:
    """own_user: a user id that nobody else has. file_rules: Landlock. reads_everywhere: see `users.become`."""

    own_user: bool
    file_rules: bool
    reads_everywhere: bool = False

    @property
    def name(self) -> str:
        parts = [word for word, there in (("own user", self.own_user), ("file rules", self.file_rules)) if there]
        return " and ".join(parts) or "none"

    def gap(self, secret: Path) -> str:
        """What this protection leaves open, with the way out; empty where nobody in the jail can read `secret`."""
        if self.file_rules:
            return ""
        if not self.own_user:
            return (
                "this machine cannot keep a graded notebook from your files: that takes Linux 5.13 or later with "
                "Landlock, or root. For notebooks of strangers use a container, see the instructor page"
            )
        if users.everybody_may_read(secret):
            return f"every user of this machine can read {secret}, graded notebooks too: chmod -R o-rwx its folder"
        return ""


@functools.cache
def available() -> Protection:
    rules = landlock.version() > 0
    if os.geteuid() != 0:
        return Protection(own_user=False, file_rules=rules)
    shared = all(users.everybody_may_read(path) for path in _interpreter_files())
    return Protection(own_user=shared or rules, file_rules=rules, reads_everywhere=rules and not shared)


def _interpreter_files() -> list[Path]:
    """One file of the interpreter, of its library, and of the packages: where one can be read, its neighbours can."""
    kernel = find_spec("ipykernel")
    packages = [Path(kernel.origin)] if kernel and kernel.origin else []
    return [Path(sys.executable).resolve(), Path(json.__file__).resolve(), *packages]


def readable(*, but_not: Path) -> list[str]:
    """Folders that a Python program needs: the system's, the interpreter's, those of the packages."""
    python = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), site.getusersitepackages()]
    imported = [entry for entry in sys.path if entry and Path(entry) != but_not]
    return [*SYSTEM, *dict.fromkeys([*python, *imported])]


def devices() -> list[str]:
    return [*DEVICES, *map(str, Path("/dev").glob("nvidia*"))]
