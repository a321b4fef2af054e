"""A published measurement to be replayed: vLLM's watermark. Knows its setting and its table; judges nothing. Chapter 6.

vllm-project/vllm PR 44594 (5 June 2026): Qwen2.5-7B on one GPU of a GB200 with 299,584 tokens of KV, prefix caching
off, 450 prompts of about 1,000 tokens with outputs of about 5,000, 128 of them at a time. Its row for 15 % (168
preemptions, 11,635 tokens a second) is not replayed.
"""

from typing import NamedTuple

from mini_vllm.config import SchedulerConfig
from mini_vllm.models.config import ModelConfig
from mini_vllm.roofline import HardwareSpec, ModelCosts, StepTimeModel, gpu_constants
from mini_vllm.sim.clock import ModelClock
from mini_vllm.sim.closed_workloads import ClosedLoop
from mini_vllm.sim.lengths import Independent, Uniform
from mini_vllm.sim.metrics import Metrics, summarize
from mini_vllm.sim.simulator import Simulator


class Measured(NamedTuple):
    """A row of the PR's table. output_tokens_per_s, ttft_p50_s, itl_p99_ms: as their names say."""

    preemptions: int
    output_tokens_per_s: float
    ttft_p50_s: float
    itl_p99_ms: float


WATERMARKS = {
    0.0: Measured(1065, 11582, 6.56, 40.62),
    0.02: Measured(400, 12134, 11.80, 18.80),
    0.05: Measured(187, 12167, 11.20, 17.70),
    0.10: Measured(168, 11835, 8.96, 17.57),
}
# config.json of Qwen/Qwen2.5-7B-Instruct.
QWEN25_7B = ModelConfig(
    vocab_size=152_064,
    hidden_size=3584,
    intermediate_size=18_944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    head_dim=128,
    rope_theta=1e6,
    rms_norm_eps=1e-6,
    max_position_embeddings=32_768,
    tie_word_embeddings=False,
)
# One of the two GPUs of a GB200: NVIDIA's data sheet, dense rates.
GB200 = HardwareSpec("GB200", {"bfloat16": 2.5e15}, 8e12, 186e9, "NVIDIA GB200 NVL72 data sheet, one GPU")


def replay_watermark(watermark: float, seed: int = 0) -> Metrics:
    """One row of the table in the simulator, about a second. The clock is a model: compare shapes, not levels."""
    clock = ModelClock(StepTimeModel(ModelCosts(QWEN25_7B, "bfloat16"), GB200, gpu_constants()))
    lengths = Independent(Uniform.around(1000, 0.2), Uniform.around(5000, 0.2))
    config = SchedulerConfig(
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        max_model_len=8192,
        num_gpu_blocks=299_584 // 16,
        block_size=16,
        watermark=watermark,
    )
    return summarize(Simulator(config, clock).run(ClosedLoop(128, lengths, 450, seed=seed)))
