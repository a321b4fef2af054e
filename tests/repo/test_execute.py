"""tools/execute.py: running twice gives the same bytes, measured outputs stay, machine traces are refused."""

import copy
import json
import subprocess
import sys

import pytest

from tests.repo.repository import ROOT
from tools import notebook_format as fmt

MEASURE = "import time; time.perf_counter()"


def code(source: str, *tags: str) -> dict:
    metadata = {"tags": list(tags), "execution": {"iopub": "now"}, "scrolled": True}
    return {
        "cell_type": "code", "source": source, "metadata": metadata, "outputs": [], "execution_count": None,
    }  # fmt: skip


def notebook(*cells: dict) -> dict:
    return {"cells": list(cells), "metadata": {"widgets": {"a": 1}}, "nbformat": 4, "nbformat_minor": 4}


def stream(text: str, name: str = "stdout") -> dict:
    return {"output_type": "stream", "name": name, "text": text}


def execute(*arguments) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "tools" / "execute.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "small.ipynb"
    cells = [
        code("# Set-up"),
        code("print('a'); print({'x', 'y', 'z'}); print('1%\\r2%')"),
        code(MEASURE, fmt.IGNORE_TAG),
        code("import matplotlib.pyplot as plt\nplt.plot([1, 2]);"),
    ]
    file.write_text(json.dumps(notebook(*cells)))
    return file


def test_running_twice_gives_the_same_bytes_and_force_measures_anew(path):
    first = execute(path)
    assert first.returncode == 0, first.stdout + first.stderr
    once = path.read_bytes()
    assert execute("--check", path).returncode == 0
    assert execute(path).returncode == 0 and path.read_bytes() == once

    stored = json.loads(once)
    assert [cell["id"] for cell in stored["cells"]] == ["c-000", "c-001", "c-002", "c-003"]
    assert stored["cells"][1]["outputs"][0]["text"][2] == "2%\n"
    assert "widgets" not in stored["metadata"] and "execution" not in stored["cells"][1]["metadata"]
    assert once.endswith(b"}\n")

    assert execute("--check", "--force", path).returncode == 1
    assert path.read_bytes() == once, "--check writes nothing"


def test_a_failing_cell_is_reported_and_nothing_is_written(path):
    path.write_text(json.dumps(notebook(code("1/0"))))
    before = path.read_bytes()
    done = execute(path)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stdout
    assert path.read_bytes() == before


def test_measured_outputs_stay_until_code_before_them_changes():
    old = notebook(code("a = 1"), code(MEASURE, fmt.IGNORE_TAG))
    old["cells"][1]["outputs"] = [stream("old")]
    old["metadata"][fmt.OURS] = {"executed": fmt.source_chain(old)}

    new = copy.deepcopy(old)
    new["cells"][1]["outputs"] = [stream("new")]
    assert fmt.keep_measured(new, old) == 1
    assert new["cells"][1]["outputs"] == [stream("old")]

    new["cells"][0]["source"] = "a = 2"
    new["cells"][1]["outputs"] = [stream("new")]
    assert fmt.keep_measured(new, old) == 0
    assert new["cells"][1]["outputs"] == [stream("new")]


@pytest.mark.parametrize(
    ("output", "word"),
    [
        (stream("<object at 0x7f00deadbeef>"), "address"),
        (stream(f"file {ROOT}/mini_vllm"), "the repository's path"),
        (stream("/x/site-packages/torch"), "install path"),
        (stream("careful", name="stderr"), "stderr"),
    ],
)
def test_traces_of_this_machine_are_refused(output, word):
    cell = code("print()") | {"id": "c-000", "outputs": [output]}
    found = fmt.problems(notebook(cell), ROOT)  # several where the clone lies in the temporary or the home folder
    assert any(word in problem for problem in found)
    assert all("c-000" in problem for problem in found)


def test_printed_pieces_are_joined():
    pieces = [stream("a"), stream("b\n"), stream("warn", "stderr"), stream("c")]
    assert [o["text"] for o in fmt.join_streams(pieces)] == ["ab\n", "warn", "c"]


def test_ids_are_kept_and_doubles_mended():
    cells = [{"id": "intro"}, {}, {"id": "intro"}, {"id": "c-000"}]
    fmt.give_ids(cells)
    assert [cell["id"] for cell in cells] == ["intro", "c-001", "c-002", "c-000"]
