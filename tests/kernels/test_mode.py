"""Who runs the kernels: refusals name the reason and the way out. Knows one kernel, to import it too late."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
import torch

from mini_vllm.errors import KernelModeError, MissingDependencyError
from mini_vllm.kernels import mode


def python(code: str, **env: str) -> subprocess.CompletedProcess:
    """Runs code in a fresh Python that has not imported Triton; env replaces the tests' own switches."""
    keep = {name: value for name, value in mode.os.environ.items() if name not in (mode.INTERPRET, mode.FORCE)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=keep | env, timeout=120, check=False
    )


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Imaginary 9000")
    monkeypatch.delenv(mode.FORCE, raising=False)
    mode.interpreting.cache_clear()
    yield
    mode.interpreting.cache_clear()


def installed(monkeypatch, answer):
    def version(_):
        if isinstance(answer, str):
            return answer
        raise answer

    monkeypatch.setattr(mode, "version", version)


@pytest.mark.parametrize("version", ["3.4.0", "3.10.1", "4.0.0+git1234"])
def test_new_enough(monkeypatch, version):
    installed(monkeypatch, version)
    mode.require_triton()


@pytest.mark.parametrize("version", ["3.3.1", "2.1.0"])
def test_3_3_is_refused_because_of_the_t4(monkeypatch, version):
    installed(monkeypatch, version)
    with pytest.raises(MissingDependencyError, match=rf"triton {version} .*T4.*pip install 'triton>=3.4'"):
        mode.require_triton()


@pytest.mark.parametrize(
    ("platform", "way_out"), [("linux", "pip install 'triton>=3.4'"), ("darwin", "attention_backend='torch'")]
)
def test_without_triton(monkeypatch, platform, way_out):
    installed(monkeypatch, PackageNotFoundError("triton"))
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(MissingDependencyError, match=way_out):
        mode.require_triton()


def test_never_in_the_interpreter_beside_a_gpu(gpu):
    for refused in (mode.interpreting, mode.use_interpreter):
        with pytest.raises(KernelModeError, match=r"Imaginary 9000.*unset"):
            refused()


def test_unless_a_test_asks_for_it(gpu, monkeypatch):
    monkeypatch.setenv(mode.FORCE, "1")
    mode.use_interpreter()
    assert mode.interpreting()


def test_a_cpu_tensor_needs_the_interpreter(monkeypatch):
    mode.require_device(torch.zeros(1))  # chosen in conftest.py
    monkeypatch.setattr(mode, "interpreting", lambda: False)
    with pytest.raises(KernelModeError, match=r"tensor on cpu.*use_interpreter"):
        mode.require_device(torch.zeros(1))


def test_importing_the_package_is_cheap():
    done = python("import sys, mini_vllm.kernels; print({'torch', 'triton'} & set(sys.modules))")
    assert done.stdout.strip() == "set()", done.stderr


LATE = """
import triton, os
from mini_vllm.kernels import mode
from mini_vllm.errors import KernelModeError
def said(call):
    try:
        call()
    except KernelModeError as error:
        print(error)
said(mode.use_interpreter)
os.environ["TRITON_INTERPRET"] = "1"
said(mode.interpreting)
"""


def test_too_late_is_said():
    """Triton's own functions were made for a GPU when it was imported: before either call."""
    done = python(LATE)
    messages = done.stdout.splitlines()
    assert len(messages) == 2, done
    assert all("too late" in message and "Restart Python" in message for message in messages)
