"""Decides who advances by how many tokens in the next step. Knows requests, budgets and blocks; no model, no clock.

The rules are those of vLLM 0.33.0's v1 scheduler. `schedule()` reads in the order in which it runs. Chapters 4 to 11.
"""

from collections.abc import Iterable

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.admission import (
    SKIPPING,
    closed_gate,
    longest_piece,
    make_gates,
    size_admission,
    why_no_blocks,
)
from mini_vllm.core.drafts import take_drafts, verify_drafts
from mini_vllm.core.integrity import check_integrity
from mini_vllm.core.kv_cache_manager import NO_BLOCKS, KVCacheManager
from mini_vllm.core.output import (
    CachedRequestData,
    ModelRunnerOutput,
    NewRequestData,
    RequestOutput,
    SchedulerOutput,
)
from mini_vllm.core.preemption import choose_victim, take_out_of_plan
from mini_vllm.core.request_queue import make_queue
from mini_vllm.errors import DuplicateRequestError, InvalidRequestError
from mini_vllm.request import FINISHED_ABORTED, PREEMPTED, RUNNING, WAITING, Request, RequestStatus


class Scheduler:
    def __init__(self, config: SchedulerConfig):
        self.config = config
        self.kv_cache_manager = KVCacheManager(config)
        self.requests: dict[str, Request] = {}
        self.waiting = make_queue(config.policy)
        self.running: list[Request] = []
        self.gates = make_gates(config)
        self.finished_req_ids: list[str] = []
        self.known_to_worker: set[str] = set()

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises if its id is in use, or (refuse_unfittable) if it could never run to its end:
        DuplicateRequestError, PromptTooLongError, KVPoolTooSmallError.
        """
        if request.request_id in self.requests:
            raise DuplicateRequestError(f"request id {request.request_id!r} is in use; wait for it or choose another")
        if request.status != WAITING:
            raise InvalidRequestError(
                f"request {request.request_id!r} is {request.status.name}, and only a fresh one can be added"
            )
        if self.config.refuse_unfittable:
            self.kv_cache_manager.refuse_if_never_fits(self.config, request)
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0

    def schedule(self) -> SchedulerOutput:
        cfg, running, waiting = self.config, self.running, self.waiting
        budget, max_model_len = cfg.token_budget, cfg.max_model_len
        threshold = longest_piece(cfg, len(running) + len(waiting))
        planned: list[Request] = []  # in the order of the plan
        scheduled: dict[str, int] = {}
        new_blocks: dict[str, list[int]] = {}  # only of those who got some
        drafts: dict[str, list[int]] = {}
        preempted: list[Request] = []

        # Those who run go first, in order of admission: whoever has started should not stall.
        index = 0
        while index < len(running) and budget > 0:
            request = running[index]
            computed = request.num_computed_tokens
            # One number says prefill, chunk, decode and drafts alike: how far it is behind.
            num_new_tokens = len(request.token_ids) - computed
            if request.num_output_placeholders or request.spec_token_ids:
                num_new_tokens = self._num_tokens_to_compute(request)
            if num_new_tokens != 1:
                num_new_tokens = min(num_new_tokens, threshold, budget)
            if computed + num_new_tokens >= max_model_len:
                num_new_tokens = max_model_len - computed - 1
            if num_new_tokens <= 0:
                index += 1
                continue
            if computed + num_new_tokens > request.quiet_until:
                while (blocks := self._allocate(request, num_new_tokens)) is None:
                    victim = choose_victim(cfg.policy, running)
                    at = running.index(victim)
                    if at < index:  # it stood before us: its tokens, if it had any, are handed out again
                        index -= 1
                        budget += take_out_of_plan(victim, planned, scheduled, new_blocks, drafts)
                        if cfg.unpublish_given_back:
                            self.kv_cache_manager.unpublish(victim)
                    del running[at]
                    self._preempt(victim)
                    preempted.append(victim)
                    if victim is request:
                        break
                if blocks is None:
                    continue
                if blocks:
                    new_blocks[request.request_id] = blocks
            planned.append(request)
            scheduled[request.request_id] = num_new_tokens
            budget -= num_new_tokens
            if request.spec_token_ids:
                drafts[request.request_id] = take_drafts(request, num_new_tokens)
            index += 1

        # Then whoever waits, in order; nobody enters in a step that evicted somebody.
        num_cached = len(planned)
        blocked_reason = skip_reason = None
        skipped: list[Request] = []
        while waiting:
            request = waiting.peek()
            blocked_reason = closed_gate(self.gates, request, running)
            if blocked_reason in SKIPPING:
                skipped.append(waiting.pop())
                skip_reason = skip_reason or blocked_reason
                blocked_reason = None
                continue
            if blocked_reason is None:
                blocked_reason = "preempted_this_step" if preempted else "token_budget" if budget == 0 else None
            if blocked_reason:
                break
            hits = self.kv_cache_manager.get_computed_blocks(request)
            num_hit_tokens = len(hits) * cfg.block_size
            num_new_tokens, padding = size_admission(cfg, request, num_hit_tokens, planned[:num_cached])
            too_wide = padding and num_new_tokens > budget
            num_new_tokens = min(num_new_tokens, threshold)
            if too_wide or (num_new_tokens > budget and not cfg.enable_chunked_prefill):
                blocked_reason = "token_budget"
                break
            num_new_tokens = min(num_new_tokens, budget)
            padding = min(padding, num_new_tokens - 1)
            blocks = self._allocate_admission(request, num_new_tokens, hits)
            if blocks is None:
                blocked_reason = why_no_blocks(self.kv_cache_manager, request, num_new_tokens, hits, bool(running))
                break
            waiting.pop()
            request.transition_to(RUNNING)
            request.num_computed_tokens = num_hit_tokens
            running.append(request)
            planned.append(request)
            scheduled[request.request_id] = num_new_tokens
            new_blocks[request.request_id] = [*hits, *blocks]
            if padding:
                drafts[request.request_id] = [-1] * padding
            budget -= num_new_tokens
        for request in reversed(skipped):
            waiting.put_back(request)

        # The first that was passed over is the head of the queue, whatever stopped those behind it.
        blocked_reason = skip_reason or blocked_reason
        return self._write_plan(planned, num_cached, scheduled, new_blocks, drafts, preempted, blocked_reason)

    # --- the parts of a step ---

    def _num_tokens_to_compute(self, request: Request) -> int:
        """How far a request with drafts is behind; the asynchronous scheduler asks for those with placeholders."""
        return len(request.token_ids) + len(request.spec_token_ids) - request.num_computed_tokens

    def _allocate(self, request: Request, num_new_tokens: int) -> list[int] | None:
        """Blocks for the next piece of a running request."""
        lookahead = self.config.num_lookahead_tokens
        return self.kv_cache_manager.allocate_slots(request, num_new_tokens, num_lookahead_tokens=lookahead)

    def _allocate_admission(self, request: Request, num_new_tokens: int, hits: list[int]) -> list[int] | None:
        """Blocks for one that enters; more is asked of it than of those who run."""
        cfg = self.config
        return self.kv_cache_manager.allocate_slots(
            request,
            num_new_tokens,
            num_lookahead_tokens=cfg.num_lookahead_tokens,
            hits=hits,
            full_sequence=cfg.reserve_full_isl,
            watermark_blocks=cfg.watermark_blocks if self.running else 0,
        )

    def _preempt(self, request: Request) -> None:
        """Take everything from it but its tokens; the worker will compute them again."""
        self.kv_cache_manager.free(request)
        request.transition_to(PREEMPTED)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.spec_token_ids = []
        request.num_output_placeholders = 0
        request.num_in_flight_tokens = 0
        request.num_stale_plans = request.num_plans_in_flight
        self.waiting.put_back(request)

    def _write_plan(
        self,
        planned: list[Request],
        num_cached: int,
        scheduled: dict[str, int],
        new_blocks: dict[str, list[int]],
        drafts: dict[str, list[int]],
        preempted: list[Request],
        blocked_reason: str | None,
    ) -> SchedulerOutput:
        """The step as data; the first `num_cached` of `planned` ran already, the others enter."""
        get = new_blocks.get
        cached = [
            CachedRequestData(r.request_id, get(r.request_id, NO_BLOCKS), r.num_computed_tokens)
            for r in planned[:num_cached]
        ]
        new = []
        for r in planned[num_cached:]:
            blocks = new_blocks[r.request_id]
            if r.request_id in self.known_to_worker:
                cached.append(CachedRequestData(r.request_id, blocks, r.num_computed_tokens, resumed=True))
            else:
                self.known_to_worker.add(r.request_id)
                new.append(
                    NewRequestData(r.request_id, r.prompt_token_ids, r.sampling_params, blocks, r.num_computed_tokens)
                )
        finished, self.finished_req_ids = self.finished_req_ids, []
        preempted_req_ids = [r.request_id for r in preempted]
        plan = SchedulerOutput(new, cached, scheduled, drafts, preempted_req_ids, finished, blocked_reason)
        self._after_schedule(plan, planned)
        return plan

    def _after_schedule(self, plan: SchedulerOutput, planned: list[Request]) -> None:
        """Count the planned tokens as computed at once: the next plan may be made before this one has run."""
        for request, num_tokens in zip(planned, plan.num_scheduled_tokens.values(), strict=True):
            request.num_computed_tokens += num_tokens
            request.is_prefill_chunk = request.num_computed_tokens < len(request.token_ids)
        if self.config.sliding_window is not None:
            for request in self.running:
                self.kv_cache_manager.free_out_of_window(request)

    # --- what comes back ---

    def update_from_output(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> list[RequestOutput]:
        """Append the sampled tokens; free whoever is done, so that the next step finds the blocks."""
        news = []
        requests, sampled, drafts = self.requests, output.sampled_token_ids, plan.scheduled_spec_decode_tokens
        max_model_len = self.config.max_model_len
        for req_id in plan.num_scheduled_tokens:
            token_ids = sampled.get(req_id)
            if not token_ids or req_id not in requests:  # in mid-prompt, or aborted while the step ran
                continue
            request = requests[req_id]
            if request.status != RUNNING:  # aborted, and its id given to another, while the step ran
                continue
            if req_id in drafts:
                token_ids, is_done = verify_drafts(request, drafts[req_id], token_ids, max_model_len)
                self._register_settled(request)  # accepted drafts may have filled blocks with tokens not known before
            else:
                is_done = request.append_output(token_ids[0], max_model_len)
            if is_done:
                self._forget(request)
                news.append(RequestOutput(req_id, token_ids, request.finish_reason))
            else:
                news.append(RequestOutput(req_id, token_ids))
        for req_id, token_ids in output.draft_token_ids.items():
            owner = requests.get(req_id)
            if owner is not None and owner.status == RUNNING and not owner.is_prefill_chunk:
                owner.spec_token_ids = token_ids
        return news

    def _register_settled(self, request: Request) -> None:
        """Hash the blocks that outputs have filled; also of one that has just ended, before its blocks are freed."""
        if request.status != PREEMPTED and self.config.enable_prefix_caching:
            settled = min(request.num_computed_tokens - request.num_in_flight_tokens, request.num_tokens)
            self.kv_cache_manager.register_full_blocks(request, settled)

    def finish_requests(self, request_ids: Iterable[str], status: RequestStatus = FINISHED_ABORTED) -> None:
        """End requests from outside (abort). Ids that are unknown or already finished are passed over."""
        for req_id in request_ids:
            if (request := self.requests.get(req_id)) is not None:
                request.transition_to(status)
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
        check_integrity(self)
