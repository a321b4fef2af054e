"""Right answers and known mistakes of chapter 3. Never importable in a graded kernel. Chapter 3."""

import statistics

from mini_vllm.grading.reference.ch03_by_hand import finish, finish_mistakes
from mini_vllm.grading.reference.ch03_variants import boost_with, door_with, stride_with
from mini_vllm.os_sched import CPU, VTC, BatchMachine, Job, Stride

# --- e2 -------------------------------------------------------------------------------------------------------


def stride(jobs: list[tuple], num_slices: int) -> list[str]:
    """The chapter's own Stride on its CPU, a slice a unit; nobody is done before the last slice."""
    turns = CPU(Stride(slice_units=1)).run(
        Job(name, arrival, work=num_slices, weight=tickets) for name, tickets, arrival in jobs
    )
    return [turn.job.name for turn in turns[:num_slices]]


# --- e3 -------------------------------------------------------------------------------------------------------


class TokensOnly(VTC):
    """The chapter's VTC, with prompts for nothing and an output token for 1; of those who came together in their order.

    The machine keeps its line as VTC left it, so equal keys alone do not say who has waited longest.
    """

    def __init__(self) -> None:
        super().__init__()
        self._place: dict[Job, int] = {}

    def arrived(self, job: Job, ready: list[Job]) -> None:
        self._place[job] = len(self._place)
        super().arrived(job, ready)

    def key(self, job: Job) -> tuple:
        return (*super().key(job), self._place[job])

    def ran(self, job: Job, units: int) -> None:
        self._has_prompt_counted.add(job)
        self.counter[job.user] += units


def fair_door(requests: list[tuple], num_seats: int) -> list[list[str]]:
    """On the chapter's own BatchMachine, a step a unit of time; prompts of one token."""
    jobs = [Job(name, arrival, work, prompt=1, user=user) for name, user, arrival, work in requests]
    room = sum(job.prompt + job.work for job in jobs)
    machine = BatchMachine(TokensOnly(), num_seats, room, step_ms=lambda num_tokens, kv_tokens: 1.0)
    schedule: list[list[str]] = []
    for step in machine.run(jobs):
        schedule += [[] for _ in range(int(step.start) - len(schedule))]
        schedule.append(list(step.tokens))
    return schedule


# --- b1 -------------------------------------------------------------------------------------------------------


def boost(now: int, next_boost: int, every: int, jobs: list[dict]) -> list:
    return boost_with(now, next_boost, every, jobs)


ANSWERS = {
    "c03-e1": finish,
    "c03-e2": stride,
    "c03-e3": fair_door,
    "c03-b1": boost,
}

