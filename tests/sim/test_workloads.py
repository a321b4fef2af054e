"""Workloads: rates, spreads and means as promised; content that recurs where it should; a seed is a workload."""

import itertools
import math
import pickle
import random
import statistics

import pytest

from mini_vllm.errors import ConfigError
from mini_vllm.sim.arrivals import AtOnce, Bursty, Gamma, Poisson, Regular
from mini_vllm.sim.closed_workloads import ClosedLoop, Conversations
from mini_vllm.sim.lengths import Fitted, Fixed, Independent, Lognormal, Recorded, Uniform, exact_sample, fit
from mini_vllm.sim.workloads import OUTPUT_TOKEN, Arrival, SharedPrefixes, Workload, prompt_token_ids, start

SHORT = Independent(Fixed(5), Fixed(3))


def arrivals_of(workload):
    return list(start(workload).arrivals)


def gaps(process, count=20_000, seed=0):
    times = list(itertools.islice(process.times(random.Random(seed)), count + 1))
    assert times == sorted(times)
    return [b - a for a, b in itertools.pairwise(times)]


# --- arrivals ---


@pytest.mark.parametrize(
    ("process", "cv"),
    [
        (Regular(4), 0),
        (Poisson(4), 1),
        (Gamma(4, cv=0.5), 0.5),
        (Gamma(4, cv=1), 1),
        (Gamma(4, cv=3), 3),
    ],
)
def test_rate_and_spread_are_those_asked_for(process, cv):
    sample = gaps(process)
    mean = statistics.fmean(sample)
    assert mean == pytest.approx(1 / 4, rel=0.05)
    assert statistics.stdev(sample) / mean == pytest.approx(cv, rel=0.1, abs=1e-6)


def test_bursts_keep_the_rate_in_the_long_run_and_exceed_it_within():
    process = Bursty(rate=4, peak=5, burst_s=2)
    sample = gaps(process, 100_000)
    assert statistics.fmean(sample) == pytest.approx(1 / 4, rel=0.1)
    # Most gaps lie within a burst, of 20 requests per second.
    assert statistics.median(sample) == pytest.approx(math.log(2) / 20, rel=0.1)
    assert statistics.stdev(sample) / statistics.fmean(sample) > 2


def test_everybody_at_once():
    assert set(gaps(AtOnce(), 10)) == {0.0}


def test_two_rates_bring_the_same_requests_faster_or_slower():
    lengths = Independent(Lognormal(100, 1), Uniform(1, 50))
    slow, fast = arrivals_of(Workload(Poisson(1), lengths, 50, 3)), arrivals_of(Workload(Poisson(4), lengths, 50, 3))
    assert [a[1:] for a in slow] == [a[1:] for a in fast]
    assert [a.arrived_s for a in slow] == pytest.approx([4 * a.arrived_s for a in fast])


@pytest.mark.parametrize("kind", [Poisson, Regular, lambda rate: Gamma(rate, 1), Bursty])
@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf, "2", True, None])
def test_rates_must_be_numbers_above_zero(kind, rate):
    with pytest.raises(ConfigError, match="rate="):
        kind(rate)


