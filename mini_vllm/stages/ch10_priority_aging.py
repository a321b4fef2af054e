"""The whole scheduler in its clear form: every synchronous rule of vLLM 0.33.0, without drafts. Chapter 10.

Written for reading, not for speed: it is the oracle for `core.Scheduler`, which must decide the same. This file adds
who is urgent; `python -m mini_vllm.stages 10` prints the class in one piece, in the order in which it runs.
"""

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.request_queue import make_queue
from mini_vllm.request import Request
from mini_vllm.stages.ch09_chunked_prefill import Scheduler as Stage9


class Scheduler(Stage9):
    """By arrival or by priority: the urgent enter first, the least urgent must leave."""

    def __init__(self, config: SchedulerConfig):
        self.config = config
        self.kv_cache_manager = KVCacheManager(config)
        self.requests: dict[str, Request] = {}
        self.waiting = make_queue(config.policy, config.aging)
        self.running: list[Request] = []
        self.finished_req_ids: list[str] = []
        self.known_to_worker: set[str] = set()

    def choose_victim(self):
        if self.config.policy == "fcfs":
            return self.running[-1]
        return max(self.running, key=lambda r: (self.urgency(r), r.arrival_time))

    def urgency(self, request):
        """Smaller is sooner: the priority; with aging a time to be served by, later by `aging` for each level."""
        aging = self.config.aging
        return request.priority if aging is None else request.arrival_time + request.priority * aging

    def preempt(self, victim):
        """It waits at its place in the line, without KV. What it was given in this step is handed out again."""
        if victim in self.pieces:
            self.budget += self.pieces.pop(victim)[0]
            if self.config.unpublish_given_back:
                self.kv_cache_manager.unpublish(victim)
        self.running.remove(victim)
        self.kv_cache_manager.free(victim)
        victim.preempt()
        self.waiting.put_back(victim)
        self.preempted.append(victim.request_id)
