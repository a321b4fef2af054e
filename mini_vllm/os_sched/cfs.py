"""Linux's CFS (2.6.23 to 6.5): the smallest weighted run time goes, for a share of a target period. Chapter 3."""

from mini_vllm.os_sched.job import Job
from mini_vllm.os_sched.policy import Policy


class CFS(Policy):
    """No fixed slice: everybody runs once in `target_latency`, as long as that leaves each `min_granularity`.

    Both in units of work. In milliseconds, Linux takes 6 and 0.75 on one core, and 24 and 3 from eight cores on.
    """

    name = "CFS"
    looks_up_on_arrival = True

    def __init__(self, target_latency: int = 24, min_granularity: int = 3):
        self.target_latency, self.min_granularity = target_latency, min_granularity
        self.vruntime: dict[Job, float] = {}

    def arrived(self, job: Job, ready: list[Job]) -> None:
        # A newcomer owes nothing and is owed nothing.
        self.vruntime[job] = min((self.vruntime[other] for other in ready), default=0.0)

    def key(self, job: Job) -> float:
        return self.vruntime[job]

    def ran(self, job: Job, units: int) -> None:
        self.vruntime[job] += units / job.weight

    def slice_of(self, job: Job, ready: list[Job]) -> int:
        period = max(self.target_latency, self.min_granularity * len(ready))
        share = job.weight / sum(other.weight for other in ready)
        return max(self.min_granularity, int(period * share))
