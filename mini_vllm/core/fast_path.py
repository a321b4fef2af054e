"""The one fast path: the step in which every running request decodes one token, planned at once. Chapter 11.

Most steps of a busy server are like that, and `Scheduler.schedule()`, going from request to request, would come to the
same plan: tests run both on the same scenarios. Knows running requests and blocks; evicts nobody, admits nobody.
"""

from typing import TYPE_CHECKING

from mini_vllm.request import Request

if TYPE_CHECKING:
    from mini_vllm.core.scheduler import Scheduler


def plan_decodes(
    scheduler: "Scheduler", planned: list[Request], scheduled: dict[str, int], new_blocks: dict[str, list[int]]
) -> int:
    """Plan one token for each running request; returns how many were planned: all, or none if some might not fit.

    The caller knows that each has exactly one token to compute, and that the budget holds them: it held their last
    pieces. Most of those tokens go into a block that the request owns, and leave it unfilled; the others are looked at
    in order, since each takes a block or publishes a full one.
    """
    cfg, running, manager = scheduler.config, scheduler.running, scheduler.kv_cache_manager
    loud = [r for r in running if r.num_computed_tokens >= r.quiet_until]
    if len(loud) > manager.num_free_blocks:
        return 0
    block_size, caching, tables = cfg.block_size, cfg.enable_prefix_caching, manager.req_to_blocks
    for request in loud:  # what `KVCacheManager.allocate_slots` does, without a call for each
        table = tables[request.request_id]
        end = request.num_computed_tokens + 1
        if end > len(table) * block_size:
            new_blocks[request.request_id] = blocks = manager.block_pool.take(1)
            table += blocks
        request.quiet_until = len(table) * block_size
        if caching:
            if end % block_size == 0:
                manager.register_next_block(request)
            if end < request.quiet_until:
                request.quiet_until -= 1  # the token that fills the last block publishes it
    planned += running
    for request in running:
        scheduled[request.request_id] = 1
    return len(running)
