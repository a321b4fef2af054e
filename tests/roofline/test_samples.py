"""Step-time samples: the file format, its refusals, and what is read from a trace."""

import json
from types import SimpleNamespace

import pytest

from mini_vllm.errors import ConfigError, TraceFormatError
from mini_vllm.roofline import StepSample, StepWork, read_samples, samples_from_trace, write_samples

ROW = {"device": "T4", "dtype": "float16", "model": "qwen3-0.6b", "n_prefill": 0, "n_decode": 2, "kv_tokens": 30}
ROW["t_ms"] = 5.5


def work_of(**counts) -> StepWork:
    return StepSample.from_dict({**ROW, **counts}).work


def test_decodes():
    assert work_of() == StepWork(0, 2, 30, 30, 2, 2)


def test_a_lone_chunk_has_its_earlier_tokens_behind_it():
    assert work_of(n_prefill=4, n_decode=0, kv_tokens=10) == StepWork.prefill(4, computed=6)


def test_in_a_mixed_step_the_prompt_is_taken_for_new():
    expected = StepWork.mixed([StepWork.prefill(4), StepWork(0, 2, 26, 26, 2, 2)])
    assert work_of(n_prefill=4, n_decode=2, kv_tokens=30) == expected


def test_what_is_given_is_not_guessed():
    work = work_of(n_prefill=4, n_decode=2, kv_tokens=30, attention_pairs=77, n_seqs=5, n_sampled=3)
    assert work == StepWork(4, 2, 30, 77, 5, 3)


def test_there_and_back(tmp_path):
    samples = [
        StepSample("T4", "float16", "m", StepWork.decode(2, 15), 5.5),
        StepSample("T4", "float16", "m", StepWork.mixed([StepWork.prefill(9, 3, False), StepWork.decode(1, 2)]), 7.25),
    ]
    write_samples(tmp_path / "steps.jsonl", samples)
    assert read_samples(tmp_path / "steps.jsonl") == samples


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**ROW, "n_decode": -1}, "n_decode=-1 must be a whole number"),
        ({**ROW, "kv_tokens": 1}, "kv_tokens=1 must be a whole number of at least 2"),
        ({**ROW, "kv_tokens": float("nan")}, "kv_tokens=nan"),
        ({**ROW, "t_ms": 0}, "t_ms=0 must be a number above 0"),
        ({**ROW, "t_ms": float("nan")}, "t_ms=nan"),
        ({**ROW, "t_ms": "5.5"}, "t_ms='5.5'"),
        ({**ROW, "temperature": 40}, r"unknown fields \['temperature'\]"),
        ({key: value for key, value in ROW.items() if key != "kv_tokens"}, r"missing fields \['kv_tokens'\]"),
        ([1, 2], "missing fields"),
        (7, "not iterable"),
    ],
)
def test_a_bad_row_is_named_by_line_and_reason(tmp_path, row, reason):
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps(ROW) + "\n\n" + json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(TraceFormatError, match=rf"steps.jsonl:3: .*{reason}"):
        read_samples(path)


def test_a_broken_line_and_an_empty_file(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text('{"device": ', encoding="utf-8")
    with pytest.raises(TraceFormatError, match=r"steps.jsonl:1: "):
        read_samples(path)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(TraceFormatError, match="holds no sample"):
        read_samples(path)
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(TraceFormatError, match=r"steps.jsonl:1: "):
        read_samples(path)


def test_the_work_of_a_sample_is_an_instance():
    with pytest.raises(ConfigError, match="work is the class StepWork; give an instance"):
        StepSample("T4", "float16", "m", StepWork, 7.25)


def trace_of(*steps, clock="seconds"):
    requests = {"A": {"prompt_len": 10}, "B": {"prompt_len": 4}, "C": {"prompt_len": 6}}
    return SimpleNamespace(header={"clock": clock, "requests": requests}, steps=list(steps))


def test_the_steps_of_a_trace():
    mixed = {
        # A decodes its 13th token, B ends its prompt, C is halfway; D of an earlier step is not scheduled.
        "scheduled": [["A", 1], ["B", 3], ["C", 2]],
        "computed": {"A": [12, 13], "B": [1, 4], "C": [0, 2]},
        "sampled": {"A": [7], "B": [9]},
        "t_start": 1.0,
        "t_end": 1.25,
    }
    idle = {"scheduled": [], "computed": {}, "sampled": {}, "t_start": 1.25, "t_end": 1.5}
    failed = {"scheduled": [["A", 1]], "computed": {"A": [13, 14]}}
    (sample,) = samples_from_trace(trace_of(mixed, idle, failed), "cpu", "float32", "tiny")
    assert sample.t_ms == 250
    # pairs: A looks at 13; B's tokens 2, 3, 4 at 2 + 3 + 4; C's at 1 + 2.
    assert sample.work == StepWork(5, 1, kv_tokens=13 + 4 + 2, attention_pairs=13 + 9 + 3, n_seqs=3, n_sampled=2)


def test_the_last_token_of_a_prompt_is_no_decode():
    step = {"scheduled": [["B", 1]], "computed": {"B": [3, 4]}, "sampled": {"B": [1]}, "t_start": 0.0, "t_end": 0.5}
    (sample,) = samples_from_trace(trace_of(step), "cpu", "float32", "tiny")
    assert (sample.work.n_prefill, sample.work.n_decode) == (1, 0)


def test_a_trace_on_the_step_clock_is_refused():
    with pytest.raises(ConfigError, match="clock is 'steps'"):
        samples_from_trace(trace_of(clock="steps"), "cpu", "float32", "tiny")


def test_a_simulated_run_is_on_the_step_clock():
    from mini_vllm.sim.driver import SimRequest, simulate

    with pytest.raises(ConfigError, match="clock is 'steps'"):
        samples_from_trace(simulate([SimRequest("A", 5, 3)]), "cpu", "float32", "tiny")


def test_the_trace_of_a_real_loop_counts_every_token():
    """The step loop that engine and simulator share, with a clock of seconds: nothing lost, nothing twice."""
    import time

    from mini_vllm.config import SchedulerConfig
    from mini_vllm.core.scheduler import Scheduler
    from mini_vllm.core.step_loop import StepLoop
    from mini_vllm.request import Request
    from mini_vllm.sampling_params import SamplingParams
    from mini_vllm.sim.fake_runner import FakeModelRunner

    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, num_gpu_blocks=64)
    loop = StepLoop(Scheduler(config), config, FakeModelRunner().execute, kind="engine", clock=time.perf_counter)
    lengths = {"A": (5, 4), "B": (40, 3), "C": (9, 7)}
    for req_id, (prompt, output) in lengths.items():
        loop.add_request(Request(req_id, list(range(prompt)), SamplingParams(max_tokens=output, ignore_eos=True), 0.0))
    while loop.has_unfinished_requests():
        loop.step()
    samples = samples_from_trace(loop.trace, "cpu", "float32", "tiny")
    total = StepWork.mixed(sample.work for sample in samples)
    assert total.n_prefill == sum(prompt for prompt, _ in lengths.values())
    assert total.n_decode == sum(output - 1 for _, output in lengths.values())
    assert total.n_sampled == sum(output for _, output in lengths.values())
    assert total.attention_pairs == sum((p + o - 1) * (p + o) // 2 for p, o in lengths.values())
