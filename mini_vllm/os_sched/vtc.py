"""Virtual token counter: fairness among the users of a server, in weighted tokens (OSDI 2024). Chapter 3."""

from mini_vllm.os_sched.job import Job
from mini_vllm.os_sched.policy import Policy

OUTPUT_WEIGHT = 2.0  # an output token counts as two input tokens, as in the paper's experiments


class VTC(Policy):
    """The user with the smallest counter goes first; only who waits is ordered, nobody who runs is sent away.

    A user who comes back after a pause is lifted to the smallest counter among the users present: what nobody claimed
    cannot be saved up.
    """

    name = "VTC"

    def __init__(self) -> None:
        self.counter: dict[str, float] = {}
        self._has_prompt_counted: set[Job] = set()

    def arrived(self, job: Job, ready: list[Job]) -> None:
        present = {other.user for other in ready}
        if job.user not in present:
            floor = min((self.counter[user] for user in present), default=0.0)
            self.counter[job.user] = max(self.counter.get(job.user, 0.0), floor)

    def key(self, job: Job) -> tuple[bool, float, float]:
        return (job not in self._has_prompt_counted, self.counter[job.user], job.arrival)

    def ran(self, job: Job, units: int) -> None:
        if job not in self._has_prompt_counted:
            self._has_prompt_counted.add(job)
            self.counter[job.user] += job.prompt
        self.counter[job.user] += OUTPUT_WEIGHT * units
