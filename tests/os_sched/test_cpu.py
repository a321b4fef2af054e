"""Policies on one CPU, against schedules worked out by hand: small enough to check with a pencil."""

import random
from fractions import Fraction
from itertools import pairwise

import pytest

from mini_vllm.errors import ConfigError, InvalidRequestError
from mini_vllm.os_sched import ALL_POLICIES, CFS, CPU, EEVDF, FCFS, MLFQ, SJF, SRTF, Job, Lottery, RoundRobin, Stride


def run(policy, *jobs, switch_cost=0.0):
    """jobs: (name, arrival, work[, weight]); returns who ran when, as text, and the jobs."""
    made = [Job(name, arrival, work, weight=weight[0] if weight else 1.0) for name, arrival, work, *weight in jobs]
    turns = CPU(policy, switch_cost).run(made)
    return " ".join(f"{t.job.name}{t.start:g}-{t.end:g}" for t in turns), {job.name: job for job in made}


def mean(jobs, what):
    return sum(getattr(job, what) for job in jobs.values()) / len(jobs)


CONVOY = ("A", 0, 100), ("B", 0, 10), ("C", 0, 10)
LATE = ("A", 0, 100), ("B", 10, 10), ("C", 10, 10)


def test_fcfs_goes_by_arrival_in_whatever_order_it_is_asked():
    early, late = Job("early", 1, 5), Job("late", 2, 5)
    assert FCFS().order([late, early], 3) == [early, late]


def test_fcfs_makes_two_short_jobs_wait_for_a_long_one():
    turns, jobs = run(FCFS(), *CONVOY)
    assert turns == "A0-100 B100-110 C110-120"
    assert mean(jobs, "turnaround") == 110  # (100 + 110 + 120) / 3


def test_sjf_lets_the_short_ones_go_first():
    turns, jobs = run(SJF(), *CONVOY)
    assert turns == "B0-10 C10-20 A20-120"
    assert mean(jobs, "turnaround") == 50  # (120 + 10 + 20) / 3


def test_sjf_does_not_interrupt_who_runs():
    turns, jobs = run(SJF(), *LATE)
    assert turns == "A0-100 B100-110 C110-120"
    assert mean(jobs, "turnaround") == pytest.approx(310 / 3)  # (100 + 100 + 110) / 3


def test_srtf_does():
    turns, jobs = run(SRTF(), *LATE)
    assert turns == "A0-10 B10-20 C20-30 A30-120"
    assert mean(jobs, "turnaround") == 50  # (120 + 10 + 20) / 3


def test_round_robin_answers_everybody_early_and_ends_everybody_late():
    turns, jobs = run(RoundRobin(1), ("A", 0, 3), ("B", 0, 3), ("C", 0, 3))
    assert turns == "A0-1 B1-2 C2-3 A3-4 B4-5 C5-6 A6-7 B7-8 C8-9"
    assert (mean(jobs, "response"), mean(jobs, "turnaround")) == (1, 8)  # SJF: 3 and 6


def test_nobody_is_interrupted_in_the_middle_of_a_unit():
    assert run(SRTF(), ("A", 0, 5), ("B", 2.5, 1))[0] == "A0-3 B3-4 A4-6"


def test_jobs_may_be_given_in_any_order():
    assert run(FCFS(), ("B", 1, 1), ("A", 0, 2))[0] == "A0-2 B2-3"


def test_who_arrives_during_a_slice_stands_before_the_one_who_used_it():
    assert run(RoundRobin(4), ("A", 0, 8), ("B", 4, 4))[0] == "A0-4 B4-8 A8-12"


def test_a_switch_costs_time_and_going_on_costs_none():
    turns, _ = run(RoundRobin(2), ("A", 0, 4), ("B", 0, 2), switch_cost=1)
    assert turns == "A0-2 B3-5 A6-8"
    assert run(FCFS(), ("A", 0, 4), switch_cost=1)[0] == "A0-4"


def test_the_cpu_waits_for_the_next_arrival():
    turns, jobs = run(FCFS(), ("A", 5, 1), ("B", 20, 1))
    assert turns == "A5-6 B20-21"
    assert (jobs["B"].response, jobs["B"].turnaround) == (0, 1)


def test_mlfq_sinks_who_uses_up_its_allotment():
    # A sinks to level 1 at 10 and to level 2 at 20; B is new on top at 25, and done before it sinks.
    turns, _ = run(MLFQ(10, num_levels=3, boost_every=None), ("A", 0, 40), ("B", 25, 5))
    assert turns == "A0-10 A10-20 A20-25 B25-30 A30-35 A35-45"


def test_mlfq_counts_an_allotment_over_all_visits():
    """A gives up the CPU early again and again; newcomers interrupt it after 4 units each time."""
    policy = MLFQ(10, num_levels=2, boost_every=None)
    run(policy, ("A", 0, 30), ("B", 4, 1), ("C", 9, 1), ("D", 14, 1))
    assert {job.name: level for job, level in policy.level.items()} == {"A": 1, "B": 0, "C": 0, "D": 0}


