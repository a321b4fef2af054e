"""Step times of the engine for the simulator: what `LLM` writes, the calibration reads. Knows the tiny model."""

import json

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.errors import ConfigError
from mini_vllm.roofline import HardwareSpec, StepTimeModel, StepWork, calibrate, read_samples, write_samples
from mini_vllm.roofline.costs import ModelCosts
from mini_vllm.roofline.probe import device_name
from tests.engine.tiny_llm import tiny_loaded

LIMITS = {"max_model_len": 96, "num_gpu_blocks": 60, "block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 24}
PROMPTS = ["a", "bcd", "some longer text that takes two steps", "12345"]


@pytest.fixture(scope="module")
def loaded():
    return tiny_loaded()


def test_written_by_the_engine_read_by_the_calibration(loaded, tmp_path):
    llm, file = LLM(loaded, **LIMITS), tmp_path / "steps.jsonl"
    llm.generate(PROMPTS, SamplingParams(max_tokens=10, ignore_eos=True))
    written = llm.step_time_samples()
    write_samples(file, written)
    assert read_samples(file) == written and len(written) == len(llm.trace.steps)
    for line, record in zip(file.read_text().splitlines(), llm.trace.steps, strict=True):
        row = json.loads(line)
        assert list(row)[:3] == ["device", "dtype", "model"] and list(row)[-1] == "t_ms"
        assert {"n_prefill", "n_decode", "kv_tokens"} < row.keys()
        assert (row["device"], row["dtype"], row["model"]) == (device_name("cpu"), "float64", "tiny")
        assert row["n_prefill"] + row["n_decode"] == record["budget_used"]
        assert row["t_ms"] == pytest.approx(1000 * (record["t_end"] - record["t_start"]))
    # The last step: two whole prompts (15 tokens at once would be a mistake in any of the three counts).
    total = StepWork.mixed(sample.work for sample in written)
    assert (total.n_prefill, total.n_decode, total.n_sampled) == (sum(map(len, PROMPTS)), 36, 40)
    last = written[-1].work
    assert last.kv_tokens == sum(record["computed"][req_id][1] for req_id, _ in record["scheduled"])
    assert last.n_seqs == len(record["scheduled"])

    # A model that is told what this machine does fits them: samples of the engine are all that it needs.
    here = HardwareSpec(device_name("cpu"), {"float32": 1e11}, 1e10, 1e10, "typed in for this test", measured=True)
    rows = [json.loads(line) | {"dtype": "float32"} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = {"tiny": loaded.config}
    calibration = calibrate(read_samples(file), free=("step_us",), hardware={here.name: here}, models=models)
    predicted = StepTimeModel(ModelCosts(loaded.config, "float32"), here, calibration.constants).step_ms(last)
    assert min(s.t_ms for s in written) < predicted < max(s.t_ms for s in written)


def test_only_the_steps_that_the_trace_keeps(loaded):
    llm = LLM(loaded, **LIMITS, trace_steps=5)
    llm.generate(PROMPTS, SamplingParams(max_tokens=20, ignore_eos=True))
    assert [(s.work.n_prefill, s.work.n_decode) for s in llm.step_time_samples()] == [
        (0, len(record["scheduled"])) for record in llm.trace.steps
    ]


def test_without_a_trace_there_are_no_samples(loaded):
    llm = LLM(loaded, **LIMITS, async_scheduling=True)
    llm.generate("a", SamplingParams(max_tokens=3))
    with pytest.raises(ConfigError, match="no trace with async_scheduling"):
        llm.step_time_samples()
