"""Shared by all tests: where the repository is, and the same random cases on each run. Knows no subject."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything imports torch; the reason stands in mini_vllm/engine/__init__.py.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Kernels run in Triton's interpreter, also on a machine with a GPU. Triton reads it when some test first imports it.
os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("MINI_VLLM_FORCE_INTERPRET", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # and engines run on the CPU; `make gpu` is for the GPU

settings.register_profile("same-each-run", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same-each-run"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's top folder."""
    return Path(__file__).resolve().parent.parent
