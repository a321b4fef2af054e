"""Chooses Triton's interpreter for this process, before any kernel is imported. Knows no kernel."""

from importlib.util import find_spec

import pytest

from mini_vllm.kernels.mode import use_interpreter

HAS_TRITON = find_spec("triton") is not None
if HAS_TRITON:
    use_interpreter()


class WithoutTriton(pytest.Module):
    """A file of this folder where Triton has no build (macOS): skipped by name, not imported."""

    def collect(self):
        pytest.skip("Triton has no build for this system", allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    return None if HAS_TRITON else WithoutTriton.from_parent(parent, path=module_path)
