"""Paged attention of a CPU with bfloat16: decodes without a gather, in compiled C; the rest as in torch. Chapter 14."""

import torch

from mini_vllm.engine.attention.backend import AttentionMetadata
from mini_vllm.engine.attention.torch import TorchPagedAttention, prepare_prefills
from mini_vllm.models import cpu_ops


class CpuPagedAttention(TorchPagedAttention):
    """K and V of a decode are read where they lie, through the block table, once for all heads that share them."""

    @staticmethod
    def can_serve(dtype: torch.dtype, device: torch.device, num_heads: int, head_dim: int) -> bool:
        fits = head_dim % cpu_ops.LANES == 0 and num_heads * head_dim <= cpu_ops.MAX_ROW
        return fits and cpu_ops.can_use_cpu_ops(dtype, device)

    def store(self, k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, meta: AttentionMetadata) -> None:
        cpu_ops.store_kv(k, v, kv_cache, meta.slot_mapping)

    def prepare(self, meta: AttentionMetadata, block_size: int) -> dict:
        decoding = [i for i, n in enumerate(meta.query_lens) if n == 1]
        prepared = prepare_prefills(meta, block_size, self.sliding_window)
        rows = meta.query_start_loc[decoding].long()
        return prepared | {"decodes": (rows, meta.seq_lens[decoding], meta.block_table[decoding])}

    def decode(self, out: torch.Tensor, q: torch.Tensor, kv_cache: torch.Tensor, meta: AttentionMetadata) -> None:
        rows, seq_lens, block_table = meta.scratch["decodes"]
        if len(rows):
            cpu_ops.paged_decode(out, q, kv_cache, rows, seq_lens, block_table, self.sliding_window)
