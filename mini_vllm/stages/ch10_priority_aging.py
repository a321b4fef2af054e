"""The whole scheduler in its clear form: every synchronous rule of vLLM 0.33.0, without drafts. Chapter 10.

Written for reading, not for speed: it is the oracle for `core.Scheduler`, which must decide the same. It holds only the
decisions; blocks, hashes, queues and plans come from `core`. Chapters 4 to 9 are cut from this file.
"""

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.output import CachedRequestData, NewRequestData, RequestOutput, SchedulerOutput
from mini_vllm.core.request_queue import make_queue
from mini_vllm.request import FINISHED_ABORTED, PREEMPTED, RUNNING, Request


class Scheduler:
    """Admit in order, advance who runs first, evict when KV is short, by arrival or by priority. Read it from
    `schedule()` downwards."""

    def __init__(self, config: SchedulerConfig):
        self.config = config
        self.kv_cache_manager = KVCacheManager(config)
        self.requests: dict[str, Request] = {}
        self.waiting = make_queue(config.policy)
        self.running: list[Request] = []
        self.finished_req_ids: list[str] = []
        self.seen: set[str] = set()

    def add_request(self, request):
        if self.config.refuse_unfittable:
            KVCacheManager.refuse_if_never_fits(self.config, request)
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def has_unfinished_requests(self):
        return bool(self.requests)

    def schedule(self):
        self.budget = self.config.token_budget
        self.threshold = self.longest_piece()
        self.pieces = {}  # request -> (tokens, new blocks), in the order of the plan
        self.preempted = []
        self.schedule_running()
        blocked_reason = self.schedule_waiting()
        return self.write_plan(blocked_reason)

    def longest_piece(self):
        """A long prompt may take at most this many tokens of a step, unless it is alone."""
        num_requests = len(self.running) + len(self.waiting)
        threshold = self.config.long_prefill_token_threshold
        if self.config.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, self.budget // max(num_requests, 1))
        return threshold if threshold and num_requests > 1 else self.budget

    def schedule_running(self):
        """Whoever has started goes on first, in order of admission."""
        visited = set()
        while self.budget > 0 and (request := next((r for r in self.running if r not in visited), None)):
            visited.add(request)
            room = self.config.max_model_len - request.num_computed_tokens - 1
            n = min(request.num_new_tokens, self.threshold, self.budget, room)
            if n > 0:
                self.allocate_or_evict(request, n)

    def allocate_or_evict(self, request, n):
        """Evict until the piece fits, or until the request has evicted itself."""
        while (blocks := self.kv_cache_manager.allocate_slots(request, n)) is None:
            victim = self.choose_victim()
            self.preempt(victim)
            if victim is request:
                return
        self.pieces[request] = (n, blocks)
        self.budget -= n

    def choose_victim(self):
        if self.config.policy == "fcfs":
            return self.running[-1]
        return max(self.running, key=lambda r: (r.priority, r.arrival_time))

    def preempt(self, victim):
        """It loses its KV and its place, and keeps its tokens. What it was given in this step is handed out again."""
        if victim in self.pieces:
            self.budget += self.pieces.pop(victim)[0]
            if self.config.unpublish_given_back:
                self.kv_cache_manager.unpublish(victim)
        self.running.remove(victim)
        self.kv_cache_manager.free(victim)
        victim.transition_to(PREEMPTED)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.waiting.put_back(victim)
        self.preempted.append(victim)

    def schedule_waiting(self):
        """Admit in order, and stop at the first that does not fit. Returns why it stopped, or None."""
        while len(self.waiting):
            request = self.waiting.peek()
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
                return "kv"
            self.waiting.pop()
            request.transition_to(RUNNING)
            request.num_computed_tokens = num_hit_tokens
            self.running.append(request)
            self.pieces[request] = (n, [*hits, *blocks])
            self.budget -= n
        return None

    def write_plan(self, blocked_reason):
        new, cached = [], CachedRequestData()
        for request, (_, blocks) in self.pieces.items():
            req_id, computed = request.request_id, request.num_computed_tokens
            if req_id not in self.seen:
                new.append(NewRequestData(req_id, request.prompt_token_ids, request.sampling_params, blocks, computed))
                self.seen.add(req_id)
            else:
                # Its table starts with these blocks exactly if it has just come back from preemption.
                table = self.kv_cache_manager.get_block_ids(req_id)
                cached.add(req_id, computed, blocks, resumed=blocks == table)
        for request, (n, _) in self.pieces.items():
            request.num_computed_tokens += n
            request.is_prefill_chunk = request.num_computed_tokens < request.num_tokens
        finished, self.finished_req_ids = self.finished_req_ids, []
        return SchedulerOutput(
            new,
            cached,
            {request.request_id: n for request, (n, _) in self.pieces.items()},
            preempted_req_ids=[request.request_id for request in self.preempted],
            finished_req_ids=finished,
            blocked_reason=blocked_reason,
        )

    def update_from_output(self, plan, output):
        news = []
        for req_id in plan.num_scheduled_tokens:
            request = self.requests.get(req_id)
            token_ids = output.sampled_token_ids.get(req_id)
            if request is None or request.status != RUNNING or not token_ids:
                continue
            if request.append_output(token_ids[0], self.config.max_model_len):
                self.forget(request)
            news.append(RequestOutput(req_id, token_ids, request.finish_reason))
        return news

    def finish_requests(self, request_ids, status=FINISHED_ABORTED):
        for req_id in request_ids:
            if req_id in self.requests:
                self.requests[req_id].transition_to(status)
                self.forget(self.requests[req_id])

    def forget(self, request):
        self.kv_cache_manager.free(request)
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        del self.requests[request.request_id]
        self.seen.discard(request.request_id)
        self.finished_req_ids.append(request.request_id)
