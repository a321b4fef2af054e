"""The KV cache of all layers, and the host's pool beside it. Knows blocks; knows no request. Chapters 8 and 14."""

import math
import mmap
from collections.abc import Iterator

import torch

from mini_vllm.models.config import ModelConfig, item_bytes


class KVPool:
    """`num_gpu_blocks` blocks and block 0, the null block; and `num_host_blocks` to which a plan may swap KV out.

    caches, host_caches: of each layer one tensor [2, blocks, block_size, num_kv_heads, head_dim]; [0] is K, [1] is V.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        num_gpu_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
    ) -> None:
        layers, block = range(config.num_hidden_layers), (block_size, config.num_key_value_heads, config.head_dim)
        self.caches = [zeros((2, num_gpu_blocks + 1, *block), dtype, device) for _ in layers]
        pinned = device.type == "cuda" and num_host_blocks > 0  # a GPU copies from and to pinned memory by itself
        self.host_caches = [torch.zeros(2, num_host_blocks, *block, dtype=dtype, pin_memory=pinned) for _ in layers]

    def swap(self, swapped_out: list[tuple[int, int]], swapped_in: list[tuple[int, int]]) -> None:
        """Copy whole blocks to the host, then back; each pair is (block of the pool, block of the host's pool).

        A block that goes out may be given to others at once. Beside a GPU the copies are queued like all else.
        """
        for from_caches, to_caches, copies in (
            (self.caches, self.host_caches, swapped_out),
            (self.host_caches, self.caches, [(host, block) for block, host in swapped_in]),
        ):
            for taken, given, n in runs(copies):
                for from_cache, to_cache in zip(from_caches, to_caches, strict=True):
                    for kv in (0, 1):  # each a whole piece of memory: what is scattered would be copied by the host
                        source = from_cache[kv, taken : taken + n]
                        to_cache[kv, given : given + n].copy_(source, non_blocking=True)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros, not empty: a masked position has weight 0, and 0 times a stray NaN would still be NaN.

    On a CPU they are pages that the system hands out when they are first written: blocks never used take no memory.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, math.prod(shape) * item_bytes(dtype), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def runs(copies: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Pairs (from, to) as runs (first from, first to, length) in which both count up: fewer and longer copies."""
    ordered = sorted(copies)
    i = 0
    while i < len(ordered):
        taken, given = ordered[i]
        n = 1
        while i + n < len(ordered) and ordered[i + n] == (taken + n, given + n):
            n += 1
        yield taken, given, n
        i += n


def block_bytes(config: ModelConfig, dtype: torch.dtype, block_size: int) -> int:
    """Bytes of one block in all layers, K and V."""
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return per_token * block_size * item_bytes(dtype)
