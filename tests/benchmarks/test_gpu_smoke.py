"""make gpu without a GPU: every part runs to its end through the interpreter, and a wrong kernel does not get by."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("triton") is None:
    pytest.skip("Triton has no build for this system", allow_module_level=True)

import torch

from benchmarks import gpu
from benchmarks.gpu_parts import correctness, decode_bandwidth, engine, machine, models, parity, swap
from benchmarks.gpu_parts.bench import OutOfTimeError, smoke_bench
from benchmarks.gpu_parts.offline import nano_vllm_workload
from benchmarks.gpu_parts.parts import PARTS
from benchmarks.gpu_parts.report import Report
from mini_vllm import SchedulerConfig
from mini_vllm.roofline import StepWork, get_hardware


@pytest.fixture
def bench():
    return smoke_bench(Report("test", quiet=True))


def figures(bench) -> dict:
    return {figure["name"]: figure for figure in bench.report.data["figures"]}


def test_every_part_runs_to_its_end(tmp_path, capsys, monkeypatch):
    """On a card that roofline/hardware.py knows; the other way round: `test_an_unknown_card`."""
    monkeypatch.setattr(machine, "get_hardware", lambda name: get_hardware("H200"))
    path = tmp_path / "smoke.json"
    code = gpu.main(["--smoke", "--json", str(path)])
    said = capsys.readouterr().out
    result = json.loads(path.read_text())
    assert code == 0, said
    assert result["smoke"] is True and "gpu" not in result, "it can never be taken for a result"
    assert list(result["parts"]) == [*PARTS, "sweep_compile", "sweep"]
    assert all(part["status"] == "ok" for part in result["parts"].values())
    left_out = [entry for part in result["parts"].values() for entry in part["skipped"]]
    assert not left_out, "what is skipped is not tried"
    proofs = [f for part in result["parts"].values() for f in part["figures"] if f.get("target") is True]
    assert len(proofs) >= 8 and all(figure["met"] for figure in proofs)
    assert len(path.with_suffix(".samples.jsonl").read_text().splitlines()) == 6
    assert said.startswith("SMOKE RUN") and "mean nothing" in said


def test_an_unknown_card_is_measured_against_its_own_copy(bench):
    assert machine.spec(bench) is None
    swap.run(bench)
    (row,) = bench.report.data["tables"]["recompute or swap"]
    assert row["predicted recompute ms"] is None and row["recompute ms"] > 0


def test_a_wrong_kernel_is_found(bench, monkeypatch):
    """Every request reads its neighbour's pages, and a prefill writes nothing."""

    def swapped(bench, problem, out, splits=None, tile=None):
        correct(bench, replace(problem, block_table=problem.block_table.roll(1, 0)), out, splits, tile)

    correct = correctness.run_decode
    monkeypatch.setattr(correctness, "run_decode", swapped)
    monkeypatch.setattr(correctness, "run_prefill", lambda *args: None)
    correctness.run(bench)
    found = figures(bench)["all variants within the tolerance"]
    assert found["met"] is False and "prefill" in found["note"] and "decode" in found["note"]
    assert figures(bench)["64-bit offsets: prefill reads the last block"]["met"] is False
    assert gpu.wrong_parts({"parts": {"correctness": bench.report.data}}) == ["correctness"]


def test_a_store_that_wraps_is_found(bench, monkeypatch):
    import mini_vllm.kernels.kv_store as module

    right = module.store_kv
    monkeypatch.setattr(module, "store_kv", lambda k, v, cache, slots: right(k, v, cache, slots - 16))
    correctness.check_far_block(bench)
    assert not figures(bench)["64-bit offsets: the last block holds what was stored"]["met"]
    assert not figures(bench)["64-bit offsets: no other block was written"]["met"]


def test_a_backend_that_is_slightly_off_is_found(bench, monkeypatch):
    class Off:
        def __init__(self, backend):
            self.backend = backend

        def forward(self, q, k, v, kv_cache, meta):
            return 1.02 * self.backend.forward(q, k, v, kv_cache, meta)

    right = engine.attention_of

    def chosen(bench, model, name):
        return Off(right(bench, model, "torch")) if name == "triton" else right(bench, model, name)

    monkeypatch.setattr(parity, "attention_of", chosen)
    parity.compare_logits(bench, "tiny", models.config_of(bench, models.QWEN))
    assert [figure["met"] for figure in bench.report.data["figures"]] == [False, False]