def test_rate_zero_names_the_way_out():
    with pytest.raises(ConfigError, match=r"nobody would ever come; .* AtOnce\(\)"):
        Poisson(0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gamma(2, cv=0),
        lambda: Gamma(2, cv=-1),
        lambda: Bursty(2, peak=1),
        lambda: Bursty(2, peak=0.5),
        lambda: Bursty(2, burst_s=0),
        lambda: Bursty(2, burst_s=1e-6),  # would draw a million silences for each request
        lambda: Gamma(2, cv=1e-200),
        lambda: Gamma(2, cv=1e5),
        lambda: Workload(Poisson(2), SHORT, 5, seed=-1),  # the same as seed=1
        lambda: Workload(Poisson(2), SHORT, 5, seed=None),
        lambda: ClosedLoop(2, SHORT, 5, seed=-1),
        lambda: Conversations(Poisson(2), SHORT, 5, seed=1.5),
        lambda: SharedPrefixes(Poisson(2), SHORT, 5, seed=-1),
        lambda: Workload(Poisson, SHORT, 5),
        lambda: Workload(Poisson(2), Independent, 5),
        lambda: Workload(Poisson(2), SHORT, 0),
        lambda: Workload(2.0, SHORT, 5),
        lambda: ClosedLoop(0, SHORT, 5),
        lambda: ClosedLoop(2, SHORT, 5, think_s=-1),
        lambda: ClosedLoop(2, Independent, 5),
        lambda: Conversations(Poisson, SHORT, 5),
        lambda: Conversations(Poisson(2), SHORT, 5, turns=3),
        lambda: Conversations(Poisson(2), SHORT, 5, most_tokens=1),
        lambda: SharedPrefixes(Poisson(2), SHORT, 5, num_prefixes=0),
        lambda: SharedPrefixes(Poisson(2), SHORT, 5, skew=-1),
        lambda: SharedPrefixes(Poisson(2), SHORT, 5, prefix=512),
    ],
)
def test_unsound_workloads_are_refused(make):
    with pytest.raises(ConfigError):
        make()


# --- lengths ---


@pytest.mark.parametrize("mean", [20, 500.5, 3000])
@pytest.mark.parametrize("cv", [0, 0.5, 1, 2])
def test_lognormal_lengths_hold_mean_and_spread_apart(mean, cv):
    rng = random.Random(1)
    sample = [Lognormal(mean, cv).draw(rng) for _ in range(60_000)]
    assert all(type(n) is int and n >= 1 for n in sample)
    assert statistics.fmean(sample) == pytest.approx(mean, rel=0.03)
    assert statistics.stdev(sample) / mean == pytest.approx(cv, rel=0.12, abs=0.05)


@pytest.mark.parametrize("cv", [0, 0.5, 1, 2])
@pytest.mark.parametrize("count", [20, 100, 1000])
def test_an_exact_sample_has_mean_and_spread_itself(cv, count):
    for seed in range(5):
        sample = exact_sample(800, cv, count, seed)
        assert len(sample) == count and statistics.fmean(sample) == 800
        assert statistics.stdev(sample) / 800 == pytest.approx(cv, abs=0.002)
    assert exact_sample(800, 1, 50, seed=1) == exact_sample(800, 1, 50, seed=1) != exact_sample(800, 1, 50, seed=2)


def test_a_spread_that_so_few_cannot_have_is_refused():
    with pytest.raises(ConfigError, match="cv=4 is more than 10 numbers can have, 3"):
        exact_sample(800, 4, 10)


def test_rounding_keeps_a_fractional_mean():
    rng = random.Random(1)
    sample = [Lognormal(2.25, 0).draw(rng) for _ in range(10_000)]
    assert set(sample) == {2, 3} and statistics.fmean(sample) == pytest.approx(2.25, abs=0.02)


def test_uniform_lengths_include_both_ends():
    rng = random.Random(0)
    assert {Uniform(3, 5).draw(rng) for _ in range(100)} == {3, 4, 5}
    assert Uniform.around(1000, 0.2) == Uniform(800, 1200)


def test_recorded_lengths_come_in_order_and_start_over():
    pairs = Recorded([(1, 2), (3, 4)]).pairs(random.Random(0))
    assert list(itertools.islice(pairs, 5)) == [(1, 2), (3, 4), (1, 2), (3, 4), (1, 2)]


