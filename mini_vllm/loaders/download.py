"""Downloads a file of known size and checksum, resuming. Knows HTTP; not what the file is. Chapter 14."""

import time
from http.client import HTTPException, InvalidURL
from pathlib import Path
from urllib.error import HTTPError

from mini_vllm.errors import DownloadError
from mini_vllm.loaders.checksum import sha256_of
from mini_vllm.loaders.package_index import open_url, without_password
from mini_vllm.loaders.progress import Progress

_CHUNK_BYTES = 1 << 20
_WORTH_ANOTHER_TRY = {408, 429, 500, 502, 503, 504}


def download(
    url: str,
    target: Path,
    *,
    size: int,
    sha256: str,
    progress: Progress,
    tries: int = 4,
    pause_s: float = 1.0,
    timeout_s: float = 30,
) -> None:
    """Write the file at `url` to `target`, `size` bytes with this checksum, or raise DownloadError.

    What has arrived stays in `target` + ".part" when the connection breaks; the next try, also in another
    process, asks only for the rest (HTTP Range). `pause_s` doubles from try to try.
    """
    part = target.with_name(target.name + ".part")
    resumed = part.exists() and part.stat().st_size > 0
    _fill(url, part, size, progress, tries, pause_s, timeout_s)
    found = sha256_of(part)
    if found != sha256 and resumed:
        # The old beginning may stem from another file of this name. A fresh copy decides.
        part.unlink()
        _fill(url, part, size, progress, tries, pause_s, timeout_s)
        found = sha256_of(part)
    if found != sha256:
        part.unlink()
        raise DownloadError(
            f"{without_password(url)} has SHA-256 {found}, expected {sha256}. The bytes were deleted. Try "
            "again; if it comes back, a proxy or mirror changes the file: set PIP_INDEX_URL to another index."
        )
    part.replace(target)


def _fill(url: str, part: Path, size: int, progress: Progress, tries: int, pause_s: float, timeout_s: float) -> None:
    """Bring `part` to exactly `size` bytes."""
    for attempt in range(tries):
        if attempt:
            time.sleep(pause_s * 2 ** (attempt - 1))
        try:
            _append(url, part, size, progress, timeout_s)
            return
        except HTTPError as error:
            problem: Exception = error
            if error.code not in _WORTH_ANOTHER_TRY:
                break
        except (InvalidURL, ValueError) as error:  # an address, here or in a redirect, that never works
            problem = error
            break
        except (OSError, HTTPException) as error:
            problem = error
    arrived = part.stat().st_size if part.exists() else 0
    raise DownloadError(
        f"{without_password(url)}: {type(problem).__name__}: {problem} "
        f"({arrived:,} of {size:,} bytes arrived; they are kept in {part} and the next try goes on there)"
    ) from problem


def _append(url: str, part: Path, size: int, progress: Progress, timeout_s: float) -> None:
    """One request: fetch what `part` still lacks. Raises OSError when the connection ends early."""
    have = part.stat().st_size if part.exists() else 0
    if have > size:
        part.unlink()
        have = 0
    if have == size:
        return
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        reply = open_url(url, headers=headers, timeout_s=timeout_s)
    except HTTPError as error:
        if error.code == 416:  # the file over there is shorter than what we have: ours is of another file
            part.unlink()
            raise ConnectionError("the server does not have the rest of this file; starting anew") from error
        raise
    with reply, open(part, "ab") as file:
        goes_on = reply.status == 206 and reply.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if have and not goes_on:
            file.truncate(0)  # the server ignored Range and sends the whole file
            have = 0
        while chunk := reply.read(_CHUNK_BYTES):
            file.write(chunk)
            have += len(chunk)
            progress.show(have, size)
            if have > size:
                break
    if have > size:
        part.unlink()
        raise DownloadError(f"{without_password(url)} is longer than the {size:,} bytes it should have")
    if have < size:
        raise ConnectionError(f"the connection ended after {have:,} of {size:,} bytes")
