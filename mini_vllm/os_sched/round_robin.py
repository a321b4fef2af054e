"""Round robin: everybody gets one slice, then goes to the back of the line. Chapter 3."""

from itertools import count

from mini_vllm.os_sched.job import Job
from mini_vllm.os_sched.policy import Policy


class RoundRobin(Policy):
    """Quick first answers for all; long turnarounds, and a switch at the end of every slice."""

    name = "RR"

    def __init__(self, slice_units: int = 10):
        self.slice_units = slice_units
        self._places = count()
        self._place: dict[Job, int] = {}
        self._had_their_slice: list[Job] = []

    def arrived(self, job: Job, ready: list[Job]) -> None:
        self._place[job] = next(self._places)

    def look(self, ready: list[Job], now: float) -> None:
        # Only now: who arrived during the slice stands before the one who used it.
        for job in self._had_their_slice:
            self._place[job] = next(self._places)
        self._had_their_slice = []

    def key(self, job: Job) -> int:
        return self._place[job]

    def ran(self, job: Job, units: int) -> None:
        if job not in self._had_their_slice:
            self._had_their_slice.append(job)
