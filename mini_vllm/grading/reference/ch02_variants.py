"""Chapter 2's answers from the plain numbers, each with switches for a mistake. Knows no message. Chapter 2."""

import math
from collections.abc import Callable
from itertools import count


def intensity_with(
    config: dict,
    context: int,
    batch: int,
    *,
    kv_heads: str = "kv_heads",
    kv_tensors: int = 2,
    kv_requests: int | None = None,
    looks: str | None = "heads",
    look_flop: int = 4,
    mlp_matrices: int = 3,
    attention_matrices: int = 1,
    matrix_layers: int | None = None,
    head: int = 1,
    embedding_read: bool = False,
    weights_read: int = 1,
    item: int = 2,
    flop_per_weight: int = 2,
) -> float:
    """FLOP per byte of a decode step; by default without a mistake."""
    c = config
    width = attention_matrices * 2 * (c["heads"] + c["kv_heads"]) * c["head_dim"] + mlp_matrices * c["ffn"]
    table = c["vocab"] * c["hidden"]
    weights = (matrix_layers or c["layers"]) * c["hidden"] * width + head * table
    looking = look_flop * c["layers"] * c[looks] * c["head_dim"] * context if looks else 0
    kv = kv_tensors * c["layers"] * c[kv_heads] * c["head_dim"] * item * context * (kv_requests or batch)
    read = item * (weights * weights_read + (table if embedding_read else 0)) + kv
    return batch * (flop_per_weight * weights + looking) / read


def batch_with(
    limit_ms: float,
    context: int,
    costs: dict,
    machine: dict,
    *,
    kv: int = 1,
    kv_each: bool = True,
    flop_each: bool = True,
    room_each: bool = True,
    memory: bool = True,
    arithmetic: bool = True,
    room: bool = True,
    weights_each: bool = False,
    side_by_side: bool = True,
    attention: bool = True,
) -> int:
    """Requests, one after another, until one limit is passed; by default without a mistake."""
    once = costs["layer_bytes"] + costs["head_bytes"]
    flop = costs["layer_flop"] + costs["head_flop"] + (context * costs["pair_flop"] if attention else 0)
    for batch in count(1):
        read = once * (batch if weights_each else 1) + kv * (batch if kv_each else 1) * context * costs["kv_bytes"]
        memory_ms = 1000 * read / machine["bytes_per_s"] if memory else 0.0
        compute_ms = 1000 * (batch if flop_each else 1) * flop / machine["flop_per_s"] if arithmetic else 0.0
        step_ms = max(memory_ms, compute_ms) if side_by_side else memory_ms + compute_ms
        if step_ms > limit_ms or (room and (batch if room_each else 1) * context > machine["kv_tokens"]):
            return batch - 1
    raise AssertionError("a batch without end")


def all_pairs(new: int, computed: int) -> float:
    return new * computed + new * (new + 1) / 2


def pooled_pairs(parts: list[tuple]) -> float:
    """The pairs of one part that has all new and all computed tokens."""
    return all_pairs(sum(new for new, _, _ in parts), sum(computed for _, computed, _ in parts))


def step_with(
    parts: list[tuple],
    costs: dict,
    machine: dict,
    *,
    longer: Callable[..., float] = math.hypot,
    pairs: Callable[[int, int], float] = all_pairs,
    pairs_of_all: Callable[[list[tuple]], float] | None = None,
    kv_of_new: bool = True,
    head_rows: Callable[[tuple], int] = lambda part: int(part[2]),
    head_always: bool = False,
    one_hypot: bool = False,
    fixed: bool = True,
    idle_reads: bool = False,
    weights_read: Callable[[list], int] = lambda parts: 1,
    head_read_each: bool = False,
    ms_per_s: int = 1000,
) -> float:
    """Milliseconds of the step; by default without a mistake."""
    fixed_ms = machine["fixed_ms"] if fixed else 0.0
    if not parts and not idle_reads:
        return fixed_ms
    rows = sum(map(head_rows, parts))
    work = [
        (costs["layer_flop"] * sum(new for new, _, _ in parts), costs["layer_bytes"] * weights_read(parts)),
        (
            costs["pair_flop"] * (pairs_of_all(parts) if pairs_of_all else sum(pairs(n, done) for n, done, _ in parts)),
            costs["kv_bytes"] * sum(computed + (new if kv_of_new else 0) for new, computed, _ in parts),
        ),
    ]
    if rows or head_always:
        work.append((costs["head_flop"] * rows, costs["head_bytes"] * (rows if head_read_each else 1)))
    if one_hypot:
        work = [(sum(flop for flop, _ in work), sum(read for _, read in work))]
    seconds = sum(longer(flop / machine["flop_per_s"], read / machine["bytes_per_s"]) for flop, read in work)
    return fixed_ms + ms_per_s * seconds


def capacity_with(
    config: dict,
    memory_bytes: int,
    utilization: float,
    *,
    kv_heads: str = "kv_heads",
    tables: Callable[[bool], int] = lambda tied: 1 if tied else 2,
    q_heads: str = "heads",
    tensors: int = 2,
) -> int:
    c = config
    queries, keys = (c["hidden"] * c[heads] * c["head_dim"] for heads in (q_heads, "kv_heads"))
    layer = 2 * queries + 2 * keys + 3 * c["hidden"] * c["ffn"] + 2 * c["hidden"]
    weight_bytes = 2 * (c["layers"] * layer + c["hidden"] + tables(c["tied"]) * c["vocab"] * c["hidden"])
    kv_bytes = 2 * tensors * c["layers"] * c[kv_heads] * c["head_dim"]
    return int((utilization * memory_bytes - weight_bytes) // kv_bytes)
