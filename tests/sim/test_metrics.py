"""Metrics against their definitions: from hand-made timestamps, and from the token times of random runs."""

import json
import math
import random
import statistics
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import ConfigError
from mini_vllm.sim.arrivals import Poisson
from mini_vllm.sim.clock import FixedClock, ModelClock
from mini_vllm.sim.lengths import Independent, Uniform
from mini_vllm.sim.metrics import (
    SLO,
    Distribution,
    Metrics,
    confidence_interval,
    e2e_ms,
    normalized_ms,
    percentile,
    queue_ms,
    rank,
    summarize,
    tpot_ms,
    ttft_ms,
)
from mini_vllm.sim.request_log import RequestRow
from mini_vllm.sim.simulator import Simulator
from mini_vllm.sim.workloads import Arrival, Workload

NAN, INF = math.nan, math.inf
ROOMY = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=256, num_gpu_blocks=64, block_size=4)


def row(arrived=0.0, scheduled=1.0, first=2.0, last=5.0, finished=True, prompt=10, output=4, gap=1.0):
    return RequestRow(arrived, scheduled, first, last, finished, prompt, output, 0, 0, 0, 0, gap)


# --- one request ---


def test_each_latency_is_a_difference_of_timestamps():
    r = row(arrived=0.5)
    assert queue_ms(r) == 500
    assert ttft_ms(r) == 1500
    assert tpot_ms(r) == 1000  # 3 s for the 3 tokens after the first
    assert e2e_ms(r) == 4500
    assert normalized_ms(r) == 4500 / 4


def test_a_single_token_has_no_time_per_output_token():
    assert math.isnan(tpot_ms(row(output=1, last=2.0)))


def test_what_has_not_come_is_infinitely_late():
    waiting = row(scheduled=NAN, first=NAN, last=NAN, finished=False, output=0)
    assert [f(waiting) for f in (queue_ms, ttft_ms, tpot_ms, e2e_ms, normalized_ms)] == [INF] * 5
    halfway = row(finished=False, output=2)
    assert (queue_ms(halfway), ttft_ms(halfway)) == (1000, 2000)
    assert [f(halfway) for f in (tpot_ms, e2e_ms, normalized_ms)] == [INF] * 3


@pytest.mark.parametrize(
    ("bounds", "met"),
    [
        ({"ttft_ms": 2000}, True),
        ({"ttft_ms": 1999}, False),
        ({"tpot_ms": 1000}, True),
        ({"tpot_ms": 999}, False),
        ({"e2e_ms": 5000}, True),
        ({"e2e_ms": 4999}, False),
        ({"gap_ms": 1000}, True),
        ({"gap_ms": 999}, False),
        ({"ttft_ms": 2000, "gap_ms": 999}, False),
    ],
)
def test_an_slo_is_met_if_every_bound_is(bounds, met):
    assert SLO(**bounds).is_met(row()) is met


def test_who_is_not_served_does_not_meet_an_slo():
    assert not SLO(ttft_ms=1e9).is_met(row(finished=False))


def test_a_single_token_meets_any_bound_on_the_time_between_tokens():
    assert SLO(tpot_ms=1).is_met(row(output=1, last=2.0, gap=0.0))


@pytest.mark.parametrize("bounds", [{}, {"ttft_ms": 0}, {"ttft_ms": -5}, {"tpot_ms": NAN}, {"gap_ms": "5"}])
def test_an_slo_without_sense_is_refused(bounds):
    with pytest.raises(ConfigError):
        SLO(**bounds)


# --- percentiles ---


def test_a_percentile_is_a_sample_and_not_the_largest():
    values = [float(v) for v in range(1, 101)]
    assert [percentile(values, p) for p in (1, 50, 90, 99, 100)] == [1, 50, 90, 99, 100]
    assert percentile([1, 2, 3, 4], 50) == 2
    assert percentile([7.0], 99) == 7.0


@pytest.mark.parametrize(
    ("count", "percent", "place"), [(750, 4.4, 33), (3000, 4.9, 147), (1000, 99.9, 999), (3, 34, 2)]
)
def test_the_place_of_a_percentile_is_not_put_off_by_rounding(count, percent, place):
    # As floats, 750 · 4.4 / 100 lies a hair above 33.
    assert rank(count, percent) == place == math.ceil(Fraction(str(percent)) * count / 100)


