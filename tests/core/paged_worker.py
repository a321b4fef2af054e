"""A worker without a model: one token per KV slot, and the next token is drawn from what it reads back.

Every slot of a request takes part in its next token, so a block given twice, a lost recompute or a wrong position ends
in a wrong token, as it would in a model. Knows plans and blocks; knows no scheduler.
"""

import zlib
from dataclasses import dataclass, field

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.trace.recorder import Trace

VOCABULARY = 16


class PagedWorker:
    """Keeps its own copy of every request, extended only by what the plans say."""

    def __init__(self, block_size: int):
        self.block_size = block_size
        self.slots: dict[tuple[int, int], int] = {}  # (block, offset) -> token
        self.tokens: dict[str, list[int]] = {}
        self.tables: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        for req_id in plan.finished_req_ids:
            self.tokens.pop(req_id, None)
        for new in plan.scheduled_new_reqs:
            assert new.req_id not in self.tokens, f"{new.req_id} is sent as new, but was never reported as finished"
            self.tokens[new.req_id] = list(new.prompt_token_ids)
            self.tables[new.req_id] = list(new.block_ids)
            self.computed[new.req_id] = new.num_computed_tokens
        cached = plan.scheduled_cached_reqs
        for req_id, num_computed_tokens in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if req_id in cached.resumed_req_ids:
                self.tables[req_id] = []
            else:
                assert self.computed[req_id] == num_computed_tokens
            self.tables[req_id] += cached.new_block_ids.get(req_id, [])
            self.computed[req_id] = num_computed_tokens
        for req_id, n in plan.num_scheduled_tokens.items():
            for position in range(self.computed[req_id], self.computed[req_id] + n):
                self.slots[self._slot(req_id, position)] = self.tokens[req_id][position]
            self.computed[req_id] += n
        return ModelRunnerOutput({req_id: self._sample(req_id) for req_id in plan.num_scheduled_tokens})

    def _slot(self, req_id: str, position: int) -> tuple[int, int]:
        return self.tables[req_id][position // self.block_size], position % self.block_size

    def _sample(self, req_id: str) -> list[int]:
        if self.computed[req_id] < len(self.tokens[req_id]):
            return []
        read_back = bytes(self.slots[self._slot(req_id, p)] for p in range(self.computed[req_id]))
        token = zlib.crc32(read_back) % VOCABULARY
        self.tokens[req_id].append(token)
        return [token]


@dataclass(frozen=True)
class Job:
    """A request and what happens to it from outside."""

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    arrival_step: int = 0
    abort_step: int | None = None
    stop_token_ids: tuple[int, ...] = ()

    def request(self) -> Request:
        params = SamplingParams(max_tokens=self.max_tokens, stop_token_ids=self.stop_token_ids)
        return Request(self.request_id, list(self.prompt), params)


@dataclass
class Run:
    """What came out: the trace, every plan, and per request its tokens, the ways it ended and its abort's state."""

    trace: Trace
    plans: list[SchedulerOutput] = field(default_factory=list)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, list[str]] = field(default_factory=dict)
    state_at_abort: dict[str, str] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)


def run_jobs(jobs, config: SchedulerConfig, scheduler_cls=Scheduler, max_steps: int = 2_000) -> Run:
    """Run `jobs` to the end under the watch; integrity, account and plans are checked in every step."""
    scheduler, worker = scheduler_cls(config), PagedWorker(config.block_size)
    loop = StepLoop(scheduler, config, worker.execute, kind="sim", clock=lambda: 0.0)
    run = Run(loop.trace)
    plans_as_text = []

    def execute(plan):
        run.plans.append(plan)
        plans_as_text.append(repr(plan))  # before anybody could change it
        return worker.execute(plan)

    loop.execute = execute
    while loop.step_index < max_steps:
        step = loop.step_index
        for job in (j for j in jobs if j.arrival_step == step):
            run.requests[job.request_id] = job.request()
            run.outputs[job.request_id], run.ends[job.request_id] = [], []
            loop.add_request(run.requests[job.request_id])
        for job in (j for j in jobs if j.abort_step == step and j.request_id in scheduler.requests):
            run.state_at_abort[job.request_id] = run.requests[job.request_id].status.name
            run.ends[job.request_id].append("abort")
            loop.abort([job.request_id])
        to_come = any(j.arrival_step > step for j in jobs)
        if not (to_come or loop.has_unfinished_requests()):
            assert [repr(plan) for plan in run.plans] == plans_as_text, "a plan was changed after it was made"
            assert scheduler.kv_cache_manager.num_free_blocks == config.num_gpu_blocks, "blocks are left over"
            return run
        for news in loop.step(more_to_come=to_come):
            run.outputs[news.request_id] += news.new_token_ids
            run.ends[news.request_id] += [news.finish_reason] if news.finished else []
        check_account(scheduler, loop.watch, config)
    raise AssertionError(f"not done after {max_steps} steps")


def check_account(scheduler, watch, config: SchedulerConfig) -> None:
    """The scheduler's own books, and the same as the watch keeps them from outside."""
    scheduler.check_integrity()
    tables = scheduler.kv_cache_manager.req_to_blocks
    owned = [block for table in tables.values() for block in table]
    free = scheduler.kv_cache_manager.block_pool.free_queue()
    assert sorted(owned + free) == list(range(1, config.num_gpu_blocks + 1)), "free + owned is not the pool"
    assert [r.request_id for r in scheduler.waiting] == watch.waiting
    assert [r.request_id for r in scheduler.running] == watch.running
    assert tables == watch.block_tables
    assert {r.request_id: r.num_computed_tokens for r in scheduler.requests.values()} == watch.computed
    assert {r.request_id: r.num_tokens for r in scheduler.requests.values()} == watch.known
