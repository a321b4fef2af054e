"""The three classic experiments: the numbers that two other simulators and the real vLLM 0.33.0 scheduler gave."""

import statistics
from dataclasses import fields

import pytest

from mini_vllm.roofline import ModelCosts, StepWork, get_hardware, get_model, roofline_time
from mini_vllm.sim.arrivals import Poisson
from mini_vllm.sim.classic import (
    BUDGETS,
    CHUNK_CAP,
    KV_OUT_OF_THE_WAY,
    NO_CAP,
    POOLS,
    STEP_S,
    classic_run,
    classic_workload,
)
from mini_vllm.sim.clock import ModelClock
from mini_vllm.sim.lengths import Recorded, Uniform, exact_sample
from mini_vllm.sim.metrics import summarize
from mini_vllm.sim.scenario import Scenario
from mini_vllm.sim.workloads import Workload, start


def preemptions(**knobs):
    return classic_run(**knobs).totals.preemptions


def test_the_workload_is_the_one_that_was_measured():
    rows = list(start(classic_workload()).arrivals)
    assert sum(row.prompt_tokens + row.output_tokens for row in rows) == 125_100
    assert rows[-1].arrived_s == pytest.approx(20.83, abs=0.005)


@pytest.mark.parametrize(
    ("cap", "evictions", "wasted"), [(CHUNK_CAP, 117, 84_539), (NO_CAP, 28, 28_232)], ids=["cap 512", "no cap"]
)
def test_the_default_run(cap, evictions, wasted):
    result = classic_run(chunk_cap=cap)
    assert result.totals.preemptions == evictions
    assert sum(result.log.column("discarded_tokens")) == wasted == result.totals.recomputed_tokens


@pytest.mark.parametrize(
    ("cap", "expected"),
    [(CHUNK_CAP, [23, 25, 62, 99, 106, 106]), (NO_CAP, [23, 25, 25, 24, 25, 25])],
    ids=["cap 512", "no cap"],
)
def test_experiment_1_the_token_budget(cap, expected):
    assert [preemptions(num_gpu_blocks=400, budget=b, chunk_cap=cap) for b in BUDGETS] == expected


@pytest.mark.parametrize(
    ("cap", "expected"),
    [(CHUNK_CAP, [27, 65, 117, 99, 93, 71, 26]), (NO_CAP, [25, 29, 28, 24, 24, 18, 7])],
    ids=["cap 512: a hump", "no cap: no hump"],
)
def test_experiment_2_the_size_of_the_pool(cap, expected):
    assert [preemptions(num_gpu_blocks=kv, chunk_cap=cap) for kv in POOLS] == expected


@pytest.mark.parametrize(
    ("cap", "steps", "evictions", "tokens"), [(CHUNK_CAP, 5929, 106, 195_854), (NO_CAP, 5901, 25, 147_325)]
)
def test_the_run_that_the_real_scheduler_made_too(cap, steps, evictions, tokens):
    result = classic_run(num_gpu_blocks=400, budget=8192, chunk_cap=cap)
    assert round(result.end_s / STEP_S) == steps  # steps of the clock, those at rest included
    assert (result.totals.preemptions, result.totals.computed_tokens) == (evictions, tokens)


def test_the_other_rows():
    result = classic_run()
    metrics = summarize(result)
    assert round(result.end_s / STEP_S) == 13_365
    assert metrics.duration_s == pytest.approx(401, abs=0.5)
    assert metrics.output_tokens_per_s == pytest.approx(72, abs=0.5)
    assert metrics.ttft_ms.p50 == pytest.approx(183e3, abs=500)
    assert sum(row.last_token_s <= 30 for row in result.log) == 8
    assert [len(classic_run(num_gpu_blocks=kv).refused) for kv in (50, 100)] == [71, 31]


class Roofline:
    """Llama-3.1-8B on an A100: 55 % of its FLOP/s, 80 % of its bandwidth, and 2 ms a step."""

    costs = ModelCosts(get_model("llama-3.1-8b"), "bfloat16")

    def step_ms(self, load):
        work = StepWork(*(getattr(load, field.name) for field in fields(StepWork)))
        card = get_hardware("A100-80GB-SXM")
        return roofline_time(self.costs.step(work), card, "bfloat16", flop_eff=0.55, mem_eff=0.8).ms + 2


