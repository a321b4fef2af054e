"""Fast-forwarded runs against the same runs step by step: every timestamp, every sum, every block must be equal."""

import random

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.async_scheduler import AsyncScheduler
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.sim import simulator as simulator_module
from mini_vllm.sim.arrivals import AtOnce, Bursty, Poisson
from mini_vllm.sim.clock import FixedClock, ModelClock
from mini_vllm.sim.closed_workloads import ClosedLoop, Conversations
from mini_vllm.sim.fast_forward import can_fast_forward
from mini_vllm.sim.lengths import Fixed, Independent, Uniform
from mini_vllm.sim.scenario import Scenario
from mini_vllm.sim.simulator import Simulator
from mini_vllm.sim.workloads import Arrival, SharedPrefixes, Workload


class Roofish:
    """Step times with all the terms that a real model has, so that no two steps last equally long."""

    def step_ms(self, work):
        return 5 + 0.02 * work.n_prefill + 0.3 * work.n_decode + 1e-3 * work.kv_tokens + 1e-5 * work.attention_pairs


def state_of(scheduler):
    """All that decides what a scheduler does next."""
    manager, pool = scheduler.kv_cache_manager, scheduler.kv_cache_manager.block_pool
    requests = [
        (r.request_id, r.status, r.num_computed_tokens, r.token_ids, r.quiet_until, r.num_preemptions, r.block_hashes)
        for r in [*scheduler.running, *scheduler.waiting]
    ]
    blocks = (manager.req_to_blocks, manager.num_registered, pool.free_queue(), pool.ref_count, pool.hash_of)
    return requests, len(scheduler.running), scheduler.all_decode, blocks, pool.cached, pool.twins


def run(workload, config, clock, *, fast_forward, until_s=float("inf"), warmup_s=0.0):
    made = []

    def make(config):
        made.append(Scheduler(config))
        return made[0]

    simulator = Simulator(config, clock, scheduler_cls=make, fast_forward=fast_forward, watch=False)
    result = simulator.run(workload, until_s=until_s, warmup_s=warmup_s, token_times=True, drop_unfittable=True)
    made[0].check_integrity()
    return result, state_of(made[0])


def random_workload(rng):
    lengths = Independent(Uniform(1, rng.choice([4, 12, 40])), Uniform(1, rng.choice([3, 20, 60])))
    count, seed = rng.randint(1, 25), rng.randrange(10**6)
    arrivals = rng.choice([AtOnce(), Poisson(rng.choice([2, 20, 200])), Bursty(20, peak=8, burst_s=0.2)])
    kind = rng.randrange(4)
    if kind == 0:
        return Workload(arrivals, lengths, count, seed)
    if kind == 1:
        return SharedPrefixes(arrivals, lengths, count, num_prefixes=3, prefix=Uniform(1, 24), skew=1.0, seed=seed)
    if kind == 2:
        return ClosedLoop(rng.randint(1, 8), lengths, count, rng.choice([0.0, 0.1]), seed)
    short = Independent(Uniform(1, 9), Uniform(1, 9))
    return Conversations(arrivals, short, rng.randint(1, 6), Uniform(1, 4), 0.05, system_tokens=5, seed=seed)


def random_config(rng):
    seqs = rng.choice([1, 2, 3, 8, 40])
    return SchedulerConfig(
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, rng.choice([3, 8, 32, 512])),
        max_num_scheduled_tokens=rng.choice([None, None, 2]),  # 2: fewer tokens than running requests
        max_model_len=rng.choice([50, 200]),
        num_gpu_blocks=rng.choice([8, 20, 60, 400]),
        block_size=rng.choice([1, 2, 3, 4, 16]),
        long_prefill_token_threshold=rng.choice([0, 0, 5]),
        enable_prefix_caching=rng.random() < 0.5,
        policy=rng.choice(["fcfs", "fcfs", "priority"]),
        watermark=rng.choice([0.0, 0.1]),
        reserve_full_isl=rng.random() < 0.7,
    )


@pytest.mark.parametrize("block", range(8))
def test_random_runs_are_the_same_to_the_last_bit(block):
    skipped = 0
    for seed in range(50 * block, 50 * (block + 1)):
        rng = random.Random(seed)
        workload, config = random_workload(rng), random_config(rng)
        clock = FixedClock(0.03) if rng.random() < 0.2 else ModelClock(Roofish())
        until_s = rng.choice([float("inf"), rng.uniform(0, 2)])
        warmup_s = rng.choice([0.0, rng.uniform(0, 1)])
        slow, slow_state = run(workload, config, clock, fast_forward=False, until_s=until_s, warmup_s=warmup_s)
        fast, fast_state = run(workload, config, clock, fast_forward=True, until_s=until_s, warmup_s=warmup_s)
        assert fast.log == slow.log, f"seed {seed}"
        assert fast.token_times == slow.token_times, f"seed {seed}"
        assert fast == slow, f"seed {seed}"
        assert fast_state == slow_state, f"seed {seed}"
        skipped += sum(fast.log.column("output_tokens"))
    assert skipped > 1000  # the runs did something


