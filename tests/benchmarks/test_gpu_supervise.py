"""make gpu around its parts: one that crashes, hangs or finds no GPU ends alone; time, files and sums. Needs no GPU."""

import json
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu_parts import supervise
from benchmarks.gpu_parts.parts import PARTS, SWEEP, Part
from benchmarks.gpu_parts.ratios import ratios
from benchmarks.gpu_parts.report import Report, read_json, shown, write_json
from tests.repo.repository import ROOT

# What a part's process does, given its JSON file; `row` writes one row and leaves the part "running".
ROW = '{"status": "STATUS", "tables": {"t": [{"x": 1}]}, "figures": [], "skipped": [], "samples": [{"t_ms": 2}]}'
DEEDS = {
    "ends": f"open(f, 'w').write('''{ROW.replace('STATUS', 'ok')}''')",
    "crashes": f"open(f, 'w').write('''{ROW.replace('STATUS', 'running')}'''); os.kill(os.getpid(), signal.SIGSEGV)",
    "hangs": f"open(f, 'w').write('''{ROW.replace('STATUS', 'running')}'''); time.sleep(100)",
    "says nothing": "sys.exit(1)",
    "no gpu": "sys.exit(3)",
}


def run(deeds: list[str], minutes: float = 1.0, processes: int = 1) -> tuple[dict, list[float]]:
    asked = []

    def command(part, piece, seconds, path: Path) -> list[str]:
        asked.append(seconds)
        code = f"import os, signal, sys, time; f = {str(path)!r}; {DEEDS[part.what]}"
        return [sys.executable, "-c", code]

    result, saved = {"parts": {}}, []
    parts = [Part(f"p{i}", 1.0, deed, processes) for i, deed in enumerate(deeds)]
    supervise.run_parts(parts, command, minutes, result, lambda: saved.append(len(result["parts"])))
    assert saved == list(range(1, len(deeds) + 1)), "the file is written after each part"
    return result["parts"], asked


def test_a_crash_ends_one_part_and_keeps_its_rows():
    parts, _ = run(["crashes", "says nothing", "ends"])
    assert [part["status"] for part in parts.values()] == ["failed", "failed", "ok"]
    assert "SIGSEGV" in parts["p0"]["error"] and "wrote nothing" in parts["p1"]["error"]
    assert parts["p0"]["tables"] == parts["p2"]["tables"] == {"t": [{"x": 1}]}
    assert len(parts["p2"]["nvidia_smi"]) == 2


def test_a_part_that_hangs_is_killed_in_time(monkeypatch):
    monkeypatch.setattr(supervise, "SPARE_S", 0.2)
    start = time.monotonic()
    parts, _ = run(["hangs", "ends"], minutes=5 / 60)
    assert time.monotonic() - start < 5
    assert "hung" in parts["p0"]["error"] and parts["p0"]["tables"] == {"t": [{"x": 1}]}
    assert parts["p1"]["status"] == "ok"


def test_time_left_over_goes_to_the_later_parts(monkeypatch):
    monkeypatch.setattr(supervise, "SPARE_S", 0.0)
    _, asked = run(["ends", "ends", "ends"], minutes=0.5)
    assert asked[0] == pytest.approx(10, abs=0.5) and asked[1] > 12 and asked[2] > 25


def test_without_time_a_part_is_not_begun():
    parts, asked = run(["ends"], minutes=0.05)
    assert parts["p0"]["status"] == "out of time" and not asked


def test_without_a_gpu_nothing_more_is_tried():
    with pytest.raises(supervise.NoGPU):
        run(["no gpu", "ends"])


