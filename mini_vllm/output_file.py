"""A file that a command is going to write. Knows paths and permissions; knows no content. All chapters."""

import os
from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path

from mini_vllm.errors import ConfigError


def refuse_if_not_writable(path: Path, option: str, inputs: Iterable[Path] = ()) -> None:
    """Before the work whose result is to go there; ConfigError says why not and names the option.

    inputs: the files that are read; none of them, by whatever name, may be written over.
    """
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}; make it, or give another file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{option} {path}: you may not write there; give another file")
    if any(os.path.exists(file) and os.path.samefile(path, file) for file in inputs if path.exists()):
        raise ConfigError(f"{option} {path} is the file that is read; give another name")


def refuse_same_file(outputs: Mapping[str, Path]) -> None:
    """Of several outputs (option -> file) no two may go to one file, by whatever name: the later would replace the
    earlier. A device such as /dev/null may take all of them."""
    for (option, path), (other, other_path) in combinations(outputs.items(), 2):
        is_device = path.exists() and not path.is_file()
        if _is_one_file(path, other_path) and not is_device:
            raise ConfigError(
                f"{option} {path} and {other} {other_path} are one file, and the second report would replace the "
                "first; give each a file of its own"
            )


def _is_one_file(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return os.path.samefile(path, other)
    return os.path.realpath(path) == os.path.realpath(other)
