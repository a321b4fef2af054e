"""Shared by all tests: where the repository is, and the same random cases on each run. Knows no subject."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything imports torch; the reason stands in mini_vllm/engine/__init__.py.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

settings.register_profile("same-each-run", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same-each-run"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's top folder."""
    return Path(__file__).resolve().parent.parent
