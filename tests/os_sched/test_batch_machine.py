"""The same policies on a machine that advances all its residents at once."""

import random

import pytest

from mini_vllm.errors import ConfigError, InvalidRequestError
from mini_vllm.os_sched import ALL_POLICIES, FCFS, SRTF, VTC, BatchMachine, Job, RoundRobin
from mini_vllm.os_sched.batch_machine import step_ms, swap_ms


def machine(policy=None, **limits):
    """One step, one millisecond; moving KV costs a tenth of a millisecond a token."""
    limits = {"seats": 2, "kv_tokens": 40, "token_budget": 16} | limits
    return BatchMachine(policy or FCFS(), step_ms=lambda tokens, kv: 1.0, swap_ms=lambda tokens: tokens / 10, **limits)


def tokens(made):
    return [step.tokens for step in made.steps]


def test_residents_advance_together():
    m = machine()
    a, b = Job("A", 0, 3, prompt=4), Job("B", 0, 2, prompt=2)
    m.run([a, b])
    assert tokens(m) == [{"A": 4, "B": 2}, {"A": 1, "B": 1}, {"A": 1}]
    assert (a.first, a.finish, b.first, b.finish) == (1, 3, 1, 2)


def test_a_prompt_over_the_budget_takes_several_steps_and_stops_nobody():
    m = machine(token_budget=4)
    m.run([Job("A", 0, 4, prompt=2), Job("B", 1, 1, prompt=6)])
    assert tokens(m) == [{"A": 2}, {"A": 1, "B": 3}, {"A": 1, "B": 3}, {"A": 1}]


def test_who_finds_no_seat_waits():
    m = machine(seats=1)
    jobs = [Job("A", 0, 2, prompt=1), Job("B", 0, 1, prompt=1)]
    m.run(jobs)
    assert [job.first for job in jobs] == [1, 3]


def test_who_finds_no_room_for_its_kv_waits_and_so_does_everybody_behind_it():
    m = machine(seats=3, kv_tokens=12)
    jobs = [Job("A", 0, 2, prompt=8), Job("B", 0, 1, prompt=6), Job("C", 0, 1, prompt=1)]
    m.run(jobs)
    assert [job.first for job in jobs] == [1, 3, 3]  # C would have fitted beside A


def test_when_kv_runs_out_the_last_to_come_goes():
    m = machine(kv_tokens=12)
    a, b = Job("A", 0, 6, prompt=5), Job("B", 0, 3, prompt=5)
    m.run([a, b])
    # 5 + 5, then 6 + 6, then 7 + 7 tokens are known: more than 12.
    assert [step.switched_out for step in m.steps][:4] == [[], [], ["B"], []]
    assert (a.finish, b.num_switched_out, b.num_recomputed) == (6, 1, 6)
    assert tokens(m)[6] == {"B": 7}  # its prompt and both tokens it had


@pytest.mark.parametrize(("comeback", "end"), [("recompute", 7), ("swap", 7 + 1.2), ("free", 7)])
def test_what_a_return_costs(comeback, end):
    m = machine(kv_tokens=12, comeback=comeback)
    a, b = Job("A", 0, 6, prompt=5), Job("B", 0, 3, prompt=5)
    m.run([a, b])
    assert m.steps[-1].end == pytest.approx(end)  # 6 tokens out and 6 in again, a tenth each
    assert b.num_recomputed == (6 if comeback == "recompute" else 0)


def test_a_slice_ends_and_the_seats_change_hands():
    m = machine(RoundRobin(2), seats=1, comeback="free")
    jobs = [Job("A", 0, 4, prompt=1), Job("B", 0, 2, prompt=1)]
    m.run(jobs)
    assert [next(iter(step.tokens)) for step in m.steps] == ["A", "A", "B", "B", "A", "A"]


def test_srtf_sends_away_who_has_more_left():
    m = machine(SRTF(), seats=1)
    a, b = Job("A", 0, 9, prompt=1), Job("B", 2, 1, prompt=1)
    m.run([a, b])
    assert (b.finish, a.num_switched_out, a.num_recomputed) == (3, 1, 2)


def served(m, jobs):
    """Users in the order of their jobs' first tokens."""
    m.run(jobs)
    return "".join(job.user for job in sorted(jobs, key=lambda job: job.first))


def test_vtc_serves_the_user_who_has_had_least():
    greedy = [Job(f"g{i}", 0, 10, prompt=1, user="G") for i in range(3)]
    modest = [Job("m", 1, 10, prompt=1, user="M")]
    assert served(machine(VTC(), seats=1), greedy + modest) == "GMGG"  # FCFS: GGGM
    assert served(machine(FCFS(), seats=1), [Job(j.name, j.arrival, 10, 1, user=j.user) for j in greedy + modest]) == (
        "GGGM"
    )


def test_vtc_does_not_let_a_user_save_up():
    """B comes when A has had 60 tokens of service: it does not catch up first, they take turns (A, first of equals)."""
    jobs = [Job(f"a{i}", 0, 10, prompt=1, user="A") for i in range(10)]
    jobs += [Job(f"b{i}", 60, 10, prompt=1, user="B") for i in range(4)]
    assert served(machine(VTC(), seats=1), jobs) == "AAAAAA" + "ABABABAB"


@pytest.mark.parametrize("policy_cls", ALL_POLICIES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("comeback", ["recompute", "swap", "free"])
def test_every_policy_finishes_everybody_within_the_limits(policy_cls, comeback):
    rng = random.Random(f"{policy_cls.name} {comeback}")
    jobs = [
        Job(f"j{i}", rng.uniform(0, 200), rng.randint(1, 30), rng.randint(1, 40), user=f"u{i % 3}") for i in range(30)
    ]
    m = BatchMachine(policy_cls(), seats=5, kv_tokens=120, token_budget=24, comeback=comeback)
    m.run(jobs)
    by_name = {job.name: job for job in jobs}
    computed = dict.fromkeys(by_name, 0)
    for step in m.steps:
        assert 0 < len(step.tokens) <= 5 and sum(step.tokens.values()) <= 24
        assert step.end > step.start
        for name, n in step.tokens.items():
            assert by_name[name].arrival <= step.start
            computed[name] += n
    for job in jobs:
        assert job.done == job.work and job.arrival < job.first <= job.finish
        # The KV of the last token is never needed.
        assert computed[job.name] == job.prompt + job.work - 1 + job.num_recomputed
        assert comeback == "recompute" or job.num_recomputed == 0


def test_the_cost_model_is_the_one_of_chapter_2():
    assert step_ms(1, 0) == pytest.approx(15.0e9 / 2.039e12 * 1000)  # weights read once: 7.4 ms
    assert step_ms(4100, 4100) == pytest.approx(358.4, rel=0.01)  # errata E25: 359 ms at 55 % of peak
    assert 2 * swap_ms(4100) == pytest.approx(43, rel=0.01)  # E27: there and back at 25 GB/s


def test_bad_machines_and_jobs_are_refused():
    with pytest.raises(ConfigError, match="comeback='teleport' is not one of recompute, swap, free"):
        machine(comeback="teleport")
    with pytest.raises(ConfigError, match="token_budget=1"):
        machine(token_budget=1)
    with pytest.raises(InvalidRequestError, match="must fit into kv_tokens=40"):
        machine().run([Job("A", 0, 30, prompt=11)])
    with pytest.raises(InvalidRequestError, match="needs a prompt"):
        machine().run([Job("A", 0, 3)])
