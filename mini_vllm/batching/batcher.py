"""The skeleton of a batcher: slots, a waiting line, and one question, who may join now? Knows no clock. Chapter 1.

Every policy of this chapter is this class plus an answer to `num_may_join`. It has the four methods of a scheduler,
so the same object runs in `simulate(...)` and serves a real model in `LLM(..., scheduler_cls=...)`.
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
from mini_vllm.errors import KVPoolExhaustedError
from mini_vllm.request import FINISHED_ABORTED, RUNNING, Request, RequestStatus


class Batcher:
    """A batch has `config.max_num_seqs` slots. Whoever is in it advances in every step: first its whole prompt, which
    gives its first token, then one token a step.

    padded: True where the batch is one rectangle, so that empty places in it are computed too (`PaddedBatcher`).
    """

    padded = False

    def __init__(self, config: SchedulerConfig):
        self.config = config
        self.kv_cache_manager = KVCacheManager(config)  # a black box until chapter 6; the pool must be large enough
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.finished_req_ids: list[str] = []

    def num_may_join(self) -> int:
        """How many waiting requests may join the batch in this step. The whole policy."""
        raise NotImplementedError("a batching policy answers num_may_join()")

    def add_request(self, request: Request) -> None:
        self.waiting.append(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> SchedulerOutput:
        cached = list(self.running)
        tokens = {r.request_id: r.num_new_tokens for r in cached}
        cached_data = CachedRequestData()
        for r in cached:
            cached_data.add(r.request_id, r.num_computed_tokens, self._allocate(r))

        new_data = []
        for _ in range(min(self.num_may_join(), len(self.waiting))):
            request = self.waiting[0]
            prompt_len = request.num_prompt_tokens
            if sum(tokens.values()) + prompt_len > self.config.max_num_batched_tokens:
                break
            blocks = self.kv_cache_manager.allocate_slots(request, prompt_len)
            if blocks is None:
                break
            self.running.append(self.waiting.popleft())
            request.transition_to(RUNNING)
            tokens[request.request_id] = prompt_len
            new_data.append(
                NewRequestData(request.request_id, request.prompt_token_ids, request.sampling_params, blocks, 0)
            )

        for request in self.running:
            request.num_computed_tokens += tokens[request.request_id]
        finished, self.finished_req_ids = self.finished_req_ids, []
        return SchedulerOutput(new_data, cached_data, tokens, finished_req_ids=finished)

    def _allocate(self, request: Request) -> list[int]:
        blocks = self.kv_cache_manager.allocate_slots(request, request.num_new_tokens)
        if blocks is None:
            raise KVPoolExhaustedError(
                f"{type(self).__name__} cannot evict anybody: {request.request_id} needs a KV block and 0 of "
                f"{self.config.num_gpu_blocks} are free; give it a larger pool (num_gpu_blocks)"
            )
        return blocks

    def update_from_output(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> list[RequestOutput]:
        news = []
        for request in list(self.running):
            token_ids = output.sampled_token_ids.get(request.request_id, [])
            for token_id in token_ids:
                request.append_output(token_id, self.config.max_model_len)
            if request.status.is_finished:
                self._retire(request)
            if token_ids:
                news.append(RequestOutput(request.request_id, token_ids, request.finish_reason))
        return news

    def finish_requests(self, request_ids: Iterable[str], status: RequestStatus = FINISHED_ABORTED) -> None:
        """End requests from outside (abort)."""
        wanted = set(request_ids)
        for request in [r for r in (*self.waiting, *self.running) if r.request_id in wanted]:
            request.transition_to(status)
            self._retire(request)

    def _retire(self, request: Request) -> None:
        self.kv_cache_manager.free(request)
        (self.running if request in self.running else self.waiting).remove(request)
        self.finished_req_ids.append(request.request_id)
