"""Stored GPU runs as a table, and the benchmark started from a notebook. Knows made-up results and a made-up script."""

import json
import sys

import pytest

from mini_vllm.errors import ConfigError
from mini_vllm.viz import gpu_results as module
from mini_vllm.viz.gpu_results import NO_T4, NOTHING_YET, gpu_results, run_gpu_benchmark

FIGURES = [
    {"name": "copy bandwidth", "value": 4012.34, "unit": "GB/s"},
    {"name": "decode at 1 GB", "value": 0.93, "unit": "of copy", "target": 0.9, "met": True},
    {"name": "split against no split", "value": 1.5, "unit": "x", "target": 2, "met": False},
    {"name": "all variants agree", "value": True, "unit": "", "target": True, "met": True, "note": ""},
]


def store(folder, name, gpu, date="2026-11-30", **more):
    result = {"gpu": gpu, "date": date, "smoke": False, "parts": {"decode_bandwidth": {"figures": FIGURES}}} | more
    (folder / name).write_text(json.dumps(result))


def test_without_a_run_the_page_says_so(tmp_path):
    (tmp_path / "scheduler.json").write_text("{}")
    store(tmp_path, "gpu-2026-11-30.json", "H200", smoke=True)
    assert gpu_results(tmp_path) == repr(gpu_results(tmp_path)) == f"{NOTHING_YET}\n{NO_T4}"


def test_without_a_clone_the_page_says_where_they_are(monkeypatch):
    monkeypatch.setattr(module, "results_folder", lambda: None)
    assert gpu_results().endswith(f"{module.repository_url()}/tree/HEAD/benchmarks/results")


def test_each_figure_is_a_row_with_its_target(tmp_path):
    store(tmp_path, "h200-2026-11-30.json", "NVIDIA H200")
    table = gpu_results(tmp_path)
    assert [row[2:] for row in table.rows] == [
        ["copy bandwidth", "4.01e+03 GB/s", ""],
        ["decode at 1 GB", "0.93 of copy", "≥ 0.9: met"],
        ["split against no split", "1.5 x", "≥ 2: missed"],
        ["all variants agree", "yes", "yes: met"],
    ]
    assert table.rows[0][:2] == ["NVIDIA H200, 2026-11-30", "decode bandwidth"] and table.note == NO_T4


def test_a_run_on_a_t4_takes_the_sentence_away(tmp_path):
    store(tmp_path, "t4-2026-12-01.json", "Tesla T4", "2026-12-01")
    store(tmp_path, "h200-2026-11-30.json", "NVIDIA H200")
    table = gpu_results(tmp_path)
    assert table.note == "" and [row[0] for row in table.rows[::4]] == [
        "NVIDIA H200, 2026-11-30",
        "Tesla T4, 2026-12-01",
    ]


def clone_with(folder, script):
    (folder / "benchmarks" / "results").mkdir(parents=True)
    (folder / "benchmarks" / "gpu.py").write_text(script)
    return folder / "benchmarks" / "results"


def test_the_benchmark_runs_in_the_clone_and_its_lines_are_shown(tmp_path, monkeypatch, capsys):
    results = clone_with(tmp_path, "import sys, pathlib; print(*sys.argv[1:], pathlib.Path.cwd().name)")
    monkeypatch.setattr(module, "results_folder", lambda: results)
    assert run_gpu_benchmark("--quick") == results
    assert capsys.readouterr().out == f"--quick {tmp_path.name}\n"
    clone_with(tmp_path / "bad", "import sys; print('no CUDA'); sys.exit(2)")
    monkeypatch.setattr(module, "results_folder", lambda: tmp_path / "bad" / "benchmarks" / "results")
    with pytest.raises(ConfigError, match="ended with 2; the lines above say why"):
        run_gpu_benchmark()
    assert capsys.readouterr().out == "no CUDA\n"


def test_where_there_is_no_clone_one_is_made_beside_the_notebook(tmp_path, monkeypatch):
    ran = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "results_folder", lambda: None)
    monkeypatch.setattr(module, "_run", lambda command, folder: ran.append(command))
    clone = tmp_path / module.repository_url().rsplit("/", 1)[1]
    assert run_gpu_benchmark("--quick") == clone / "benchmarks" / "results"
    assert ran[0][:2] == ["git", "clone"] and ran[0][-2:] == [module.repository_url(), str(clone)]
    assert ran[1] == [sys.executable, str(clone / "benchmarks" / "gpu.py"), "--quick"]
