"""Linux's EEVDF (6.6 on): of those who are not ahead of their share, the earliest virtual deadline. Chapter 3."""

from mini_vllm.os_sched.job import Job
from mini_vllm.os_sched.policy import Policy


class EEVDF(Policy):
    """Earliest eligible virtual deadline first.

        lag = what its share would have given it - what it got      eligible: lag >= 0
        deadline = virtual time when its next slice should be done

    Virtual time runs at the weighted mean of the jobs' own; a job with a shorter slice gets its turn sooner, not more.
    """

    name = "EEVDF"
    looks_up_on_arrival = True

    def __init__(self, base_slice: int = 3):
        self.base_slice = base_slice
        self.vruntime: dict[Job, float] = {}
        self.deadline: dict[Job, float] = {}
        self._virtual_time = 0.0

    def arrived(self, job: Job, ready: list[Job]) -> None:
        self._set_time(ready)
        self.vruntime[job] = self._virtual_time
        self.deadline[job] = self._virtual_time + self.base_slice / job.weight

    def look(self, ready: list[Job], now: float) -> None:
        self._set_time(ready)

    def _set_time(self, ready: list[Job]) -> None:
        if ready:
            total = sum(job.weight for job in ready)
            self._virtual_time = sum(job.weight * self.vruntime[job] for job in ready) / total

    def key(self, job: Job) -> tuple[bool, float]:
        # The tolerance is for rounding: of equal jobs all are exactly at the mean.
        is_ahead = self.vruntime[job] > self._virtual_time + 1e-9
        return (is_ahead, self.deadline[job])

    def ran(self, job: Job, units: int) -> None:
        self.vruntime[job] += units / job.weight
        if self.vruntime[job] >= self.deadline[job] - 1e-9:
            self.deadline[job] = self.vruntime[job] + self.base_slice / job.weight

    def slice_of(self, job: Job, ready: list[Job]) -> int:
        return self.base_slice
