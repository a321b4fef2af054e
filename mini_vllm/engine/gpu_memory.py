"""How many KV blocks a GPU has room for. Knows bytes; knows no request. Chapters 6 and 14.

The card's memory, up to gpu_memory_utilization of it:

    | weights, and whoever else is there | a full step | the same once more, for graphs |  KV blocks  |
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch

from mini_vllm.config import SchedulerConfig
from mini_vllm.engine.attention.backend import AttentionBackend
from mini_vllm.engine.kv_pool import block_bytes
from mini_vllm.engine.warm_up import dummy_step
from mini_vllm.errors import ConfigError
from mini_vllm.models.llama import LlamaForCausalLM

GIB = 1 << 30


class Memory(Protocol):
    """Of one GPU, in bytes."""

    def used_and_total(self) -> tuple[int, int]:
        """In use now, by everybody on it; and in all."""
        ...

    def peak_of(self, run: Callable[[], None]) -> int:
        """What `run` takes at most beyond what was taken before."""
        ...


class CudaMemory:
    def __init__(self, device: torch.device) -> None:
        self.device = device

    def used_and_total(self) -> tuple[int, int]:
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free, total

    def peak_of(self, run: Callable[[], None]) -> int:
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        run()
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) - before


def fill_memory(
    config: SchedulerConfig,
    model: LlamaForCausalLM,
    attn_backend: AttentionBackend,
    gpu_memory_utilization: float,
    memory: Memory | None = None,
) -> SchedulerConfig:
    """`config` with as many KV blocks as fit beside the weights and the largest step, which is run once to see what it
    takes.

    memory: of the model's GPU, if None. Raises ConfigError if not even one request of max_model_len tokens would fit.
    """
    if not 0 < gpu_memory_utilization <= 1:
        raise ConfigError(f"gpu_memory_utilization={gpu_memory_utilization} must be above 0 and at most 1")
    memory = memory or CudaMemory(model.device)
    num_tokens, longest = config.max_num_batched_tokens, config.max_model_len
    prompts = [(0, min(longest, num_tokens - start)) for start in range(0, num_tokens, longest)]
    peak = memory.peak_of(lambda: dummy_step(model, attn_backend, config.block_size, prompts, config.max_num_seqs))
    used, total = memory.used_and_total()
    one_block = block_bytes(model.config, model.dtype, config.block_size)
    num_blocks = int(gpu_memory_utilization * total - used - 2 * peak) // one_block - 1  # and the null block
    needed = config.peak_blocks(config.max_model_len)
    if num_blocks < needed:
        raise ConfigError(
            f"of {total / GIB:.1f} GiB on the GPU {used / GIB:.1f} are in use (the weights, and whoever else is there) "
            f"and a step of {config.max_num_batched_tokens} tokens takes {2 * peak / GIB:.1f}; gpu_memory_utilization="
            f"{gpu_memory_utilization} leaves room for {max(0, num_blocks)} KV blocks of {config.block_size} tokens, "
            f"and one request of max_model_len={config.max_model_len} needs {needed}. Lower max_model_len or max_num_"
            "batched_tokens, raise gpu_memory_utilization, take a smaller model or dtype, or give num_gpu_blocks"
        )
    return replace(config, num_gpu_blocks=num_blocks)
