"""A file that a command is going to write. Knows paths and permissions; knows no content. All chapters."""

import os
from pathlib import Path

from mini_vllm.errors import ConfigError


def refuse_if_not_writable(path: Path, option: str) -> None:
    """Before the work whose result is to go there; ConfigError says why not and names the option."""
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}; make it, or give another file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{option} {path}: you may not write there; give another file")
