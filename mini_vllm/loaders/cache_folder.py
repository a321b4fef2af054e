"""Where files are kept, and how processes share it. Knows folders and locks; knows no model. Chapter 14."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mini_vllm.errors import DownloadError

try:
    import fcntl
except ImportError:  # not a POSIX system: two processes that fetch at once then both do the work
    fcntl = None  # type: ignore[assignment]

CACHE_VARIABLE = "MINI_VLLM_CACHE"


def default_cache_folder() -> Path:
    """`$MINI_VLLM_CACHE` if set, else the platform's cache folder of this user. Creates nothing."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mini_vllm"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mini_vllm"


def make_folder(folder: Path, *, free_bytes: int = 0) -> Path:
    """Create `folder` and check that `free_bytes` fit on its disk. Raises DownloadError with the way out."""
    way_out = f"Set {CACHE_VARIABLE} to a folder that works."
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(f"cannot create the cache folder {folder}: {error}. {way_out}") from error
    free = shutil.disk_usage(folder).free
    if free < free_bytes:
        raise DownloadError(
            f"{folder} has {free / 1e6:,.0f} MB free and {free_bytes / 1e6:,.0f} MB are needed. {way_out}"
        )
    return folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the only lock on `folder`; a second process or thread waits here.

    The kernel drops the lock when its holder dies, so no lock is ever stale; the empty file stays.
    """
    if fcntl is None:
        yield
        return
    with open(folder / ".lock", "w") as lock_file:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that works in {folder} …", file=sys.stderr)
            fcntl.flock(lock_file, fcntl.LOCK_EX)
        except OSError:  # some network file systems have no locks: work without one
            pass
        yield


@contextmanager
def written_atomically(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; renamed to `target` if the block succeeds, else deleted."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())  # else a power cut can leave the new name on an empty file
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