def test_mlfq_has_a_lowest_level_and_its_line_is_round_robin():
    # A sinks at 10, and at 20 it is on the lowest level already: B, which sinks to it at 30, stands behind A there.
    turns, _ = run(MLFQ(10, num_levels=2, boost_every=None), ("A", 0, 30), ("B", 20, 20))
    assert turns == "A0-10 A10-20 B20-30 A30-40 B40-50"


def test_who_sinks_stands_behind_those_who_came_meanwhile_and_those_who_sank_before():
    turns, _ = run(MLFQ(2, num_levels=2, boost_every=None), *((name, 0, 4) for name in "ABC"))
    assert turns == "A0-2 B2-4 C4-6 A6-8 B8-10 C10-12"
    turns, _ = run(MLFQ(2, num_levels=1, boost_every=None), *((name, 0, 4) for name in "AB"))
    assert turns == "A0-2 B2-4 A4-6 B6-8"


def test_a_boost_is_due_at_its_time_and_gives_back_level_and_allotment():
    policy, job, other = MLFQ(10, num_levels=3, boost_every=15), Job("A", 0, 40), Job("B", 0, 40)
    policy.arrived(job, [])
    policy.arrived(other, [job])
    policy.ran(job, 10)
    policy.ran(job, 6)
    policy.ran(other, 3)
    policy.look([job, other], 14)
    assert (policy.level[job], policy.used[job], policy.used[other]) == (1, 6, 3)
    policy.look([job, other], 15)
    assert (policy.level[job], policy.used[job], policy.used[other]) == (0, 0, 0)
    assert policy.slice_of(job, [job, other]) == 10


def test_after_a_night_there_is_one_boost_and_not_one_for_each_that_was_missed():
    # The boost that was due at 10 comes at 95, the next is due at 105: B, sunk at 97, waits behind D, who is new at 99.
    jobs = ("A", 0, 1), ("B", 95, 4), ("C", 97, 2), ("D", 99, 2)
    assert run(MLFQ(2, num_levels=2, boost_every=10), *jobs)[0] == "A0-1 B95-97 C97-99 D99-101 B101-103"


def test_a_boost_lifts_everybody_and_forgets_what_was_used():
    starved = [("S", 0, 30), *((f"n{i}", 20 + 10 * i, 10) for i in range(20))]
    without = run(MLFQ(10, 3, boost_every=None), *starved)[1]["S"]
    boosted = run(MLFQ(10, 3, boost_every=50), *starved)[1]["S"]
    assert without.finish == 230  # only when nobody arrives any more
    assert boosted.finish < 100


def test_the_lottery_shares_by_tickets_in_the_long_run():
    _, jobs = run(Lottery(1, seed=3), ("A", 0, 30_000, 3.0), ("B", 0, 30_000, 1.0))
    # A ends when it has 30,000 units; B has had a third of that by then, give or take chance: sd = 100.
    b_had = jobs["A"].finish - 30_000
    assert abs(b_had - 10_000) < 500


def test_stride_shares_exactly():
    turns, _ = run(Stride(1), ("A", 0, 6, 2.0), ("B", 0, 3, 1.0))
    order = [turn[0] for turn in turns.split()]
    assert all(order[: 3 * k].count("A") == 2 * k for k in (1, 2, 3))


def test_stride_starts_a_newcomer_at_the_smallest_pass():
    # Before slice 4 A, with two tickets, stands at 1.5 and B at 1: C starts at 1.
    turns, _ = run(Stride(1), ("A", 0, 9, 2.0), ("B", 0, 9), ("C", 4, 9))
    assert "".join(turn[0] for turn in turns.split()).startswith("ABAABCAABC")


@pytest.mark.parametrize("policy", [Stride(5), CFS(), EEVDF()])
def test_a_newcomer_does_not_own_the_cpu(policy):
    """B comes when A has had 500 units. From then on they share: B, with 50, ends after about 100."""
    _, jobs = run(policy, ("A", 0, 1000), ("B", 500, 50))
    assert 80 <= jobs["B"].turnaround <= 110


def test_cfs_divides_its_period_by_weight():
    turns, _ = run(CFS(target_latency=24, min_granularity=3), ("A", 0, 36, 3.0), ("B", 0, 12, 1.0))
    assert turns == "A0-18 B18-24 A24-42 B42-48"


def test_cfs_never_gives_less_than_its_granularity():
    turns, _ = run(CFS(target_latency=24, min_granularity=3), *((f"{i:x}", 0, 3) for i in range(16)))
    assert {end - start for start, end in ends(turns)} == {3}  # 24 / 16 would be 1.5


def ends(turns):
    return [tuple(map(float, turn[1:].split("-"))) for turn in turns.split()]


def test_cfs_stretches_its_period_and_keeps_its_granularity_for_the_light():
    light = [(f"{i}", 0, 3) for i in range(8)]
    # Nine jobs: the period is 9 · 3 = 27, not 24, and A has half of the weight: 13. Then the others, 3 each.
    assert run(CFS(24, 3), ("A", 0, 13, 8.0), *light)[0].startswith("A0-13 0" + "13-16 1" + "16-19")
    # A tenth of 24 would be 2.
    assert run(CFS(24, 3), ("A", 0, 30, 9.0), ("B", 0, 6, 1.0))[0] == "A0-21 B21-24 A24-33 B33-36"


