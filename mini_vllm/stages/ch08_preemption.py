"""Who must give way when a running request finds no block. Knows who came last. Chapter 8."""

from mini_vllm.request import PREEMPTED, RUNNING
from mini_vllm.stages.ch07_prefix_cache import Scheduler as Stage7


class Scheduler(Stage7):
    """The last to enter is the first to leave: it loses its KV, keeps its tokens and computes their KV again."""

    def most_tokens_at_once(self, request):
        """One that comes back brings its output along."""
        return min(request.longest, self.config.max_model_len) - 1

    def schedule(self):
        self.budget = self.config.token_budget
        self.pieces = {}  # request -> (tokens, new blocks), in the order of the plan
        self.preempted, self.resumed = [], []  # request ids
        self.schedule_running()
        blocked_reason = self.schedule_waiting()
        for request in self.running:
            self.kv_cache_manager.free_out_of_window(request)  # with a sliding window only
        plan = self.write_plan(blocked_reason)
        plan.preempted_req_ids, plan.scheduled_cached_reqs.resumed_req_ids = self.preempted, self.resumed
        return plan

    def schedule_running(self):
        """Those who run go first, as far as the budget reaches."""
        for request in list(self.running):  # some of them may be evicted before their turn
            if self.budget > 0 and request.status == RUNNING:
                self.advance(request, request.num_new_tokens)

    def advance(self, request, n):
        """A request's next `n` tokens. Evicts until their blocks are there, or until it has evicted itself."""
        while (blocks := self.kv_cache_manager.allocate_slots(request, n)) is None:
            victim = self.choose_victim()
            self.preempt(victim)
            if victim is request:
                return
        self.give(request, n, blocks)

    def choose_victim(self):
        return self.running[-1]

    def preempt(self, victim):
        """It waits at the front of the line, without KV."""
        self.running.remove(victim)
        self.kv_cache_manager.free(victim)
        victim.preempt()
        self.waiting.put_back(victim)
        self.preempted.append(victim.request_id)

    def admit(self, request):
        """Let the head of the line in. Returns why it must wait, or None."""
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
        if self.preempted:
            return "preempted_this_step"
        hits = self.kv_cache_manager.get_computed_blocks(request)
        num_hit_tokens = len(hits) * self.config.block_size
        n = request.num_tokens - num_hit_tokens
        if n > self.budget:
            return "token_budget"
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
