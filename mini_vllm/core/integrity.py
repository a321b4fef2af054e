"""What must hold of a scheduler between two calls, whatever happened. Knows its queues and block tables. Chapter 6."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mini_vllm.core.scheduler import Scheduler


def check_integrity(scheduler: "Scheduler") -> None:
    """Raise AssertionError with the broken invariant named."""
    cfg, manager = scheduler.config, scheduler.kv_cache_manager
    manager.check_integrity()
    queued = [r.request_id for r in [*scheduler.waiting, *scheduler.running]]
    assert sorted(queued) == sorted(scheduler.requests), f"queues hold {queued}, known are {list(scheduler.requests)}"
    assert len(scheduler.running) <= cfg.max_num_seqs, "more running than max_num_seqs"
    for request in scheduler.waiting:
        owned = manager.get_block_ids(request.request_id)
        assert not owned and request.num_computed_tokens == 0, f"{request.request_id} waits and holds KV"
    for request in scheduler.running:
        room = len(manager.get_block_ids(request.request_id)) * cfg.block_size
        computed = request.num_computed_tokens
        assert room >= computed, f"{request.request_id} has computed {computed} tokens and room for {room}"
        known = request.num_tokens + request.num_output_placeholders + cfg.num_speculative_tokens
        assert computed <= known, f"{request.request_id} has computed {computed} tokens and knows {known}"
