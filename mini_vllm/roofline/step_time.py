"""How long a step takes: a smooth roofline with efficiencies and fixed terms. Knows no scheduler. Chapters 2 and 12.

    step  =  fixed  +  layers × (matrices + attention)  +  head
    matrices   =  |FLOPs, weights|  +  fixed
    attention  =  |FLOPs, keys and values|  +  fixed  +  a little for each sequence  +  something if there is a prefill
    head       =  |FLOPs, weights|

|x, y| = sqrt(x² + y²), of the seconds that the arithmetic and the memory traffic take alone, is a smooth maximum: the
longer one counts, but where both take equally long neither hides all of the other.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from mini_vllm.errors import ConfigError
from mini_vllm.roofline.arguments import require_instance, require_positive, require_share
from mini_vllm.roofline.bounds import kv_capacity_tokens
from mini_vllm.roofline.costs import ModelCosts
from mini_vllm.roofline.hardware import HardwareSpec
from mini_vllm.roofline.step_work import StepWork


@dataclass(frozen=True)
class StepConstants:
    """What the data sheet does not say; `calibration` fits it.

    flop_eff, mem_eff: shares of the peak FLOP/s and bandwidth that matrices reach.
    attn_flop_eff, kv_eff: the same of attention.
    layer_us, attn_us: fixed microseconds of a layer's matrices and small kernels, and of its attention.
    seq_us: microseconds that each sequence adds to a layer's attention. prefill_us: that a step with prefills adds.
    step_us: fixed microseconds of a step.
    """

    flop_eff: float
    mem_eff: float
    layer_us: float
    attn_flop_eff: float
    kv_eff: float
    attn_us: float
    seq_us: float
    prefill_us: float
    step_us: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name.endswith("_eff"):
                require_share(value, name)
            elif value != 0:
                require_positive(value, name)

    @classmethod
    def from_dict(cls, stored: Mapping[str, float]) -> "StepConstants":
        """The inverse of `dataclasses.asdict`. Raises ConfigError that names what is missing or unknown."""
        names = {field.name for field in fields(cls)}
        if names != set(stored):
            wrong = sorted(names.symmetric_difference(stored))
            raise ConfigError(f"constants {wrong} are missing or unknown; a step-time model has {sorted(names)}")
        return cls(**stored)


class StepTimeModel:
    """Step times of one model on one device. Raises ConfigError if the weights do not fit or the dtype is missing.

    `step_ms(work)` takes under a microsecond: all unit costs are worked out here.
    """

    def __init__(self, costs: ModelCosts, hardware: HardwareSpec, constants: StepConstants):
        require_instance(costs, ModelCosts, "costs")
        require_instance(hardware, HardwareSpec, "hardware")
        require_instance(constants, StepConstants, "constants")
        kv_capacity_tokens(costs, hardware, utilization=1.0)
        self.costs, self.hardware, self.constants = costs, hardware, constants
        layers = costs.config.num_hidden_layers
        flop_ms = 1e3 / (hardware.peak(costs.dtype) * constants.flop_eff)
        byte_ms = 1e3 / (hardware.bytes_per_s * constants.mem_eff)
        self._linear_ms = costs.linear_flops_per_token * flop_ms  # a token
        self._weights_ms = costs.layer_weight_bytes * byte_ms
        self._head_row_ms = 2 * costs.embedding_params * flop_ms  # a sampled row
        self._head_ms = costs.head_weight_bytes * byte_ms
        self._pair_ms = 1e3 * costs.attention_flops_per_pair / (hardware.peak(costs.dtype) * constants.attn_flop_eff)
        self._kv_ms = 1e3 * costs.kv_bytes_per_token / (hardware.bytes_per_s * constants.kv_eff)  # a token
        self._seq_ms = 1e-3 * layers * constants.seq_us
        self._prefill_ms = 1e-3 * layers * constants.prefill_us
        self._layers_ms = 1e-3 * layers * (constants.layer_us + constants.attn_us)
        self._step_ms = 1e-3 * constants.step_us

    def step_ms(self, work: StepWork) -> float:
        """Milliseconds of one step. A step without tokens takes the fixed time alone."""
        tokens = work.n_prefill + work.n_decode
        if not tokens:
            return self._step_ms
        rows = work.n_sampled
        return (
            self._step_ms
            + math.hypot(tokens * self._linear_ms, self._weights_ms)
            + self._layers_ms
            + math.hypot(work.attention_pairs * self._pair_ms, work.kv_tokens * self._kv_ms)
            + work.n_seqs * self._seq_ms
            + (self._prefill_ms if work.n_prefill else 0.0)
            + (math.hypot(rows * self._head_row_ms, self._head_ms) if rows else 0.0)
        )

    def parts_ms(self, work: StepWork) -> dict[str, float]:
        """`step_ms` taken apart: where the time goes. The values add up to it."""
        tokens, rows, layers = work.new_tokens, work.n_sampled, self.costs.config.num_hidden_layers
        return {
            "layers": 1e-3 * layers * self.layer_us(tokens) if tokens else 0.0,
            "attention": 1e-3 * layers * self.attention_us(work) if tokens else 0.0,
            "head": math.hypot(rows * self._head_row_ms, self._head_ms) if rows else 0.0,
            "fixed": self._step_ms,
        }

    def layer_us(self, tokens: int) -> float:
        """Microseconds of one layer without its attention, for `tokens` new tokens."""
        linear_ms = math.hypot(tokens * self._linear_ms, self._weights_ms)
        return 1e3 * linear_ms / self.costs.config.num_hidden_layers + self.constants.layer_us

    def attention_us(self, work: StepWork) -> float:
        """Microseconds of one layer's attention."""
        kv_ms = math.hypot(work.attention_pairs * self._pair_ms, work.kv_tokens * self._kv_ms)
        constants = self.constants
        fixed_us = constants.attn_us + work.n_seqs * constants.seq_us + (constants.prefill_us if work.n_prefill else 0)
        return 1e3 * kv_ms / self.costs.config.num_hidden_layers + fixed_us
