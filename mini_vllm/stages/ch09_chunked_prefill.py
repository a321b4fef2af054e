"""A prompt may come in pieces. Knows the rest of the budget, and how long a piece may be beside others. Chapter 9."""

from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.request import PREEMPTED, RUNNING
from mini_vllm.stages.ch08_preemption import Scheduler as Stage8


class Scheduler(Stage8):
    """Nobody waits for a budget that is large enough: the head of the line takes what is left of this one."""

    def refuse_if_never_fits(self, request):
        """What not even an idle server could carry would block the line for ever."""
        KVCacheManager.refuse_if_never_fits(self.config, request)

    def schedule(self):
        self.budget = self.config.token_budget
        self.threshold = self.longest_piece()
        self.pieces = {}  # request -> (tokens, new blocks), in the order of the plan
        self.preempted, self.resumed = [], []  # request ids
        self.schedule_running()
        blocked_reason = self.schedule_waiting()
        for request in self.running:
            self.kv_cache_manager.free_out_of_window(request)  # with a sliding window only
        plan = self.write_plan(blocked_reason)
        plan.preempted_req_ids, plan.scheduled_cached_reqs.resumed_req_ids = self.preempted, self.resumed
        return plan

    def longest_piece(self):
        """A long prompt may take at most this many tokens of a step, unless it is alone."""
        num_requests = len(self.running) + len(self.waiting)
        threshold = self.config.long_prefill_token_threshold
        if self.config.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, self.budget // max(num_requests, 1))
        return threshold if threshold and num_requests > 1 else self.budget

    def schedule_running(self):
        """Those who run go first, as far as the budget reaches."""
        for request in list(self.running):  # some of them may be evicted before their turn
            room = self.config.max_model_len - request.num_computed_tokens - 1
            n = min(request.num_new_tokens, self.threshold, self.budget, room)
            if n > 0 and request.status == RUNNING:
                self.advance(request, n)

    def give(self, request, n, blocks):
        self.pieces[request] = (n, blocks)
        self.budget -= n
        request.is_prefill_chunk = n < request.num_new_tokens

    def admit(self, request):
        """Let the head of the line in. Returns why it must wait, or None."""
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
        if self.preempted:
            return "preempted_this_step"
        if self.budget == 0:
            return "token_budget"
        hits = self.kv_cache_manager.get_computed_blocks(request)
        num_hit_tokens = len(hits) * self.config.block_size
        n = min(request.num_tokens - num_hit_tokens, self.threshold)
        if n > self.budget and not self.config.enable_chunked_prefill:
            return "token_budget"
        n = min(n, self.budget)
        blocks = self.kv_cache_manager.allocate_slots(
            request,
            n,
            hits=hits,
            full_sequence=self.config.reserve_full_isl,
            watermark_blocks=self.config.watermark_blocks if self.running else 0,
        )
        if blocks is None:
            idle = self.kv_cache_manager.block_pool.num_idle(hits)  # free, until they are shared
            num_free = self.kv_cache_manager.num_free_blocks - idle + len(hits)
            return self.why_no_blocks(request, num_hit_tokens + n, num_free)
        if request.status == PREEMPTED:
            self.resumed.append(request.request_id)
        self.start(request)
        request.num_computed_tokens = num_hit_tokens
        self.give(request, n, [*hits, *blocks])
        return None
