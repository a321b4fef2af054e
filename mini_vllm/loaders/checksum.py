"""SHA-256 of a file, remembered. Knows sizes and times of files; not what is in them. Chapter 14."""

import hashlib
import json
from pathlib import Path

from mini_vllm.loaders.cache_folder import make_folder, written_atomically


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of the whole file (about 1 s per GB)."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered_sha256(path: Path, cache: Path) -> str:
    """`sha256_of(path)`, computed again only when the file's size or modification time has changed."""
    stat = path.stat()
    place = str(path.resolve())
    identity = [place, stat.st_size, stat.st_mtime_ns]
    note = cache / "checksums" / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"
    try:
        known = json.loads(note.read_text())
        if known["identity"] == identity:
            return known["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no note, or an unreadable one: compute it
    digest = sha256_of(path)
    make_folder(note.parent)
    with written_atomically(note) as temporary:
        temporary.write_text(json.dumps({"identity": identity, "sha256": digest}))
    return digest
