"""KV that is there already is not computed again. Knows whole blocks of a shared beginning by their hash. Chapter 7."""

from mini_vllm.stages.ch06_blocks import Scheduler as Stage6


class Scheduler(Stage6):
    """Who enters starts behind the cached blocks that hold its beginning, and shares them."""

    def admit(self, request):
        """Let the head of the line in. Returns why it must wait, or None."""
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
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
        self.start(request)
        request.num_computed_tokens = num_hit_tokens
        self.give(request, n, [*hits, *blocks])
        return None