def count_steps(monkeypatch, workload, config, clock=None):
    """Steps that were taken at once, and all steps."""
    skipped = []

    def counted(*args, original=simulator_module.fast_forward):
        skipped.append(original(*args))
        return skipped[-1]

    monkeypatch.setattr(simulator_module, "fast_forward", counted)
    result = Simulator(config, clock or ModelClock(Roofish())).run(workload)
    return sum(skipped), result.totals.steps


ROOMY = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, num_gpu_blocks=200, block_size=4, max_model_len=400)


def test_a_lone_request_needs_three_real_steps(monkeypatch):
    # Its prompt, then 98 decodes at once, then the one that ends it.
    assert count_steps(monkeypatch, [Arrival(0.0, 5, 100)], ROOMY) == (98, 100)


def test_an_arrival_is_let_in_at_the_step_where_it_would_have_been(monkeypatch):
    # Steps last about 5.3 ms: the second request comes during the 10th step and enters with the 11th.
    result = Simulator(ROOMY, ModelClock(Roofish())).run([Arrival(0.0, 5, 100), Arrival(0.05, 5, 3)], token_times=True)
    assert result.log[1].scheduled_s == result.token_times[0][9]
    assert result.token_times[0][8] < 0.05 <= result.token_times[0][9]


def test_a_blocked_queue_is_no_reason_to_go_step_by_step(monkeypatch):
    config = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=64, num_gpu_blocks=200, max_model_len=400)
    skipped, steps = count_steps(monkeypatch, [Arrival(0.0, 5, 100), Arrival(0.0, 5, 100)], config)
    # One step more than without a queue: it shows that the head is still blocked.
    assert (skipped, steps) == (98 + 97, 200)


@pytest.mark.parametrize("change", [{"sliding_window": 8}, {"num_lookahead_tokens": 1}])
def test_what_it_does_not_know_is_taken_step_by_step(change):
    config = SchedulerConfig(**change)
    assert not can_fast_forward(Scheduler(config))


def test_other_schedulers_are_taken_step_by_step():
    class Mine(Scheduler):
        def schedule(self):
            return super().schedule()

    class Counting(Scheduler):
        def update_from_output(self, plan, output):
            return super().update_from_output(plan, output)

    assert not can_fast_forward(Mine(ROOMY))
    assert not can_fast_forward(Counting(ROOMY))
    assert not can_fast_forward(AsyncScheduler(ROOMY))
    assert not can_fast_forward(object())
    assert can_fast_forward(Scheduler(ROOMY))


def test_a_request_that_takes_no_more_steps_than_one_is_never_skipped(monkeypatch):
    assert count_steps(monkeypatch, [Arrival(0.0, 5, 1), Arrival(1.0, 5, 2)], ROOMY) == (0, 3)


def test_fixed_lengths_that_end_together(monkeypatch):
    workload = Workload(AtOnce(), Independent(Fixed(4), Fixed(50)), 8)
    skipped, steps = count_steps(monkeypatch, workload, ROOMY)
    assert (skipped, steps) == (48, 50)


def both_ways(workload, config, clock=None):
    clock = clock or ModelClock(Roofish())
    slow = run(workload, config, clock, fast_forward=False)
    fast = run(workload, config, clock, fast_forward=True)
    assert fast == slow
    return fast[0]


def test_a_step_that_starts_with_an_arrival_lets_it_in():
    # Grid of 30 ms: the second request comes exactly when step 10 starts, and must not wait for step 11.
    result = both_ways([Arrival(0.0, 5, 100), Arrival(10 * 0.03, 5, 3)], ROOMY, FixedClock(0.03))
    assert result.log[1].scheduled_s == 10 * 0.03


def test_a_block_that_fills_up_may_let_in_who_waits_for_its_content():
    # B quotes A: (7 7 7 7) (0 0 0 0) and 8 tokens of its own, 4 blocks. When it comes A has 2 of the 4 blocks, the
    # first full: 3 are needed, 2 are free. As soon as A's second one is full, 2 are needed.
    config = SchedulerConfig(num_gpu_blocks=4, block_size=4, max_num_batched_tokens=64, enable_prefix_caching=True)
    a = Arrival(0.0, 4, 12, segments=((7, 4),))
    b = Arrival(0.009, 16, 1, segments=((7, 4), (0, 4), (9, 8)))
    result = both_ways([a, b], config)
    assert result.log[1].hit_tokens == 8
    assert result.log[1].scheduled_s < result.log[0].last_token_s


def test_most_steps_of_real_traffic_are_taken_at_once(monkeypatch):
    scenario = Scenario(num_requests=300)
    config, clock = scenario.config(), ModelClock(scenario.step_time())
    skipped, steps = count_steps(monkeypatch, scenario.requests(), config, clock)
    assert skipped / steps > 0.9
