"""exercises/ is what tools/make_exercises.py makes of solutions/, byte for byte. Knows the tool and the notebooks."""

import importlib.util
import json
import re
import shutil
import subprocess

import pytest

from mini_vllm.grading import overlay
from mini_vllm.grading.bank import chapters
from mini_vllm.grading.exercise import Exercise
from mini_vllm.grading.overlay import code_cells, read_notebook, source_of

from .conftest import ROOT, load

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


def test_nothing_of_the_editor_or_the_machine_gets_in(repository):
    solution = repository / "solutions" / SOLUTION.name
    nb = read_notebook(solution)
    nb["metadata"] = {
        "language_info": {"name": "python", "version": "3.13.9"},
        "kernelspec": {"name": "mine", "display_name": "My Python", "language": "python"},
        "colab": {"provenance": []},
        "widgets": {},
    }
    nb["nbformat_minor"] = 4
    for cell in nb["cells"]:
        cell["metadata"] |= {"collapsed": True, "id": "x7", "execution": {"iopub.execute_input": "2026-01-01T10:00:00"}}
        cell["attachments"] = {}
        for output in cell.get("outputs", []):
            output["metadata"] = {"started": "10:00"}
    solution.write_text(json.dumps(nb), encoding="utf-8")
    assert make_exercises.main([], repository) == 0
    made = repository / "exercises" / SOLUTION.name
    assert made.read_bytes() == (ROOT / "exercises" / SOLUTION.name).read_bytes()

    nb = json.loads(made.read_text(encoding="utf-8"))
    assert nb["metadata"] == make_exercises.NOTEBOOK_METADATA and "version" not in nb["metadata"]["language_info"]
    for cell in nb["cells"]:
        assert cell.keys() <= {"cell_type", "id", "metadata", "source", "outputs", "execution_count"}
        assert cell["metadata"].keys() <= {"tags"}
        assert all(output.keys() == {"name", "output_type", "text"} for output in cell.get("outputs", []))


def answer_cell(kind: str, name: str, monkeypatch):
    """A stub maker for an exercise of this kind."""
    made = Exercise(
        exercise_id="c99-e1", title="T", kind=kind, function=name, stars=1, points=5, minutes=5, needs="chapter 1",
        hints=("", "", ""), compare=lambda *_: None, draw_cases=lambda rng: [],
    )  # fmt: skip
    monkeypatch.setattr(make_exercises, "find_exercise", lambda exercise_id: made)
    return lambda source: make_exercises.stub(source, "c99-e1")


def test_stubs_of_every_kind(monkeypatch):
    function = "def plan(x):\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION\n"
    for kind in ("code", "bug hunt"):
        stub = answer_cell(kind, "plan", monkeypatch)
        assert stub(function) == 'def plan(x):\n    raise NotImplementedError("c99-e1: write plan")\n'
    block = "        ### BEGIN SOLUTION\n        return 1\n        ### END SOLUTION\n"
    method = f"class Mine(Stage):\n    def plan(self):\n{block}"
    stub = answer_cell("extend", "Mine", monkeypatch)
    assert stub(method).endswith('    def plan(self):\n        raise NotImplementedError("c99-e1: write Mine")\n')
    for kind in ("predict", "analyse"):
        stub = answer_cell(kind, "steps", monkeypatch)
        assert stub("### BEGIN SOLUTION\nsteps = [1]\n### END SOLUTION\n") == "steps = ...  # your answer\n"
        given = '### BEGIN SOLUTION\nsteps = {"a": 1}\n### GIVEN\n# steps = {"a": ...}\n### END SOLUTION\n'
        assert stub(given) == 'steps = {"a": ...}\n'
        with pytest.raises(make_exercises.Malformed, match="does not define steps"):
            stub(function)


def test_the_table_of_mutants_says_what_each_author_is_told():
    table = (ROOT / make_exercises.MUTANT_TABLE).read_text(encoding="utf-8")
    for chapter in chapters():
        for mutant in load("mutants", chapter, "MUTANTS").values():
            mistake, says = (text.replace("<", "&lt;") for text in (mutant.mistake, mutant.says))
            rows = [line for line in table.splitlines() if line.startswith(f"| {mistake} |")]
            assert any(says in row for row in rows), (mistake, rows)  # two exercises may share a mistake
    assert all(line.count("|") == 3 for line in table.splitlines() if line.startswith("|"))


def worked_in(path, exercise_id="c01-e1", mine="    return 1 - sum(output_lens) / paid") -> bytes:
    """Types an answer into an exercise notebook, as JupyterLab would save it; returns its bytes."""
    nb = read_notebook(path)
    for cell in code_cells(nb):
        if f"# EXERCISE {exercise_id}" in source_of(cell):
            cell["source"] = f"# EXERCISE {exercise_id}\n" + mine
    path.write_text(json.dumps(nb), encoding="utf-8")
    return path.read_bytes()


