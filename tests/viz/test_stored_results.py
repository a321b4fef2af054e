"""Stored results as tables: what a file says is what the table says. Knows two tiny results."""

import io
import json
from urllib.error import URLError

import pytest

from mini_vllm.errors import ConfigError
from mini_vllm.viz import stored_results
from mini_vllm.viz.engine_speed import alone_table, measured_on, speed_bars, speed_table, tried_table
from mini_vllm.viz.stored_results import ResultTable, results_folder, stored_result

SPEED = {
    "tokens_per_s": {"mini_vllm": 180.0, "transformers static-8": 60.0, "transformers static-32": 120.0},
    "ratio_to_best_peer": 1.5,
    "share_of_gemm_bound": 0.649,
    "batch_1_share_of_floor": 0.5,
    "share_outside_the_runner": 0.051,
    "alone": [{"batch": 1, "prefill_tokens_per_s": 617.3, "decode_step_ms": 37.39, "decode_tokens_per_s": 26.7}],
    "read_floor_ms": 10.86,
    "load_average_before": 0.2,
    "threads": 2,
    "machine": {"device": "a small computer", "date": "2026-11-29"},
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
}


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone with nothing in it but one result; the working folder is its notebooks/."""
    for folder in ("mini_vllm", "notebooks", "benchmarks/results"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "mini_vllm" / "__init__.py").touch()
    (tmp_path / "benchmarks" / "results" / "tiny.json").write_text('{"a": 1}')
    monkeypatch.chdir(tmp_path / "notebooks")
    return tmp_path


def test_the_clone_around_the_notebook_has_the_first_word(clone):
    assert results_folder() == clone / "benchmarks" / "results"
    assert stored_result("tiny") == {"a": 1}
    with pytest.raises(ConfigError, match=r"benchmarks/results/other\.json is not there"):
        stored_result("other")


def test_elsewhere_the_clone_around_the_package_is_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert stored_result("scheduler")["what"]


def test_without_a_clone_the_repository_is_asked(monkeypatch):
    asked = []

    def answer(address, timeout):
        asked.append((address, timeout))
        return io.BytesIO(json.dumps([1, 2]).encode())

    monkeypatch.setattr(stored_results, "results_folder", lambda: None)
    monkeypatch.setattr(stored_results, "urlopen", answer)
    assert stored_result("tiny") == [1, 2]
    assert asked == [(f"{stored_results.repository_url()}/raw/HEAD/benchmarks/results/tiny.json", 10)]


@pytest.mark.parametrize("fault", [URLError("no network"), TimeoutError("late")])
def test_no_clone_and_no_network_is_said(monkeypatch, fault):
    def fail(address, timeout):
        raise fault

    monkeypatch.setattr(stored_results, "results_folder", lambda: None)
    monkeypatch.setattr(stored_results, "urlopen", fail)
    with pytest.raises(ConfigError, match=r"tiny\.json cannot be read .*; clone the repository"):
        stored_result("tiny")


def test_a_table_reads_the_same_as_text_and_as_html():
    table = ResultTable(["what", "ms"], [("a < b", 1), ("c", 20)], note="measured & stored")
    assert repr(table) == "what   ms\na < b   1\nc      20\nmeasured & stored"
    assert (
        '<td style="text-align:left">a &lt; b</td><td style="text-align:right;white-space:nowrap">1</td>'
        in table.html()
    )
    assert "<p>measured &amp; stored</p>" in table.html()
    assert table._repr_mimebundle_() == {"text/html": table.html(), "text/plain": repr(table)}
    with pytest.raises(ConfigError, match="a row has 1 cells, the header 2"):
        ResultTable(["what", "ms"], [("a",)])


def test_the_speed_table_judges_each_number_by_its_target():
    rows = speed_table(SPEED).rows
    assert [row[1:] for row in rows] == [
        ["1.50", "≥ 1.50", "yes"],
        ["65%", "≥ 65%", "no"],  # 64.9 %, rounded for the eye only
        ["50%", "≥ 50%", "yes"],
        ["5.1%", "≤ 5.0%", "no"],
    ]
    alone = speed_table({**SPEED, "ratio_to_best_peer": None, "targets": {"share_of_gemm_bound": 0.6}})
    assert alone.rows[0][1:] == ["not measured", "≥ 1.50", ""] and alone.rows[1][2:] == ["≥ 60%", "yes"]


def test_memory_has_its_rows_where_it_was_measured():
    memory = {
        "as_used": {"beside_weights_and_pool_mb": 250.2, "allowed_mb": 300, "within": True},
        "whole_pool": {"beside_weights_and_pool_mb": 430.1, "allowed_mb": 300, "within": False},
    }
    rows = speed_table(SPEED, memory).rows
    assert [row[1:] for row in rows[4:]] == [["250 MB", "≤ 300 MB", "yes"], ["430 MB", "≤ 300 MB", "no"]]


def test_a_busy_machine_is_named():
    assert measured_on(SPEED).endswith("load average of the minute before 0.2.")
    assert "3.0, so others may have been working." in measured_on({**SPEED, "load_average_before": 3.0})
    waiting = {"OMP_WAIT_POLICY": None, "GOMP_SPINCOUNT": "4000"}
    assert "Python 3.11.7, GOMP_SPINCOUNT=4000, load" in measured_on({**SPEED, "waiting": waiting})


def test_bars_and_parts_say_what_the_file_says():
    picture = speed_bars(SPEED)
    assert [t.get_text() for t in picture.figure.axes[0].get_yticklabels()] == [
        "mini_vllm", "transformers static-32", "transformers static-8",
    ]  # fmt: skip
    assert "mini_vllm 180, transformers static-32 120" in picture.alt
    assert alone_table(SPEED).rows == [["1", "617", "37.4", "26.7"]]
    assert "10.9 ms" in alone_table(SPEED).note


def test_what_was_tried_names_its_machine_and_its_load():
    rows = [
        {
            "what": "one product for q, k and v",
            "gave": "decode 1: 31.2 → 28.4 ms",
            "kept": "yes",
            "measured_on": "here",
        },
        {"what": "torch.compile", "gave": "nothing", "kept": "no: C gives more", "measured_on": "here"},
    ]
    table = tried_table({"tried": rows, "load_average_before": 0.1})
    assert table.rows[1] == ["torch.compile", "nothing", "no: C gives more"]
    assert table.note == "Measured on here, load average of the minute before 0.1."
    rows[1]["measured_on"] = "there"
    table = tried_table({"tried": rows, "load_average_before": 2.0})
    assert table.note.startswith("Measured on here and there, load average of the minute before 2.0, so others")
