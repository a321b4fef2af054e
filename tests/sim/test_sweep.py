"""Sweeps: same rows whatever the workers, resumable to the bit, and a point that fails is a result, too."""

import json
import math
import os
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest

from mini_vllm.errors import ConfigError, MissingDependencyError
from mini_vllm.sim.scenario import Scenario
from mini_vllm.sim.sweep import SweepResult, SweepRow, expand, label, sweep

REPO = Path(__file__).resolve().parents[2]
SMALL = Scenario(num_requests=30, model="qwen3-0.6b")
GRID = {"rate": [2.0, 20.0], "system": ["vllm", "sarathi"]}


def product(a=1, b=1, seed=0):
    """Stands in for a simulation; fails where a is b."""
    if a == b:
        raise ValueError(f"{a} twice")
    return {"value": a * b + seed / 10, "parts": {"count": 1, "p50": None if a > 5 else a}}


def no_call(**point):
    raise AssertionError(f"{point} was run again")


def test_every_combination_and_every_seed_in_order():
    result = sweep(product, {"a": [2, 3], "b": [5, 7]}, seeds=[0, 1], workers=1)
    rows = [(row.point, row.seed, row.get("value")) for row in result]
    assert rows == [
        ({"a": a, "b": b}, seed, a * b + seed / 10) for a in (2, 3) for b in (5, 7) for seed in (0, 1)
    ]  # fmt: skip
    assert result.failures == []


def test_points_can_be_listed():
    result = sweep(product, [{"a": 2}, {"a": 3, "b": 9}], workers=1)
    assert [row.get("value") for row in result] == [2, 27]


def test_a_failing_point_is_reported_and_the_others_go_on():
    result = sweep(product, {"a": [1, 2, 3], "b": [2]}, workers=1)
    assert [row.error for row in result] == [None, "ValueError: 2 twice", None]
    assert [row.point for row in result.failures] == [{"a": 2, "b": 2}]
    assert math.isnan(result.rows[1].get("value"))
    assert set(result.summary("value")) == {"a=1, b=2", "a=3, b=2"}


def test_two_processes_and_one_find_the_same():
    one = sweep(SMALL.measure, GRID, seeds=[0, 1], workers=1)
    two = sweep(SMALL.measure, GRID, seeds=[0, 1], workers=2)
    assert one == two and len(one.rows) == 8 and not one.failures


def test_a_resumed_sweep_runs_only_what_is_missing_and_has_the_same_values(tmp_path):
    file = tmp_path / "results.jsonl"
    whole = sweep(SMALL.measure, GRID, seeds=[0, 1], workers=1)
    sweep(SMALL.measure, GRID, seeds=[0], workers=1, results=file)
    lines = file.read_text().splitlines()
    assert len(lines) == 1 + 4
    resumed = sweep(SMALL.measure, GRID, seeds=[0, 1], workers=1, results=file)
    assert resumed == whole
    assert file.read_text().splitlines()[:5] == lines  # nothing was run again
    assert len(file.read_text().splitlines()) == 1 + 8


def test_nothing_is_run_if_all_is_there(tmp_path):
    file = tmp_path / "results.jsonl"
    first = sweep(product, {"a": [2, 3]}, workers=1, results=file)
    no_call.__qualname__, no_call.__module__ = product.__qualname__, product.__module__
    assert sweep(no_call, {"a": [2, 3]}, workers=1, results=file) == first


def test_the_order_of_the_names_makes_no_other_point(tmp_path):
    file = tmp_path / "results.jsonl"
    sweep(product, {"a": [2], "b": [3, 5]}, workers=1, results=file)
    lines = file.read_text()
    sweep(product, {"b": [3, 5], "a": [2]}, workers=1, results=file)
    assert file.read_text() == lines


def test_what_failed_is_tried_again(tmp_path):
    file = tmp_path / "results.jsonl"
    sweep(product, {"a": [1, 2]}, workers=1, results=file)
    file.write_text(file.read_text().replace("1 twice", "the disk was full"))
    again = sweep(product, {"a": [1, 2]}, workers=1, results=file)
    assert [row.error for row in again] == ["ValueError: 1 twice", None]


def test_a_line_that_was_cut_off_is_run_again(tmp_path):
    file = tmp_path / "results.jsonl"
    first = sweep(product, {"a": [2, 3]}, workers=1, results=file)
    file.write_text(file.read_text()[:-20])
    assert sweep(product, {"a": [2, 3]}, workers=1, results=file) == first
    assert all(json.loads(line) for line in file.read_text().splitlines())


def test_a_sweep_that_is_killed_can_be_resumed(tmp_path):
    """The whole process is killed in the middle of a sweep; what was done by then is kept."""
    file = tmp_path / "results.jsonl"
    code = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(REPO)!r})\n"
        "from tests.sim.test_sweep import slowly\n"
        "from mini_vllm.sim.sweep import sweep\n"
        f"sweep(slowly, {{'a': list(range(1, 50))}}, workers=1, results={str(file)!r})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (not file.exists() or file.read_text().count("\n") < 4):
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    done = file.read_text().count("\n") - 1
    assert 3 <= done < 49
    result = sweep(slowly, {"a": [1, 2, 3]}, workers=1, results=file)
    assert [row.get("value") for row in result] == [1, 2, 3]