def test_an_answer_in_exercises_is_not_overwritten(repository, capsys):
    assert make_exercises.main([], repository) == 0
    path = repository / "exercises" / SOLUTION.name
    stub = path.read_bytes()
    mine = worked_in(path)
    capsys.readouterr()
    assert make_exercises.main([], repository) == 1
    said = capsys.readouterr().err
    assert f"error: exercises/{SOLUTION.name} would be overwritten" in said and "the cell of c01-e1" in said
    assert f"mv exercises/{SOLUTION.name} work/" in said and "--force" in said
    assert path.read_bytes() == mine
    assert make_exercises.main(["--force"], repository) == 0
    assert path.read_bytes() == stub


@pytest.mark.parametrize("text", ["<<<<<<< HEAD\n# EXERCISE c01-e1", None])
def test_merges_and_notebooks_without_a_solution_are_kept_too(repository, capsys, text):
    assert make_exercises.main([], repository) == 0
    left_over = repository / "exercises" / "99-left-over.ipynb"
    shutil.copy(repository / "exercises" / SOLUTION.name, left_over)
    if text:
        left_over.write_text(text)
    else:
        worked_in(left_over)
    assert make_exercises.main([], repository) == 1
    assert "99-left-over.ipynb would be overwritten" in capsys.readouterr().err and left_over.exists()


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("known_by", ["git HEAD", "the package's copy"])
def test_a_stub_of_an_earlier_version_may_be_replaced(repository, known_by):
    assert make_exercises.main([], repository) == 0
    path = repository / "exercises" / SOLUTION.name
    if known_by == "git HEAD":
        git(repository, "init", "-q")
        git(repository, "add", ".")
        git(repository, "commit", "-qm", "one")
        shutil.rmtree(repository / "mini_vllm")
    solution = repository / "solutions" / SOLUTION.name
    new = solution.read_text(encoding="utf-8").replace("tokens that each request will produce", "tokens of each")
    solution.write_text(new, encoding="utf-8")
    assert make_exercises.main([], repository) == 0
    assert "tokens of each" in path.read_text(encoding="utf-8")
    worked_in(path)
    assert make_exercises.main([], repository) == 1


def test_the_package_holds_the_same_bytes(repository, capsys):
    assert make_exercises.main([], repository) == 0
    copy = repository / "mini_vllm" / "grading" / "notebooks" / "01-static-batching.json"
    assert copy.read_bytes() == (repository / "exercises" / SOLUTION.name).read_bytes()
    assert overlay.PACKAGED == ROOT / make_exercises.PACKAGED
    copy.write_text("{}")
    assert make_exercises.main(["--check"], repository) == 1
    assert "01-static-batching.json is not what" in capsys.readouterr().out
    assert make_exercises.main([], repository) == 0
    assert make_exercises.main(["--check"], repository) == 0


def test_make_work_copies_and_never_overwrites(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "exercises", tmp_path / "exercises")

    def make(*words):
        return subprocess.run(["make", "-s", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    nothing = make("grade")
    assert nothing.returncode == 2 and "make work" in nothing.stdout and 'ARGS="path' in nothing.stdout
    mine = tmp_path / "work" / SOLUTION.name
    assert f"work/{SOLUTION.name}: copied" in make("work").stdout
    assert mine.read_bytes() == (ROOT / "exercises" / SOLUTION.name).read_bytes()
    mine.write_text("mine")
    assert "there already, left as it is" in make("work").stdout and mine.read_text() == "mine"
    assert "mini-vllm grade work\n" in make("-n", "grade").stdout
    assert "work/" in (ROOT / ".gitignore").read_text().splitlines()


def test_an_exercise_shows_no_answer_and_keeps_what_checks_print():
    nb = read_notebook(ROOT / "exercises" / SOLUTION.name)
    text = json.dumps(nb)
    assert "SOLUTION" not in text and "GIVEN" not in text and "solution-only" not in text
    for cell in code_cells(nb):
        is_check = source_of(cell).startswith("# NBVAL_CHECK_OUTPUT")
        assert bool(cell["outputs"]) == is_check == (cell["execution_count"] is not None)
        assert ("remove-output" in cell["metadata"].get("tags", [])) == is_check  # no tick on the page
    code = [cell for cell in code_cells(nb) if "setup" not in cell["metadata"].get("tags", [])]
    assert max(len(line) for cell in code for line in source_of(cell).splitlines()) <= 84, "cut off on the page"
    stubs = [source_of(cell) for cell in code_cells(nb) if "# EXERCISE" in source_of(cell)]
    assert [stub.count("raise NotImplementedError(") for stub in stubs] == [1, 1, 1, 0]
    assert stubs[3].endswith("    return dict(zip(plan, sampled))")
    fences = re.findall(r"(?ms)^```\w*\n(.*?)^```", "\n".join(map(source_of, nb["cells"])))
    assert fences and max(len(line) for fence in fences for line in fence.splitlines()) <= 84
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
        ("★ · code · 10 points", "★ · code · 11 points", "put under its title"),
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
