"""A scheduler that passed is kept beside the learner's work, and found again; nobody else reads or writes it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from mini_vllm.errors import ConfigError
from mini_vllm.grading import feedback
from mini_vllm.grading.bank import find_exercise
from mini_vllm.grading.my_stage import my_stage, stages_from
from mini_vllm.stages import STAGES, load_stage

from .conftest import right

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = 'my_stage("ch04"): the reference, mini_vllm.stages.ch04_admit_retire'
SETUP = """
from mini_vllm.grading import my_stage
from mini_vllm.grading.my_stage import keep
from mini_vllm.request import RUNNING
import collections.abc as abc
Stage4 = my_stage("ch04", to_extend=True)
MOST = 2
"""
HELPER = """
def few(scheduler):
    return len(scheduler.running) < MOST
"""
OWN = """
class Mine(Stage4):
    "My own."

    def admit(self, request):
        return super().admit(request) if few(self) else "two are enough"

    def schedule_running(self):
        assert all(r.status == RUNNING for r in self.running) and isinstance([], abc.Sequence)
        super().schedule_running()
"""
RUN = """
from mini_vllm import simulate
from mini_vllm.sim.driver import SimRequest
trace = simulate([SimRequest(f"R{i}", 3, 2) for i in range(3)], scheduler_cls=CLASS)
print([step["running"] for step in trace.steps], trace.steps[0]["blocked_reason"])
"""


def environment(**more):
    """A learner's: no test, no graded run."""
    ours = {"PYTEST_VERSION", "PYTEST_CURRENT_TEST", "MINI_VLLM_PROGRESS", "MINI_VLLM_GRADED_FOLDER"}
    kept = {k: v for k, v in os.environ.items() if k not in ours}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **more}