def slowly(a, seed):
    time.sleep(0.05)
    return {"value": a}


def test_another_sweeps_file_is_not_taken(tmp_path):
    file = tmp_path / "results.jsonl"
    sweep(SMALL.measure, {"rate": [2.0]}, workers=1, results=file)
    with pytest.raises(ConfigError, match=r"holds a sweep of[\s\S]*and this is one of[\s\S]*Give another file"):
        sweep(SMALL.changed(num_requests=31).measure, {"rate": [2.0]}, workers=1, results=file)
    file.write_text("hello\n")
    with pytest.raises(ConfigError, match=r"results.jsonl:1 is no JSON"):
        sweep(product, {"a": [1]}, workers=1, results=file)
    file.write_text("[1]\n")
    with pytest.raises(ConfigError, match="is no file of a sweep"):
        sweep(product, {"a": [1]}, workers=1, results=file)
    with pytest.raises(ConfigError, match="there is no folder"):
        sweep(product, {"a": [1]}, workers=1, results=tmp_path / "none" / "results.jsonl")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"my notes, one line", "is no file of a sweep"),
        (b"\xff\xfe\n", "results.jsonl:1 is no JSON"),
        (b'{"format": "mini-vllm sweep 1"}\n', "holds a sweep of\n  None"),
        (
            b'{"format": "mini-vllm sweep 1", "of": "tests.sim.test_sweep.product"}\n{"a": 1}\n',
            ":2 is no row of a sweep",
        ),
        (b'{"format": "mini-vllm sweep 1", "of": "tests.sim.test_sweep.product"}\n5\n', ":2 is no row of a sweep"),
    ],
)
def test_no_file_of_somebody_else_is_written_over(tmp_path, text, reason):
    file = tmp_path / "results.jsonl"
    file.write_bytes(text)
    with pytest.raises(ConfigError, match=reason):
        sweep(product, {"a": [2]}, workers=1, results=file)
    assert file.read_bytes() == text
    with pytest.raises(ConfigError, match="is a folder"):
        sweep(product, {"a": [2]}, workers=1, results=tmp_path)


def returns(a, seed):
    if a == "exit":
        sys.exit(3)
    return {"none": None, "number": 5, "set": {"value": {1}}, "odd": {"value": Fraction(3, 2)}}[a]


def test_a_run_that_returns_no_metrics_or_leaves_is_a_failing_point_too():
    result = sweep(returns, {"a": ["none", "number", "set", "exit", "odd"]}, workers=1)
    errors = [row.error for row in result]
    assert errors[0] == "TypeError: None was returned; a run returns Metrics, or name -> number"
    assert errors[1].startswith("TypeError: 5 was returned")
    assert "must be a string or a real number, not 'set'" in errors[2]
    assert errors[3] == "SystemExit: 3"
    value = result.rows[4].get("value")
    assert value == 1.5 and type(value) is float  # numbers of other kinds, such as numpy's, become plain ones