def test_pieces_of_a_part_are_one_part():
    def piece(met: bool, worst: float) -> dict:
        proof = {"name": "all right", "value": met, "unit": "", "target": True, "met": met, "note": f"{worst} worst"}
        return {"status": "ok" if met else "out of time", "tables": {"t": [{"x": worst}]}, "samples": [{"t_ms": worst}],
                "figures": [proof, {"name": "worst", "value": worst, "unit": ""}], "skipped": []}  # fmt: skip

    whole = supervise.merged([piece(True, 0.5), piece(False, 0.2)])
    assert whole["status"] == "out of time" and whole["tables"] == {"t": [{"x": 0.5}, {"x": 0.2}]}
    proof, worst = whole["figures"]
    assert proof["value"] is proof["met"] is False and proof["note"] == "0.5 worst; 0.2 worst"
    assert worst["value"] == 0.5 and len(whole["samples"]) == 2


def test_children_never_interpret(monkeypatch, tmp_path):
    """On a machine with a GPU a variable left over from the tests would run every kernel on the CPU."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setitem(
        DEEDS,
        "tells",
        'open(f, \'w\').write(\'{"status": "ok", "error": "%s"}\' % os.environ.get(\'TRITON_INTERPRET\'))',
    )
    parts, _ = run(["tells"])
    assert parts["p0"]["error"] == "None"


def test_the_samples_lie_beside_the_results_one_a_line(tmp_path):
    path = tmp_path / "new" / "h200.json"
    supervise.write_result(path, {"parts": {"a": {"samples": [{"t_ms": 1}]}, "b": {"samples": [{"t_ms": 2}]}}})
    assert read_json(path) == {"parts": {"a": {}, "b": {}}, "samples": "h200.samples.jsonl"}
    assert [json.loads(line)["t_ms"] for line in path.with_suffix(".samples.jsonl").read_text().splitlines()] == [1, 2]


def test_a_report_is_on_disk_after_every_row(tmp_path, capsys):
    report = Report("p", tmp_path / "p.json")
    report.row("errors", {"error": float("inf")})
    report.figure("share", 0.91, at_least=0.9)
    report.must("holds", False)
    report.skip("bf16", "this card has none")
    stored = read_json(tmp_path / "p.json")
    assert stored["status"] == "running" and stored["tables"] == {"errors": [{"error": "inf"}]}, "strict JSON"
    assert [figure["met"] for figure in stored["figures"]] == [True, False]
    said = capsys.readouterr().out
    assert "target ≥ 0.9: met" in said and "MISSED" in said and "this card has none" in said


def test_a_reader_never_meets_half_a_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1} and read_json(tmp_path / "none.json") is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (True, "yes"), (False, "NO"), (0.0001, "1.0e-04"), (0.5, "0.5"), (1234.5, "1,234"), (4096, "4,096")],
)  # fmt: skip
def test_numbers_are_shown_short(value, text):
    assert shown(value) == text


def test_ratios_need_whole_runs_of_equal_size():
    ours = [{"model": "q", "requests": 256, "tok/s": 900.0, "whole": True, "with": "all on   "},
            {"model": "q", "requests": 256, "tok/s": 100.0, "whole": True, "with": "no graphs"},
            {"model": "l", "requests": 256, "tok/s": 900.0, "whole": True, "with": "all on"}]  # fmt: skip
    theirs = [{"model": "q", "requests": 256, "tok/s": 200.0, "whole": True},
              {"model": "l", "requests": 256, "tok/s": 1.0, "whole": False}]  # fmt: skip
    parts = {"offline": {"tables": {"offline": ours}}, "transformers": {"tables": {"transformers": theirs}}}
    (figure,) = ratios(parts)
    assert (figure["value"], figure["met"]) == (4.5, True)
    assert ratios({}) == []


def test_a_result_is_named_by_its_card_and_overwrites_none(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)
    today = date.today().isoformat()
    assert gpu.result_path("Tesla T4", keep=False).name == f"t4-{today}.json"
    first = gpu.result_path("NVIDIA A100-SXM4-80GB", keep=False)
    assert first.name == f"a100-sxm4-80gb-{today}.json"
    first.write_text("{}")
    assert gpu.result_path("NVIDIA A100-SXM4-80GB", keep=False).name == f"a100-sxm4-80gb-{today}-2.json"
    assert gpu.result_path("NVIDIA A100-SXM4-80GB", keep=True) == first


def test_a_run_of_one_part_is_added_to_the_days_results(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)
    path = gpu.result_path("NVIDIA H200", keep=True)
    stored = {"gpu": "NVIDIA H200", "samples": "s.jsonl", "parts": {"swap": {"status": "ok", "figures": []}}}
    write_json(path, stored)

    def fake(parts, command, minutes, result, save):
        assert [part.name for part in parts] == ["machine", "prefill"] and minutes == 3
        line = command(parts[1], (0, 1), 12.34, tmp_path / "0.json")
        assert line[2:] == ["--worker", "prefill", "--piece", "0/1", "--seconds", "12.3", "--json",
                            str(tmp_path / "0.json"), "--seed", "7", "--quick"]  # fmt: skip
        result["parts"]["machine"] = {"status": "ok", "about": {"gpu": "NVIDIA H200"}}
        save()
        proof = {"name": "wrong", "value": False, "unit": "", "target": True, "met": False}
        result["parts"]["prefill"] = {
            "status": "failed", "figures": [proof], "error": "a\nb", "skipped": [{"what": "x", "reason": "y"}]
        }  # fmt: skip
        save()

    monkeypatch.setattr(gpu, "run_parts", fake)
    code = gpu.main(["--only", "prefill", "--minutes", "3", "--seed", "7", "--quick"])
    assert code == 1, "a part failed"
    stored, said = read_json(path), capsys.readouterr().out
    assert list(stored["parts"]) == ["swap", "machine", "prefill"] and stored["gpu"] == "NVIDIA H200"
    assert stored["samples"] == "s.jsonl" and [file.name for file in tmp_path.iterdir()] == [path.name]
    assert "MISSED" in said and "  b\n" in said and "skipped: x: y" in said and str(path) in said


def test_a_card_without_a_name_still_gets_one_file(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)

    def fake(parts, command, minutes, result, save):
        for part in parts:
            result["parts"][part.name] = {"status": "failed", "error": "driver too old"}
            save()

    monkeypatch.setattr(gpu, "run_parts", fake)
    assert gpu.main([]) == 1
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("gpu-") and list(read_json(path)["parts"]) == list(PARTS)


def test_an_interrupt_is_no_traceback(monkeypatch, tmp_path, capsys):
    def fake(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "run_parts", fake)
    assert gpu.main(["--json", str(tmp_path / "x.json")]) == 130
    assert "interrupted" in capsys.readouterr().out


def test_parts_are_listed_with_their_time(capsys):
    assert gpu.main(["--list", "--minutes", "9"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in (*PARTS, *SWEEP))


@pytest.mark.parametrize("wrong", [["--minutes", "0"], ["--only", "decode"]])
def test_wrong_options_are_refused(wrong, capsys):
    with pytest.raises(SystemExit) as stopped:
        gpu.main(wrong)
    assert stopped.value.code == 2 and wrong[1] in capsys.readouterr().err


def test_without_a_gpu_the_script_says_what_to_do():
    """The real processes, once; torch says whether there is a GPU."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / "gpu.py"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stderr
    assert "no CUDA GPU" in done.stderr and "--smoke" in done.stderr and "Traceback" not in done.stderr


def test_only_torch_triton_and_numpy_are_needed():
    """Every part, and the engine in it, where nothing else of our dependencies is installed."""
    pytest.importorskip("triton")
    code = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("transformers", "tokenizers", "safetensors", "jinja2", "rich", "typer", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from benchmarks import gpu
from benchmarks.gpu_parts.parts import PARTS, SWEEP
for part in [*PARTS.values(), *SWEEP.values()]:
    part.load()
code = gpu.main(["--smoke", "--only", "offline", "transformers"])
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped: qwen3-0.6b, transformers' continuous batching: ModuleNotFoundError" in done.stdout
