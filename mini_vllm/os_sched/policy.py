"""What every policy is: an order among those who are ready. Knows jobs; knows no machine and no cost. Chapter 3."""

from collections.abc import Iterable
from typing import Any

from mini_vllm.os_sched.job import Job


class Policy:
    """Who goes first. Every policy fills in some of these five, and nothing else, so that two files differ by the idea.

    `slice_units`: after so much work the machine asks again; None: only when a job ends.
    `looks_up_on_arrival`: the machine also asks again when somebody arrives.
    """

    name = ""
    slice_units: int | None = None
    looks_up_on_arrival = False

    def arrived(self, job: Job, ready: list[Job]) -> None:
        """A newcomer; `ready` are those who were there before it."""

    def look(self, ready: list[Job], now: float) -> None:
        """Called once before the keys of a decision are taken."""

    def key(self, job: Job) -> Any:
        """The smallest key goes first."""
        raise NotImplementedError(f"policy {type(self).__name__} has no key(job)")

    def ran(self, job: Job, units: int) -> None:
        """The job has just got so much service: units of work on a CPU, tokens on the batch machine."""

    def slice_of(self, job: Job, ready: list[Job]) -> int | None:
        """How much a job may run before the next decision."""
        return self.slice_units

    def order(self, ready: Iterable[Job], now: float) -> list[Job]:
        """All who are ready, best first. Equal keys keep the order of arrival."""
        ready = list(ready)
        self.look(ready, now)
        return sorted(ready, key=self.key)
