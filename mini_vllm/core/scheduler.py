"""Decides who advances by how many tokens in the next step. Knows requests, budgets and blocks; no model, no clock.

The scheduler of the first slice: vLLM 0.33.0's first-come-first-served rules with chunked prefill and preemption by
recompute; without prefix caching, priorities, drafts and asynchrony, which chapters 7 to 11 add.
"""

from collections import deque
from collections.abc import Iterable

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.output import (
    CachedRequestData,
    ModelRunnerOutput,
    NewRequestData,
    RequestOutput,
    SchedulerOutput,
)
from mini_vllm.errors import DuplicateRequestError
from mini_vllm.request import FINISHED_ABORTED, Request, RequestStatus


class Scheduler:
    def __init__(self, config: SchedulerConfig):
        self.config = config
        self.kv_cache_manager = KVCacheManager(config)
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.finished_req_ids: list[str] = []
        self.known_to_worker: set[str] = set()

    def add_request(self, request: Request) -> None:
        if request.request_id in self.requests:
            raise DuplicateRequestError(f"request id {request.request_id!r} is in use; wait for it or choose another")
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> SchedulerOutput:
        budget = self.config.max_num_batched_tokens
        scheduled: dict[str, int] = {}
        new_blocks: dict[str, list[int]] = {}
        new: list[Request] = []
        cached: list[Request] = []
        preempted: list[Request] = []
        blocked_reason = None

        # Those who run go first, in order of admission: whoever has started should not stall.
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            index += 1
            num_new_tokens = min(
                request.num_new_tokens, budget, self.config.max_model_len - request.num_computed_tokens - 1
            )
            if num_new_tokens <= 0:
                continue
            while (blocks := self.kv_cache_manager.allocate_slots(request, num_new_tokens)) is None:
                victim = self.running.pop()  # the tail: the most recently admitted
                self._preempt(victim)
                preempted.append(victim)
                if victim is request:
                    break
            else:
                scheduled[request.request_id] = num_new_tokens
                new_blocks[request.request_id] = blocks
                cached.append(request)
                budget -= num_new_tokens

        # Then whoever waits, strictly in order; nobody enters in a step that evicted somebody.
        while self.waiting and blocked_reason is None:
            request = self.waiting[0]
            num_new_tokens = min(request.num_new_tokens, budget)
            if len(self.running) >= self.config.max_num_seqs:
                blocked_reason = "max_num_seqs"
            elif preempted:
                blocked_reason = "preempted_this_step"
            elif budget == 0:
                blocked_reason = "token_budget"
            elif (blocks := self.kv_cache_manager.allocate_slots(request, num_new_tokens, full_sequence=True)) is None:
                blocked_reason = "kv_full_sequence"
            else:
                self.running.append(self.waiting.popleft())
                request.status = RequestStatus.RUNNING
                scheduled[request.request_id] = num_new_tokens
                new_blocks[request.request_id] = blocks
                (cached if request.request_id in self.known_to_worker else new).append(request)
                budget -= num_new_tokens

        # A resumed request has nothing computed: that is how it is told from one that merely goes on.
        plan = SchedulerOutput(
            scheduled_new_reqs=[
                NewRequestData(r.request_id, r.prompt_token_ids, r.sampling_params, new_blocks[r.request_id], 0)
                for r in new
            ],
            scheduled_cached_reqs=[
                CachedRequestData(
                    r.request_id, new_blocks[r.request_id], r.num_computed_tokens, r.num_computed_tokens == 0
                )
                for r in cached
            ],
            num_scheduled_tokens=scheduled,
            preempted_req_ids=[r.request_id for r in preempted],
            finished_req_ids=self.finished_req_ids,
            blocked_reason=blocked_reason,
        )
        self.finished_req_ids = []
        self.known_to_worker.update(r.request_id for r in new)
        for req_id, num_tokens in scheduled.items():
            self.requests[req_id].num_computed_tokens += num_tokens
        return plan

    def _preempt(self, request: Request) -> None:
        self.kv_cache_manager.free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        self.waiting.appendleft(request)

    def update_from_output(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> list[RequestOutput]:
        """Append the sampled tokens; free whoever is done, so that the next step finds the blocks."""
        news = []
        for req_id in plan.num_scheduled_tokens:
            request = self.requests.get(req_id)
            if request is None:  # aborted while the step ran
                continue
            token_ids = output.sampled_token_ids.get(req_id, [])
            for token_id in token_ids:
                request.append_output(token_id, self.config.max_model_len)
            if request.status.is_finished:
                self._forget(request)
            if token_ids:
                news.append(RequestOutput(req_id, token_ids, request.finish_reason))
        return news

    def finish_requests(self, request_ids: Iterable[str], status: RequestStatus = FINISHED_ABORTED) -> None:
        """End requests from outside (abort). Ids that are unknown or already finished are passed over."""
        for req_id in request_ids:
            if (request := self.requests.get(req_id)) is not None:
                request.status = status
                self._forget(request)

    def _forget(self, request: Request) -> None:
        self.kv_cache_manager.free(request)
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        del self.requests[request.request_id]
        self.known_to_worker.discard(request.request_id)
        self.finished_req_ids.append(request.request_id)

    def check_integrity(self) -> None:
        """Raise AssertionError with the broken invariant named. Called after every step in tests."""
        self.kv_cache_manager.check_integrity()
        queued = [r.request_id for r in [*self.waiting, *self.running]]
        assert sorted(queued) == sorted(self.requests), f"queues hold {queued}, known are {list(self.requests)}"
        assert len(self.running) <= self.config.max_num_seqs, "more running than max_num_seqs"
        for request in self.waiting:
            owned = self.kv_cache_manager.get_block_ids(request.request_id)
            assert not owned and request.num_computed_tokens == 0, f"{request.request_id} waits and holds KV"
        for request in self.running:
            num_owned = len(self.kv_cache_manager.get_block_ids(request.request_id))
            need = self.config.blocks_for(request.num_computed_tokens)
            assert num_owned == need, f"{request.request_id} owns {num_owned} blocks and needs {need}"
            assert request.num_computed_tokens <= request.num_tokens, f"{request.request_id} computed too much"
