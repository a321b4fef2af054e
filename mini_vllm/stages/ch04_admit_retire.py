"""Who enters, and who leaves: the loop of continuous batching. Knows seats; counts no tokens and no blocks. Chapter 4.

Read it from `schedule()` downwards. Every later stage adds to this class or replaces some of its methods, whole.
"""

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.output import NewRequestData, RequestOutput, SchedulerOutput
from mini_vllm.core.request_queue import FCFSQueue, RequestQueue
from mini_vllm.errors import KVPoolExhaustedError
from mini_vllm.request import FINISHED_ABORTED, RUNNING, Request


class Scheduler:
    """Whoever waits enters in the next step if a seat is free; whoever is done leaves.

    A prompt enters in one piece. Budget and KV pool must be large enough for all
    seats: this stage does not count them.
    """

    def __init__(self, config: SchedulerConfig):
        self.config = config
        self.kv_cache_manager = KVCacheManager(config)
        self.requests: dict[str, Request] = {}
        self.waiting: RequestQueue = FCFSQueue()
        self.running: list[Request] = []
        self.finished_req_ids: list[str] = []
        self.known_to_worker: set[str] = set()

    def add_request(self, request):
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def has_unfinished_requests(self):
        return bool(self.requests)

    def schedule(self):
        self.pieces = {}  # request -> (tokens, new blocks), in the order of the plan
        self.schedule_running()
        blocked_reason = self.schedule_waiting()
        return self.write_plan(blocked_reason)

    def schedule_running(self):
        """Those who run go first, one piece further: in decode, one token."""
        for request in self.running:
            self.advance(request, request.num_new_tokens)

    def advance(self, request, n):
        """A request's next `n` tokens, with the blocks for their KV."""
        blocks = self.kv_cache_manager.allocate_slots(request, n)
        if blocks is None:
            raise KVPoolExhaustedError(
                f"{request.request_id!r} finds no KV block for {n} tokens: {self.kv_cache_manager.num_free_blocks} of "
                f"{self.config.num_gpu_blocks} are free, and before chapter 8 nobody is evicted; raise num_gpu_blocks, "
                "or let fewer requests in"
            )
        self.give(request, n, blocks)

    def give(self, request, n, blocks):
        self.pieces[request] = (n, blocks)

    def schedule_waiting(self):
        """Admit in order; stop at the first who must wait, and say why it must."""
        while len(self.waiting):
            if reason := self.admit(self.waiting.peek()):
                return reason
        return None

    def admit(self, request):
        """Let the head of the line in. Returns why it must wait, or None."""
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
        self.start(request)
        self.advance(request, request.num_new_tokens)
        return None

    def start(self, request):
        self.waiting.pop()
        request.transition_to(RUNNING)
        self.running.append(request)

    def write_plan(self, blocked_reason):
        """The step as data. Its tokens count as computed from here on."""
        plan = SchedulerOutput(blocked_reason=blocked_reason, finished_req_ids=self.finished_req_ids)
        self.finished_req_ids = []
        for request, (n, blocks) in self.pieces.items():
            req_id, computed = request.request_id, request.num_computed_tokens
            if req_id in self.known_to_worker:
                plan.scheduled_cached_reqs.add(req_id, computed, blocks)
            else:
                new = NewRequestData(req_id, request.prompt_token_ids, request.sampling_params, blocks, computed)
                plan.scheduled_new_reqs.append(new)
                self.known_to_worker.add(req_id)
            plan.num_scheduled_tokens[req_id] = n
            request.num_computed_tokens += n
        return plan

    def update_from_output(self, plan, output):
        """Append what was sampled; whoever is done leaves its seat and its blocks."""
        news = []
        for req_id in plan.num_scheduled_tokens:
            request, token_ids = self.requests.get(req_id), output.sampled_token_ids.get(req_id)
            if request is None or request.status != RUNNING or not token_ids:
                continue  # aborted while the step ran; or in mid-prompt
            if request.append_output(token_ids[0], self.config.max_model_len):
                self.retire(request)  # append_output said that it is done
            news.append(RequestOutput(req_id, token_ids, request.finish_reason))
        return news

    def finish_requests(self, request_ids, status=FINISHED_ABORTED):
        """End requests from outside (abort). Who is gone already is passed over."""
        for req_id in (request_ids,) if isinstance(request_ids, str) else request_ids:
            if request := self.requests.get(req_id):
                request.transition_to(status)
                self.retire(request)

    def retire(self, request):
        """It leaves its seat, its blocks and the books; the worker hears of it."""
        self.kv_cache_manager.free(request)
        (self.running if request in self.running else self.waiting).remove(request)
        del self.requests[request.request_id]
        self.known_to_worker.discard(request.request_id)
        self.finished_req_ids.append(request.request_id)