@pytest.mark.parametrize(
    ("pair", "fitted"),
    [((30, 10), (30, 10)), ((60, 40), (60, 40)), ((120, 80), (60, 40)), ((10_000, 1), (99, 1)), ((1, 10_000), (1, 99))],
)
def test_too_long_requests_are_shortened_in_proportion(pair, fitted):
    assert fit(*pair, 100) == fitted
    assert next(Fitted(Recorded([pair]), 100).pairs(random.Random(0))) == fitted


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fixed(0),
        lambda: Fixed(2.5),
        lambda: Fixed(-3),
        lambda: Uniform(0, 5),
        lambda: Uniform(6, 5),
        lambda: Uniform.around(100, 1.0),
        lambda: Uniform.around(100, math.nan),
        lambda: Uniform.around(math.nan, 0.1),
        lambda: Uniform.around(100, "0.1"),
        lambda: Lognormal(0.5, 1),
        lambda: Lognormal(1e300, 1),
        lambda: Lognormal(100, 1e200),
        lambda: exact_sample(100, 1, 10, seed=None),
        lambda: Lognormal(math.nan, 1),
        lambda: Lognormal(100, -1),
        lambda: Lognormal(100, math.nan),
        lambda: Independent(Fixed, Fixed(3)),
        lambda: Independent(Fixed(3), 3),
        lambda: Recorded([]),
        lambda: Recorded([(5, 3), (-1, 3)]),
        lambda: Recorded([(5, 3, 1)]),
        lambda: Recorded("ab"),
        lambda: Fitted(SHORT, 1),
        lambda: Fitted(Recorded, 100),
    ],
)
def test_unsound_lengths_are_refused(make):
    with pytest.raises(ConfigError):
        make()


# --- content ---


def test_a_prompt_without_segments_is_like_no_other():
    assert prompt_token_ids(Arrival(0.0, 3, 1), row=4) == [2**63 + 4] * 3
    assert prompt_token_ids(Arrival(0.0, 3, 1), row=5) == [2**63 + 5] * 3


def test_a_prompt_is_its_segments():
    assert prompt_token_ids(Arrival(0.0, 5, 1, segments=((7, 2), (0, 1), (9, 2))), 0) == [7, 7, 0, 9, 9]


def test_shared_prefixes_are_shared_and_the_rest_is_not():
    workload = SharedPrefixes(AtOnce(), SHORT, 400, num_prefixes=3, prefix=Fixed(10), skew=1.0)
    rows = arrivals_of(workload)
    counts = [sum(row.segments[0][0] == k for row in rows) for k in (1, 2, 3)]
    assert counts[0] > 1.5 * counts[1] > counts[2] > 0 and sum(counts) == 400
    assert len({row.segments[1] for row in rows}) == 400
    assert all(row.prompt_tokens == 15 for row in rows)


def test_without_skew_prefixes_are_as_popular_as_each_other():
    rows = arrivals_of(SharedPrefixes(AtOnce(), SHORT, 3000, num_prefixes=3, prefix=Fixed(10)))
    for k in (1, 2, 3):
        assert sum(row.segments[0][0] == k for row in rows) == pytest.approx(1000, rel=0.1)


# --- closed ones ---


def test_a_closed_loop_keeps_its_users_busy_and_ends():
    source = start(ClosedLoop(3, Independent(Uniform(1, 9), Fixed(2)), 5))
    first = list(source.arrivals)
    assert [a.arrived_s for a in first] == [0.0] * 3 and [a.session for a in first] == [0, 1, 2]
    fourth = source.after(first[1], 7.0)
    assert (fourth.arrived_s, fourth.session) == (7.0, 1)
    assert source.after(first[0], 8.0) is not None
    assert source.after(first[2], 9.0) is None  # five are sent


def test_users_think_before_they_send_again():
    source = start(ClosedLoop(1, SHORT, 2000, think_s=3.0, seed=1))
    (done,) = source.arrivals
    pauses = [source.after(done, 10.0).arrived_s - 10.0 for _ in range(1999)]
    assert statistics.fmean(pauses) == pytest.approx(3.0, rel=0.1) and min(pauses) > 0