def test_at_least_p_per_cent_lie_at_or_below_a_percentile_and_fewer_below_it():
    rng = random.Random(0)
    for _ in range(300):
        values = sorted(
            rng.choice([1, 2, 3, 5, 8]) + rng.random() * rng.randint(0, 1) for _ in range(rng.randint(1, 50))
        )
        p = rng.choice([0.1, 1, 50, 90, 99, 99.9, 100])
        mark = percentile(values, p)
        assert sum(v <= mark for v in values) >= p / 100 * len(values) - 1e-9
        assert sum(v < mark for v in values) < p / 100 * len(values) + 1e-9


@pytest.mark.parametrize("p", [0, -1, 101, NAN])
def test_there_is_no_such_percentile(p):
    with pytest.raises(ConfigError):
        percentile([1.0], p)


def test_counted_samples_are_as_good_as_listed_ones():
    rng = random.Random(1)
    values = [rng.choice([10, 20, 21, 500]) for _ in range(777)]
    listed, counted = Distribution.of(v * 0.5 for v in values), Distribution.of_counts(Counter(values), 0.5)
    assert counted.mean == pytest.approx(listed.mean)
    for part in ("count", "p50", "p90", "p95", "p99", "max"):
        assert getattr(counted, part) == getattr(listed, part)


def test_of_nothing_nothing_is_known():
    for empty in (Distribution.of([]), Distribution.of_counts(Counter(), 1.0)):
        assert empty.count == 0 and math.isnan(empty.p50) and math.isnan(empty.mean)


# --- a run ---


def test_streamed_metrics_are_those_of_the_definitions():
    """ITL is counted while the run goes on, in whole microseconds; here all token times are kept, too."""
    for seed in range(10):
        rng = random.Random(seed)
        config = SchedulerConfig(
            max_num_seqs=6,
            max_num_batched_tokens=20,
            max_model_len=256,
            num_gpu_blocks=rng.choice([14, 64]),
            block_size=4,
        )
        workload = Workload(Poisson(20), Independent(Uniform(1, 25), Uniform(1, 25)), 40, seed)
        warmup_s = rng.choice([0.0, 0.5])
        result = Simulator(config, ModelClock(Linear())).run(workload, token_times=True, warmup_s=warmup_s)
        metrics = summarize(result)
        rows = [(r, result.token_times[i]) for i, r in enumerate(result.log) if r.arrived_s >= warmup_s]
        assert len(rows) == metrics.num_requests < 40 or warmup_s == 0.0
        gaps = sorted(1e3 * (b - a) for _, times in rows for a, b in pairwise(times))
        assert metrics.itl_ms.count == len(gaps)
        for p, value in ((50, metrics.itl_ms.p50), (90, metrics.itl_ms.p90), (99, metrics.itl_ms.p99)):
            assert value == pytest.approx(percentile(gaps, p), abs=1e-3)  # a microsecond
        assert metrics.itl_ms.mean == pytest.approx(statistics.fmean(gaps), abs=1e-3)
        ttft = sorted(1e3 * (times[0] - r.arrived_s) for r, times in rows)
        assert (metrics.ttft_ms.p50, metrics.ttft_ms.p99) == (percentile(ttft, 50), percentile(ttft, 99))
        for r, times in rows:
            assert len(times) == r.output_tokens
            assert (r.first_token_s, r.last_token_s) == (times[0], times[-1])
            assert r.longest_gap_s == max((b - a for a, b in pairwise(times)), default=0.0)
        assert metrics.requests_per_s == pytest.approx(len(rows) / (result.end_s - warmup_s))
        if warmup_s == 0.0:
            tokens = sum(len(times) for _, times in rows)
            assert metrics.output_tokens_per_s == pytest.approx(tokens / result.end_s)
            computed = sum(r.prompt_tokens + r.output_tokens - 1 + r.recomputed_tokens for r, _ in rows)
            assert metrics.total_tokens_per_s == pytest.approx(computed / result.end_s)
            assert metrics.recomputed_tokens == sum(r.recomputed_tokens for r, _ in rows)
            useful = computed - metrics.recomputed_tokens
            assert metrics.useful_tokens_per_s == pytest.approx(useful / result.end_s)


class Linear:
    def step_ms(self, work):
        return 3 + 0.1 * work.new_tokens + 0.001 * work.kv_tokens


def test_everything_thrown_away_is_computed_again():
    config = SchedulerConfig(max_num_seqs=6, max_num_batched_tokens=20, num_gpu_blocks=14, block_size=4)
    workload = Workload(Poisson(50), Independent(Uniform(1, 25), Uniform(1, 25)), 60, seed=2)
    log = Simulator(config, ModelClock(Linear())).run(workload).log
    assert sum(log.column("discarded_tokens")) > 0
    for r in log:
        assert r.discarded_tokens == r.recomputed_tokens
        assert (r.preemptions > 0) or r.discarded_tokens == 0


