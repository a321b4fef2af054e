"""Multi-level feedback queue: start on top, sink after each used-up allotment, all float up at a boost. Chapter 3."""

from itertools import count

from mini_vllm.os_sched.job import Job
from mini_vllm.os_sched.policy import Policy


class MLFQ(Policy):
    """SRTF without knowing the future: who has run little will probably end soon. The boost is against starvation.

    An allotment is counted over all visits to a level, so that giving up the CPU just before its end gains nothing.
    """

    name = "MLFQ"
    looks_up_on_arrival = True

    def __init__(self, allotment: int = 10, num_levels: int = 3, boost_every: float | None = 1000):
        self.allotment, self.num_levels, self.boost_every = allotment, num_levels, boost_every
        self._next_boost = boost_every or float("inf")
        self._places = count()
        self._place: dict[Job, int] = {}
        self._sunk: list[Job] = []  # used up an allotment since the last look
        self.level: dict[Job, int] = {}
        self.used: dict[Job, int] = {}  # of the allotment of its present level

    def arrived(self, job: Job, ready: list[Job]) -> None:
        self._place[job] = next(self._places)
        self.level[job] = self.used[job] = 0

    def look(self, ready: list[Job], now: float) -> None:
        for job in self._sunk:
            self._place[job] = next(self._places)  # behind those who arrived meanwhile
        self._sunk = []
        if now >= self._next_boost:
            # Level and use: a job that keeps its use would sink again after one more unit.
            for job in ready:
                self.level[job] = self.used[job] = 0
            self._next_boost = now + (self.boost_every or 0)

    def key(self, job: Job) -> tuple[int, int]:
        return (self.level[job], self._place[job])

    def ran(self, job: Job, units: int) -> None:
        self.used[job] += units
        if self.used[job] >= self.allotment:
            self.level[job] = min(self.level[job] + 1, self.num_levels - 1)
            self.used[job] = 0
            self._sunk.append(job)

    def slice_of(self, job: Job, ready: list[Job]) -> int:
        return self.allotment - self.used[job]
