"""Linux's Landlock: what this process and its children may still open. Knows paths, knows no process. Grading.

A rule can only allow, and holds for everything below its path; what no rule names is refused. It needs no root, cannot
be taken back, and `subprocess` with a clean environment does not shake it off. Kernels from 5.13 on have it.
"""

import ctypes
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

# System call numbers are the same on every architecture; bits as in linux/landlock.h.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
CONNECT_TCP = 1 << 1
OTHER_PROCESSES = 0b11  # abstract sockets of, and signals to, processes outside
BITS_OF_ABI = {1: 13, 2: 14, 3: 15}  # file rights that a kernel knows; later ones add rights over devices only
READ = EXECUTE | READ_FILE | READ_DIR
ON_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
PR_SET_NO_NEW_PRIVS = 38


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("rights", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def _call(number: int, *arguments) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def version() -> int:
    """The kernel's Landlock version; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    try:
        return _call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def no_new_privileges() -> None:
    """From here on `sudo` and other set-uid programs give nothing."""
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def restrict(readable: Iterable[str], writable: Iterable[str], hidden: Iterable[str]) -> None:
    """Allow reading and running below `readable`, everything below `writable`, nothing below `hidden`; no TCP connect.

    A path that does not exist is passed over. Raises OSError where Landlock is missing.
    """
    abi = version()
    everything = (1 << BITS_OF_ABI.get(min(abi, 3), 0)) - 1
    rules = _Ruleset(everything, CONNECT_TCP if abi >= 4 else 0, OTHER_PROCESSES if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _call(CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0))
    kept_away = [Path(path).resolve() for path in hidden]
    for root in readable:
        for path, listed_only in around(Path(root).resolve(), kept_away):
            _allow(ruleset, path, (READ_DIR if listed_only else READ) & everything)
    for root in writable:
        _allow(ruleset, Path(root), everything)
    no_new_privileges()
    _call(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(folder).st_mode):
            rights &= ON_A_FILE
        if rights:
            rule = _Beneath(rights, folder)
            _call(ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(1), ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(folder)


def around(root: Path, hidden: list[Path]) -> Iterator[tuple[Path, bool]]:
    """The paths that together are `root` without `hidden`, and whether a path may only be listed.

    A folder on the way to a hidden one cannot be allowed, its other entries can. Names below it may then be listed,
    those of hidden files too; what stands in these cannot be read. Both take paths without links; a link beside a
    hidden folder is passed over, since it may lead there, and what it leads to has a rule of its own or none.

        root ── lib ──┬── numpy       allowed
                │     ├── mini_vllm   hidden
                │     └── torch       allowed
                └─ listed only, or Python's importer would take it for empty
    """
    if any(root == path or path in root.parents for path in hidden):
        return
    if not any(root in path.parents for path in hidden):
        yield root, False
        return
    yield root, True
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return
    for entry in entries:
        if not entry.is_symlink():
            yield from around(entry, hidden)