def test_a_talk_repeats_everything_that_was_said():
    talks = Conversations(AtOnce(), SHORT, 2, turns=Fixed(3), think_s=0, system_tokens=4)
    source = start(talks)
    one, other = source.arrivals
    assert one.segments[0] == other.segments[0] == (1, 4)  # the system prompt
    assert one.segments[1] != other.segments[1]
    second = source.after(one, 2.0)
    assert second.segments[:3] == (*one.segments, (OUTPUT_TOKEN, 3))
    assert (second.arrived_s, second.prompt_tokens) == (2.0, 4 + 5 + 3 + 5)
    third = source.after(second, 5.0)
    assert third.prompt_tokens == 4 + 5 + 3 + 5 + 3 + 5
    assert source.after(third, 9.0) is None


def test_a_talk_ends_before_it_is_too_long():
    source = start(Conversations(AtOnce(), SHORT, 1, turns=Fixed(9), think_s=0, most_tokens=20))
    (message,) = source.arrivals
    count = 1
    while message := source.after(message, 0.0):
        count += 1
        assert message.prompt_tokens + message.output_tokens <= 20
    assert count == 2  # 5 + 3, 13 + 3; a third would take 21 + 3


def test_a_talk_may_be_exactly_as_long_as_allowed():
    source = start(Conversations(AtOnce(), SHORT, 1, turns=Fixed(9), think_s=0, most_tokens=16))
    (message,) = source.arrivals
    second = source.after(message, 0.0)
    assert second.prompt_tokens + second.output_tokens == 13 + 3  # 5 + 3 + 5, and an answer of 3


def test_talks_begin_when_they_arrive_and_go_on_after_a_pause():
    source = start(Conversations(Regular(2), SHORT, 400, turns=Fixed(2), think_s=3.0, seed=1))
    first = list(source.arrivals)
    assert [message.arrived_s for message in first] == [k / 2 for k in range(400)]
    pauses = [source.after(message, 1000.0).arrived_s - 1000.0 for message in first]
    assert statistics.fmean(pauses) == pytest.approx(3.0, rel=0.15) and min(pauses) > 0


def test_a_talk_goes_through_its_messages_in_order():
    lengths = Recorded([(n, 1) for n in range(1, 100)])
    source = start(Conversations(AtOnce(), lengths, 2, turns=Fixed(3), think_s=0))
    message = next(source.arrivals)
    own = [message.segments[-1]]
    while message := source.after(message, 0.0):
        own.append(message.segments[-1])
    assert own == [(2, 1), (3, 2), (4, 3)]


def test_what_is_said_does_not_depend_on_who_answers_first():
    talks = Conversations(Poisson(1), Independent(Uniform(1, 99), Uniform(1, 99)), 2, turns=Fixed(2), seed=5)
    a, b = start(talks), start(talks)
    (a0, a1), (b0, b1) = a.arrivals, b.arrivals
    first = [a.after(a0, 10.0), a.after(a1, 10.0)]
    swapped = [b.after(b1, 10.0), b.after(b0, 10.0)]
    assert first == swapped[::-1]


# --- all of them ---

WORKLOADS = [
    Workload(Poisson(2), Independent(Lognormal(50, 1), Uniform(1, 9)), 20, seed=7),
    SharedPrefixes(Bursty(2), SHORT, 20, skew=1.0, seed=7),
    ClosedLoop(3, Independent(Uniform(1, 9), Fixed(2)), 20, think_s=1.0, seed=7),
    Conversations(Gamma(2, 2), SHORT, 20, seed=7),
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: type(w).__name__)
def test_a_workload_can_be_started_again_and_sent_to_another_process(workload):
    assert arrivals_of(workload) == arrivals_of(workload) == arrivals_of(pickle.loads(pickle.dumps(workload)))


def test_another_seed_is_another_workload():
    for workload in WORKLOADS:
        other = type(workload)(**{**workload.__dict__, "seed": 8})
        assert arrivals_of(workload) != arrivals_of(other)
