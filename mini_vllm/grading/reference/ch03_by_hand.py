"""The right schedules of c03-e1, and known mistakes in each of them. Never importable in a graded kernel. Chapter 3."""

from itertools import product

from mini_vllm.grading.bank.ch03 import BOARD
from mini_vllm.os_sched import CPU, FCFS, SJF, SRTF, Job, Policy, RoundRobin


class BackInLineAtOnce(RoundRobin):
    """Who used its slice stands before those who came meanwhile."""

    def look(self, ready: list[Job], now: float) -> None:
        pass

    def ran(self, job: Job, units: int) -> None:
        self._place[job] = next(self._places)


class NewcomersFirst(RoundRobin):
    """A newcomer goes to the front of the line."""

    def arrived(self, job: Job, ready: list[Job]) -> None:
        self._place[job] = -next(self._places)


class CutByArrivals(RoundRobin):
    """An arrival ends the slice that runs."""

    looks_up_on_arrival = True


def finish_under(policy: Policy, turnaround: bool = False) -> dict[str, int]:
    jobs = [Job(name, arrives, needs) for name, (arrives, needs) in BOARD.items()]
    CPU(policy).run(jobs)
    return {job.name: int(job.turnaround + (0 if turnaround else job.arrival)) for job in jobs}


def finish() -> dict[str, dict[str, int]]:
    return {"srtf": finish_under(SRTF()), "rr": finish_under(RoundRobin(3))}


def _by_name(*times: int) -> dict[str, int]:
    return dict(zip(BOARD, times, strict=True))


def _a_unit_early(finish: dict[str, int]) -> dict[str, int]:
    return {name: end - 1 for name, end in finish.items()}


_TURNAROUNDS = "these are turnarounds, finish minus arrival. Give the time of the finish."
_LAST_UNITS = "this is when the last unit of each begins. It is finished when that unit ends, 1 later."
_FCFS = "that is first come, first served: nobody is interrupted, and the order is that of arrival."
_SRTF_MISTAKES = [
    (
        "nobody is interrupted there (that is SJF): whoever comes and needs less than the running one still does takes "
        "the CPU at once.",
        finish_under(SJF()),
    ),
    (_FCFS, finish_under(FCFS())),
    (_TURNAROUNDS, finish_under(SRTF(), True)),
    (_LAST_UNITS, _a_unit_early(finish_under(SRTF()))),
]
_RR_MISTAKES = [
    (
        "the one who used its slice stands before those who came meanwhile. It is the other way round: who arrives "
        "during a slice or at its end is in the line already.",
        finish_under(BackInLineAtOnce(3)),
    ),
    (
        "A stands before C at 3, where A's slice ends. C comes in that very moment: it is in the line already, and A "
        "goes behind it.",
        _by_name(15, 14, 10, 16),  # A 0-3, B 3-6, A 6-9, C 9-10, D 10-13, B 13-14, A 14-15, D 15-16
    ),
    (
        "B stands before D at 6, where B's slice ends. D came at 5, during that slice: it is in the line already, and "
        "B goes behind it.",
        _by_name(15, 11, 7, 16),  # A 0-3, B 3-6, C 6-7, A 7-10, B 10-11, D 11-14, A 14-15, D 15-16
    ),
    ("newcomers go to the front of the line there. They go to its end.", finish_under(NewcomersFirst(3))),
    ("an arrival ends the running slice there. It runs to its end.", finish_under(CutByArrivals(3))),
    (_FCFS, finish_under(FCFS())),
    (_TURNAROUNDS, finish_under(RoundRobin(3), True)),
    (_LAST_UNITS, _a_unit_early(finish_under(RoundRobin(3)))),
]


def _told(srtf: str, rr: str) -> str:
    if srtf == rr:
        return f"Under both {srtf}"
    return " ".join(f"Under {policy} {why}" for policy, why in (("srtf", srtf), ("rr", rr)) if why)


def finish_mistakes() -> list[tuple]:
    """Both exchanged; every mistake of one schedule with the other right, and both wrong."""
    right = finish()
    swapped = {"srtf": right["rr"], "rr": right["srtf"]}
    pairs = product([("", right["srtf"]), *_SRTF_MISTAKES], [("", right["rr"]), *_RR_MISTAKES])
    return [
        ("The two schedules stand the wrong way round: under srtf is round robin's.", lambda: swapped),
        *(
            (_told(one, two), lambda srtf=srtf, rr=rr: {"srtf": srtf, "rr": rr})
            for (one, srtf), (two, rr) in pairs
            if one or two
        ),
    ]