def test_the_rows_on_a_roofline_clock():
    """Measured with a roofline of somebody else's, so equal to 1 %."""
    clock = ModelClock(Roofline())
    result = classic_run(clock=clock)
    metrics = summarize(result)
    assert (metrics.duration_s, metrics.output_tokens_per_s) == pytest.approx((166, 173), rel=0.01)
    assert 1e3 * result.totals.busy_s / result.totals.steps == pytest.approx(12.5, rel=0.015)
    rates = [summarize(classic_run(num_gpu_blocks=400, budget=b, clock=clock)).output_tokens_per_s for b in (256, 8192)]
    assert rates == pytest.approx([376, 349], rel=0.015)


def test_with_kv_bound_the_budget_changes_next_to_nothing():
    rates = [summarize(classic_run(num_gpu_blocks=400, budget=b)).output_tokens_per_s for b in BUDGETS]
    assert [round(rate) for rate in (rates[0], rates[-1])] == [159, 162]


def test_with_kv_out_of_the_way_nobody_is_evicted_and_the_budget_decides():
    assert round(summarize(classic_run(num_gpu_blocks=KV_OUT_OF_THE_WAY)).kv_peak * KV_OUT_OF_THE_WAY) == 3803
    for cap in (CHUNK_CAP, NO_CAP):
        runs = [summarize(classic_run(num_gpu_blocks=KV_OUT_OF_THE_WAY, budget=b, chunk_cap=cap)) for b in BUDGETS]
        assert all(run.preemptions == 0 for run in runs)
        ttft = [run.ttft_ms.p50 for run in runs]
        assert ttft == sorted(ttft, reverse=True) and ttft[0] > 2 * ttft[-1]
    # The cap hides what a larger budget would do: a prompt is never computed in fewer chunks.
    capped = summarize(classic_run(num_gpu_blocks=KV_OUT_OF_THE_WAY, budget=8192)).ttft_ms.p50
    whole = summarize(classic_run(num_gpu_blocks=KV_OUT_OF_THE_WAY, budget=8192, chunk_cap=NO_CAP)).ttft_ms.p50
    assert capped > 1.5 * whole


def test_on_a_real_clock_a_larger_budget_buys_ttft_with_itl():
    """A step of 8,192 tokens is longer than one of 256: on a clock of 30 ms nobody sees that."""
    clock = ModelClock(Scenario(model="llama-3.1-8b", dtype="bfloat16").step_time())
    small, large = (
        summarize(classic_run(num_gpu_blocks=KV_OUT_OF_THE_WAY, budget=b, chunk_cap=NO_CAP, clock=clock))
        for b in (256, 8192)
    )
    assert large.ttft_ms.p50 < 0.7 * small.ttft_ms.p50
    assert large.itl_ms.p99 > 3 * small.itl_ms.p99


def test_experiment_3_as_it_is_usually_done_confounds_load_with_spread():
    worst, means = [], []
    for longest in (200, 5000):
        workload = classic_workload(Uniform(50, longest))
        means.append(statistics.fmean(row.prompt_tokens for row in start(workload).arrivals))
        worst.append(summarize(classic_run(workload, num_gpu_blocks=400)).e2e_ms.p99)
    assert [round(ms / 1e3) for ms in worst] == [29, 449]
    assert means[1] > 15 * means[0]  # the load grew, not only the spread


def test_experiment_3_with_the_mean_held_fixed():
    """The same load, spread more: on a server that keeps up, the wait for a first token grows with the spread."""
    clock = ModelClock(Scenario(model="llama-3.1-8b", dtype="bfloat16").step_time())
    waits = []
    for cv in (0, 1, 2):
        ttft = []
        for seed in range(4):
            prompts = exact_sample(1025, cv, count=300, seed=seed)
            assert statistics.fmean(prompts) == 1025
            workload = Workload(Poisson(6.0), Recorded([(n, 275) for n in prompts]), num_requests=300, seed=seed)
            result = classic_run(workload, num_gpu_blocks=20_000, chunk_cap=NO_CAP, clock=clock)
            ttft.append(summarize(result).ttft_ms.p99)
        waits.append(statistics.fmean(ttft))
    assert waits[0] < waits[1] < waits[2] and waits[2] > 2 * waits[0]
