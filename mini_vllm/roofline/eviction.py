"""What it costs to evict a request and bring it back: recompute or swap. Knows no scheduler. Chapters 2 and 8."""

from mini_vllm.errors import ConfigError
from mini_vllm.roofline.arguments import require_instance, require_positive, require_whole
from mini_vllm.roofline.bounds import roofline_time
from mini_vllm.roofline.costs import ModelCosts
from mini_vllm.roofline.hardware import HardwareSpec
from mini_vllm.roofline.step_work import StepWork


def recompute_ms(
    costs: ModelCosts, hardware: HardwareSpec, tokens: int, *, flop_eff: float = 1.0, cached: int = 0
) -> float:
    """Milliseconds to compute the KV of `tokens` again, alone in a step.

    flop_eff: share of the peak FLOP/s that is reached (MFU). cached: tokens that the prefix cache still holds.
    """
    require_instance(costs, ModelCosts, "costs")
    require_whole(tokens, "tokens", least=1)
    require_whole(cached, "cached")
    if cached >= tokens:
        raise ConfigError(f"cached={cached} must be less than tokens={tokens}: the last token is always computed")
    cost = costs.step(StepWork.prefill(tokens - cached, cached))
    return roofline_time(cost, hardware, costs.dtype, flop_eff=flop_eff).ms


def swap_ms(
    costs: ModelCosts,
    tokens: int,
    link_bytes_per_s: float,
    *,
    round_trip: bool = True,
    block_size: int = 16,
    copy_us: float = 0.0,
) -> float:
    """Milliseconds to move the KV of `tokens` out over a link, and with `round_trip` in again.

    copy_us: fixed time of each copy, one a block, layer, and key or value (see `swap_copies`).
    """
    require_instance(costs, ModelCosts, "costs")
    require_whole(tokens, "tokens", least=1)
    require_positive(link_bytes_per_s, "link_bytes_per_s")
    if copy_us:
        require_positive(copy_us, "copy_us")
    one_way = 1e3 * tokens * costs.kv_bytes_per_token / link_bytes_per_s
    one_way += 1e-3 * copy_us * swap_copies(costs, tokens, block_size)
    return 2 * one_way if round_trip else one_way


def swap_copies(costs: ModelCosts, tokens: int, block_size: int = 16) -> int:
    """Copies that one direction of a swap takes: blocks × layers × (keys, values)."""
    require_whole(tokens, "tokens", least=1)
    require_whole(block_size, "block_size", least=1)
    return -(-tokens // block_size) * costs.config.num_hidden_layers * 2
