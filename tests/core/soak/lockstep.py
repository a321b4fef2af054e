"""A second scheduler that is given the same, step by step, and must decide the same. Knows two schedulers.

Which one: the clear form of the rules, or core's own scheduler without its fast path.
"""

from collections import deque
from typing import Any

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import ModelRunnerOutput, RequestOutput, SchedulerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request
from mini_vllm.stages.ch10_priority_aging import Scheduler as ClearScheduler
from tests.core.soak.broken import need
from tests.core.soak.generator import twin_of

PLAN = (
    "num_scheduled_tokens",
    "scheduled_new_reqs",
    "scheduled_cached_reqs",
    "scheduled_spec_decode_tokens",
    "preempted_req_ids",
    "finished_req_ids",
)
REQUEST = (
    "status",
    "token_ids",
    "num_computed_tokens",
    "num_preemptions",
    "is_prefill_chunk",
    "block_hashes",
    "quiet_until",
)


class Partner:
    """Beside `ours`; every call of one is a call of the other."""

    def __init__(self, ours: Scheduler, kind: str, config: SchedulerConfig):
        self.ours, self.is_clear_form = ours, kind == "lockstep"
        self.theirs: Any = ClearScheduler(config) if self.is_clear_form else Scheduler(config)
        self.theirs.fast_path = False
        self._plans: deque[SchedulerOutput] = deque()  # theirs; each wants its own back

    def add_request(self, request: Request) -> None:
        self.theirs.add_request(twin_of(request))

    def finish_requests(self, request_ids: list[str]) -> None:
        self.theirs.finish_requests(request_ids)

    def schedule(self, plan: SchedulerOutput) -> None:
        """Plan too, and compare the plans, the queues and the pool, block id by block id."""
        theirs = self.theirs.schedule()
        self._plans.append(theirs)
        self._same(PLAN, plan, theirs, "plan")
        need([*plan.num_scheduled_tokens] == [*theirs.num_scheduled_tokens], "the order of the plan differs")
        need(plan.blocked_reason == theirs.blocked_reason, "reason:", plan.blocked_reason, "and", theirs.blocked_reason)
        self._compare_books()

    def update_from_output(self, output: ModelRunnerOutput, news: list[RequestOutput]) -> None:
        need(news == self.theirs.update_from_output(self._plans.popleft(), output), "news differ")
        self._compare_books()

    def _compare_books(self) -> None:
        a, b = self.ours, self.theirs
        need([r.request_id for r in a.waiting] == [r.request_id for r in b.waiting], "waiting differs")
        need([r.request_id for r in a.running] == [r.request_id for r in b.running], "running differs")
        kv, their_kv = a.kv_cache_manager, b.kv_cache_manager
        self._same(("req_to_blocks", "num_registered"), kv, their_kv, "block tables")
        # Lists and orders, not only sets: the next step depends on them.
        self._same(("hash_of", "cached", "twins", "ref_count"), kv.block_pool, their_kv.block_pool, "pool")
        ours, theirs = ([list(t) for t in m.block_pool.twins.values()] for m in (kv, their_kv))
        need(ours == theirs, "the order of twins differs:", ours, theirs)
        need(kv.block_pool.free_queue() == their_kv.block_pool.free_queue(), "the free queue differs")
        for request in a.running:
            self._same(REQUEST, request, b.requests[request.request_id], request.request_id)

    @staticmethod
    def _same(names: tuple[str, ...], ours: object, theirs: object, what: str) -> None:
        for name in names:
            a, b = getattr(ours, name), getattr(theirs, name)
            need(a == b, what, f"differs in {name}: ours", a, "theirs", b)
