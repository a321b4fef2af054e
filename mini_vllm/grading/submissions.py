"""Which notebooks to grade, whose they are, and their bytes. Knows files and folders of strangers. All chapters.

A file that cannot be read is kept as a submission with `error`: it is named in the report, and the others go on.
"""

import contextlib
import functools
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mini_vllm.errors import GradingError
from mini_vllm.grading.overlay import PACKAGED, parse_notebook

MAX_NOTEBOOK_BYTES = 50_000_000
NOT_SUBMISSIONS = {".ipynb_checkpoints", "__MACOSX", ".git", ".venv", "node_modules"}
# Moodle: "Ada Lovelace_123456_assignsubmission_file_"; Canvas: "lovelaceada_LATE_12345_67890_01-static-batching.ipynb"
MOODLE = re.compile(r"^(.+?)_\d+_assignsubmission_file_?.*$")
CANVAS = re.compile(r"^([^_]+)_(?:LATE_)?\d+_\d+_.+$")
COPY_MARK = re.compile(r"(?:[ _-]+copy\d*|[ _-]*\(\d+\))+$", re.IGNORECASE)


@dataclass(frozen=True)
class Submission:
    """One file. `path` as it was given, for reports; `folder`: where the class lies, hidden from what is graded."""

    path: str
    student: str
    folder: str
    data: bytes = b""
    error: str | None = None


def collect(paths: Iterable[Path]) -> list[Submission]:
    """The notebooks meant by files and folders, each once, in the order given; folders sorted by name."""
    found: dict[str, Submission] = {}
    for path in map(Path, paths):
        for file in _files(path):
            key = os.path.realpath(file)
            found.setdefault(key, _read(file, path if path.is_dir() else file.parent))
    return list(found.values())


def students_to_grade(submissions: Iterable[Submission]) -> set[str]:
    """Whose notebooks can be read; a file that is none is no student's."""
    students = set()
    for submission in submissions:
        if not submission.error:
            with contextlib.suppress(GradingError):
                parse_notebook(submission.data, submission.path)
                students.add(submission.student)
    return students


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        if not os.path.lexists(path):
            raise GradingError(f"{path} does not exist; give notebooks or folders of notebooks")
        return [path]
    inside: list[Path] = []
    for folder, folders, files in os.walk(path, onerror=_refuse):  # follows no links to folders, so it ends
        folders[:] = sorted(set(folders) - NOT_SUBMISSIONS)
        names = [name for name in files if name.endswith(".ipynb") and not name.startswith("._")]
        inside += [Path(folder, name) for name in sorted(names)]
    if not inside:
        raise GradingError(f"the folder {path} holds no .ipynb file")
    return inside


def _refuse(error: OSError) -> None:
    raise GradingError(f"{error.filename} cannot be read ({error.strerror}); mend its permissions, or leave it out")


def _read(path: Path, root: Path) -> Submission:
    """The bytes of a plain file; a link is followed, but a pipe, a device or a loop of links is refused, not read."""
    student, folder = student_of(path, root), str(root.absolute())
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise GradingError(f"{path} is no file; give the path of an .ipynb file")
        if status.st_size > MAX_NOTEBOOK_BYTES:
            size, most = status.st_size / 1e6, MAX_NOTEBOOK_BYTES / 1e6
            raise GradingError(
                f"{path} has {size:.0f} MB and {most:.0f} are read; clear its outputs (Edit, Clear All Outputs)"
            )
        return Submission(str(path), student, folder, path.read_bytes())
    except OSError as error:
        text = f"{path} cannot be read ({error.strerror}); give the path of an .ipynb file"
        return Submission(str(path), student, folder, error=text)
    except GradingError as error:
        return Submission(str(path), student, folder, error=str(error))


def student_of(path: Path, root: Path) -> str:
    """Whose notebook it is: the folder below `root` that it lies in, else what its file name adds to the chapter's.

    Knows how Moodle and Canvas name what they export; a GitHub Classroom folder is the student's already.
    """
    inside = path.relative_to(root).parts if path.is_relative_to(root) else (path.name,)
    name = inside[0] if len(inside) > 1 else path.stem
    for export in (MOODLE, CANVAS):
        if found := export.match(name):
            return found[1].strip()
    if len(inside) > 1:
        return name
    bare = COPY_MARK.sub("", _chapter_names().sub("", COPY_MARK.sub("", name))).strip(" _-.")
    return bare or root.absolute().name or name


@functools.cache
def _chapter_names() -> re.Pattern[str]:
    """What exercise notebooks are called, the longest names first."""
    names = sorted((path.stem for path in PACKAGED.glob("*.json")), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, names)) or "(?!)")
