"""make gpu where something is short: time, memory, a kernel for a shape. And the sizes that only a GPU gets."""

from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec

import pytest

if find_spec("triton") is None:
    pytest.skip("Triton has no build for this system", allow_module_level=True)

import torch

from benchmarks import gpu
from benchmarks.gpu_parts import correctness, decode_bandwidth, models, prefill, problems, samples, sweep, sweep_compile
from benchmarks.gpu_parts.bench import smoke_bench
from benchmarks.gpu_parts.parts import PARTS, SWEEP, Part
from benchmarks.gpu_parts.report import Report, read_json
from benchmarks.gpu_parts.timing import Clock
from mini_vllm.kernels.tiles import Routed
from mini_vllm.roofline import ModelCosts, get_model

MODEL_PARTS = ("parity", "offline", "transformers", "swap", "samples")


@pytest.fixture
def bench():
    return smoke_bench(Report("test", quiet=True))


def reasons(bench) -> list[str]:
    return [entry["reason"] for entry in bench.report.data["skipped"]]


@pytest.mark.parametrize("name", [name for name in [*PARTS, *SWEEP] if name != "machine"])
def test_a_part_without_time_says_what_it_left_out(bench, name):
    bench.clock = Clock(0.0)
    (PARTS | SWEEP)[name].load()(bench)
    assert any(reason.startswith("out of time") for reason in reasons(bench))
    assert not any(rows for table, rows in bench.report.data["tables"].items())


@pytest.mark.parametrize("name", MODEL_PARTS)
def test_a_model_that_does_not_fit_is_named(bench, monkeypatch, name):
    module = import_module(f"benchmarks.gpu_parts.{name}")
    monkeypatch.setattr(module, "does_not_fit", lambda *args, **more: "needs 16.1 GB, 14.6 GB are free")
    module.run(bench)
    assert "needs 16.1 GB, 14.6 GB are free" in reasons(bench)
    assert not bench.report.data["tables"]


def test_whether_a_model_fits_is_reckoned(bench, monkeypatch):
    """Llama-3-8B has 16.06 GB of weights in 16 bit."""
    bench.smoke = False
    config = models.config_of(bench, models.LLAMA)
    monkeypatch.setattr(type(bench), "free_bytes", lambda self: int(15e9))
    assert "needs 17.6 GB" in models.does_not_fit(bench, config, torch.float16)
    monkeypatch.setattr(type(bench), "free_bytes", lambda self: int(18e9))
    assert models.does_not_fit(bench, config, torch.float16) is None
    assert models.config_of(bench, models.LLAMA, 4).num_hidden_layers == 4
    assert models.config_of(bench, models.QWEN).qk_norm, "Qwen3 norms its queries and keys"


def test_a_shape_without_a_kernel_is_routed_and_said(bench, monkeypatch):
    """As on a T4: neither decode nor prefill here, and no bfloat16."""
    for name in ("decode_tile", "prefill_tile"):
        monkeypatch.setattr(problems.tiles, name, lambda *args: Routed("no clean tile"))
    monkeypatch.setattr(type(bench), "size", lambda self, full, quick, smoke: smoke)
    monkeypatch.setattr(type(bench), "free_bytes", lambda self: int(1e9))
    bench.smoke, bench.card = False, replace(bench.card, capability=(7, 5))
    for module in (correctness, decode_bandwidth, prefill, sweep_compile, sweep):
        module.run(bench)
    assert reasons(bench).count("routed to torch: no clean tile") == 3 + 2 + 1 + 2 + 1 + 3
    assert sum("has no bfloat16" in reason for reason in reasons(bench)) == 2
    assert not bench.report.data["tables"]


def test_too_little_memory_for_far_blocks_is_said(bench, monkeypatch):
    monkeypatch.setattr(type(bench), "free_bytes", lambda self: 100)
    correctness.check_far_block(bench)
    assert "are free" in reasons(bench)[0]


