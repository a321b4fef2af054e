"""What stands between waiting and running. Knows one request at a time; does not choose whose turn it is. Chapter 5."""

from collections.abc import Callable, Sequence

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.request import Request

# A gate answers None (pass), or the reason why not. One that "skips" lets those behind go first; others block the line.
Gate = Callable[[Request, Sequence[Request]], str | None]
SKIPPING = frozenset({"max_loras", "stale_output"})


def make_gates(config: SchedulerConfig) -> list[Gate]:
    """The gates that have nothing to do with tokens or blocks, in the order in which they are tried."""

    def max_num_seqs(request: Request, running: Sequence[Request]) -> str | None:
        return "max_num_seqs" if len(running) >= config.max_num_seqs else None

    def max_loras(request: Request, running: Sequence[Request]) -> str | None:
        """At most so many different adapters run together; one that runs already may always enter."""
        if config.max_loras is None or request.adapter is None:
            return None
        loaded = {r.adapter for r in running} - {None}
        return "max_loras" if request.adapter not in loaded and len(loaded) >= config.max_loras else None

    def stale_output(request: Request, running: Sequence[Request]) -> str | None:
        """One that was evicted while a step with it was under way comes back only when that step is done."""
        return "stale_output" if request.num_stale_plans else None

    return [max_num_seqs, max_loras, stale_output]


def closed_gate(gates: Sequence[Gate], request: Request, running: Sequence[Request]) -> str | None:
    """The first gate that does not let the request pass, by its reason; or None."""
    for gate in gates:
        if reason := gate(request, running):
            return reason
    return None


def longest_piece(config: SchedulerConfig, num_requests: int) -> int:
    """Tokens of one request in this step at most. A lone request may take the whole budget."""
    if num_requests <= 1:
        return config.token_budget
    threshold = config.long_prefill_token_threshold
    if config.long_prefill_token_threshold_adaptive:
        threshold = max(threshold, config.token_budget // num_requests)
    return threshold or config.token_budget


def size_admission(
    config: SchedulerConfig, request: Request, num_hit_tokens: int, cached: Sequence[Request]
) -> tuple[int, int]:
    """Tokens to compute of a request that enters, and how many of them only pad it to the shape of a decode.

    With drafts, a request that lacks a single token is made as wide as the decodes `cached` that it joins.
    """
    num_new_tokens = request.num_tokens - num_hit_tokens
    num_drafts = config.num_speculative_tokens
    if (
        num_drafts
        and num_new_tokens == 1
        and not any(r.is_prefill_chunk for r in cached)
        and (cached or num_hit_tokens)
        and num_hit_tokens + num_drafts + 2 <= config.max_model_len
    ):
        return 1 + num_drafts, num_drafts
    return num_new_tokens, 0


def why_no_blocks(
    manager: KVCacheManager, request: Request, num_new_tokens: int, hits: Sequence[int], others_run: bool
) -> str:
    """Which KV test failed: all known tokens, the watermark beside them, or this piece."""
    cfg, pool = manager.config, manager.block_pool
    free = pool.num_free_blocks - pool.num_idle(hits)
    watermark = cfg.watermark_blocks if others_run else 0
    piece = len(hits) * cfg.block_size + num_new_tokens + cfg.num_lookahead_tokens
    need = cfg.blocks_for(min(piece, cfg.max_model_len)) - len(hits)
    if cfg.reserve_full_isl:
        need_all = manager.full_sequence_blocks(request) - len(hits)
        if need_all > free:
            return "kv_full_sequence"
        need = max(need, need_all)
    return "kv_watermark" if need <= free < need + watermark else "kv_chunk"
