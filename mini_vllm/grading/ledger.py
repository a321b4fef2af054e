"""What a learner has passed so far: in memory and in one small file. Knows points, no answers. All chapters."""

import json
import os
from pathlib import Path

from mini_vllm.grading.exercise import Exercise

PROGRESS_FILE = "MINI_VLLM_PROGRESS"  # path of the file; "off" keeps it in memory only
_passed: dict[str, dict] = {}


def _file() -> Path | None:
    chosen = os.environ.get(PROGRESS_FILE)
    if chosen == "off" or "PYTEST_VERSION" in os.environ:  # our own test runs are no learner's progress
        return None
    if chosen:
        return Path(chosen).expanduser()
    from mini_vllm.loaders.cache_folder import default_cache_folder

    return default_cache_folder() / "progress.json"


def _read(path: Path) -> dict[str, dict]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return {key: entry for key, entry in entries.items() if {"title", "points"} <= entry.keys()}
    except (OSError, ValueError, AttributeError):  # not there, not readable, not ours: start afresh
        return {}


def _write(path: Path) -> bool:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_passed, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    except OSError:
        return False
    return True


def passed(exercise: Exercise) -> None:
    """Note that an exercise is passed. A folder that cannot be written to is no error."""
    path = _file()
    if path:
        _passed.update({**_read(path), **_passed})
    _passed[exercise.exercise_id] = {"title": exercise.title, "points": exercise.points}
    if path:
        _write(path)


def progress() -> None:
    """Print the exercises passed so far and their points."""
    path = _file()
    entries = {**(_read(path) if path else {}), **_passed}
    if not entries:
        print("Nothing passed yet. A check that says ✓ is noted here.")
        return
    for exercise_id, entry in sorted(entries.items()):
        print(f"✓ {exercise_id}  {entry['points']:>3} points  {entry['title']}")
    print(f"  {len(entries)} passed, {sum(entry['points'] for entry in entries.values())} points")


def save_progress(path: str | Path = "progress.json") -> None:
    """Write the progress to a file of yours. Colab forgets: download it at the end of a session."""
    kept = _file()
    if kept:
        _passed.update({**_read(kept), **_passed})
    if not _write(Path(path)):
        raise OSError(f"cannot write {path}; choose a folder that you may write to")
    print(f"{len(_passed)} passed, saved to {path}")


def load_progress(path: str | Path = "progress.json") -> None:
    """Read what `save_progress` wrote, added to what is known."""
    _passed.update(_read(Path(path)))
    kept = _file()
    if kept:
        _write(kept)
    progress()
