"""The same policies on a machine that advances all its residents at once."""

import random

import pytest

from mini_vllm.errors import ConfigError, InvalidRequestError
from mini_vllm.os_sched import ALL_POLICIES, CFS, FCFS, SJF, SRTF, VTC, BatchMachine, Job, Policy, RoundRobin
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


def test_who_needs_one_token_goes_before_who_needs_many():
    m = machine(token_budget=4)
    m.run([Job("long", 0, 2, prompt=6), Job("short", 0, 2, prompt=1)])
    assert tokens(m) == [{"short": 1, "long": 3}, {"short": 1, "long": 3}, {"long": 1}]


def test_a_job_is_served_only_when_it_gets_a_token_and_its_policy_hears_how_much():
    heard = []

    class Listening(FCFS):
        def ran(self, job, units):
            heard.append((job.name, units))

    m = machine(Listening(), token_budget=2)
    m.run([Job("A", 0, 2, prompt=3)])
    assert tokens(m) == [{"A": 2}, {"A": 1}, {"A": 1}] and heard == [("A", 0), ("A", 1), ("A", 1)]


def test_a_step_is_priced_by_its_tokens_and_by_the_kv_it_reads():
    priced = []
    BatchMachine(FCFS(), step_ms=lambda num_tokens, kv: priced.append((num_tokens, kv)) or 1.0).run(
        [Job("A", 0, 2, prompt=3), Job("B", 1, 1, prompt=5)]
    )
    assert priced == [(3, 3), (6, 9)]  # A decodes beside B's prompt: 1 + 5 tokens, 4 + 5 of KV


def test_room_is_for_what_is_known_to_the_last_token():
    exact, short = (machine(kv_tokens=n) for n in (8, 7))
    for m in (exact, short):
        m.run([Job("A", 0, 2, prompt=4), Job("B", 0, 2, prompt=3)])
    # 4 + 3, then 5 + 4, and both are done: 8 is too little for the second step, 7 is enough for the first.
    assert [step.switched_out for step in exact.steps][:2] == [[], ["B"]]
    assert [step.switched_out for step in short.steps][:2] == [[], ["B"]]


def test_only_who_was_sent_away_pays_for_coming_in():
    with_a_start = {"comeback": "swap", "step_ms": lambda tokens, kv: 1.0, "swap_ms": lambda tokens: 1 + tokens / 10}
    m = BatchMachine(RoundRobin(1), seats=1, kv_tokens=40, **with_a_start)
    a, b = Job("A", 0, 2, prompt=4), Job("B", 0, 1, prompt=4)
    m.run([a, b])
    # A 0-1; it goes out with 4 tokens (1.4), B 1-3.4; A comes in again (1.4).
    assert (b.finish, a.finish) == (pytest.approx(3.4), pytest.approx(5.8))


def test_a_return_counts_what_is_computed_twice_and_not_what_is_new():
    m = machine(RoundRobin(1), seats=1)
    a = Job("A", 0, 3, prompt=4)
    m.run([a, Job("B", 0, 1, prompt=4)])
    # A: 4 computed; B; A: 4 again and 1 new; A: 1 new.
    assert tokens(m) == [{"A": 4}, {"B": 4}, {"A": 5}, {"A": 1}] and (a.num_recomputed, a.num_switched_out) == (4, 1)


def test_jobs_may_be_given_in_any_order_and_are_asked_about_only_when_one_comes():
    m = machine(SRTF(), seats=1, comeback="free")
    jobs = [Job("B", 1, 3, prompt=1), Job("A", 0, 4, prompt=1)]
    m.run(jobs)
    # At 1 both need 3: A, the first to come, keeps its seat.
    assert [next(iter(step.tokens)) for step in m.steps if step.tokens] == list("AAAABBB")


def test_who_shared_a_slice_goes_back_in_the_order_in_which_it_began():
    rr, a, b, c = RoundRobin(2), Job("A", 0, 9), Job("B", 0, 9), Job("C", 0, 9)
    for job in (a, b, c):
        rr.arrived(job, [])
    for job in (a, b, b, a):  # two steps of two seats
        rr.ran(job, 1)
    assert rr.order([a, b, c], 2) == [c, a, b]


