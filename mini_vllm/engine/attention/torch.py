"""Paged attention in plain torch: gather the pages, then scaled dot product. The reference backend. Chapter 14."""

from itertools import pairwise

import torch
import torch.nn.functional as F

from mini_vllm.engine.attention.backend import AttentionMetadata


class TorchPagedAttention:
    """Decodes of all requests run as one padded batch; each prefill chunk runs alone, without padding.

    sliding_window: a token sees itself and the `sliding_window` - 1 before it; None is all. Blocks that are out of
    everybody's sight may be anybody's: they are not read.
    """

    def __init__(self, sliding_window: int | None = None) -> None:
        self.sliding_window = sliding_window

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, meta: AttentionMetadata
    ) -> torch.Tensor:
        """See `AttentionBackend.forward`."""
        num_tokens, num_kv_heads, head_dim = k.shape
        keys, values = kv_cache.view(2, -1, num_kv_heads * head_dim)  # each [slots, Hkv * D]
        keys.index_copy_(0, meta.slot_mapping, k.reshape(num_tokens, -1))
        values.index_copy_(0, meta.slot_mapping, v.reshape(num_tokens, -1))

        def gathered(rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
            """The rows of these slots; index_select copies whole rows, where indexing goes number by number."""
            return rows.index_select(0, slots.flatten()).view(*slots.shape, num_kv_heads, head_dim)

        if not meta.scratch:
            meta.scratch = _prepare(meta, kv_cache.shape[2], self.sliding_window)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        if (decodes := meta.scratch["decodes"]) is not None:
            rows, slots, mask = decodes
            out[rows] = _decode(q[rows], gathered(keys, slots), gathered(values, slots), mask)
        for first_row, end_row, slots, mask in meta.scratch["prefills"]:
            mine = slice(first_row, end_row)
            out[mine] = _prefill(q[mine], gathered(keys, slots), gathered(values, slots), mask)
        return out


def _prepare(meta: AttentionMetadata, block_size: int, window: int | None) -> dict:
    """Index tensors of this step: which cache slots each request reads, and which of them each row may see."""
    starts = meta.query_start_loc.tolist()
    seq_lens = meta.seq_lens.tolist()
    query_lens = [end - start for start, end in pairwise(starts)]
    block_table = meta.block_table.long()
    window = window or meta.max_seq_len

    decodes = None
    decoding = [i for i, n in enumerate(query_lens) if n == 1]
    if decoding:
        lens = meta.seq_lens[decoding].long()[:, None]  # [B, 1]
        seen = min(window, int(lens.max()))
        # [B, seen]: the positions that each row sees, its oldest first. Shorter rows run over their end: there they
        # read the null block, which is all zeros. Stale KV may hold a NaN, and a NaN times weight 0 is a NaN.
        positions = (lens - window).clamp(min=0) + torch.arange(seen)
        mask = positions < lens
        positions = positions.clamp(max=meta.max_seq_len - 1)
        slots = block_table[decoding].gather(1, positions // block_size) * block_size + positions % block_size
        slots = torch.where(mask, slots, 0)
        decodes = (meta.query_start_loc[decoding].long(), slots, mask[:, None, None, :])

    prefills = []
    for i, n in enumerate(query_lens):
        if n > 1:
            first_row = seq_lens[i] - n
            positions = torch.arange(max(0, first_row - window + 1), seq_lens[i])
            slots = block_table[i, positions // block_size] * block_size + positions % block_size
            rows = torch.arange(first_row, seq_lens[i])[:, None]
            mask = (positions <= rows) & (positions > rows - window)  # [n, positions]: itself and the past in sight
            prefills.append((starts[i], starts[i + 1], slots, mask))
    return {"decodes": decodes, "prefills": prefills}


def _decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """q: [B, H, D]; k, v: [B, L, Hkv, D]; mask: [B, 1, 1, L]. Returns [B, H, D].

    The G = H / Hkv query heads that share a KV head take the place of query positions: no copy of K and V.
    """
    batch, num_heads, head_dim = q.shape
    grouped = q.view(batch, k.shape[2], num_heads // k.shape[2], head_dim)  # [B, Hkv, G, D]
    out = F.scaled_dot_product_attention(grouped, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
    return out.reshape(batch, num_heads, head_dim)


def _prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """q: [n, H, D]; k, v: [L, Hkv, D]; mask: [n, L]. Returns [n, H, D]."""
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=mask,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)
