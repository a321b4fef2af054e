"""A CPU: one job at a time, and a price for every change of job. Knows one policy; knows no tokens. Chapter 3."""

from collections.abc import Iterable
from dataclasses import dataclass

from mini_vllm.errors import ConfigError
from mini_vllm.os_sched.job import Job
from mini_vllm.os_sched.policy import Policy


@dataclass(frozen=True)
class Turn:
    """A job had the CPU from `start` to `end`, the price of switching to it not counted."""

    job: Job
    start: float
    end: float


class CPU:
    """Runs jobs to the end under one policy.

    switch_cost: units of time that pass at each change from one job to another.
    """

    def __init__(self, policy: Policy, switch_cost: float = 0.0):
        if not switch_cost >= 0:
            raise ConfigError(f"switch_cost={switch_cost} must be at least 0")
        self.policy, self.switch_cost = policy, switch_cost

    def run(self, jobs: Iterable[Job]) -> list[Turn]:
        """Who ran when; the jobs carry their own times afterwards."""
        policy, turns = self.policy, []
        to_come = sorted(jobs, key=lambda job: job.arrival)
        ready: list[Job] = []
        now, last = 0.0, None
        while to_come or ready:
            if not ready:
                now = max(now, to_come[0].arrival)
            while to_come and to_come[0].arrival <= now:
                newcomer = to_come.pop(0)
                policy.arrived(newcomer, ready)
                ready.append(newcomer)
            job = policy.order(ready, now)[0]
            if last is not None and job is not last:
                now += self.switch_cost
            units = min(job.remaining, policy.slice_of(job, ready) or job.remaining)
            if policy.looks_up_on_arrival and to_come:
                # A whole number of units, and at least one: the CPU is not interrupted in the middle of one.
                units = min(units, max(1, -int(-(to_come[0].arrival - now) // 1)))
            job.first = now if job.first is None else job.first
            turns.append(Turn(job, now, now + units))
            now += units
            job.done += units
            policy.ran(job, units)
            if not job.remaining:
                job.finish = now
                ready.remove(job)
            last = job
        return turns
