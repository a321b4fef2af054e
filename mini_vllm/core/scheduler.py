"""Decides who advances by how many tokens in the next step. Knows requests, budgets and blocks; no model, no clock.

The rules are those of vLLM 0.33.0's v1 scheduler. `schedule()` reads in the order in which it runs. Chapters 4 to 11.
"""

from collections.abc import Iterable

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.admission import SKIPPING, max_loras_gate, max_num_seqs_gate, stale_output_gate
from mini_vllm.core.kv_cache_manager import NO_BLOCKS, KVCacheManager
from mini_vllm.core.output import (
    CachedRequestData,
    ModelRunnerOutput,
    NewRequestData,
    RequestOutput,
    SchedulerOutput,
)
from mini_vllm.core.request_queue import make_queue
from mini_vllm.errors import DuplicateRequestError
from mini_vllm.request import FINISHED_ABORTED, PREEMPTED, RUNNING, Request, RequestStatus


class Scheduler:
    def __init__(self, config: SchedulerConfig):
        self.config = config
        self.kv_cache_manager = KVCacheManager(config)
        self.requests: dict[str, Request] = {}
        self.waiting = make_queue(config.policy)
        self.running: list[Request] = []
        self.gates = [max_num_seqs_gate(config), max_loras_gate(config), stale_output_gate]
        self.finished_req_ids: list[str] = []
        self.known_to_worker: set[str] = set()

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises if its id is in use, or (refuse_unfittable) if it could never run to its end."""
        if request.request_id in self.requests:
            raise DuplicateRequestError(f"request id {request.request_id!r} is in use; wait for it or choose another")
        if self.config.refuse_unfittable:
            self.kv_cache_manager.refuse_if_never_fits(self.config, request)
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0

    def schedule(self) -> SchedulerOutput:
        cfg, running, waiting = self.config, self.running, self.waiting
        budget = cfg.token_budget
        threshold = self._long_prefill_threshold()
        scheduled: dict[str, int] = {}
        new_blocks: dict[str, list[int]] = {}
        drafts: dict[str, list[int]] = {}
        new: list[Request] = []
        resumed: list[Request] = []
        preempted: list[Request] = []
        blocked_reason = None

        # Those who run go first, in order of admission: whoever has started should not stall.
        index = 0
        while index < len(running) and budget > 0:
            request = running[index]
            num_new_tokens = min(
                self._num_tokens_to_compute(request),
                threshold,
                budget,
                cfg.max_model_len - request.num_computed_tokens - 1,
            )
            if num_new_tokens <= 0:
                index += 1
                continue
            while (blocks := self._allocate(request, num_new_tokens)) is None:
                victim = self._choose_victim()
                at = running.index(victim)
                if at < index:  # it stood before us: its tokens, if it had any, are handed out again
                    index -= 1
                    budget += scheduled.pop(victim.request_id, 0)
                    new_blocks.pop(victim.request_id, None)
                    drafts.pop(victim.request_id, None)
                del running[at]
                self._preempt(victim)
                preempted.append(victim)
                if victim is request:
                    break
            else:
                req_id = request.request_id
                scheduled[req_id] = num_new_tokens
                new_blocks[req_id] = blocks
                budget -= num_new_tokens
                if request.spec_token_ids:
                    drafts[req_id] = self._take_drafts(request, num_new_tokens)
                index += 1

        # Then whoever waits, in order; nobody enters in a step that evicted somebody.
        cached = [request for request in running if request.request_id in scheduled]
        skipped: list[Request] = []
        while len(waiting) and blocked_reason is None:
            request = waiting.peek()
            blocked_reason = self._closed_gate(request)
            if blocked_reason in SKIPPING:
                skipped.append(waiting.pop())
                blocked_reason = None
                continue
            if blocked_reason is None and preempted:
                blocked_reason = "preempted_this_step"
            elif blocked_reason is None and budget == 0:
                blocked_reason = "token_budget"
            if blocked_reason:
                break
            hits = self.kv_cache_manager.get_computed_blocks(request)
            num_hit_tokens = len(hits) * cfg.block_size
            num_new_tokens, padding = self._size_admission(request, num_hit_tokens, cached, scheduled)
            num_new_tokens = min(num_new_tokens, threshold)
            if num_new_tokens > budget and (padding or not cfg.enable_chunked_prefill):
                blocked_reason = "token_budget"
                break
            num_new_tokens = min(num_new_tokens, budget)
            blocks = self._allocate(request, num_new_tokens, hits=hits, admission=True)
            if blocks is None:
                blocked_reason = self._why_no_blocks(request, num_new_tokens, hits)
                break
            waiting.pop()
            (new if request.request_id not in self.known_to_worker else resumed).append(request)
            request.transition_to(RUNNING)
            request.num_computed_tokens = num_hit_tokens
            running.append(request)
            scheduled[request.request_id] = num_new_tokens
            new_blocks[request.request_id] = [*hits, *blocks]
            if padding:
                drafts[request.request_id] = [-1] * padding
            budget -= num_new_tokens
        for request in reversed(skipped):
            waiting.put_back(request)

        plan = SchedulerOutput(
            scheduled_new_reqs=[
                NewRequestData(
                    r.request_id, r.prompt_token_ids, r.sampling_params, new_blocks[r.request_id], r.num_computed_tokens
                )
                for r in new
            ],
            scheduled_cached_reqs=[
                CachedRequestData(r.request_id, new_blocks[r.request_id], r.num_computed_tokens) for r in cached
            ]
            + [
                CachedRequestData(r.request_id, new_blocks[r.request_id], r.num_computed_tokens, resumed=True)
                for r in resumed
            ],
            num_scheduled_tokens=scheduled,
            scheduled_spec_decode_tokens=drafts,
            preempted_req_ids=[r.request_id for r in preempted],
            finished_req_ids=self.finished_req_ids,
            blocked_reason=blocked_reason,
        )
        self.finished_req_ids = []
        self.known_to_worker.update(r.request_id for r in new)
        self._after_schedule(plan)
        return plan

    # --- the parts of a step ---

    def _long_prefill_threshold(self) -> int:
        """Longest piece of one request in this step. A lone request may take the whole budget."""
        cfg, num_requests = self.config, len(self.running) + len(self.waiting)
        if num_requests <= 1:
            return cfg.token_budget
        threshold = cfg.long_prefill_token_threshold
        if cfg.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, cfg.token_budget // num_requests)
        return threshold or cfg.token_budget

    def _num_tokens_to_compute(self, request: Request) -> int:
        """How far a running request is behind: known tokens and drafts, less what is computed or planned."""
        return len(request.token_ids) + len(request.spec_token_ids) - request.num_computed_tokens

    def _allocate(
        self, request: Request, num_new_tokens: int, hits: list[int] = NO_BLOCKS, admission: bool = False
    ) -> list[int] | None:
        cfg = self.config
        return self.kv_cache_manager.allocate_slots(
            request,
            num_new_tokens,
            num_lookahead_tokens=cfg.num_lookahead_tokens,
            hits=hits,
            full_sequence=admission and cfg.reserve_full_isl,
            watermark_blocks=cfg.watermark_blocks if admission and self.running else 0,
        )

    def _choose_victim(self) -> Request:
        """Who must leave: the most recently admitted, or the least urgent (of equals the first in `running`)."""
        if self.config.policy == "fcfs":
            return self.running[-1]
        return max(self.running, key=lambda r: (r.priority, r.arrival_time))

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

    def _take_drafts(self, request: Request, num_new_tokens: int) -> list[int]:
        """The drafts that fit into this piece; a piece that ends before the known tokens carries none."""
        behind = request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
        taken = request.spec_token_ids[: max(0, num_new_tokens - behind)]
        request.spec_token_ids = []
        return taken

    def _closed_gate(self, request: Request) -> str | None:
        return next((reason for gate in self.gates if (reason := gate(request, self.running))), None)

    def _size_admission(
        self, request: Request, num_hit_tokens: int, cached: list[Request], scheduled: dict[str, int]
    ) -> tuple[int, int]:
        """Tokens to compute of a request that enters, and how many of them only pad it to the shape of a decode.

        With drafts, a request that lacks a single token is made as wide as the decodes that it joins.
        """
        num_new_tokens = request.num_tokens - num_hit_tokens
        num_drafts = self.config.num_speculative_tokens
        if (
            num_drafts
            and num_new_tokens == 1
            and not any(r.is_prefill_chunk for r in cached)
            and (cached or num_hit_tokens)
            and num_hit_tokens + num_drafts + 2 <= self.config.max_model_len
        ):
            return 1 + num_drafts, num_drafts
        return num_new_tokens, 0

    def _why_no_blocks(self, request: Request, num_new_tokens: int, hits: list[int]) -> str:
        """Which of the three KV tests failed: all known tokens, the watermark beside them, or this piece."""
        cfg, pool = self.config, self.kv_cache_manager.block_pool
        free = pool.num_free_blocks - pool.num_idle(hits)
        watermark = cfg.watermark_blocks if self.running else 0
        piece = len(hits) * cfg.block_size + num_new_tokens + cfg.num_lookahead_tokens
        need = cfg.blocks_for(min(piece, cfg.max_model_len)) - len(hits)
        if cfg.reserve_full_isl:
            need_all = cfg.blocks_for(min(request.num_tokens, cfg.max_model_len)) - len(hits)
            if need_all > free:
                return "kv_full_sequence"
            need = max(need, need_all)
        return "kv_watermark" if need <= free < need + watermark else "kv_chunk"

    def _after_schedule(self, plan: SchedulerOutput) -> None:
        """Count the planned tokens as computed at once: the next plan may be made before this one has run."""
        for req_id, num_tokens in plan.num_scheduled_tokens.items():
            request = self.requests[req_id]
            request.num_computed_tokens += num_tokens
            request.is_prefill_chunk = request.num_computed_tokens < len(request.token_ids)
        if self.config.sliding_window is not None:
            for request in self.running:
                self.kv_cache_manager.free_out_of_window(request)

    # --- what comes back ---

    def update_from_output(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> list[RequestOutput]:
        """Append the sampled tokens; free whoever is done, so that the next step finds the blocks."""
        news = []
        sampled, drafts = output.sampled_token_ids, plan.scheduled_spec_decode_tokens
        max_model_len = self.config.max_model_len
        for req_id in plan.num_scheduled_tokens:
            request = self.requests.get(req_id)
            if request is None:  # aborted while the step ran
                continue
            token_ids = sampled.get(req_id)
            if not token_ids:
                continue
            if req_id in drafts and request.num_computed_tokens:
                # Rejected drafts were counted as computed; their slots are written again.
                request.num_computed_tokens -= len(drafts[req_id]) + 1 - len(token_ids)
            for count, token_id in enumerate(token_ids, start=1):
                if request.append_output(token_id, max_model_len):
                    token_ids = token_ids[:count]
                    break
            if req_id in drafts:  # accepted drafts may have filled blocks whose content was not known before
                self._register_settled(request)
            if request.status.is_finished:
                self._forget(request)
            news.append(RequestOutput(req_id, token_ids, request.finish_reason))
        for req_id, token_ids in output.draft_token_ids.items():
            request = self.requests.get(req_id)
            if request is not None and request.status == RUNNING and not request.is_prefill_chunk:
                request.spec_token_ids = token_ids
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
        cfg, manager = self.config, self.kv_cache_manager
        manager.check_integrity()
        queued = [r.request_id for r in [*self.waiting, *self.running]]
        assert sorted(queued) == sorted(self.requests), f"queues hold {queued}, known are {list(self.requests)}"
        assert len(self.running) <= cfg.max_num_seqs, "more running than max_num_seqs"
        for request in self.waiting:
            owned = manager.get_block_ids(request.request_id)
            assert not owned and request.num_computed_tokens == 0, f"{request.request_id} waits and holds KV"
        for request in self.running:
            room = len(manager.get_block_ids(request.request_id)) * cfg.block_size
            assert room >= request.num_computed_tokens, (
                f"{request.request_id} has computed {request.num_computed_tokens} tokens and room for {room}"
            )
            known = request.num_tokens + request.num_output_placeholders + cfg.num_speculative_tokens
            assert request.num_computed_tokens <= known, f"{request.request_id} computed too much"
