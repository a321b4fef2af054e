"""The folder of a run: what is staged, who may read it, and what a hostile kernel can leave in it. Starts no kernel."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from mini_vllm.grading import run_folder
from mini_vllm.grading.limits import Limits
from mini_vllm.grading.run_folder import PACKAGE_ROOT, RunFolder, stage_package
from mini_vllm.grading.runner import Run, _copies_of_this_package, _read_answers, _without_what_is_needed
from mini_vllm.sandbox.protection import Protection

ASKED = {"hidden_modules": ["mini_vllm.batching", "mini_vllm.request"], "hidden_paths": ["/nowhere"], "cases": {}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_TOKEN", "tok-9f3")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", f"{PACKAGE_ROOT}{os.pathsep}/some/library")
    (tmp_path / "run-1").mkdir()
    return run_folder.make(tmp_path / "run-1", None, {"cells": []}, ASKED, Limits(), Protection(False, False))


def test_what_could_answer_is_not_there_at_all(tmp_path):
    stage_package(tmp_path / "package", ASKED["hidden_modules"])
    staged = tmp_path / "package" / "mini_vllm"
    assert (staged / "grading" / "feedback.py").exists() and (staged / "config.py").exists()
    for gone in ("batching", "request.py", "grading/reference", "grading/notebooks"):
        assert not (staged / gone).exists()
    assert not list(staged.rglob("*.pyc")) and not [p for p in staged.rglob("*") if p.is_symlink()]
    assert (tmp_path / "package" / "sitecustomize.py").exists()


def test_the_kernel_gets_no_secret_and_no_way_to_the_repository(folder):
    plan = json.loads((folder.control / "jail.json").read_text())
    assert "tok-9f3" not in json.dumps(plan)
    assert plan["env"]["OMP_NUM_THREADS"] == "1"
    assert plan["env"]["PYTHONPATH"] == f"{folder.package}{os.pathsep}/some/library"
    assert plan["env"]["HOME"] == str(folder.run)
    assert not {str(PACKAGE_ROOT), "/etc", "/home", "/"} & set(plan["readable"])
    assert plan["hidden"] == ["/nowhere"]


def test_a_folder_with_python_or_the_run_in_it_is_not_hidden(tmp_path):
    python = Path(sys.prefix)
    hide = [tmp_path, tmp_path / "class", python.parent, python, Path("/"), Path("/solutions")]
    assert _without_what_is_needed(hide, tmp_path / "run-1") == [str(tmp_path / "class"), "/solutions"]


def test_every_copy_of_the_package_is_hidden(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    found = _copies_of_this_package()
    assert {PACKAGE_ROOT / "mini_vllm", tmp_path / "site-packages" / "mini_vllm"} <= set(found)


def test_modes_do_not_come_from_the_originals(folder):
    for path in folder.package.rglob("*.py"):
        path.chmod(0o600)
    folder.package.chmod(0o700)
    run_folder._hand_over(folder, os.getuid())
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.package.rglob("*") if path.is_file()}
    assert modes == {0o644} and stat.S_IMODE(folder.package.stat().st_mode) == 0o755
    assert stat.S_IMODE(folder.control.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.base.stat().st_mode) == 0o711


def link(path):
    path.symlink_to("/etc/hostname")


def large(path):
    with open(path, "wb") as file:
        file.truncate(run_folder.MAX_ANSWERS_BYTES + 1)


@pytest.mark.parametrize("leave", [link, os.mkfifo, os.mkdir, large, lambda path: None])
def test_answers_that_are_no_plain_small_file_are_none(tmp_path, leave):
    (tmp_path / "run").mkdir()
    leave(tmp_path / "run" / "answers.jsonl")
    assert RunFolder(tmp_path, None).answers() == []


OUTCOMES = [{"value": 1}]
GOOD = {"exercise": "c01-e1", "outcomes": OUTCOMES}


@pytest.mark.parametrize(
    ("line", "outcomes", "hidden", "forged"),
    [
        (json.dumps(GOOD), {"c01-e1": OUTCOMES}, {}, set()),
        (json.dumps({"exercise": "c01-e1", "hidden": "m"}), {}, {"c01-e1": "m"}, set()),
        (json.dumps({"exercise": None, "hidden": "m" * 999}), {}, {None: "m" * 200}, set()),
        (json.dumps({**GOOD, "status": "pass"}), {}, {}, {"c01-e1"}),
        (json.dumps({"exercise": "c09-e9", "outcomes": OUTCOMES}), {}, {}, {None}),
        (json.dumps({"exercise": ["c01-e1"], "outcomes": OUTCOMES}), {}, {}, {None}),
        (json.dumps({"exercise": "c01-e1", "outcomes": [{"value": 1, "printed": 3}]}), {}, {}, {"c01-e1"}),
        (json.dumps({"exercise": "c01-e1", "outcomes": [{"timeout": "x"}]}), {}, {}, {"c01-e1"}),
        (json.dumps({"exercise": "c01-e1", "outcomes": [[]]}), {}, {}, {"c01-e1"}),
        (json.dumps({"exercise": "c01-e1", "outcomes": {}}), {}, {}, {"c01-e1"}),
        ("nonsense", {}, {}, {None}),
        ("[1]", {}, {}, {None}),
        ("[" * 50_000, {}, {}, {None}),
        ('{"exercise": "c01-e1", "outcomes": [{"value": ' + "9" * 5000 + "}]}", {}, {}, {None}),
        ("\xff\x00", {}, {}, {None}),
    ],
)
def test_a_line_is_what_a_check_writes_or_it_is_forged(tmp_path, line, outcomes, hidden, forged):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "answers.jsonl").write_text(line, encoding="latin-1")
    run = Run()
    _read_answers(RunFolder(tmp_path, None), {"c01-e1", "c01-e2"}, run)
    assert (run.outcomes, run.hidden_used, run.forged) == (outcomes, hidden, forged)
