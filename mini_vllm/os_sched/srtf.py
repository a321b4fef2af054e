"""Shortest remaining time first: the nearest to its end goes, asked anew at arrivals. Needs the future. Chapter 3."""

from mini_vllm.os_sched.job import Job
from mini_vllm.os_sched.policy import Policy


class SRTF(Policy):
    """The best mean turnaround of all, if switching is free."""

    name = "SRTF"
    looks_up_on_arrival = True

    def key(self, job: Job) -> int:
        return job.remaining