def test_a_step_that_wants_too_much_memory_is_left_out(bench, monkeypatch):
    """The others go on, and the engine has forgotten the step's requests."""
    right, tried = samples.one, []

    def hungry(bench, runner, pieces, name):
        tried.append(pieces)
        if len(tried) == 2:
            runner.execute(samples.plan_of(pieces, samples.BLOCK, name))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB.\nlong story")
        return right(bench, runner, pieces, name)

    monkeypatch.setattr(samples, "one", hungry)
    samples.run(bench)
    assert len(tried) == 6 and len(bench.report.data["samples"]) == 5
    assert reasons(bench)[0] == "CUDA out of memory. Tried to allocate 4.00 GiB."
    assert "5 samples are fewer than its six constants" in reasons(bench)[1]


def test_kv_that_comes_back_changed_is_found(bench, monkeypatch):
    from benchmarks.gpu_parts import swap

    right = swap.KVPool.swap
    monkeypatch.setattr(swap.KVPool, "swap", lambda pool, out, back: right(pool, out, back[1:]))
    swap.copies(bench, models.config_of(bench, models.QWEN), 40, shuffled=True)
    assert [figure["met"] for figure in bench.report.data["figures"]] == [False]


def test_a_part_that_raises_is_a_failed_part(monkeypatch, tmp_path, capsys):
    def load(self):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Part, "load", load)
    assert gpu.main(["--smoke", "--only", "swap", "--json", str(tmp_path / "s.json")]) == 1
    part = read_json(tmp_path / "s.json")["parts"]["swap"]
    assert part["status"] == "failed" and "illegal memory access" in part["error"]
    assert "wrong: machine, swap" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_worker_without_a_gpu_says_so_by_its_exit_code(tmp_path, capsys):
    arguments = ["--worker", "swap", "--piece", "1/4", "--seconds", "9", "--json", str(tmp_path / "1.json")]
    assert gpu.main(arguments) == 3
    assert "no CUDA GPU" in capsys.readouterr().err


def test_sizes_of_the_decode_grid(bench):
    """On an H200 a quarter of the memory holds 8.4 million tokens of one layer of Llama-3-8B."""
    bench.smoke = False
    kv_bytes = problems.LLAMA_8B.kv_bytes_per_token(torch.bfloat16)
    assert kv_bytes == 4096
    tokens = int(139.8 * 2**30 / 4) // kv_bytes
    found = decode_bandwidth.pairs(bench, tokens)
    assert {batch for batch, _ in found} == {1, 2, 4, 8, 16, 32, 64, 128, 256}
    assert {context for _, context in found} == {2**i for i in range(10, 18)}
    assert len(found) == 72 - 3, "(256, 64k), (256, 128k) and (128, 128k) do not fit"
    assert sum(batch * context * kv_bytes >= 1e9 for batch, context in found) >= 8
    assert (1, 32_768) in found and set(decode_bandwidth.pairs(bench, tokens, step=2)) < set(found)


@pytest.mark.parametrize("is_quick", [False, True])
def test_sampled_steps_are_within_the_engines_limits(bench, is_quick):
    bench.smoke, bench.quick = False, is_quick
    steps = samples.steps_of(bench)
    most = max(map(len, steps))
    assert len(steps) >= 20 and most <= 264
    assert all(sum(new for new, _ in pieces) <= samples.STEP_TOKENS + most for pieces in steps)
    longest = max(new + old + samples.REPEATS for pieces in steps for new, old in pieces)
    assert longest <= samples.LONGEST <= get_model(models.QWEN).max_position_embeddings
    kinds = {(any(new > 1 for new, _ in p), any(new == 1 for new, _ in p)) for p in steps}
    assert kinds == {(True, False), (False, True), (True, True)}, "prompts, decodes, and both"


def test_the_whole_kv_of_the_workload_fits_an_h200():
    """Else preemption would be measured, too: 276,793 tokens, in Llama-3-8B 131,072 bytes each."""
    from benchmarks.gpu_parts.offline import nano_vllm_workload

    tokens = sum(len(prompt) + new for prompt, new in nano_vllm_workload())
    costs = ModelCosts(get_model(models.LLAMA))
    assert tokens == 276_793 and costs.kv_bytes_per_token == 131_072
    assert costs.stored_bytes + tokens * costs.kv_bytes_per_token < 0.8 * 139.8 * 2**30
