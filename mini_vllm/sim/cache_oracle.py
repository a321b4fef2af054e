"""A prefix cache that knows the future: what the best eviction order could find. Knows a trace's content; no times.

Beside it every real order looks poor, and the difference says how much an order can be to blame. Chapter 7.
"""

import bisect
import heapq
import math
from collections import defaultdict

from mini_vllm.errors import ConfigError
from mini_vllm.sim.trace_files import MOONCAKE_BLOCK, TraceWorkload


def oracle_hit_rate(workload: TraceWorkload, num_blocks: int) -> float:
    """Share of the prompt tokens found, if always that block is evicted that is needed last (Belady, 1966).

    Each request is done before the next comes; a block has `MOONCAKE_BLOCK` tokens. Of blocks that are needed again
    by the same request the one further back in its prompt goes first, since nobody reaches it without the others.
    Raises ConfigError if the trace says nothing about content.
    """
    prompts = [[content for content, tokens in row.segments if tokens == MOONCAKE_BLOCK] for row in workload.rows]
    if not any(prompts):
        raise ConfigError(f"{workload.name} says nothing about the content of its prompts, so nobody knows what recurs")
    uses: dict[int, list[int]] = defaultdict(list)
    for number, names in enumerate(prompts):
        for name in names:
            uses[name].append(number)

    needed: dict[int, float] = {}  # cached block -> the request that needs it next, or never
    last_first: list[tuple[float, int, int]] = []
    num_hit_tokens = 0
    for number, (row, names) in enumerate(zip(workload.rows, prompts, strict=True)):
        may_be_found = names[: (row.prompt_tokens - 1) // MOONCAKE_BLOCK]
        found = next((i for i, name in enumerate(may_be_found) if name not in needed), len(may_be_found))
        num_hit_tokens += MOONCAKE_BLOCK * found
        for depth, name in enumerate(names):
            at = bisect.bisect_right(uses[name], number)
            needed[name] = uses[name][at] if at < len(uses[name]) else math.inf
            heapq.heappush(last_first, (-needed[name], -depth, name))
        while len(needed) > num_blocks:
            when, _, name = heapq.heappop(last_first)
            if needed.get(name) == -when:  # else the entry is from before its latest use
                del needed[name]
    return num_hit_tokens / sum(row.prompt_tokens for row in workload.rows)
