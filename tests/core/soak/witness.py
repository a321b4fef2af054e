"""Counts what no plan shows: who is evicted amid the scan, what is handed out again, which steps took the fast path.

Knows the inner calls of one scheduler, and changes none of their answers.
"""

from collections import Counter
from contextlib import AbstractContextManager
from unittest.mock import patch

from mini_vllm.core import scheduler as core
from mini_vllm.core.fast_path import plan_decodes
from mini_vllm.core.preemption import take_out_of_plan
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request


class Witness:
    """Stands at the calls of `scheduler`; others that run beside it are left out."""

    def __init__(self, scheduler: Scheduler, stats: Counter):
        self.scheduler, self.stats = scheduler, stats
        self.allocate, self.preempt = scheduler._allocate, scheduler._preempt
        self.asking: Request | None = None
        scheduler._allocate, scheduler._preempt = self._allocate, self._preempt  # type: ignore[method-assign]

    def at_work(self) -> AbstractContextManager:
        return patch.multiple(core, take_out_of_plan=self._take_out_of_plan, plan_decodes=self._plan_decodes)

    def before_plan(self) -> None:
        self.running_before = list(self.scheduler.running)

    def _allocate(self, request: Request, num_new_tokens: int) -> list[int] | None:
        self.asking = request
        return self.allocate(request, num_new_tokens)

    def _preempt(self, victim: Request) -> None:
        if victim is self.asking:
            behind = self.running_before[self.running_before.index(victim) + 1 :]
            self.stats["self-preemptions"] += 1
            self.stats["self-preemptions, and the scan goes on"] += any(r in behind for r in self.scheduler.running)
        self.preempt(victim)

    def _take_out_of_plan(self, victim: Request, *plan) -> int:
        tokens = take_out_of_plan(victim, *plan)
        self.stats["given back"] += tokens > 0 and victim in self.running_before
        return tokens

    def _plan_decodes(self, scheduler: Scheduler, planned: list, scheduled: dict, new_blocks: dict) -> int:
        pool, stats = scheduler.kv_cache_manager.block_pool, self.stats
        hashes = pool.hash_of[:]
        num_planned = plan_decodes(scheduler, planned, scheduled, new_blocks)
        if scheduler is self.scheduler and scheduler.running:
            stats["fast path: steps" if num_planned else "fast path: blocks might not suffice"] += 1
            stats["fast path: steps with a new block"] += len(new_blocks) > 0
            changes = [(old, new) for old, new in zip(hashes, pool.hash_of, strict=True) if old != new]
            stats["fast path: steps that publish"] += any(new is not None for _, new in changes)
            stats["fast path: steps that evict"] += any(old is not None for old, _ in changes)
            stats["fast path: three or more at once"] += num_planned >= 3
        return num_planned
