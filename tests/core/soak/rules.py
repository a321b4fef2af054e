"""What must hold of every plan and after every step, whatever happened. Knows plans, queues and blocks from outside."""

from collections import Counter

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import SchedulerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request
from tests.core.soak.broken import need
from tests.core.soak.worker import PADDING, Worker


class Rules:
    """names: block name -> content, from the truth. alive, to_report: kept by the scenario, read here."""

    def __init__(
        self, config: SchedulerConfig, scheduler: Scheduler, worker: Worker, num_steps_ahead: int, stats: Counter
    ):
        self.config, self.scheduler, self.worker, self.stats = config, scheduler, worker, stats
        self.num_steps_ahead = num_steps_ahead
        self.names: dict[bytes, tuple] = {}
        self.alive: dict[str, Request] = {}
        self.to_report: Counter = Counter()  # ids that left, and were not yet named in a plan's finished_req_ids
        self.last_hashes: list = [None] * (config.num_gpu_blocks + 1)

    def before_plan(self) -> None:
        """What the rules about this step's plan compare with."""
        scheduler, cfg = self.scheduler, self.config
        self.running_before = [r.request_id for r in scheduler.running]
        self.waiting_before = [r.request_id for r in scheduler.waiting]
        num_requests = len(scheduler.running) + len(scheduler.waiting)
        self.longest = cfg.token_budget
        if num_requests > 1:
            threshold = cfg.long_prefill_token_threshold
            if cfg.long_prefill_token_threshold_adaptive:
                threshold = max(threshold, cfg.token_budget // num_requests)
            self.longest = threshold or cfg.token_budget

    def check_plan(self, plan: SchedulerOutput) -> None:
        scheduler, stats = self.scheduler, self.stats
        self._check_limits(plan)
        cached = plan.scheduled_cached_reqs
        resumed = cached.resumed_req_ids
        new = [r.req_id for r in plan.scheduled_new_reqs]
        need(sorted([*new, *cached.req_ids]) == sorted(plan.num_scheduled_tokens), "the plan's parts differ:", plan)
        need({*resumed, *cached.new_block_ids} <= set(cached.req_ids), "blocks for nobody:", cached)
        running = [r.request_id for r in scheduler.running]
        if plan.preempted_req_ids:
            need(not new and not resumed, "somebody enters beside a preemption")
            stats["preempted"] += len(plan.preempted_req_ids)
            stats["two preempted in a step"] += len(plan.preempted_req_ids) > 1
            need(len(set(plan.preempted_req_ids)) == len(plan.preempted_req_ids), "preempted twice in a step")
            need(not plan.num_scheduled_tokens.keys() & set(plan.preempted_req_ids), "preempted and scheduled")
        else:
            need(running[: len(self.running_before)] == self.running_before, "the order of running changed")
        if resumed or new:
            self._check_admissions(plan, running[len(self.running_before) :])
        self._check_reason(plan)
        for req_id in plan.finished_req_ids:
            need(self.to_report[req_id] > 0, req_id, "is reported as finished too often")
            self.to_report[req_id] -= 1
        need(not any(self.to_report.values()), "left without a word", self.to_report)

    def _check_limits(self, plan: SchedulerOutput) -> None:
        cfg, scheduler, pieces = self.config, self.scheduler, plan.num_scheduled_tokens
        need(len(scheduler.running) <= cfg.max_num_seqs, "too many run")
        total, slots = sum(pieces.values()), cfg.max_num_new_slots_for_drafting
        need(total <= min(cfg.token_budget, cfg.max_num_batched_tokens), "plan of", total, "over budget")
        need(not pieces or (min(pieces.values()) > 0 and max(pieces.values()) <= self.longest), "a piece of", pieces)
        width = total + slots * len(pieces)
        need(width <= cfg.max_num_batched_tokens, "an input of", width, "with the slots for drafting")
        self.input_is_full = total >= cfg.token_budget or width + slots >= cfg.max_num_batched_tokens
        self.stats["no room beside the slots for drafting"] += self.input_is_full and total < cfg.token_budget
        if self.num_steps_ahead == 0:
            left_out = [r.request_id for r in scheduler.running if r.request_id not in pieces]
            need(self.input_is_full or not left_out, left_out, "gets nothing, and there is room")
        if cfg.max_loras is not None:
            adapters = {r.adapter for r in scheduler.running} - {None}
            need(len(adapters) <= cfg.max_loras, "too many adapters", adapters)
        # Two steps ahead, vLLM's own test lets one step too many through.
        ahead = cfg.num_speculative_tokens + max(0, self.num_steps_ahead - 1)
        for r in scheduler.running:
            most = min(r.longest, cfg.max_model_len) - 1 + ahead
            need(r.num_computed_tokens <= most, r.request_id, "computes the KV of its last token")

    def _check_admissions(self, plan: SchedulerOutput, entered: list[str]) -> None:
        cfg, scheduler, stats, cached = self.config, self.scheduler, self.stats, plan.scheduled_cached_reqs
        stats["resumed"] += len(cached.resumed_req_ids)
        need(
            [r for r in plan.num_scheduled_tokens if r in entered] == entered, "planned in another order than admitted"
        )
        ahead = self.waiting_before[: self.waiting_before.index(entered[-1])]
        passed_over = [self.alive[r] for r in ahead if r not in entered]
        need(all(r.num_stale_plans or (cfg.max_loras and r.adapter) for r in passed_over), "out of turn", entered)
        need([r for r in self.waiting_before if r in entered] == entered, "admitted out of order", entered)
        stats["passed over"] += len(passed_over)
        if len(entered) > 1 or self.running_before:
            free = scheduler.kv_cache_manager.num_free_blocks
            need(free >= cfg.watermark_blocks, "admission left", free, "of the watermark", cfg.watermark_blocks)
        hits = {r.req_id: r.num_computed_tokens for r in plan.scheduled_new_reqs}
        stats["prefix hits"] += sum(n > 0 for n in hits.values())
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        again = {req_id: computed[req_id] for req_id in cached.resumed_req_ids}
        stats["prefix hits after preemption"] += sum(n > 0 for n in again.values())
        if cfg.sliding_window:
            stats["prefix hits beyond the window"] += sum(
                n - cfg.sliding_window >= cfg.block_size for n in (hits | again).values()
            )
        for drafts in (plan.scheduled_spec_decode_tokens.get(r, ()) for r in entered):
            stats["padded admissions"] += PADDING in drafts

    def _check_reason(self, plan: SchedulerOutput) -> None:
        """Whoever still waits is told why, and it is true."""
        cfg, scheduler, reason = self.config, self.scheduler, plan.blocked_reason
        self.stats[f"reason {reason}"] += 1
        num_waiting = len(scheduler.waiting)
        need((reason is None) == (num_waiting == 0), "reason", reason, "with", num_waiting, "waiting")
        if reason == "max_num_seqs":
            need(len(scheduler.running) == cfg.max_num_seqs, "reason max_num_seqs, and a place is free")
        if reason == "preempted_this_step":
            need(plan.preempted_req_ids, "reason preempted_this_step, and nobody was")
        if reason == "token_budget" and cfg.enable_chunked_prefill and not cfg.num_speculative_tokens:
            need(self.input_is_full, "reason token_budget, and there is room")

    def check_published(self) -> None:
        """A block with a name is full, and holds what the name was made from."""
        hash_of, worker = self.scheduler.kv_cache_manager.block_pool.hash_of, self.worker
        if hash_of != self.last_hashes:
            worker.written.update(b for b, h in enumerate(hash_of) if h != self.last_hashes[b])
            self.stats["evictions"] += sum(
                old is not None and old != h for old, h in zip(self.last_hashes, hash_of, strict=True)
            )
            self.last_hashes = hash_of[:]
        has_window = self.config.sliding_window is not None
        for block in worker.written:
            if (name := hash_of[block]) is not None:
                need(name in self.names, "block", block, "has a name that belongs to no content")
                values, deep = self.names[name]
                need(
                    worker.slots[block] == values and (not has_window or worker.deep[block] == deep),
                    *("block", block, "is published and holds something else"),
                )
        worker.written.clear()

    def check_books(self) -> None:
        scheduler, alive, stats = self.scheduler, self.alive, self.stats
        scheduler.check_integrity()
        pool = scheduler.kv_cache_manager.block_pool
        counts = pool.ref_count
        need(min(counts) >= 0, "a negative count", counts)
        need(counts.count(0) - 1 == pool.num_free_blocks, "free + referenced is not the pool")
        need(scheduler.requests.keys() == alive.keys(), "alive", list(alive), list(scheduler.requests))
        need(scheduler.has_unfinished_requests() == bool(alive), "has_unfinished_requests() is wrong")
        if max(counts) > 1:
            shared = [b for b, count in enumerate(counts) if count > 1]
            need(all(pool.hash_of[b] is not None for b in shared), "a block without a name is shared", shared)
            stats["steps with shared blocks"] += 1
        stats["steps with twins"] += bool(pool.twins)
        for request in scheduler.running:
            self._check_window(request)
            need(request.num_tokens <= self.config.max_model_len, request.request_id, "is too long")
            need(request.num_computed_tokens >= 0, request.request_id, "has computed", request.num_computed_tokens)
            need(request.num_output_placeholders >= 0, request.request_id, "has placeholders below 0")
            need(request.num_in_flight_tokens >= 0, request.request_id, "has tokens in flight below 0")

    def _check_window(self, request: Request) -> None:
        """What a step under way still looks back at is not given back."""
        window, size = self.config.sliding_window, self.config.block_size
        if window and request.num_in_flight_tokens:
            first = request.num_computed_tokens - request.num_in_flight_tokens
            seen = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)[
                max(0, first - window + 1) // size :
            ]
            need(all(seen), request.request_id, "looks back from", first, "at a block that was given back:", seen)
