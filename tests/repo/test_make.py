"""The tools behind make: what they say when something is missing, and that a silent skip fails CI."""

import os
import subprocess
import sys

import pytest

from tests.repo.repository import ROOT
from tools import bootstrap, check


def fake_python(folder, version: str, has_venv: int) -> str:
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\necho {version} {has_venv}\n")
    path.chmod(0o755)
    return str(path)


def setup_stops(monkeypatch, python: str) -> str:
    monkeypatch.setenv("PYTHON", python)
    with pytest.raises(SystemExit) as stopped:
        bootstrap.choose_python()
    assert "\n" not in str(stopped.value), "one line"
    return str(stopped.value)


def test_a_wrong_python_is_named_with_the_way_out(monkeypatch, tmp_path):
    said = setup_stops(monkeypatch, fake_python(tmp_path, "3 9 6", 1))
    assert "3.9.6" in said and "3.11, 3.12 or 3.13" in said and "PYTHON=" in said


def test_a_missing_python_is_named(monkeypatch):
    assert "no /nowhere/python9" in setup_stops(monkeypatch, "/nowhere/python9")


def test_a_missing_venv_module_is_named(monkeypatch, tmp_path):
    assert "apt install python3.12-venv" in setup_stops(monkeypatch, fake_python(tmp_path, "3 12 1", 0))


@pytest.mark.parametrize(("version", "fits"), [((3, 10), False), ((3, 11), True), ((3, 13), True), ((3, 14), False)])
def test_range_of_python(version, fits):
    assert bootstrap.in_range(version) is fits


def test_no_network_is_one_line_that_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    (tmp_path / "constraints.txt").write_text("")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    dead_end = "http://127.0.0.1:9/simple"
    monkeypatch.setenv("PIP_INDEX_URL", dead_end)
    with pytest.raises(SystemExit) as stopped:
        bootstrap.pip_install(sys.executable, "--target", str(tmp_path / "t"), "--retries", "0", "no-such-thing-at-all")
    assert "check the network" in str(stopped.value).lower()


def test_an_install_is_redone_when_pins_or_dependencies_change(monkeypatch, tmp_path):
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    project, pins = tmp_path / "pyproject.toml", tmp_path / "constraints.txt"
    project.write_text("[project]\n[tool.ruff]\n")
    pins.write_text("a==1\n")
    bootstrap.stamp("book").write_text(bootstrap.fingerprint("book"))
    assert bootstrap.is_current("book")
    project.write_text("[project]\n[tool.ruff]\nline-length = 1\n")
    assert bootstrap.is_current("book"), "a linter's setting installs nothing"
    pins.write_text("a==2\n")
    assert not bootstrap.is_current("book")


REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="one"/>
<testcase classname="tests.a" name="two"><failure/></testcase>
<testcase classname="tests.a" name="three"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def result(tmp_path):
    report = tmp_path / "r.xml"
    report.write_text(REPORT)
    outcome = check.Result("tests", True, 1.0)
    check.read_report(report, outcome)
    return outcome


def test_a_report_is_counted(result):
    assert (result.passed, result.failed, result.skips) == (1, 1, {"tests.a::three": "no GPU"})


@pytest.mark.parametrize(
    ("listed", "differences"),
    [
        ("# why\ntests.a::three\n", []),
        ("", ["skipped, not listed: tests.a::three: no GPU"]),
        ("tests.a::three\ntests.b::x\n", ["listed, not skipped: tests.b::x"]),
    ],
)
def test_skips_must_equal_the_list(monkeypatch, tmp_path, result, listed, differences):
    file = tmp_path / "expected.txt"
    file.write_text(listed)
    monkeypatch.setattr(check, "EXPECTED_SKIPS", file)
    assert check.unexpected_skips([result]) == differences


def test_a_stage_past_its_limit_is_ended():
    sleeper = check.Stage("sleeper", [sys.executable, "-c", "import time; time.sleep(60)"], limit_min=0)
    assert not check.run(sleeper).ok


def test_make_alone_prints_what_there_is():
    done = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    for target in (
        "book",
        "serve-book",
        "test",
        "test-all",
        "lab",
        "work",
        "chat",
        "grade",
        "execute",
        "lint",
        "clean",
    ):
        assert f"make {target} " in done.stdout
