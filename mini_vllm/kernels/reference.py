"""Paged attention in plain torch, one request after the other: the oracle of the kernels. Knows no tile. Chapter 13."""

from itertools import pairwise

import torch

# Largest accepted error, relative to the largest number of a sequence and head: what rounding alone explains.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


def paged_attention(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    sliding_window: int | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Softmax attention of each query token over the KV of its request, read through the block table.

    q: [T, num_heads, head_dim]; kv_cache: [2, num_blocks, block_size, num_kv_heads, head_dim]; query_start_loc
    [R + 1], seq_lens [R], block_table [R, max_blocks] as in AttentionMetadata. scale: of the scores, 1 / sqrt(head_dim)
    if None. Computes in q's dtype, at least float32: give it float64 as an oracle. Returns [T, num_heads, head_dim] in
    that dtype. A row that sees no KV is zero.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = kv_cache.shape[2:4]
    scale = head_dim**-0.5 if scale is None else scale
    keys, values = kv_cache.view(2, -1, num_kv_heads, head_dim)  # each [slots, Hkv, D]
    out = torch.zeros(q.shape, dtype=dtype, device=q.device)
    for request, (start, end) in enumerate(pairwise(query_start_loc.tolist())):
        seq_len = int(seq_lens[request])
        if seq_len == 0 or start == end:
            continue
        positions = torch.arange(seq_len, device=q.device)
        slots = block_table[request].long()[positions // block_size] * block_size + positions % block_size
        rows = seq_len - (end - start) + torch.arange(end - start, device=q.device)[:, None]  # position of each token
        seen = positions <= rows
        if sliding_window is not None:
            seen &= positions > rows - sliding_window
        # A position that no row sees is not read at all: its block may be anybody's by now.
        slots, seen = slots[seen.any(0)], seen[:, seen.any(0)]
        group = num_heads // num_kv_heads
        k = keys[slots].to(dtype).repeat_interleave(group, dim=1)  # [L, H, D]: query head h reads KV head h // group
        v = values[slots].to(dtype).repeat_interleave(group, dim=1)
        scores = torch.einsum("thd,lhd->htl", q[start:end].to(dtype), k) * scale
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        weights = torch.where(seen.any(1, keepdim=True), weights, 0.0)  # a row before position 0: softmax gives NaN
        out[start:end] = torch.einsum("htl,lhd->thd", weights, v)
    return out


def max_error(out: torch.Tensor, ref: torch.Tensor, query_start_loc: torch.Tensor) -> float:
    """The largest over requests and heads of max|out - ref| / max|ref|; inf if a number of `out` is not finite.

    Each request and head has its own scale, so that a small head or a long context does not hide behind a large one.
    """
    worst = 0.0
    for start, end in pairwise(query_start_loc.tolist()):
        if start == end:
            continue
        mine, right = out[start:end].double(), ref[start:end].double()
        difference = (mine - right).abs().amax((0, 2))  # [H]
        size = right.abs().amax((0, 2))
        # Where the reference is zero, any other answer is infinitely wrong and zero is right.
        error = torch.where(difference == 0, 0.0, difference / size)
        worst = max(worst, float(error.nan_to_num(float("inf"), float("inf")).max()))
    return worst
