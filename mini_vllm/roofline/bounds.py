"""What binds a step on a machine, memory or arithmetic, and what fits. Knows peaks, no overheads. Chapter 2."""

from dataclasses import dataclass

from mini_vllm.errors import ConfigError
from mini_vllm.roofline.arguments import require_instance, require_share
from mini_vllm.roofline.costs import ModelCosts, StepCost
from mini_vllm.roofline.hardware import HardwareSpec
from mini_vllm.roofline.step_work import StepWork


@dataclass(frozen=True, slots=True)
class RooflineTime:
    """Milliseconds that the arithmetic and the memory traffic of a step take, each alone."""

    compute_ms: float
    memory_ms: float

    @property
    def ms(self) -> float:
        """The plain roofline: both overlap fully, so the longer one counts."""
        return max(self.compute_ms, self.memory_ms)

    @property
    def bound(self) -> str:
        """ "compute" or "memory": which one is longer."""
        return "compute" if self.compute_ms > self.memory_ms else "memory"


def roofline_time(
    cost: StepCost, hardware: HardwareSpec, dtype: str, *, flop_eff: float = 1.0, mem_eff: float = 1.0
) -> RooflineTime:
    """Time of a step on `hardware`. `flop_eff` and `mem_eff`: the shares of the two peaks that are reached."""
    require_instance(cost, StepCost, "cost")
    require_instance(hardware, HardwareSpec, "hardware")
    require_share(flop_eff, "flop_eff")
    require_share(mem_eff, "mem_eff")
    return RooflineTime(
        compute_ms=1e3 * cost.flops / (hardware.peak(dtype) * flop_eff),
        memory_ms=1e3 * cost.bytes / (hardware.bytes_per_s * mem_eff),
    )


def compute_bound_prompt(costs: ModelCosts, hardware: HardwareSpec) -> int:
    """The shortest prompt whose prefill, alone in its step, is compute-bound.

    Raises ConfigError if none within the model's context is: the card computes too fast for its memory.
    """
    require_instance(costs, ModelCosts, "costs")
    require_instance(hardware, HardwareSpec, "hardware")
    ridge, longest = hardware.ridge_point(costs.dtype), costs.config.max_position_embeddings
    low, high = 1, longest  # the intensity of a prefill grows with its length
    while low < high:
        middle = (low + high) // 2
        if costs.step(StepWork.prefill(middle)).intensity >= ridge:
            high = middle
        else:
            low = middle + 1
    if costs.step(StepWork.prefill(low)).intensity < ridge:
        raise ConfigError(
            f"no prompt of up to {longest} tokens is compute-bound on {hardware.name}: its ridge point is {ridge:.0f} "
            "FLOP per byte"
        )
    return low


def kv_capacity_tokens(costs: ModelCosts, hardware: HardwareSpec, utilization: float = 0.92) -> int:
    """Tokens of KV cache that fit beside the weights. utilization: share of the memory that is used at all.

    Activations take some of that, too; they are not counted. Raises ConfigError if not even the weights fit.
    """
    require_instance(costs, ModelCosts, "costs")
    require_instance(hardware, HardwareSpec, "hardware")
    require_share(utilization, "utilization")
    usable = utilization * hardware.memory_bytes
    left = usable - costs.stored_bytes
    if left < costs.kv_bytes_per_token:
        raise ConfigError(
            f"the model takes {costs.stored_bytes / 1e9:.1f} GB in {costs.dtype} and one token of KV "
            f"{costs.kv_bytes_per_token / 1e6:.2f} MB; {hardware.name} has {hardware.memory_bytes / 1e9:.1f} GB, of "
            f"which {usable / 1e9:.1f} are used (utilization {utilization}). Take a larger card, a smaller dtype or a "
            "smaller model"
        )
    return int(left // costs.kv_bytes_per_token)