def test_between_two_arrivals_a_slice_is_not_cut():
    m = machine(CFS(8, 3), seats=1, comeback="free")
    m.run([Job("A", 0, 10, prompt=1), Job("B", 0, 10, prompt=1)])
    # A slice of 8 each; then both have had 8, and of equals the one in the seat goes on.
    assert "".join(next(iter(step.tokens)) for step in m.steps) == "A" * 8 + "B" * 10 + "AA"


def test_a_slice_begins_anew_at_every_decision():
    m = machine(RoundRobin(2), seats=1, comeback="free")
    m.run([Job("A", 0, 4, prompt=1), Job("B", 0, 4, prompt=1), Job("C", 0, 2, prompt=1)])
    assert [next(iter(step.tokens)) for step in m.steps] == list("AABBCCAABB")


def test_who_waits_is_ordered_by_the_policy_and_who_runs_is_left_alone_until_a_slice_ends():
    class LastFirst(Policy):
        def key(self, job):
            return -job.arrival

    m = machine(LastFirst(), seats=1)
    m.run([Job("A", 0, 3, prompt=1), Job("B", 1, 1, prompt=1), Job("C", 2, 1, prompt=1)])
    assert [next(iter(step.tokens)) for step in m.steps] == list("AAACB")


def test_who_was_sent_away_before_it_wrote_is_first_for_sjf_too():
    long_one, short = Job("long", 0, 9, prompt=3), Job("short", 0, 1, prompt=3)
    sjf = SJF()
    assert sjf.key(short) < sjf.key(long_one)
    long_one.computed = 2
    assert sjf.key(long_one) < sjf.key(short)
    long_one.computed, long_one.first = 0, 5.0
    assert sjf.key(long_one) < sjf.key(short)


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


def test_equal_keys_keep_the_order_of_arrival_also_after_another_order():
    class LastFirstOnce(Policy):
        looks = 0

        def look(self, ready, now):
            self.looks += 1

        def key(self, job):
            return -job.arrival if self.looks == 2 else 0  # when A, B and C have just come

    m = machine(LastFirstOnce(), seats=1)
    first = Job("first", 0, 3, prompt=1)
    m.run([first, *(Job(name, arrival, 1, prompt=1) for name, arrival in (("A", 0.1), ("B", 0.2), ("C", 0.3)))])
    assert [next(iter(step.tokens)) for step in m.steps] == ["first", "first", "first", "A", "B", "C"]


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


def test_vtc_counts_a_prompt_once_and_an_output_token_twice_and_lifts_without_lowering():
    vtc, a, b = VTC(), Job("a", 0, 9, prompt=5, user="A"), Job("b", 0, 9, prompt=1, user="B")
    vtc.arrived(a, [])
    vtc.arrived(b, [a])
    vtc.ran(a, 0)
    vtc.ran(a, 3)
    vtc.ran(b, 1)
    assert vtc.counter == {"A": 5 + 2 * 3, "B": 1 + 2}
    vtc.arrived(Job("a2", 1, 9, prompt=1, user="A"), [b])
    assert vtc.counter["A"] == 11, "who has had more is not lowered"
    vtc.arrived(Job("b2", 1, 9, prompt=1, user="B"), [a, b])
    assert vtc.counter["B"] == 3, "who has something there is not lifted"
    vtc.arrived(Job("b3", 2, 9, prompt=1, user="B"), [a])
    assert vtc.counter["B"] == 11, "who comes back is lifted"
    c = Job("c", 3, 9, prompt=1, user="C")
    vtc.counter["A"] = 40
    vtc.arrived(c, [a, b])
    assert vtc.counter["C"] == 11, "to the smallest of those present"


def test_vtc_lets_a_request_that_had_begun_go_on_and_of_equals_the_first_to_come():
    vtc, rich, poor = VTC(), Job("rich", 0, 9, prompt=5, user="A"), Job("poor", 1, 9, prompt=5, user="B")
    vtc.arrived(rich, [])
    vtc.ran(rich, 4)
    vtc.arrived(poor, [])
    assert vtc.order([poor, rich], 1) == [rich, poor]
    one, two = Job("one", 2, 9, prompt=5, user="C"), Job("two", 3, 9, prompt=5, user="D")
    vtc.arrived(one, [])
    vtc.arrived(two, [])
    assert vtc.order([two, one], 3) == [one, two]


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
