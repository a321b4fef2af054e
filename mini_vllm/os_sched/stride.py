"""Stride: the lottery without chance. The smallest pass goes, and grows by its stride. Chapter 3."""

from mini_vllm.os_sched.job import Job
from mini_vllm.os_sched.policy import Policy


class Stride(Policy):
    """Shares exact to within one slice; a newcomer starts at the smallest pass, or it would own the machine."""

    name = "stride"

    def __init__(self, slice_units: int = 10):
        self.slice_units = slice_units
        self.passes: dict[Job, float] = {}

    def arrived(self, job: Job, ready: list[Job]) -> None:
        self.passes[job] = min((self.passes[other] for other in ready), default=0.0)

    def key(self, job: Job) -> float:
        return self.passes[job]

    def ran(self, job: Job, units: int) -> None:
        self.passes[job] += units / job.weight
