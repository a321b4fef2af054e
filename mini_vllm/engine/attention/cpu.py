"""Paged attention of a CPU with bfloat16, in compiled C: K and V are read where they lie. Chapter 14."""

import torch
from torch import Tensor

from mini_vllm.engine.attention.backend import AttentionMetadata
from mini_vllm.engine.attention.torch import TorchPagedAttention, prepare_prefills
from mini_vllm.models import cpu_ops


class CpuPagedAttention(TorchPagedAttention):
    """Each K and V is read through the block table, once for all heads that share it.

    Pieces of several rows run as in torch where the CPU has no vectors of 512 bits; see `cpu_ops.can_prefill`.
    """

    @staticmethod
    def can_serve(dtype: torch.dtype, device: torch.device, num_heads: int, head_dim: int) -> bool:
        fits = head_dim % (2 * cpu_ops.LANES) == 0 and num_heads * head_dim <= cpu_ops.MAX_ROW
        return fits and cpu_ops.can_use_cpu_ops(dtype, device)

    def store(self, k: Tensor, v: Tensor, kv_cache: Tensor, meta: AttentionMetadata) -> None:
        cpu_ops.store_kv(k, v, kv_cache, meta.slot_mapping)

    def prepare(self, meta: AttentionMetadata, block_size: int) -> dict:
        decoding = [i for i, n in enumerate(meta.query_lens) if n == 1]
        rows = meta.query_start_loc[decoding].long()
        return {"decodes": (rows, meta.seq_lens[decoding], meta.block_table[decoding])}

    def decode(self, out: Tensor, q: Tensor, kv_cache: Tensor, meta: AttentionMetadata) -> None:
        rows, seq_lens, block_table = meta.scratch["decodes"]
        if len(rows):
            cpu_ops.paged_decode(out, q, kv_cache, rows, seq_lens, block_table, self.sliding_window)

    def prefill(self, out: Tensor, q: Tensor, k: Tensor, v: Tensor, kv_cache: Tensor, meta: AttentionMetadata) -> None:
        if len(meta.scratch["decodes"][0]) == len(meta.query_lens):
            return
        heads = q.shape[1], kv_cache.shape[3]
        if not cpu_ops.can_prefill(*heads):
            if "prefills" not in meta.scratch:
                meta.scratch |= prepare_prefills(meta, kv_cache.shape[2], self.sliding_window)
            return super().prefill(out, q, k, v, kv_cache, meta)
        if "tasks" not in meta.scratch:
            meta.scratch["tasks"] = cpu_ops.prefill_tasks(meta.query_lens, *heads)
        where = meta.query_start_loc, meta.seq_lens, meta.block_table
        cpu_ops.paged_prefill(out, q, kv_cache, meta.scratch["tasks"], *where, self.sliding_window)
