"""The time to first token taken apart, on runs that can be followed by eye, then on random ones."""

import random

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import ConfigError
from mini_vllm.sim.arrivals import Poisson
from mini_vllm.sim.clock import FixedClock
from mini_vllm.sim.lengths import Independent, Uniform
from mini_vllm.sim.systems import get_system
from mini_vllm.sim.ttft_parts import TTFTParts, mean_parts, ttft_parts
from mini_vllm.sim.workloads import Arrival, Workload

BASE = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=512, max_model_len=256, num_gpu_blocks=64, block_size=16)


def run(name, workload, **options):
    system = get_system(name)
    return system.simulator(system.configure(BASE), FixedClock(1.0)).run(workload, **options)


# Two slots. A needs steps 0 to 2, B step 0. C comes while they run, D when all is quiet; each is alone.
FOUR = [Arrival(0.0, 4, 3), Arrival(0.0, 4, 1), Arrival(0.5, 4, 1), Arrival(10.0, 4, 1)]


def test_static_waits_for_others_and_for_company():
    # A and B until 3. Then C alone: four idle steps, its own step from 7 to 8. D the same from 10 on.
    assert ttft_parts(run("static", FOUR)) == [(0, 0, 1), (0, 0, 1), (4, 2.5, 1), (4, 0, 1)]


def test_continuous_waits_for_the_running_step_only():
    assert ttft_parts(run("continuous", FOUR)) == [(0, 0, 1), (0, 0, 1), (0, 0.5, 1), (0, 0, 1)]


def test_continuous_waits_for_a_slot():
    rows = [Arrival(0.0, 4, 5), Arrival(0.0, 4, 3), Arrival(0.0, 4, 1)]
    assert ttft_parts(run("continuous", rows))[2] == TTFTParts(company_s=0, others_s=3, prefill_s=1)


@pytest.mark.parametrize("name", ["static", "padded", "bucketed", "continuous", "vllm"])
def test_the_parts_add_up_and_none_is_negative(name):
    for seed in range(5):
        workload = Workload(Poisson(random.Random(seed).choice([0.1, 0.5, 2])), _lengths(), 40, seed)
        result = run(name, workload)
        parts = ttft_parts(result)
        for row, part in zip(result.log, parts, strict=True):
            assert min(part) >= 0
            assert sum(part) == pytest.approx(row.first_token_s - row.arrived_s)
        if name in ("continuous", "vllm"):
            assert all(part.company_s == pytest.approx(0, abs=1.0) for part in parts)  # to the next tick of the clock
        assert mean_parts(parts).others_s == pytest.approx(sum(p.others_s for p in parts) / len(parts))


def test_a_run_that_was_cut_is_refused():
    with pytest.raises(ConfigError, match=r"request 2 of the run is unfinished.*no until_s"):
        ttft_parts(run("static", FOUR, until_s=5.0))


def _lengths():
    return Independent(Uniform(1, 30), Uniform(1, 30))
