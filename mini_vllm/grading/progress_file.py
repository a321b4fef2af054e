"""What a learner has passed, predicted and answered: in memory, in one small file, as a line of text. All chapters.

Knows ids and seeds, no points and no answers. The file is for the learner alone; nothing is marked by it.
"""

import base64
import binascii
import json
import os
import textwrap
import zlib
from pathlib import Path
from typing import Any

from mini_vllm.errors import GradingError
from mini_vllm.grading.exercise import Exercise

PROGRESS_FILE = "MINI_VLLM_PROGRESS"  # path of the file; "off" keeps it in memory only
FORMAT = "mini_vllm.progress 1"
TEXT_STARTS = "progress-"

_state: dict[str, Any] = {"passed": [], "predictions": {}, "quiz": {}}


def note_passed(exercise: Exercise) -> None:
    _note({"passed": [exercise.exercise_id]})


def note_prediction(question: str, guess: dict[str, Any]) -> None:
    """The latest guess counts."""
    _note({"predictions": {question: guess}})


def note_quiz(topic: str, seed: int, right: bool) -> None:
    """The first try counts."""
    _note({"quiz": {f"{topic} {seed}": right}})


def known() -> dict[str, Any]:
    """{"passed": ids, "predictions": {question: guess}, "quiz": {"topic seed": right at the first try}}"""
    path = _file()
    if path and path.exists():
        try:
            _merge(read(path))
        except GradingError:  # the next note keeps it beside the new one
            pass
    return _state


def _note(news: dict[str, Any]) -> None:
    known()
    _merge(news)
    path = _file()
    if path:
        try:
            write(path)
        except OSError:  # a folder that may not be written to: it stays in memory
            pass


def _merge(news: dict[str, Any]) -> None:
    _state["passed"] = sorted({*_state["passed"], *news.get("passed", [])})
    _state["predictions"] = {**_state["predictions"], **news.get("predictions", {})}
    _state["quiz"] = {**news.get("quiz", {}), **_state["quiz"]}


def _file() -> Path | None:
    from mini_vllm.grading.feedback import GRADED_FOLDER

    chosen = os.environ.get(PROGRESS_FILE)
    if chosen == "off" or {"PYTEST_VERSION", GRADED_FOLDER} & os.environ.keys():
        return None  # a test run, or a graded one, is no learner's progress
    if chosen:
        return Path(chosen).expanduser()
    from mini_vllm.loaders.cache_folder import default_cache_folder

    return default_cache_folder() / "progress.json"


def write(path: Path) -> None:
    """All at once: whoever reads at the same time sees the old file or the new one. OSError if it cannot be done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        try:
            read(path)
        except GradingError:
            path.replace(path.with_name(path.name + ".unreadable"))
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    beside.write_text(json.dumps({"format": FORMAT, **_state}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(path)


def read(path: Path) -> dict[str, Any]:
    """What `write` wrote; GradingError says what is wrong with any other file."""
    try:
        return _checked(path.read_bytes(), str(path))
    except OSError as error:
        raise GradingError(
            f"{path} cannot be read ({error.strerror}); give the file that save_progress() wrote, or its text"
        ) from error


def as_text() -> str:
    """Everything in one word, for pasting on another machine."""
    data = json.dumps({"format": FORMAT, **known()}, ensure_ascii=False, separators=(",", ":")).encode()
    return f"{TEXT_STARTS}{zlib.crc32(data):08x}-{base64.urlsafe_b64encode(zlib.compress(data, 9)).decode()}"


def load(source: str | Path) -> None:
    """Add what stands in a file or in a text of `as_text`, broken into lines or not."""
    text = "".join(str(source).split())
    _merge(_from_text(text) if text.startswith(TEXT_STARTS) else read(Path(source).expanduser()))
    _note({})


def _from_text(text: str) -> dict[str, Any]:
    _, crc, packed = (text + "--").split("-", 2)
    packed = packed.removesuffix("--")
    try:
        data = zlib.decompress(base64.urlsafe_b64decode(packed))
        if f"{zlib.crc32(data):08x}" != crc:
            raise ValueError
    except (ValueError, binascii.Error, zlib.error):
        raise GradingError(
            f"the text {textwrap.shorten(text, 40)} is cut off or changed: copy all of it, from progress- to its end"
        ) from None
    return _checked(data, "the text")


def _checked(data: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(data.decode("utf-8"))
        if found["format"] != FORMAT:
            raise ValueError
        ids, predictions, quiz = found["passed"], found["predictions"], found["quiz"]
        if not all(isinstance(i, str) for i in ids) or not all(isinstance(p, dict) for p in predictions.values()):
            raise TypeError
        return {"passed": ids, "predictions": predictions, "quiz": {key: quiz[key] is True for key in quiz}}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise GradingError(f"{where} is no progress that save_progress() wrote") from None
