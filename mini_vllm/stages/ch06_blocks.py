"""KV in blocks, taken when they are needed. Knows free blocks; no block holds two requests' tokens. Chapter 6.

Nothing is reserved any more: a request enters if what is known of it fits now, and grows block by block. If one that
runs finds no block, this stage gives up with an error; chapter 8 evicts.
"""

from mini_vllm.stages.ch05_two_budgets import Scheduler as Stage5


class Scheduler(Stage5):
    """The head of the line enters if its known tokens find their blocks, and the watermark stays free beside them."""

    def schedule(self):
        self.budget = self.config.token_budget
        self.pieces = {}  # request -> (tokens, new blocks), in the order of the plan
        self.schedule_running()
        blocked_reason = self.schedule_waiting()
        for request in self.running:
            self.kv_cache_manager.free_out_of_window(request)  # with a sliding window only
        return self.write_plan(blocked_reason)

    def admit(self, request):
        """Let the head of the line in. Returns why it must wait, or None."""
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
        n = request.num_new_tokens
        if n > self.budget:
            return "token_budget"
        blocks = self.kv_cache_manager.allocate_slots(
            request,
            n,
            full_sequence=self.config.reserve_full_isl,
            watermark_blocks=self.config.watermark_blocks if self.running else 0,
        )
        if blocks is None:
            return self.why_no_blocks(request, n, num_free=self.kv_cache_manager.num_free_blocks)
        self.start(request)
        self.give(request, n, blocks)
        return None

    def why_no_blocks(self, request, num_tokens, num_free):
        """Which test failed: all known tokens, the first `num_tokens`, or the watermark beside them."""
        if self.config.reserve_full_isl and self.kv_cache_manager.full_sequence_blocks(request) > num_free:
            return "kv_full_sequence"
        piece = self.config.blocks_for(min(num_tokens, self.config.max_model_len))
        return "kv_watermark" if piece <= num_free else "kv_chunk"
