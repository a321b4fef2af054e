"""Lottery: each slice goes to the holder of a ticket drawn at random; weight is the number of tickets. Chapter 3."""

import random

from mini_vllm.os_sched.job import Job
from mini_vllm.os_sched.policy import Policy


class Lottery(Policy):
    """Fair in the long run, by chance alone; a newcomer needs no bookkeeping."""

    name = "lottery"

    def __init__(self, slice_units: int = 10, seed: int = 0):
        self.slice_units = slice_units
        self._random = random.Random(seed)
        self._draw: dict[Job, float] = {}

    def look(self, ready: list[Job], now: float) -> None:
        # The first of several clocks that tick at rates w rings at clock i with probability w_i / sum of w.
        self._draw = {job: self._random.expovariate(job.weight) for job in ready}

    def key(self, job: Job) -> float:
        return self._draw[job]
