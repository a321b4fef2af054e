"""Which files the repository holds, and how its notebooks read. Knows git and JSON; judges nothing."""

import functools
import json
import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NOTEBOOK_FOLDERS = ("notebooks", "exercises", "solutions")
NOT_OURS = {
    ".git", ".venv", "venv", "_build", "__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache", ".hypothesis",
}  # fmt: skip
TEXT_SUFFIXES = {
    ".py", ".md", ".ipynb", ".toml", ".txt", ".yml", ".yaml", ".cfg", ".css", ".js", ".html", ".svg", ".json",
    ".jsonl", ".jinja", "", ".bib",
}  # fmt: skip


@functools.cache
def repository_files() -> list[Path]:
    """Files that are tracked, or would be with `git add`; without git, all but caches and builds."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0 and (ROOT / ".git").exists():
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [p for p in ROOT.rglob("*") if not NOT_OURS & set(p.relative_to(ROOT).parts)]
    return sorted(path for path in paths if path.is_file())


def text_files() -> list[Path]:
    return [path for path in repository_files() if path.suffix in TEXT_SUFFIXES]


def python_files() -> list[Path]:
    return [path for path in repository_files() if path.suffix == ".py"]


def notebooks(*folders: str) -> list[Path]:
    return [path for folder in folders or NOTEBOOK_FOLDERS for path in sorted((ROOT / folder).glob("*.ipynb"))]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def cells(path: Path, kind: str) -> list[dict]:
    found = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == kind]
    return [{**cell, "source": "".join(cell["source"])} for cell in found]


def tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
