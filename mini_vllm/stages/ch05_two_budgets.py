"""What fits: a token budget for each step, a KV budget for all. Knows the worst case, no block by its id. Chapter 5.

The KV budget is kept by reserving: a request enters only if all that it may ever need is free. The variants below
reserve less, and pay for it in a running request that finds no block.
"""

from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.errors import PromptTooLongError
from mini_vllm.stages.ch04_admit_retire import Scheduler as Stage4


class Scheduler(Stage4):
    """The head of the line enters if its prompt fits the rest of this step, and its worst case the rest of the pool."""

    def add_request(self, request):
        if self.config.refuse_unfittable:
            self.refuse_if_never_fits(request)
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def refuse_if_never_fits(self, request):
        """What not even an idle server could carry would block the line for ever."""
        KVCacheManager.refuse_if_never_fits(self.config, request)
        most, budget = self.most_tokens_at_once(request), self.config.token_budget
        if most > budget:
            raise PromptTooLongError(
                f"request {request.request_id!r} may need {most} tokens in one step; the token budget is {budget}, and "
                "nothing is cut into chunks before chapter 9: shorten it, or raise max_num_batched_tokens"
            )

    def most_tokens_at_once(self, request):
        return request.num_prompt_tokens

    def schedule(self):
        self.budget = self.config.token_budget
        self.pieces = {}  # request -> (tokens, new blocks), in the order of the plan
        self.schedule_running()
        blocked_reason = self.schedule_waiting()
        return self.write_plan(blocked_reason)

    def schedule_running(self):
        """Those who run go first, as far as the budget reaches."""
        for request in self.running:
            if self.budget > 0:
                self.advance(request, request.num_new_tokens)

    def give(self, request, n, blocks):
        self.pieces[request] = (n, blocks)
        self.budget -= n

    def admit(self, request):
        """Let the head of the line in. Returns why it must wait, or None."""
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
        n = request.num_new_tokens
        if n > self.budget:
            return "token_budget"
        reserved = sum(map(self.blocks_to_reserve, self.running))
        if reserved + self.blocks_to_reserve(request) > self.config.num_gpu_blocks:
            return "kv_reservation"
        self.start(request)
        self.advance(request, n)
        return None

    def blocks_to_reserve(self, request):
        return self.config.blocks_for(self.tokens_to_reserve(request))

    def tokens_to_reserve(self, request):
        """Everything: prompt and whole output, less the last token, whose KV is never computed."""
        return min(request.longest, self.config.max_model_len) - 1


class ReservePrompt(Scheduler):
    """Reserves what is known of a request: at its entry the prompt. Its output finds its blocks, or does not."""

    def tokens_to_reserve(self, request):
        return request.num_tokens


class ReserveNothing(Scheduler):
    """Looks at seats and tokens only."""

    def tokens_to_reserve(self, request):
        return 0
