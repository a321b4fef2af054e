"""Paged attention in plain torch: gather the pages, then scaled dot product. The reference backend. Chapter 14."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mini_vllm.engine.attention.backend import AttentionMetadata


class TorchPagedAttention:
    """Decodes of all requests run as one padded batch; each prefill chunk runs alone, without padding.

    sliding_window: a token sees itself and the `sliding_window` - 1 before it; None is all. Blocks that are out of
    everybody's sight may be anybody's: they are not read.
    """

    def __init__(self, sliding_window: int | None = None) -> None:
        self.sliding_window = sliding_window

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv_cache: Tensor, meta: AttentionMetadata) -> Tensor:
        """See `AttentionBackend.forward`."""
        self.store(k, v, kv_cache, meta)
        if not meta.scratch:
            meta.scratch = self.prepare(meta, kv_cache.shape[2])
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        self.decode(out, q, kv_cache, meta)
        self.prefill(out, q, k, v, kv_cache, meta)
        return out

    def store(self, k: Tensor, v: Tensor, kv_cache: Tensor, meta: AttentionMetadata) -> None:
        """Put each row into its slot."""
        for rows, cache in zip((k, v), kv_cache, strict=True):
            owned = rows[: len(meta.slot_mapping)].flatten(1)
            cache.view(-1, owned.shape[1]).index_copy_(0, meta.slot_mapping, owned)

    def prepare(self, meta: AttentionMetadata, block_size: int) -> dict:
        """What every layer of this step needs."""
        return prepare_decodes(meta, block_size, self.sliding_window) | prepare_prefills(
            meta, block_size, self.sliding_window
        )

    def decode(self, out: Tensor, q: Tensor, kv_cache: Tensor, meta: AttentionMetadata) -> None:
        """Write the rows of the requests that have one."""
        if (decodes := meta.scratch["decodes"]) is not None:
            rows, slots, mask = decodes
            out[rows] = _decode(q[rows], *_gathered(kv_cache, slots), mask)

    def prefill(self, out: Tensor, q: Tensor, k: Tensor, v: Tensor, kv_cache: Tensor, meta: AttentionMetadata) -> None:
        """Write the rows of the longer pieces."""
        for first_row, end_row, slots, mask in meta.scratch["prefills"]:
            mine = slice(first_row, end_row)
            keys, values = (k[mine], v[mine]) if slots is None else _gathered(kv_cache, slots)
            out[mine] = _prefill(q[mine], keys, values, mask)


def _gathered(kv_cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """K and V of these slots, each [*slots.shape, Hkv, D].

    index_select on flat rows copies them whole, where indexing goes number by number.
    """
    rows = kv_cache.view(2, -1, kv_cache.shape[3] * kv_cache.shape[4])
    k, v = (cache.index_select(0, slots.flatten()).view(*slots.shape, *kv_cache.shape[3:]) for cache in rows)
    return k, v


def prepare_decodes(meta: AttentionMetadata, block_size: int, window: int | None) -> dict:
    """Which cache slots each request of one row reads, and which of them it may see."""
    decoding = [i for i, n in enumerate(meta.query_lens) if n == 1]
    if not decoding:
        return {"decodes": None}
    window, device = window or meta.max_seq_len, meta.seq_lens.device
    longest = max(meta.context_lens[i] for i in decoding)
    lens = meta.seq_lens[decoding].long()[:, None]  # [B, 1]
    # [B, seen]: the positions that each row sees, its oldest first. Shorter rows run over their end: there they
    # read the null block, which is all zeros. Stale KV may hold a NaN, and a NaN times weight 0 is a NaN.
    positions = (lens - window).clamp(min=0) + torch.arange(min(window, longest), device=device)
    mask = positions < lens
    positions = positions.clamp(max=meta.max_seq_len - 1)
    slots = meta.block_table[decoding].long().gather(1, positions // block_size) * block_size + positions % block_size
    slots = torch.where(mask, slots, 0)
    return {"decodes": (meta.query_start_loc[decoding].long(), slots, mask[:, None, None, :])}


def prepare_prefills(meta: AttentionMetadata, block_size: int, window: int | None) -> dict:
    """Of each longer piece: its rows, the slots it reads, and which of them each row may see (None: up to itself)."""
    window, device = window or meta.max_seq_len, meta.seq_lens.device
    prefills, start = [], 0
    for i, n in enumerate(meta.query_lens):
        if n > 1:
            end = meta.context_lens[i]
            if n == end <= window:  # nothing lies before it: its own K and V are all that it sees
                prefills.append((start, start + n, None, None))
                start += n
                continue
            positions = torch.arange(max(0, end - n - window + 1), end, device=device)
            slots = meta.block_table[i, positions // block_size].long() * block_size + positions % block_size
            rows = torch.arange(end - n, end, device=device)[:, None]
            mask = (positions <= rows) & (positions > rows - window)  # [n, positions]: itself and the past in sight
            prefills.append((start, start + n, slots, mask))
        start += n
    return {"prefills": prefills}


def _decode(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q: [B, H, D]; k, v: [B, L, Hkv, D]; mask: [B, 1, 1, L]. Returns [B, H, D].

    The G = H / Hkv query heads that share a KV head take the place of query positions: no copy of K and V.
    """
    batch, num_heads, head_dim = q.shape
    grouped = q.view(batch, k.shape[2], num_heads // k.shape[2], head_dim)  # [B, Hkv, G, D]
    out = F.scaled_dot_product_attention(grouped, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
    return out.reshape(batch, num_heads, head_dim)


def _prefill(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """q: [n, H, D]; k, v: [L, Hkv, D]; mask: [n, L], or None for a whole prompt (n = L). Returns [n, H, D]."""
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)
