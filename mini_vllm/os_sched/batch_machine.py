"""A machine that advances all its residents in every step. Knows seats, KV room and what a return costs. Chapter 3.

On a CPU the scarce thing is the turn. Here it is the seat: whoever has KV on the machine advances, whoever is switched
out loses it and pays when it comes back.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mini_vllm.errors import ConfigError, InvalidRequestError
from mini_vllm.os_sched.job import Job
from mini_vllm.os_sched.policy import Policy

# Llama-3.1-8B in bf16 on an A100 80 GB SXM, as derived in chapter 2.
WEIGHT_BYTES, KV_BYTES_PER_TOKEN, FLOP_PER_TOKEN = 15.0e9, 131_072, 15.0e9
BYTES_PER_S, FLOP_PER_S, PCIE_BYTES_PER_S = 2.039e12, 0.55 * 312e12, 25e9


def step_ms(num_tokens: int, kv_tokens: int) -> float:
    """Milliseconds of a step that computes `num_tokens` tokens and reads the KV of `kv_tokens`."""
    memory = (WEIGHT_BYTES + kv_tokens * KV_BYTES_PER_TOKEN) / BYTES_PER_S
    return 1000 * max(memory, num_tokens * FLOP_PER_TOKEN / FLOP_PER_S)


def swap_ms(kv_tokens: int) -> float:
    """Milliseconds to move the KV of `kv_tokens` tokens over PCIe, one way."""
    return 1000 * kv_tokens * KV_BYTES_PER_TOKEN / PCIE_BYTES_PER_S


@dataclass
class Step:
    """Times in ms. `tokens`: what each resident computed; `switched_out`: who lost its seat before it began."""

    start: float
    end: float
    tokens: dict[str, int]
    switched_out: list[str]


@dataclass
class BatchMachine:
    """Runs jobs under one policy. Each needs a prompt; `work` counts output tokens; all times in ms.

    seats: residents at most. kv_tokens: tokens of KV that fit. token_budget: tokens of one step at most.
    comeback: "recompute" computes all its tokens again, "swap" copies its KV out and in, "free" is a machine that does
        not exist, on which being switched out costs nothing.
    """

    policy: Policy
    seats: int = 8
    kv_tokens: int = 20_000
    token_budget: int = 2048
    comeback: str = "recompute"
    step_ms: Callable[[int, int], float] = step_ms
    swap_ms: Callable[[int], float] = swap_ms
    steps: list[Step] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if min(self.seats, self.kv_tokens, self.token_budget) < 1 or self.token_budget < self.seats:
            raise ConfigError(
                f"seats={self.seats}, kv_tokens={self.kv_tokens} and token_budget={self.token_budget} must be at "
                "least 1, and the budget must give each seat a token"
            )
        if self.comeback not in ("recompute", "swap", "free"):
            raise ConfigError(f"comeback={self.comeback!r} is not one of recompute, swap, free")

    def run(self, jobs: Iterable[Job]) -> list[Step]:
        """To the end; the jobs carry their own times afterwards."""
        to_come = sorted(jobs, key=lambda job: job.arrival)
        for job in to_come:
            if job.prompt < 1 or job.prompt + job.work > self.kv_tokens:
                raise InvalidRequestError(
                    f"job {job.name!r} has a prompt of {job.prompt} and {job.work} tokens of work; it needs a prompt, "
                    f"and both together must fit into kv_tokens={self.kv_tokens}"
                )
        self.residents: list[Job] = []
        self.waiting: list[Job] = []
        self._place = {job: place for place, job in enumerate(to_come)}
        now, steps_since_look = 0.0, 0
        self.steps = []
        while to_come or self.residents or self.waiting:
            if not (self.residents or self.waiting):
                now = max(now, to_come[0].arrival)
            somebody_came = False
            while to_come and to_come[0].arrival <= now:
                newcomer = to_come.pop(0)
                self.policy.arrived(newcomer, [*self.residents, *self.waiting])
                self.waiting.append(newcomer)
                somebody_came = True
            if not self.residents:
                steps_since_look = 0  # nobody is left whose slice could have begun earlier
            slice_steps = self.policy.slice_of(self.residents[0], self.residents) if self.residents else None
            slice_is_over = slice_steps is not None and steps_since_look >= slice_steps
            if slice_is_over or (somebody_came and self.policy.looks_up_on_arrival):
                order = self.policy.order([*self.residents, *self.waiting], now)
                steps_since_look = 0
            else:
                order = [*self.residents, *self.policy.order(self.waiting, now)]
            now = self._step(order, now)
            steps_since_look += 1
        return self.steps

    def _step(self, order: list[Job], now: float) -> float:
        """Seat the best of `order` as far as seats and KV go, advance them, return the time afterwards."""
        seated: list[Job] = []
        room = self.kv_tokens
        for job in order:
            if len(seated) == self.seats or job.known > room:
                break
            seated.append(job)
            room -= job.known
        leaving = [job for job in self.residents if job not in seated]
        moved_ms = sum(self._switch_out(job) for job in leaving)
        moved_ms += sum(self._switch_in(job) for job in seated if job not in self.residents)
        self.residents = seated
        # Back in the order of arrival, so that equal keys keep it in the next decision too.
        self.waiting = sorted((job for job in order if job not in seated), key=self._place.__getitem__)

        budget, tokens = self.token_budget, {}
        # Who needs one token goes before who needs many, so that a long prompt cannot stop the others.
        for job in sorted(seated, key=lambda job: job.behind > 1):
            if n := min(job.behind, budget):
                tokens[job.name] = n
                budget -= n
                job.num_recomputed += max(0, min(job.computed + n, job.most_computed) - job.computed)
                job.computed += n
                job.most_computed = max(job.most_computed, job.computed)
        kv_tokens = sum(job.computed for job in seated)
        end = now + moved_ms + self.step_ms(sum(tokens.values()), kv_tokens)
        for job in list(seated):
            emits = not job.behind
            if emits:
                job.done += 1
                job.first = end if job.first is None else job.first
            if job.name in tokens:
                self.policy.ran(job, int(emits))
            if not job.remaining:
                job.finish = end
                self.residents.remove(job)
        self.steps.append(Step(now, end, tokens, [job.name for job in leaving]))
        return end

    def _switch_out(self, job: Job) -> float:
        job.num_switched_out += 1
        if self.comeback == "recompute":
            job.computed = 0
        return self.swap_ms(job.computed) if self.comeback == "swap" else 0.0

    def _switch_in(self, job: Job) -> float:
        return self.swap_ms(job.computed) if self.comeback == "swap" and job.num_switched_out else 0.0
