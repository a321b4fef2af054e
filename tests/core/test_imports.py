"""A scheduler lesson needs no torch: these packages load only the standard library, and nothing of the engine."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What they may lean on besides themselves; arrows point one way (DESIGN §3). The replay drives core, nobody the replay.
DATA = ("config", "errors", "request", "sampling_params")
# Recording a run and its file; the rest of `trace` is for those who look at it afterwards.
RECORDING = tuple(f"trace.{name}" for name in ("recorder", "trace", "compact", "cut", "schema", "reader", "writer"))
ALLOWED = {
    "mini_vllm.core": (*DATA, "core", *RECORDING),
    "mini_vllm.trace.recorder": ("config", "errors", *RECORDING),
    "mini_vllm.trace.replay": (*DATA, "core", "trace"),
    "mini_vllm.stages": (*DATA, "core", *RECORDING, "stages"),
    "mini_vllm.sim.driver": (*DATA, "core", *RECORDING, "sim"),
    "mini_vllm.batching": (*DATA, "core", *RECORDING, "sim", "batching"),
}


def modules_of(package: str) -> list[str]:
    """All modules of a package by their files, without importing anything here."""
    path = ROOT / Path(*package.split("."))
    if not path.is_dir():
        return [package]
    files = (p.relative_to(ROOT).with_suffix("") for p in sorted(path.rglob("*.py")))
    return [".".join(f.parts).removesuffix(".__init__") for f in files]


def loaded_by(modules: list[str], *flags: str) -> set[str]:
    """Names in sys.modules that importing `modules` adds, in a fresh interpreter."""
    program = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
before = set(sys.modules)
for name in {modules!r}:
    __import__(name)
print(*sorted(set(sys.modules) - before))
"""
    run = subprocess.run(
        [sys.executable, "-I", *flags, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


@pytest.mark.parametrize("package", ALLOWED)
def test_only_the_standard_library_is_loaded(package):
    modules = modules_of(package)
    loaded = loaded_by(modules)
    assert set(modules) <= loaded
    foreign = {name for name in loaded if name.partition(".")[0] not in {*sys.stdlib_module_names, "mini_vllm"}}
    assert not foreign


@pytest.mark.parametrize("package", ALLOWED)
def test_it_works_where_nothing_is_installed(package):
    loaded_by(modules_of(package), "-S")  # -S: no site-packages at all


@pytest.mark.parametrize("package", ALLOWED)
def test_arrows_point_one_way(package):
    ours = {name.removeprefix("mini_vllm.") for name in loaded_by(modules_of(package)) if name.startswith("mini_vllm.")}
    allowed = ALLOWED[package]
    # `trace.recorder` allows itself, what lies below it, and the package it lies in.
    foreign = {
        name for name in ours if not any(f"{name}.".startswith(f"{a}.") or a.startswith(f"{name}.") for a in allowed)
    }
    assert not foreign


# The stages are for readers. Of the package only what hands one out, keeps one or shows one may know them, and the
# reference answers to their exercises.
KNOW_STAGES = {"grading/my_stage.py", "grading/kept_class.py", "viz/stage_diff.py"}


def test_nothing_else_in_the_package_imports_a_stage():
    imports_a_stage = re.compile(r"^\s*(from|import) mini_vllm(\.stages|\s+import\s.*\bstages\b)", re.MULTILINE)
    files = [p for p in (ROOT / "mini_vllm").rglob("*.py") if p.parent.name != "stages"]
    found = {
        p.relative_to(ROOT / "mini_vllm").as_posix() for p in files if imports_a_stage.search(p.read_text("utf-8"))
    }
    assert {name for name in found if not name.startswith("grading/reference/")} == KNOW_STAGES


def test_import_mini_vllm_is_cheap():
    assert {name for name in loaded_by(["mini_vllm"]) if name.startswith("mini_vllm.")} == set()