def test_answers_that_part_are_right_only_at_a_tie(bench):
    """The best token against the second best is some way apart; against itself, not at all."""
    config = models.config_of(bench, models.LLAMA)
    model = models.build_model(config, models.random_weights(bench, config, torch.float32), fused=False)
    logits = parity.logits_of(bench, model, "torch", parity.Steps([[5, 6, 7]], [[3]]))[-1]
    best, second = logits.topk(2).indices.tolist()
    gap = parity.tie(bench, model, [5, 6], [7, second], [7, best])
    assert gap == pytest.approx(float((logits[best] - logits[second]) / logits.abs().max()), abs=1e-5)
    assert gap > parity.TIE


def test_the_workload_is_nano_vllms():
    workload = nano_vllm_workload()
    assert len(workload) == 256
    assert sum(tokens for _, tokens in workload) == 133_966
    assert sum(len(prompt) for prompt, _ in workload) == 142_827


@pytest.fixture
def core(bench):
    config = models.config_of(bench, models.LLAMA)
    model = models.build_model(config, models.random_weights(bench, config, torch.float32), fused=False)
    limits = SchedulerConfig(
        max_num_seqs=2, max_num_batched_tokens=4, max_model_len=64, num_gpu_blocks=8, block_size=16
    )
    return engine.build_engine(bench, model, limits, "torch")


def test_the_work_of_the_steps_is_counted(bench, core):
    """Prompts of 3 and 2 tokens, budget 4: the second prompt comes in two pieces."""
    served = engine.serve(bench, core, [([1, 2, 3], 2), ([4, 5], 1)], "r")
    assert served.is_complete and served.num_tokens == 3 and served.preemptions == 0
    assert served.steps == [
        StepWork.mixed([StepWork.prefill(3), StepWork.prefill(1, 0, sampled=False)]),
        StepWork.mixed([StepWork.decode(1, 4), StepWork.prefill(1, 1)]),
    ]
    assert 0 < served.scheduler_s < served.seconds


def test_a_run_without_time_gives_nothing_and_leaves_the_engine_usable(bench, core):
    with pytest.raises(OutOfTimeError):
        engine.serve(bench, core, [([1, 2, 3], 2)], "r", limit_s=0.0)
    assert engine.serve(bench, core, [([1, 2, 3], 2)], "again").is_complete


def test_decode_targets_are_judged_by_the_worst_pair(bench):
    row = {"batch": 4, "context": 64, "speed-up": None, "one us": 1.0}
    bench.smoke = False
    decode_bandwidth.conclude(bench, [
        row | {"KV GB": 1.5, "of copy": 0.95},
        row | {"KV GB": 2.0, "of copy": 0.89},
        row | {"KV GB": 0.3, "of copy": 0.8},
        row | {"batch": 1, "context": 32_768, "KV GB": 0.1, "of copy": 0.5, "speed-up": 2.5},
    ])  # fmt: skip
    judged = {name: (f["value"], f["met"]) for name, f in figures(bench).items() if "target" in f}
    assert list(judged.values()) == [(0.89, False), (0.8, True), (2.5, True)]


def test_every_value_of_the_kernels_range_is_tried_on_a_gpu():
    tried = correctness.VARIANTS
    assert len(tried) >= 40
    assert {v.shape.head_dim for v in tried} == {64, 80, 96, 128, 256}
    assert {v.shape.group for v in tried} >= {1, 3, 4, 7, 8, 16, 32}
    assert {v.shape.block_size for v in tried} == {1, 3, 8, 16, 48, 64}
    for kind in ("decode", "split", "prefill"):
        dtypes = {v.dtype for v in tried if v.kind == kind}
        assert dtypes == {torch.float16, torch.bfloat16, torch.float32}, kind
        assert {v.shape.head_dim for v in tried if v.kind == kind} == {64, 80, 96, 128, 256}, kind
    assert any(v.window for v in tried) and {v.kind for v in tried} >= {"draft", "draft-split"}


def test_a_smoke_run_is_not_stored_among_the_results(capsys):
    with pytest.raises(SystemExit):
        gpu.main(["--smoke", "--json", str(Path(gpu.RESULTS) / "h200.json")])
    assert "a smoke run gives no results" in capsys.readouterr().err
