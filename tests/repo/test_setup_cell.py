"""The first cell of each notebook: the same text everywhere, and what it would install where."""

import os
import re
import subprocess
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from mini_vllm.setup_cell import SMALL_DEPENDENCIES, repository_url, setup_cell
from tests.repo.repository import ROOT, canonical, cells, name, notebooks, project

NEVER = {"numpy", "torch", "triton"}

# Runs the cell with every command recorded instead of run; `-I -S` hides everything but the standard library.
RECORD = """
import os, shutil, subprocess, sys
listing = sys.argv[1]
class Done: stdout = listing
def run(command, **_):
    print("RAN", *command[1:])
    return Done
subprocess.run = run
shutil.which = lambda name: name if listing else None
exec(sys.stdin.read())
print("FIRST", sys.path[0])
print("INTERPRET", os.environ.get("TRITON_INTERPRET"))
"""


def run_cell(folder, *flags: str, gpus: str = "", **environment: str) -> str:
    env = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "PYTHONPATH")} | environment
    done = subprocess.run(
        [sys.executable, *flags, "-c", RECORD, gpus],
        input=setup_cell(), cwd=folder, env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def installs(output: str) -> list[str]:
    return re.findall(r"^RAN -m pip install -q (.*)$", output, re.MULTILINE)


def test_at_least_one_notebook_exists():
    assert notebooks()


@pytest.mark.parametrize("path", notebooks(), ids=name)
def test_it_is_the_first_code_cell(path):
    assert cells(path, "code")[0]["source"] == setup_cell(), "run: make execute"


def test_without_the_package_it_installs_the_repository_and_what_is_missing(tmp_path):
    output = run_cell(tmp_path, "-I", "-S")
    assert installs(output) == [f"--no-deps git+{repository_url()}", *SMALL_DEPENDENCIES]


def test_inside_a_clone_it_uses_the_clone(tmp_path):
    (tmp_path / "mini_vllm").mkdir()
    (tmp_path / "mini_vllm" / "__init__.py").write_text("")
    (tmp_path / "notebooks").mkdir()
    output = run_cell(tmp_path / "notebooks", "-I", "-S")
    assert installs(output) == [*SMALL_DEPENDENCIES]
    assert f"FIRST {tmp_path.resolve()}" in output


def test_with_the_package_it_installs_nothing(tmp_path):
    output = run_cell(tmp_path, PYTHONPATH=str(ROOT))
    assert installs(output) == []
    assert output.startswith("Python 3.")


def test_without_a_gpu_kernels_run_in_the_interpreter(tmp_path):
    output = run_cell(tmp_path, PYTHONPATH=str(ROOT))
    assert "INTERPRET 1" in output and "| CPU" in output


def test_with_a_gpu_it_names_it(tmp_path):
    output = run_cell(tmp_path, PYTHONPATH=str(ROOT), gpus="GPU 0: Tesla T4 (UUID: GPU-1)\n")
    assert "INTERPRET None" in output and "| GPU 0: Tesla T4\n" in output


def test_a_gpu_that_does_not_answer_counts_as_none(tmp_path):
    output = run_cell(tmp_path, PYTHONPATH=str(ROOT), gpus="NVIDIA-SMI has failed\n")
    assert "INTERPRET 1" in output and "| CPU" in output


def test_it_is_short():
    assert len([line for line in setup_cell().splitlines() if line]) <= 25


@pytest.mark.parametrize("dependency", SMALL_DEPENDENCIES)
def test_small_dependencies_lead_to_no_heavy_package(dependency):
    reached, open_names = set(), [dependency]
    while open_names:
        current = canonical(open_names.pop())
        if current in reached:
            continue
        reached.add(current)
        needed = map(Requirement, metadata.requires(current) or [])
        open_names += [need.name for need in needed if not need.marker or need.marker.evaluate({"extra": ""})]
    assert not reached & NEVER


def test_small_dependencies_are_what_base_and_engine_need_besides_the_heavy_ones():
    extras = project()["optional-dependencies"]
    needed = {Requirement(line).name for line in project()["dependencies"] + extras["engine"]}
    assert needed - NEVER <= set(SMALL_DEPENDENCIES)
