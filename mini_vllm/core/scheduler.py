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
from mini_vllm.core.drafts import refuse_too_many_drafts, take_drafts, verify_drafts
from mini_vllm.core.fast_path import plan_decodes
from mini_vllm.core.in_flight import PlansInFlight
from mini_vllm.core.integrity import check_integrity
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.output import ModelRunnerOutput, RequestOutput, SchedulerOutput, describe
from mini_vllm.core.preemption import choose_victim, take_out_of_plan
from mini_vllm.core.request_queue import make_queue
from mini_vllm.errors import DuplicateRequestError, InvalidRequestError
from mini_vllm.request import FINISHED_ABORTED, RUNNING, WAITING, Request, RequestStatus


class Scheduler:
    """The synchronous scheduler: one plan, one output, the next plan.

        add_request -> waiting -> schedule() -> plan -> worker -> update_from_output() -> news
                          ^          running ----------------------------|
                          '---- preempted: a running request found no block

    Every running request owns the blocks of its computed tokens; who waits owns none. The worker is told only what
    changed, so each plan's output must come back once, in the order of the plans (SchedulerContractError).
    """

    def __init__(self, config: SchedulerConfig):
        self.config = config
        self.kv_cache_manager = KVCacheManager(config)
        self.requests: dict[str, Request] = {}
        self.waiting = make_queue(config.policy, config.aging)
        self.running: list[Request] = []
        self.gates = make_gates(config)
        self.finished_req_ids: list[str] = []
        self.known_to_worker: set[str] = set()
        self.in_flight = PlansInFlight()
        slots_ahead = config.num_lookahead_tokens or config.max_num_new_slots_for_drafting
        self.fast_path = not (slots_ahead or config.num_speculative_tokens or config.sliding_window)
        self.all_decode = False  # everybody in `running` has exactly one token to compute

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
            manager = self.kv_cache_manager
            manager.refuse_if_never_fits(self.config, request, manager.num_steps_in_flight)
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0

    def schedule(self) -> SchedulerOutput:
        """The plan of the next step; empty if nobody can advance. Takes blocks and counts tokens as computed."""
        cfg, running, waiting = self.config, self.running, self.waiting
        budget, max_model_len = cfg.token_budget, cfg.max_model_len
        draft_slots = cfg.max_num_new_slots_for_drafting
        threshold = longest_piece(cfg, len(running) + len(waiting))
        planned: list[Request] = []  # in the order of the plan
        scheduled: dict[str, int] = {}
        new_blocks: dict[str, list[int]] = {}  # only of those who got some
        drafts: dict[str, list[int]] = {}
        preempted: list[Request] = []

        # Those who run go first, in order of admission: whoever has started should not stall.
        num_quiet = index = plan_decodes(self, planned, scheduled, new_blocks) if self.all_decode else 0
        budget -= num_quiet
        self.all_decode = False
        while index < len(running) and budget > 0:
            request = running[index]
            computed = request.num_computed_tokens
            # One number says prefill, chunk, decode and drafts alike: how far it is behind.
            num_new_tokens = len(request.token_ids) - computed
            if request.num_output_placeholders or request.spec_token_ids:
                num_new_tokens = self._num_tokens_to_compute(request)
            if num_new_tokens != 1 or draft_slots:
                num_new_tokens = min(num_new_tokens, threshold, cfg.room(budget, len(planned)))
            if computed + num_new_tokens >= max_model_len:
                num_new_tokens = max_model_len - computed - 1
            if num_new_tokens <= 0:
                index += 1
                continue
            if computed + num_new_tokens > request.quiet_until:
                while (blocks := self._allocate(request, num_new_tokens)) is None:
                    victim = choose_victim(cfg.policy, running, cfg.aging)
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
                room = cfg.room(budget, len(planned))
                blocked_reason = "preempted_this_step" if preempted else "token_budget" if room <= 0 else None
            if blocked_reason:
                break
            hits = self.kv_cache_manager.get_computed_blocks(request)
            num_hit_tokens = len(hits) * cfg.block_size
            num_new_tokens, padding = size_admission(cfg, request, num_hit_tokens, planned[:num_cached])
            too_wide = padding and num_new_tokens > room
            num_new_tokens = min(num_new_tokens, threshold)
            if too_wide or (num_new_tokens > room and not cfg.enable_chunked_prefill):
                blocked_reason = "token_budget"
                break
            num_new_tokens = min(num_new_tokens, room)
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
        plan = self._write_plan(planned, num_cached, scheduled, new_blocks, drafts, preempted, blocked_reason)
        self._after_schedule(plan, planned, num_quiet)
        return plan

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
        request.preempt()
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
        """The step as data; the first `num_cached` of `planned` run already, the others enter."""
        new, cached = describe(planned, num_cached, scheduled, new_blocks, self.known_to_worker)
        finished, self.finished_req_ids = self.finished_req_ids, []
        preempted_req_ids = [r.request_id for r in preempted]
        return SchedulerOutput(new, cached, scheduled, drafts, preempted_req_ids, finished, blocked_reason)

    def _after_schedule(self, plan: SchedulerOutput, planned: list[Request], num_quiet: int) -> None:
        """Count the planned tokens as computed at once: the next plan may be made before this one has run."""
        self.in_flight.add(plan, planned)
        for request in planned[:num_quiet]:
            request.num_computed_tokens += 1
        for request in planned[num_quiet:]:
            request.num_computed_tokens += plan.num_scheduled_tokens[request.request_id]
            request.is_prefill_chunk = request.num_computed_tokens < len(request.token_ids)
        self._free_out_of_window()

    def _free_out_of_window(self) -> None:
        if self.config.sliding_window is not None:
            for request in self.running:
                self.kv_cache_manager.free_out_of_window(request)

    # --- what comes back ---

    def update_from_output(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> list[RequestOutput]:
        """Append the sampled tokens; free whoever is done, so that the next step finds the blocks."""
        refuse_too_many_drafts(output.draft_token_ids, self.config.num_speculative_tokens)
        news, num_done = [], 0
        sampled, drafts = output.sampled_token_ids, plan.scheduled_spec_decode_tokens
        max_model_len = self.config.max_model_len
        for request in self.in_flight.take(plan):
            req_id = request.request_id
            token_ids = sampled.get(req_id)
            if not token_ids or request.status is not RUNNING:  # in mid-prompt; or aborted while the step ran
                continue
            if drafts and req_id in drafts:
                token_ids, is_done = verify_drafts(request, drafts[req_id], token_ids, max_model_len)
                self.kv_cache_manager.register_settled(request)  # accepted drafts may have filled blocks
            else:
                is_done = request.append_output(token_ids[0], max_model_len)
            if is_done:
                self._forget(request)
                num_done += 1
                news.append(RequestOutput(req_id, token_ids, request.finish_reason))
            else:
                news.append(RequestOutput(req_id, token_ids))
        for req_id, token_ids in output.draft_token_ids.items():
            owner = self.requests.get(req_id)
            if owner is not None and owner.status is RUNNING and not owner.is_prefill_chunk:
                owner.spec_token_ids = token_ids
        self.all_decode = self.fast_path and len(news) - num_done == len(self.running)
        return news

    def finish_requests(self, request_ids: str | Iterable[str], status: RequestStatus = FINISHED_ABORTED) -> None:
        """End one request or several from outside (abort). Ids that are unknown or already finished are passed over."""
        for req_id in (request_ids,) if isinstance(request_ids, str) else request_ids:
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