def test_survivors_do_not_speak_for_the_others():
    # One at a time, 10 steps each: by 30 s three are done, three have not begun.
    config = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=64, num_gpu_blocks=64, block_size=4)
    result = Simulator(config, FixedClock(1.0)).run([Arrival(0.0, 4, 10)] * 6, until_s=30)
    metrics = summarize(result, SLO(ttft_ms=15_000))
    assert (metrics.num_requests, metrics.num_unfinished) == (6, 3)
    assert metrics.ttft_ms.p50 == 21_000 and metrics.ttft_ms.p90 == INF
    assert metrics.e2e_ms.p50 == 30_000 and metrics.e2e_ms.mean == INF
    assert metrics.slo_attainment == 2 / 6
    assert metrics.goodput == 2 / 30
    assert metrics.requests_per_s == 3 / 30  # of those who finished


def test_shares_and_means_over_time():
    # 5 + 6 tokens in blocks of 4 of a pool of 10, alone: 4 steps with 2 blocks, 2 with 3. Then 6 s of rest, then again.
    config = SchedulerConfig(num_gpu_blocks=10, block_size=4)
    result = Simulator(config, FixedClock(1.0)).run([Arrival(0.0, 5, 6), Arrival(12.0, 5, 6)])
    metrics = summarize(result)
    assert metrics.duration_s == 18
    assert metrics.kv_mean == pytest.approx(2 * (4 * 2 + 2 * 3) / 10 / 18)
    assert metrics.kv_peak == 0.3
    assert metrics.batch_mean == pytest.approx(12 / 18)
    assert metrics.busy_share == pytest.approx(12 / 18)
    assert metrics.steps == 12
    assert metrics.output_tokens_per_s == pytest.approx(12 / 18)


def test_hit_rate_is_a_share_of_prompt_tokens():
    config = SchedulerConfig(num_gpu_blocks=64, block_size=4, enable_prefix_caching=True)
    rows = [Arrival(0.0, 10, 1, segments=((7, 8), (8, 2))), Arrival(5.0, 12, 1, segments=((7, 8), (9, 4)))]
    assert summarize(Simulator(config, FixedClock(1.0)).run(rows)).hit_rate == 8 / 22


def test_a_run_without_requests_has_no_metrics():
    with pytest.raises(ConfigError, match="no request to measure: 0 arrived"):
        summarize(Simulator(ROOMY, FixedClock(1.0)).run([]))
    with pytest.raises(ConfigError, match=r"1 arrived by .* s, none after the warm-up of 5 s; shorten the warm-up"):
        summarize(Simulator(ROOMY, FixedClock(1.0)).run([Arrival(0.0, 5, 3)], warmup_s=5))


def test_metrics_go_through_json_and_come_back():
    config = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=64, num_gpu_blocks=64, block_size=4)
    result = Simulator(config, FixedClock(1.0)).run([Arrival(0.0, 4, 10)] * 6, until_s=30)
    for slo in (None, SLO(ttft_ms=15_000)):
        metrics = summarize(result, slo)
        text = json.dumps(metrics.to_dict(), allow_nan=False)
        again = Metrics.from_dict(json.loads(text))
        assert repr(again) == repr(metrics)  # NaN is not equal to itself, but it prints alike


# --- over seeds ---


def test_the_confidence_interval_is_students():
    assert confidence_interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 4.303 / math.sqrt(3)))
    mean, half = confidence_interval([4.0])
    assert mean == 4.0 and math.isnan(half)
    assert confidence_interval([1.0, INF])[0] == INF


def test_the_last_quantile_of_the_table_is_used():
    values = [float(n) for n in range(31)]  # 30 degrees of freedom
    assert confidence_interval(values)[1] == pytest.approx(2.042 * statistics.stdev(values) / math.sqrt(31))


@pytest.mark.parametrize("count", [2, 5, 20, 60])
def test_it_covers_the_truth_in_95_of_100_cases(count):
    rng = random.Random(3)
    hits = 0
    for _ in range(4000):
        mean, half = confidence_interval([rng.gauss(10, 2) for _ in range(count)])
        hits += abs(mean - 10) <= half
    assert hits / 4000 == pytest.approx(0.95, abs=0.013)


def test_no_seed_is_no_interval():
    with pytest.raises(ConfigError, match="at least one seed"):
        confidence_interval([])
