"""What must hold of a scheduler between two calls, whatever happened. Knows its queues and block tables. Chapter 6."""

from typing import TYPE_CHECKING

from mini_vllm.core.block_pool import NULL_BLOCK

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
        table = manager.get_block_ids(request.request_id)
        for i in range(manager.num_registered.get(request.request_id, 0)):
            its_hash = manager.block_pool.hash_of[table[i]]
            assert table[i] == NULL_BLOCK or its_hash == request.block_hashes[i], (
                f"{request.request_id}: block {table[i]} carries another hash than its tokens {i * cfg.block_size} ff."
            )
        known = request.num_tokens + request.num_output_placeholders + cfg.num_speculative_tokens
        assert computed <= known, f"{request.request_id} has computed {computed} tokens and knows {known}"