def test_cfs_looks_up_when_somebody_comes():
    # B starts where A stands, at 4; of equals the first goes on, for its half of 24.
    assert run(CFS(24, 3), ("A", 0, 20), ("B", 4, 10))[0] == "A0-4 A4-16 B16-26 A26-30"


def test_cfs_starts_a_newcomer_where_the_one_is_who_has_had_least():
    # C comes when A has had 6 and B nothing: it starts at 0, beside B, and runs before A goes on.
    turns, _ = run(CFS(24, 3), ("A", 0, 30), ("B", 0, 30), ("C", 6, 8))
    assert turns.startswith("A0-6 B6-14 C14-22 A22-")


def test_eevdf_by_hand_with_weights():
    # Slice 2. A, weight 2: deadlines 1, 2, 3, 4; B: 2, 4. After each turn the mean is 2/3, 4/3, 2, 8/3, 10/3.
    turns, _ = run(EEVDF(2), ("A", 0, 10, 2.0), ("B", 0, 4, 1.0))
    assert turns == "A0-2 B2-4 A4-6 A6-8 B8-10 A10-12 A12-14"


def test_eevdf_by_hand_with_newcomers():
    # B and C start at the mean, 10, with deadline 13. A's is 12: it goes on, is ahead at 13, and waits for both.
    assert run(EEVDF(3), *LATE)[0].startswith("A0-3 A3-6 A6-9 A9-10 A10-13 B13-16 C16-19 A19-22 B22-25")


def test_who_is_just_at_its_share_is_not_ahead_of_it():
    policy, jobs = EEVDF(3), [Job(name, 0, 9) for name in "ABC"]
    policy.vruntime = dict(zip(jobs, (9.0, 10.0, 11.0), strict=True))
    policy.deadline = dict(zip(jobs, (13.0, 12.0, 11.0), strict=True))
    assert [job.name for job in policy.order(jobs, 0)] == ["B", "A", "C"]


def test_a_deadline_moves_only_when_it_is_reached_and_is_counted_from_where_the_job_then_stands():
    policy, job = EEVDF(3), Job("A", 0, 20, weight=2.0)
    policy.arrived(job, [])
    assert policy.deadline[job] == 1.5
    policy.ran(job, 2)
    assert (policy.vruntime[job], policy.deadline[job]) == (1.0, 1.5)
    policy.ran(job, 2)
    assert (policy.vruntime[job], policy.deadline[job]) == (2.0, 3.5)


def test_eevdf_goes_by_deadline_among_those_who_are_not_ahead():
    # Weights 2 and 1, slice 2: deadlines 1 and 2. A runs to its deadline and is ahead (1 > mean 2/3): B's turn.
    turns, _ = run(EEVDF(2), ("A", 0, 4, 2.0), ("B", 0, 2, 1.0))
    assert turns == "A0-2 B2-4 A4-6"


@pytest.mark.parametrize("policy_cls", ALL_POLICIES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("seed", range(8))
def test_every_policy_does_all_the_work_and_never_two_things_at_once(policy_cls, seed):
    rng = random.Random(seed)
    jobs = [Job(f"j{i}", rng.randint(0, 200), rng.randint(1, 60), weight=rng.choice((1, 2, 4))) for i in range(15)]
    turns = CPU(policy_cls(), switch_cost=rng.choice((0, 1))).run(jobs)
    assert all(before.end <= after.start for before, after in pairwise(turns))
    done = {job: Fraction(0) for job in jobs}
    for turn in turns:
        assert turn.start >= turn.job.arrival
        done[turn.job] += Fraction(turn.end) - Fraction(turn.start)
    assert all(done[job] == job.work and job.remaining == 0 for job in jobs)
    assert all(job.finish == max(t.end for t in turns if t.job is job) for job in jobs)


@pytest.mark.parametrize("seed", range(20))
def test_srtf_has_the_smallest_mean_turnaround_of_all(seed):
    rng = random.Random(seed)
    specs = [(f"j{i}", rng.randint(0, 100), rng.randint(1, 40)) for i in range(10)]
    best = mean(run(SRTF(), *specs)[1], "turnaround")
    assert all(mean(run(cls(), *specs)[1], "turnaround") >= best - 1e-9 for cls in ALL_POLICIES)


def test_bad_jobs_and_prices_are_refused():
    for bad in ({"work": 0}, {"arrival": -1}, {"arrival": float("nan")}, {"weight": 0}, {"prompt": -1}):
        with pytest.raises(InvalidRequestError, match="job 'x'"):
            Job("x", **{"arrival": 0, "work": 1, **bad})
    with pytest.raises(ConfigError, match="switch_cost=-1"):
        CPU(FCFS(), switch_cost=-1)
    with pytest.raises(InvalidRequestError, match="has not come so far"):
        _ = Job("x", 0, 1).turnaround
