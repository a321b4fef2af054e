"""Shortest job first: the smallest total work, and nobody is interrupted. Needs to know the future. Chapter 3."""

from mini_vllm.os_sched.job import Job
from mini_vllm.os_sched.policy import Policy


class SJF(Policy):
    """The best mean waiting time without interruption; a long job may wait for ever."""

    name = "SJF"

    def key(self, job: Job) -> tuple[bool, int]:
        has_started = job.first is not None or job.computed > 0
        return (not has_started, job.work)