MISTAKES = {
    "c03-e1": finish_mistakes(),
    "c03-e2": [
        (
            "A newcomer starts at 0: it gets every slice until it has caught up with the passes of the others. Start "
            "it at the smallest pass of those present.",
            lambda jobs, n: stride_with(jobs, n, start=lambda passes: 0.0),
        ),
        (
            "A newcomer starts at the largest pass: it waits until everybody has caught up with the one who is "
            "furthest. Start it at the smallest.",
            lambda jobs, n: stride_with(jobs, n, start=lambda passes: max(passes, default=0.0)),
        ),
        (
            "The pass grows by the number of tickets, so whoever has many gets few slices. It grows by 1 / tickets.",
            lambda jobs, n: stride_with(jobs, n, grows=float),
        ),
        (
            "The pass grows by 1 for everybody: that is round robin. It grows by 1 / tickets.",
            lambda jobs, n: stride_with(jobs, n, grows=lambda tickets: 1.0),
        ),
        (
            "Of equal passes the last in the list runs there. It is the first.",
            lambda jobs, n: stride_with(jobs, n, last_of_equals=True),
        ),
        (
            "Of equal passes the one whose name comes first in the alphabet runs there (min over pairs of pass and "
            "name does that). It is the first in the list.",
            lambda jobs, n: stride_with(jobs, n, by_name=True),
        ),
        (
            "A job starts one stride further there, at smallest pass + 1 / tickets. It starts at the smallest pass.",
            lambda jobs, n: stride_with(jobs, n, own_stride_first=True),
        ),
        (
            "A newcomer starts one stride further than the smallest pass, and those of slice 0 at 0. It starts at the "
            "smallest pass itself.",
            lambda jobs, n: stride_with(jobs, n, own_stride_later=True),
        ),
        (
            "A newcomer starts at the mean of the passes. It starts at the smallest of those present.",
            lambda jobs, n: stride_with(jobs, n, start=lambda passes: statistics.fmean(passes or [0])),
        ),
        (
            "A newcomer is there a slice late. It is there from its arrival_slice on: let it in before the slice is "
            "given away.",
            lambda jobs, n: stride_with([(name, t, at + (at > 0)) for name, t, at in jobs], n),
        ),
        (
            "The pass grows by 1 // tickets, and that is 0 for everybody with more than one. It is 1 / tickets.",
            lambda jobs, n: stride_with(jobs, n, grows=lambda tickets: float(1 // tickets)),
        ),
        (
            "Of equal passes the one with the most tickets runs there. It is the first in the list.",
            lambda jobs, n: stride_with(jobs, n, by_tickets=True),
        ),
        (
            "Jobs run before they have arrived. In slice k only those with arrival_slice <= k are there.",
            lambda jobs, n: stride_with(jobs, n, arrivals=False),
        ),
        ("The largest pass runs there. It is the smallest.", lambda jobs, n: stride_with(jobs, n, largest=True)),
    ],
    "c03-e3": [
        (
            "That is first come, first served: the door does not look at users.",
            lambda r, s: door_with(r, s, first_come=True),
        ),
        (
            "That counts the requests that were let in, not tokens: a user with a few long ones gets more than one "
            "with many short ones.",
            lambda r, s: door_with(r, s, counts="requests"),
        ),
        (
            "That counts a request's whole output when it joins. A server does not know it; count tokens as they come.",
            lambda r, s: door_with(r, s, counts="lengths"),
        ),
        (
            "The lift is missing: a user who comes with nothing waiting or running keeps an old, small number and is "
            "first for as long as the pause lasted.",
            lambda r, s: door_with(r, s, lift=lambda own, present: own),
        ),
        (
            "Only a user who was never there before is lifted. One who comes back with nothing waiting or running is "
            "lifted as well: what counts is who is present, not who has a number.",
            lambda r, s: door_with(r, s, only_new=True),
        ),
        (
            "The lift is to the largest number of those present. It is to the smallest.",
            lambda r, s: door_with(r, s, lift=lambda own, present: max(own, *present, 0)),
        ),
        (
            "The lift also lowers: a user who has had more than all others comes back with their number. It keeps the "
            "larger one.",
            lambda r, s: door_with(r, s, lift=lambda own, present: min(present, default=own)),
        ),
        (
            "Every arrival is lifted there, also of a user who has something waiting or running.",
            lambda r, s: door_with(r, s, always_lift=True),
        ),
        (
            "Those who come in one step are lifted as if all came at once. They come one after another: the second one "
            "finds the first one's user present.",
            lambda r, s: door_with(r, s, all_at_once=True),
        ),
        (
            "Of requests whose users have had equally many tokens the newest joins there. It is the one that waited "
            "longest.",
            lambda r, s: door_with(r, s, newest_of_equals=True),
        ),
        (
            "Somebody is sent away: running requests lose their seat to a user with fewer tokens. Nobody is sent away; "
            "only free seats are given.",
            lambda r, s: door_with(r, s, evicts=True),
        ),
        (
            "The tokens of a request are forgotten when it is done. A user's number only grows.",
            lambda r, s: door_with(r, s, finished_forgotten=True),
        ),
    ],
    "c03-b1": [
        (
            "That is the function as given.",
            lambda *case: boost_with(*case, zeroed=("level", "served"), following=lambda now, due, every: due + every),
        ),
        (
            "The counters are right now. But the next boost is counted from when this one was due, not from when it "
            "came: after an idle night the next boost still lies in the past, and so do the thousands after it.",
            lambda *case: boost_with(*case, following=lambda now, due, every: due + every),
        ),
        (
            "The next boost is right now. But the boost still resets the bill, and leaves `used` alone: whoever had "
            "used up its time sinks again after one turn.",
            lambda *case: boost_with(*case, zeroed=("level", "served")),
        ),
        (
            "The boost resets `used` now, but the bill as well. A boost gives time at the top, no money back.",
            lambda *case: boost_with(*case, zeroed=("level", "used", "served")),
        ),
        (
            "The bill is left alone now, but `used` is, too: whoever had used up its time sinks again after one turn.",
            lambda *case: boost_with(*case, zeroed=("level",)),
        ),
        (
            "The night's boosts are skipped, but the next one stays on the old grid: it may come sooner than `every` "
            "after this one.",
            lambda *case: boost_with(*case, following=lambda now, due, every: due + every * ((now - due) // every + 1)),
        ),
        (
            "A boost is due at next_boost itself, not only after it.",
            lambda *case: boost_with(*case, is_due=lambda now, due: now > due),
        ),
    ],
}