def test_a_script_without_a_main_guard_is_told_what_to_do(tmp_path):
    """Each process of the sweep imports the script, and would start a sweep of its own."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(REPO)!r})\n"
        "from mini_vllm.sim.scenario import Scenario\nfrom mini_vllm.sim.sweep import sweep\n"
        "sweep(Scenario(num_requests=2).measure, {'rate': [1, 2]}, workers=2)\n"
    )
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    last = run.stderr.strip().splitlines()[-1]
    assert "ConfigError: the processes of the sweep end as soon as they start" in last
    assert 'under `if __name__ == "__main__":`' in last


def die_on_two(a, seed):
    if a == 2:
        os._exit(9)
    return {"value": a}


def test_a_worker_that_dies_takes_only_its_point_with_it():
    result = sweep(die_on_two, {"a": [1, 2, 3, 4]}, workers=2)
    assert [row.error is None for row in result] == [True, False, True, True]
    assert "the process that ran this point died" in result.rows[1].error


def test_what_other_processes_cannot_find_is_refused_before_they_start():
    with pytest.raises(ConfigError, match=r"other processes cannot find .*lambda.*workers=1"):
        sweep(lambda a, seed: {"value": a}, {"a": [1, 2]}, workers=2)


@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        ({"grid": {}, "seeds": []}, "seeds="),
        ({"grid": {"a": []}}, "the grid is empty"),
        ({"grid": []}, "the grid is empty"),
        ({"grid": {"a": 3}}, r"grid\['a'\] is 3; give a list of values, if only \[3\]"),
        ({"grid": {"system": "vllm"}}, "give a list of values"),
        ({"grid": {"a": [1, 1]}}, "the same point twice"),
        ({"grid": None}, "the grid is None; give name -> list of values"),
        ({"grid": "ab"}, "the grid is .*; give name -> list of values"),
        ({"grid": [1, 2]}, r"the grid is \[1, 2\]; give name -> list of values"),
        ({"grid": {"a": [1]}, "seeds": [1, 1]}, "each once"),
        ({"grid": {"a": [1]}, "seeds": 3}, r"seeds=3; give a list of whole numbers, such as .* range\(3\)"),
        ({"grid": {"a": [1]}, "seeds": "12"}, "seeds='12'"),
        ({"grid": {"a": [1]}, "seeds": [0, -1]}, "seed=-1 must be a whole number of at least 0"),
        ({"grid": {"a": [1]}, "workers": 0}, "workers=0"),
        ({"grid": {"a": [1]}, "workers": 1.5}, "workers=1.5"),
        ({"grid": {"a": [1]}, "backend": "slurm"}, "backend='slurm' is not one of local, ray"),
    ],
)
def test_unsound_sweeps_are_refused(kwargs, reason):
    with pytest.raises(ConfigError, match=reason):
        sweep(product, **kwargs)


@pytest.mark.parametrize("run", [5, Scenario, SMALL])
def test_what_cannot_be_called_for_each_point_is_refused(run):
    with pytest.raises(ConfigError, match=r"give a function of a point and a seed, such as Scenario\(...\).measure"):
        sweep(run, {"rate": [1, 2]}, workers=1)


def test_an_empty_mapping_is_one_point():
    assert expand({}) == [{}]
    assert label({"rate": 2, "system": "vllm"}) == "rate=2, system=vllm"


# --- what is read from it ---


def row(point, value, seed=0):
    return SweepRow({"name": point}, seed, {"value": value, "dist": {"count": 3, "p50": value, "p99": None}}, None)


def test_parts_of_a_distribution_are_named_with_a_dot():
    one = row("a", 5.0)
    assert one.get("dist.p50") == 5.0
    assert one.get("dist.p99") == math.inf  # it fell on somebody who was never served
    with pytest.raises(ConfigError, match=r"metric 'dist' is a distribution; say which part: dist.count, p50, p99"):
        one.get("dist")
    with pytest.raises(ConfigError, match="'p95' is not there; there are count, p50, p99"):
        one.get("dist.p95")
    with pytest.raises(ConfigError, match="'ttft' is not there; there are value, dist"):
        one.get("ttft")
    with pytest.raises(ConfigError, match="there are no parts"):
        one.get("value.p50")


def test_the_summary_has_mean_and_interval_over_the_seeds():
    result = SweepResult([row("a", v, seed) for seed, v in enumerate((1.0, 2.0, 3.0))])
    mean, half = result.summary("value")["name=a"]["value"]
    assert (mean, half) == (2.0, pytest.approx(4.303 / math.sqrt(3)))


def test_a_point_with_one_failed_seed_has_no_mean():
    rows = [row("a", 1.0), SweepRow({"name": "a"}, 1, None, "ValueError: no"), row("b", 2.0), row("b", 4.0, seed=1)]
    found = SweepResult(rows).summary("value")
    assert list(found) == ["name=b"] and found["name=b"]["value"][0] == 3.0


def test_a_point_without_one_of_the_numbers_is_not_on_the_front():
    rows = [row("a", 1.0), row("b", math.nan), row("c", 3.0)]
    assert SweepResult(rows).pareto("value", "dist.count", y_best="high") == ["name=a"]
    assert SweepResult([row("b", math.nan)]).pareto("value", "dist.count") == []


def test_the_pareto_front_is_of_the_means():
    rows = [row("a", 1.0), row("b", 2.0), row("c", 3.0)]
    for r, cost in zip(rows, (10.0, 30.0, 20.0), strict=True):
        r.metrics["cost"] = cost
    assert SweepResult(rows).pareto("cost", "value") == ["name=a", "name=c"]


def test_a_progress_bar_is_shown_where_it_is_wanted(capsys):
    sweep(product, {"a": [2, 3]}, workers=1, progress=True)
    assert "2/2" in capsys.readouterr().err
    sweep(product, {"a": [2, 3]}, workers=1)  # nobody watches
    assert capsys.readouterr().err == ""


# --- on Ray ---


def test_ray_is_asked_for_by_name_where_it_is_missing():
    if _has_ray():
        pytest.skip("ray is installed")
    with pytest.raises(MissingDependencyError, match=r"backend='ray' needs the package 'ray'.*\.\[scale\]"):
        sweep(product, {"a": [1, 2]}, backend="ray")


def _has_ray():
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def test_a_ray_that_does_not_start_is_named(monkeypatch):
    def init(**options):
        raise Exception("The current node timed out during startup.")

    fake = SimpleNamespace(init=init, is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(ConfigError, match=r"ray does not start .*\(The current node timed out.*backend='local'"):
        sweep(product, {"a": [1, 2]}, backend="ray")


def test_ray_finds_the_same(monkeypatch, tmp_path):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    here = sweep(SMALL.measure, GRID, seeds=[0, 1], workers=1)
    there = sweep(SMALL.measure, GRID, seeds=[0, 1], workers=2, backend="ray", results=tmp_path / "r.jsonl")
    assert here == there