def notebook(folder, *sources, monkeypatch):
    """Runs cells in a kernel that works in `folder`; the printed lines."""
    for name in ("PYTEST_VERSION", "PYTEST_CURRENT_TEST", "MINI_VLLM_PROGRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source.strip()) for source in sources])
    NotebookClient(nb, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    return "".join(output.get("text", "") for cell in nb.cells for output in cell.outputs).splitlines()


def script(folder, source, **env):
    run = subprocess.run(
        [sys.executable, "-c", source],
        cwd=folder,
        env=environment(**env),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_kept_in_one_session_and_found_in_the_next(tmp_path, monkeypatch):
    said = notebook(
        tmp_path, SETUP, HELPER, OWN, 'keep("ch04", Mine)', RUN.replace("CLASS", "Mine"), monkeypatch=monkeypatch
    )
    assert said[:2] == [REFERENCE, "kept as my_mini_vllm/ch04.py: the next chapters go on with it"]
    inside = tmp_path / "deep" / "er"
    inside.mkdir(parents=True)
    again = script(
        inside,
        'from mini_vllm.grading import my_stage\nT = my_stage("ch04")\nT = my_stage("ch04", to_extend=True)\n'
        + RUN.replace("CLASS", "T"),
    )
    assert again[:2] == ['my_stage("ch04"): yours, my_mini_vllm/ch04.py'] * 2
    assert again[2] == said[2] and said[2].endswith("two are enough")
    assert sorted(p.name for p in (tmp_path / "my_mini_vllm").iterdir()) == ["ch04.py"]


def test_the_next_chapter_goes_on_with_it(tmp_path, monkeypatch):
    notebook(tmp_path, SETUP, HELPER, OWN, 'keep("ch04", Mine)', monkeypatch=monkeypatch)
    five = "class Five(Base):\n    def give(self, request, n, blocks):\n        super().give(request, n, blocks)\n"
    start = 'from mini_vllm.grading.my_stage import keep, my_stage\nBase = my_stage("ch04", to_extend=True)'
    said = notebook(tmp_path, start, five, 'keep("ch05", Five)', monkeypatch=monkeypatch)
    assert said[-1].startswith("kept as my_mini_vllm/ch05.py")
    show = "from mini_vllm.grading import my_stage\nprint(*(c.__name__ for c in my_stage('ch05').__mro__))"
    assert script(tmp_path, show)[1] == "Five Mine Scheduler object"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class A(:\n", "is broken: line 1: SyntaxError: invalid syntax"),
        ("\n\nfoo\n", "is broken: line 3: NameError: name 'foo' is not defined"),
        ("raise SystemExit\n", "is broken: line 1: SystemExit"),
        ("x = 1\n", "is broken: AttributeError"),
        ("__all__ = ['x']\nx = 1\n", "is broken: TypeError: x is no class"),
        ("class A:\n    def __init__(self, config): pass\n__all__ = ['A']\n", "lacks "),
        ("class A: pass\n__all__ = ['A']\n", "cannot be built: TypeError"),
    ],
)
def test_a_broken_file_is_named_and_the_reference_taken(tmp_path, text, message):
    (tmp_path / "my_mini_vllm").mkdir()
    (tmp_path / "my_mini_vllm" / "ch04.py").write_text(text, encoding="utf-8")
    call = 'from mini_vllm.grading import my_stage\nprint(my_stage("ch04", to_extend=True).__module__)'
    (said, module) = script(tmp_path, call)
    assert said.startswith(f"{REFERENCE}; my_mini_vllm/ch04.py {message}")
    assert module == "mini_vllm.stages.ch04_admit_retire"


def test_what_the_next_chapter_does_not_touch_may_be_missing(tmp_path):
    """Stage 6 neither calls nor replaces what stage 5 reserves by."""
    (tmp_path / "my_mini_vllm").mkdir()
    own = "from mini_vllm.stages.ch04_admit_retire import Scheduler as A\nclass B(A): pass\n__all__ = ['B']\n"
    (tmp_path / "my_mini_vllm" / "ch05.py").write_text(own, encoding="utf-8")
    call = 'from mini_vllm.grading import my_stage\nmy_stage("ch05", to_extend=True)'
    assert script(tmp_path, call) == ['my_stage("ch05"): yours, my_mini_vllm/ch05.py']


@pytest.mark.parametrize(
    "env", [{"PYTEST_VERSION": "8"}, {"MINI_VLLM_GRADED_FOLDER": "/nowhere"}, {"MINI_VLLM_PROGRESS": "off"}]
)
def test_a_test_a_graded_run_and_an_authors_run_neither_read_nor_write(tmp_path, env):
    folder = tmp_path / "my_mini_vllm"
    folder.mkdir()
    (folder / "ch04.py").write_text("raise SystemExit('read')\n", encoding="utf-8")
    call = (
        "from mini_vllm.grading.my_stage import keep, my_stage\nfrom mini_vllm.stages import load_stage\n"
        'my_stage("ch04")\nkeep("ch05", load_stage(5))'
    )
    assert script(tmp_path, call, **env) == [REFERENCE]
    assert [p.name for p in folder.iterdir()] == ["ch04.py"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class Bare(Stage4): pass", "Bare has no method of its own"),
        (
            "thing = object()\nclass Bare(Stage4):\n    def admit(self, request): return thing",
            "it uses thing (object) of the notebook, which cannot be written down",
        ),
    ],
)
def test_what_cannot_be_written_down_is_said_and_nothing_is_left(tmp_path, monkeypatch, source, message):
    said = notebook(tmp_path, SETUP, source, 'keep("ch04", Bare)', monkeypatch=monkeypatch)
    assert said[-1].startswith(f"not kept as my_mini_vllm/ch04.py: {message}")
    assert not (tmp_path / "my_mini_vllm").exists()


def test_a_file_that_was_kept_is_replaced_whole(tmp_path, monkeypatch):
    (tmp_path / "my_mini_vllm").mkdir()
    (tmp_path / "my_mini_vllm" / "ch04.py").write_text("half a fi", encoding="utf-8")
    notebook(tmp_path, SETUP, HELPER, OWN, 'keep("ch04", Mine)', monkeypatch=monkeypatch)
    assert [p.name for p in (tmp_path / "my_mini_vllm").iterdir()] == ["ch04.py"]
    call = 'from mini_vllm.grading import my_stage\nmy_stage("ch04")'
    assert script(tmp_path, call) == ['my_stage("ch04"): yours, my_mini_vllm/ch04.py']


def test_in_a_clone_the_folder_stands_at_its_root(tmp_path):
    (tmp_path / "mini_vllm").mkdir()
    (tmp_path / "mini_vllm" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "work").mkdir()
    call = "from mini_vllm.grading.my_stage import _path\nprint(_path('ch04'))"
    assert script(tmp_path / "work", call) == [str(tmp_path / "my_mini_vllm" / "ch04.py")]


def test_git_overlooks_it():
    run = subprocess.run(
        ["git", "check-ignore", "my_mini_vllm/ch04.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode in (0, 128)  # 128: not a clone


@pytest.mark.parametrize("chapter", ["ch03", "ch4", 4, "ch11", None])
def test_a_chapter_without_a_scheduler(chapter):
    with pytest.raises(ConfigError, match="is no chapter with a scheduler; there are ch04, ch05"):
        my_stage(chapter)


def test_hidden_are_the_stages_of_the_chapter_and_of_later_ones():
    assert stages_from("ch04") == [*STAGES.values()]
    assert stages_from("ch09") == ["mini_vllm.stages.ch09_chunked_prefill", "mini_vllm.stages.ch10_priority_aging"]


def test_a_graded_kernel_imports_earlier_stages_and_not_the_hidden_ones(tmp_path):
    """With what the grader puts on the path: a package without the hidden modules, and what refuses their names."""
    from mini_vllm.grading.run_folder import stage_package

    hidden = stages_from("ch05")
    stage_package(tmp_path / "package", hidden)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "cases.json").write_text(json.dumps({"hidden_modules": hidden, "hidden_paths": []}))
    call = (
        'from mini_vllm.grading import my_stage\nmy_stage("ch04")\n'
        'try:\n    my_stage("ch05")\nexcept ImportError as error:\n    print(error)'
    )
    paths = {"PYTHONPATH": str(tmp_path / "package"), "MINI_VLLM_GRADED_FOLDER": str(tmp_path / "run")}
    said = script(tmp_path, call, **paths)
    assert said[0] == REFERENCE
    assert said[1].startswith("mini_vllm.stages.ch05_two_budgets is hidden while this exercise is graded")


class TestCheck:
    """`check` keeps what passes, if the exercise says of which chapter it is the scheduler."""

    @pytest.fixture
    def kept(self, monkeypatch):
        calls = []
        exercise = replace(find_exercise("c01-e1"), stage="ch04")
        monkeypatch.setattr(feedback, "find_exercise", lambda exercise_id: exercise)
        monkeypatch.setattr(feedback, "keep", lambda chapter, given: calls.append((chapter, given)))
        return calls

    def test_a_right_answer(self, kept):
        answer = right("c01-e1")
        feedback.check("c01-e1", answer)
        assert kept == [("ch04", answer)]

    def test_a_wrong_answer(self, kept):
        with pytest.raises(feedback.GradeFailed):
            feedback.check("c01-e1", lambda output_lens, batch_size: 0.5)
        assert kept == []

    def test_one_that_takes_what_graded_runs_hide(self, kept, monkeypatch):
        monkeypatch.setattr(feedback, "hidden_reach", lambda given, hidden: "mini_vllm.stages")
        feedback.check("c01-e1", right("c01-e1"))
        assert kept == []

    def test_another_exercise(self, kept, monkeypatch):
        monkeypatch.setattr(feedback, "find_exercise", find_exercise)
        feedback.check("c01-e1", right("c01-e1"))
        assert kept == []


def test_the_reference_is_the_stage(capsys):
    assert my_stage("ch07") is load_stage(7)
    assert capsys.readouterr().out == 'my_stage("ch07"): the reference, mini_vllm.stages.ch07_prefix_cache\n'
