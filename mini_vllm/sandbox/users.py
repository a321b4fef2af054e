"""A user of its own for one run, when root runs it. Knows user ids and capabilities; knows no notebook. Grading."""

import ctypes
import os
import secrets
import stat
import sys
from pathlib import Path

IDS = range(61_184, 65_520)  # the range that systemd hands out for a short time; no installer takes from it
CAP_DAC_READ_SEARCH, LAST_CAPABILITY = 2, 63
PR_SET_KEEPCAPS, PR_CAPBSET_DROP, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 8, 24, 47, 2
CAPABILITY_VERSION_3 = 0x20080522


def pick() -> int:
    """A user id that no account and no process has."""
    import pwd

    import psutil

    taken = {entry.pw_uid for entry in pwd.getpwall()} | {p.info["uids"].real for p in psutil.process_iter(["uids"])}
    return secrets.choice([uid for uid in IDS if uid not in taken])


def everybody_may_read(path: Path) -> bool:
    """Whether any user could open `path`: its own mode, and the way to it."""
    try:
        mode, ways = path.stat().st_mode, [parent.stat().st_mode for parent in path.resolve().parents]
    except OSError:
        return False
    wanted = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
    return mode & wanted == wanted and all(way & stat.S_IXOTH for way in ways)


def become(uid: int | None, *, reads_everywhere: bool) -> None:
    """Give up root for good: change to `uid`, or stay and lose every capability.

    reads_everywhere: keep the one right to read past file modes. It is for a Python that lies in root's home, and only
    safe once Landlock says which files there are.
    """
    linux = sys.platform == "linux"
    libc = ctypes.CDLL(None, use_errno=True)
    if linux:
        for capability in range(LAST_CAPABILITY + 1):
            if not (reads_everywhere and capability == CAP_DAC_READ_SEARCH):
                libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        libc.prctl(PR_SET_KEEPCAPS, 1 if reads_everywhere else 0, 0, 0, 0)
    if uid is None:
        return
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    if linux and reads_everywhere:
        bit = 1 << CAP_DAC_READ_SEARCH
        header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
        sets = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)  # effective, permitted, inheritable; twice 32 bits
        if libc.capset(ctypes.byref(header), ctypes.byref(sets)) != 0:
            raise OSError(ctypes.get_errno(), "capset")
        libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH, 0, 0)
