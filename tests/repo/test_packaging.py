"""Versions agree with each other, and importing the package stays cheap."""

import json
import re
import subprocess
import sys
from itertools import chain

import pytest
from packaging.requirements import Requirement

from tests.repo.repository import ROOT, canonical, project

# These import only the standard library (DESIGN: arrows point one way).
STANDARD_LIBRARY_ONLY = ("core", "trace", "batching", "os_sched")
BUT_NOT = ("trace/command.py",)  # a command line, on typer
STANDARD_LIBRARY_FILES = ("sim/driver.py", "viz/player.py", "errors.py", "config.py", "request.py")

LOADED = """
import json, sys, time
before, start = set(sys.modules), time.perf_counter()
import importlib; importlib.import_module(sys.argv[1])
seconds = time.perf_counter() - start
names = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps([seconds, sorted(names - set(sys.stdlib_module_names) - {"mini_vllm"})]))
"""


def requirements(path) -> list[Requirement]:
    lines = (line.partition(" #")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def declared() -> list[Requirement]:
    extras = project()["optional-dependencies"]
    return [Requirement(line) for line in [*project()["dependencies"], *chain.from_iterable(extras.values())]]


def pins(filename: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pin in requirements(ROOT / filename):
        (spec,) = pin.specifier
        assert spec.operator == "==" and not re.search(r"[+*]", spec.version), pin
        found.setdefault(canonical(pin.name), []).append(spec.version)
    return found


def test_requirements_txt_is_base_engine_book_and_lab_of_pyproject():
    extras = project()["optional-dependencies"]
    wanted = project()["dependencies"] + extras["engine"] + extras["book"] + extras["lab"]
    assert {str(r) for r in requirements(ROOT / "requirements.txt")} == {str(Requirement(w)) for w in wanted}


@pytest.mark.parametrize("filename", ["constraints.txt", "constraints-colab.txt"])
def test_pins_lie_in_the_declared_ranges(filename):
    pinned = pins(filename)
    outside = [
        f"{need} is pinned to {version}"
        for need in declared()
        for version in pinned.get(canonical(need.name), [])
        if not need.specifier.contains(version, prereleases=True)
    ]
    assert not outside


def test_everything_that_make_installs_is_pinned():
    extras = project()["optional-dependencies"]
    groups = ("engine", "book", "lab", "dev")
    wanted = [*project()["dependencies"], *chain.from_iterable(extras[group] for group in groups)]
    assert not {canonical(Requirement(line).name) for line in wanted} - pins("constraints.txt").keys()


def test_torch_and_triton_are_the_pair_that_the_public_index_demands():
    pinned = pins("constraints.txt")
    assert (pinned["torch"], pinned["triton"]) == (["2.13.0"], ["3.7.1"])


def standard_library_modules() -> list[str]:
    package = ROOT / "mini_vllm"
    files = [file for folder in STANDARD_LIBRARY_ONLY for file in (package / folder).rglob("*.py")]
    files = [file for file in files if file not in {package / name for name in BUT_NOT}]
    files += [package / file for file in STANDARD_LIBRARY_FILES]
    parts = [file.relative_to(ROOT).with_suffix("").parts for file in sorted(files)]
    return ["mini_vllm", *(".".join(p[:-1] if p[-1] == "__init__" else p) for p in parts)]


@pytest.mark.parametrize("module", standard_library_modules())
def test_it_loads_only_the_standard_library(module):
    command = [sys.executable, "-c", LOADED, module]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seconds, foreign = json.loads(done.stdout)
    print(f"import {module}: {seconds * 1000:.1f} ms")
    assert foreign == []


def test_the_command_is_installed():
    assert project()["scripts"] == {"mini-vllm": "mini_vllm.cli:main"}
