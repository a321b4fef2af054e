"""Scenarios: words and numbers become the right model, limits and requests; what cannot work says why."""

import math
import pickle

import pytest

from mini_vllm.errors import ConfigError
from mini_vllm.roofline import ModelCosts, get_hardware, get_model, gpu_constants, kv_capacity_tokens
from mini_vllm.sim.arrivals import AtOnce, Bursty, Gamma, Poisson, Regular
from mini_vllm.sim.closed_workloads import ClosedLoop
from mini_vllm.sim.metrics import SLO
from mini_vllm.sim.scenario import ARRIVALS, Scenario
from mini_vllm.sim.trace_files import load_trace
from mini_vllm.sim.workloads import Workload, start

SMALL = Scenario(num_requests=40)


def test_the_kv_pool_is_what_the_card_has_left():
    config = SMALL.config()
    costs = ModelCosts(get_model("llama-2-7b"), "float16")
    assert config.num_gpu_blocks == kv_capacity_tokens(costs, get_hardware("A100-80GB-SXM"), 0.92) // 16
    assert config.max_model_len == 4096
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.block_size) == (256, 2048, 16)
    assert SMALL.changed(utilization=0.5).config().num_gpu_blocks < config.num_gpu_blocks
    assert SMALL.changed(num_gpu_blocks=77).config().num_gpu_blocks == 77


def test_the_step_times_are_those_of_model_and_card():
    model = SMALL.step_time()
    assert model.costs.config == get_model("llama-2-7b")
    assert model.hardware == get_hardware("A100-80GB-SXM")
    assert model.constants == gpu_constants()


@pytest.mark.parametrize(
    ("arrivals", "process"),
    [
        ("poisson", Poisson(3.0)),
        ("gamma", Gamma(3.0, 2.5)),
        ("bursty", Bursty(3.0, peak=2.5)),
        ("regular", Regular(3.0)),
        ("at-once", AtOnce()),
    ],
)
def test_arrivals_have_the_rate_and_the_unevenness(arrivals, process):
    workload = SMALL.changed(arrivals=arrivals, rate=3.0, cv=2.5, seed=5).requests()
    lengths = load_trace("azure-conversation").fitted(4096).lengths
    assert workload == Workload(process, lengths, 40, 5)


def test_recorded_arrivals_are_those_of_the_trace():
    trace = load_trace("azure-conversation").fitted(4096)
    own = SMALL.changed(arrivals="recorded", rate=None).requests()
    assert list(start(own).arrivals) == list(trace.rows[:40])
    assert SMALL.changed(arrivals="recorded", rate=8.0).requests().rate == pytest.approx(8.0)


def test_users_in_a_closed_loop():
    workload = SMALL.changed(arrivals="closed", users=7).requests()
    assert isinstance(workload, ClosedLoop) and workload.users == 7


def test_random_lengths_have_the_means_asked_for():
    rows = list(
        start(SMALL.changed(workload="random", prompt_mean=300, output_mean=60, num_requests=4000).requests()).arrivals
    )
    assert sum(row.prompt_tokens for row in rows) / 4000 == pytest.approx(300, rel=0.05)
    assert sum(row.output_tokens for row in rows) / 4000 == pytest.approx(60, rel=0.05)


def test_no_request_is_longer_than_the_model_allows():
    rows = list(start(SMALL.changed(max_model_len=500).requests()).arrivals)
    assert max(row.prompt_tokens + row.output_tokens for row in rows) == 500


def test_changes_find_their_place():
    scenario = SMALL.changed(rate=9.0, watermark=0.1).changed(max_num_seqs=4)
    assert scenario.rate == 9.0
    assert scenario.limits == {"watermark": 0.1, "max_num_seqs": 4}
    assert scenario.config().watermark == 0.1


def test_a_change_that_nobody_knows_is_refused_with_a_guess():
    with pytest.raises(
        ConfigError, match="has no 'max_num_seq', and neither has SchedulerConfig; did you mean 'max_num_seqs'"
    ):
        SMALL.changed(max_num_seq=3)
    with pytest.raises(ConfigError, match="limits name 'rate'"):
        Scenario(limits={"rate": 3})


def test_a_scenario_measures_itself():
    metrics = SMALL.changed(slo=SLO(ttft_ms=1000)).measure(rate=1.0)
    assert metrics.num_requests == 40 and metrics.slo_attainment == 1.0
    assert SMALL.measure() == SMALL.measure() or math.isnan(SMALL.measure().goodput)


def test_warm_up_and_horizon_reach_the_run():
    metrics = SMALL.measure(warmup_s=5.0, until_s=10.0)
    assert metrics.num_requests < 40 and metrics.duration_s == pytest.approx(5.0, abs=0.2)


def test_a_scenario_can_be_sent_to_another_process():
    assert pickle.loads(pickle.dumps(SMALL.changed(watermark=0.1))) == SMALL.changed(watermark=0.1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "llama-2-70b"}, r"the model takes 138\.\d GB in float16.*A100-80GB-SXM has 80.0 GB"),
        ({"model": "gpt-5"}, "model 'gpt-5' is not one of"),
        ({"hardware": "H300"}, "card 'H300' is not one of"),
        ({"dtype": "int3"}, "int3"),
        ({"hardware": "T4", "dtype": "bfloat16", "model": "qwen3-0.6b"}, "T4 has no bfloat16 rate"),
        ({"system": "tgi"}, "system 'tgi' is not one of"),
        ({"workload": "nowhere.csv"}, "neither a file nor one of the samples"),
        ({"arrivals": "weibull"}, f"is not one of {', '.join(ARRIVALS)}"),
        ({"arrivals": "recorded", "workload": "random"}, '"random" has no times of its own'),
        ({"arrivals": "recorded", "workload": "arxiv-summarization"}, "arxiv-summarization has lengths but no times"),
        ({"arrivals": "recorded", "num_requests": 3000}, "has 2000 requests, not 3000; ask for fewer"),
        ({"workload": None}, "the trace is None; give a file, or one of the samples"),
        ({"block_size": 0}, "block_size=0 must be a whole number of at least 1"),
        ({"block_size": "a"}, "block_size='a' must be a whole number of at least 1"),
        ({"limits": None}, "limits is None, a NoneType; give a Mapping"),
        ({"slo": SLO}, "slo is the class SLO; give an instance of SLO"),
        ({"slo": "ttft=5"}, "slo is 'ttft=5', a str; give a SLO"),
        ({"seed": -1}, "seed=-1 must be a whole number of at least 0"),
        ({"workload": "random", "prompt_cv": 1e200}, r"cv=1e\+200 must be a number from 0 to 100"),
        ({"rate": None}, "arrivals='poisson' need a rate"),
        ({"rate": 0}, "rate=0: nobody would ever come"),
        ({"rate": -2.0}, "rate=-2.0 must be a number above 0"),
        ({"rate": math.nan}, "rate=nan must be a number above 0"),
        ({"num_requests": 0}, "num_requests=0"),
        ({"num_gpu_blocks": 0}, "num_gpu_blocks=0 must be a whole number of at least 1"),
        ({"max_num_batched_tokens": 8}, "max_num_batched_tokens=8 is below max_num_seqs=256"),
        ({"utilization": 1.2}, "utilization=1.2"),
        ({"calibration": "missing.json"}, "missing.json"),
        ({"workload": "random", "prompt_mean": -5}, "mean=-5"),
    ],
)
def test_what_cannot_work_says_why(changes, reason):
    with pytest.raises((ConfigError, FileNotFoundError), match=reason):
        SMALL.measure(**changes)
