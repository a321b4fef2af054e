"""First come, first served: the order of arrival, and nobody is interrupted. Chapter 3."""

from mini_vllm.os_sched.job import Job
from mini_vllm.os_sched.policy import Policy


class FCFS(Policy):
    """Simple, and fair to arrival; a long job makes everybody behind it wait (the convoy)."""

    name = "FCFS"

    def key(self, job: Job) -> float:
        return job.arrival
