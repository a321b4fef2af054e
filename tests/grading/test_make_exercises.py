"""exercises/ is what tools/make_exercises.py makes of solutions/, byte for byte. Knows the tool and the notebooks."""

import importlib.util
import json
import re
import shutil

import pytest

from mini_vllm.grading.overlay import code_cells, read_notebook, source_of

from .conftest import ROOT

spec = importlib.util.spec_from_file_location("make_exercises", ROOT / "tools" / "make_exercises.py")
make_exercises = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_exercises)

SOLUTION = ROOT / "solutions" / "01-static-batching.ipynb"


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "solutions").mkdir()
    shutil.copy(SOLUTION, tmp_path / "solutions")
    return tmp_path


def test_no_drift():
    assert make_exercises.main(["--check"]) == 0


def test_same_bytes_on_every_run_and_check_sees_a_change(repository, capsys):
    assert make_exercises.main([], repository) == 0
    path = repository / "exercises" / SOLUTION.name
    first = path.read_bytes()
    assert make_exercises.main([], repository) == 0
    assert path.read_bytes() == first == (ROOT / "exercises" / SOLUTION.name).read_bytes()
    assert make_exercises.main(["--check"], repository) == 0
    path.write_bytes(first + b" ")
    (repository / "exercises" / "99-left-over.ipynb").write_text("{}")
    capsys.readouterr()
    assert make_exercises.main(["--check"], repository) == 1
    assert capsys.readouterr().out.count("is not what") == 2
    assert make_exercises.main([], repository) == 0
    assert path.read_bytes() == first and not (repository / "exercises" / "99-left-over.ipynb").exists()


def test_an_exercise_shows_no_answer_and_keeps_what_checks_print():
    nb = read_notebook(ROOT / "exercises" / SOLUTION.name)
    text = json.dumps(nb)
    assert "SOLUTION" not in text and "GIVEN" not in text and "solution-only" not in text
    for cell in code_cells(nb):
        is_check = source_of(cell).startswith("# NBVAL_CHECK_OUTPUT")
        assert bool(cell["outputs"]) == is_check == (cell["execution_count"] is not None)
    stubs = [source_of(cell) for cell in code_cells(nb) if "# EXERCISE" in source_of(cell)]
    assert [stub.count("raise NotImplementedError(") for stub in stubs] == [1, 1, 1, 0]
    assert stubs[3].endswith("    return dict(zip(plan, sampled))")
    ids = [cell["id"] for cell in nb["cells"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("find", "put", "says"),
    [
        ("### END SOLUTION", "### THE END", "has 0 blocks"),
        ("# EXERCISE c01-e1", "# exercise one", "no marker"),
        ("c01-e1 ✓ 40", "c01-e1 ✓ 39", "run tools/execute.py"),
        ('check("c01-e1", static_waste)', 'check("c01-e2", bucket)', "differ|printed"),
        ("def static_waste(", "def waste(", "does not define static_waste"),
    ],
)
def test_a_malformed_solution_is_refused_with_the_reason(repository, capsys, find, put, says):
    path = repository / "solutions" / SOLUTION.name
    nb = read_notebook(path)
    for cell in nb["cells"]:
        cell["source"] = source_of(cell).replace(find, put, 1)
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = "".join(output["text"]).replace(find, put)
    path.write_text(json.dumps(nb), encoding="utf-8")
    assert make_exercises.main([], repository) == 1

    assert re.search(says, capsys.readouterr().err)
