"""Attention of a few query tokens a request over its whole cached context. Knows no split, no scheduler. Chapter 13.

Decoding reads all of K and V for one token, so it is as fast as memory is. The G query heads that share a KV head are
packed with the query tokens (drafts) into the rows of one program, so that K and V are read once for all of them:

    row      0   1   2 | 3   4   5      G = 3, two tokens: row = token * G + head
    token    0   0   0 | 1   1   1
    head     0   1   2 | 0   1   2

The program walks the context in tiles of BLOCK_N tokens. A tile need not be a page: each of its tokens is looked up in
the block table by itself, so pages of any size work.
"""

import torch
import triton
import triton.language as tl

from mini_vllm.kernels.device_code import cache_slots, loop_bound
from mini_vllm.kernels.mode import interpreting, require_device
from mini_vllm.kernels.tiles import DecodeTile

LOG2_E = 1.4426950408889634  # 2 ** (x * log2(e)) = e ** x, and exp2 is what the hardware has
LARGEST_HEAD_DIM = 256
LARGEST_QUERY_LEN = 8  # a token and seven drafts
# Triton compiles a kernel anew where such an argument becomes divisible by 16, or stops to be: a pause in mid-run.
VARYING = ["query_start_loc_ptr", "seq_lens_ptr", "block_table_ptr", "requests_ptr", "table_stride"]


def paged_decode(
    out: torch.Tensor,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    requests: torch.Tensor,
    *,
    max_query_len: int = 1,
    sliding_window: int | None = None,
    scale: float | None = None,
    tile: DecodeTile,
) -> None:
    """Writes the attention of the rows of these requests into `out`; other rows stay as they are.

    out, q: [T, num_heads, head_dim], numbers of a head side by side; kv_cache: [2, num_blocks, block_size,
    num_kv_heads, head_dim]; query_start_loc [R + 1], seq_lens [R], block_table [R, max_blocks] as in AttentionMetadata.
    requests: [B] int32, which of the R requests to serve; each has at most max_query_len query tokens (the caller's
    promise: rows beyond are not computed). scale: of the scores, 1 / sqrt(head_dim) if None.
    A row that sees no KV gets zeros. Lengths are read on the device, so a CUDA graph of this call serves any lengths.
    Raises ValueError for shapes that no kernel takes.
    """
    refuse_wrong_inputs(
        out, q, kv_cache, query_start_loc, seq_lens, block_table, requests, max_query_len, sliding_window
    )
    if len(requests) == 0:
        return
    constants = decode_constants(q, kv_cache, max_query_len, sliding_window, tile)
    num_row_tiles = triton.cdiv(max_query_len * constants["GROUP"], constants["BLOCK_M"])
    _paged_decode[(kv_cache.shape[3] * num_row_tiles, len(requests))](
        out,
        q,
        *kv_cache,
        query_start_loc,
        seq_lens,
        block_table,
        requests,
        *out.stride()[:2],
        *q.stride()[:2],
        block_table.stride(0),
        kv_cache.stride(2),
        LOG2_E * (q.shape[2] ** -0.5 if scale is None else scale),
        NUM_ROW_TILES=num_row_tiles,
        **constants,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def refuse_wrong_inputs(
    out: torch.Tensor,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    requests: torch.Tensor,
    max_query_len: int,
    sliding_window: int | None,
) -> None:
    """Raises ValueError, before anything is launched, for what the decode kernels cannot do."""
    require_device(q)
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = kv_cache.shape[3]
    if out.shape != q.shape or kv_cache.shape[4] != head_dim:
        raise ValueError(
            f"out {tuple(out.shape)} and q {tuple(q.shape)} must have one shape, and the cache's head_dim "
            f"{kv_cache.shape[4]} must be q's {head_dim}"
        )
    if head_dim > LARGEST_HEAD_DIM:
        raise ValueError(f"head_dim={head_dim} is over {LARGEST_HEAD_DIM}: use attention_backend='torch'")
    if num_heads % num_kv_heads:
        raise ValueError(f"num_heads={num_heads} is not a multiple of num_kv_heads={num_kv_heads}")
    if not out.dtype == q.dtype == kv_cache.dtype:
        raise ValueError(f"out {out.dtype}, q {q.dtype} and the cache {kv_cache.dtype} must be of one dtype")
    if q.stride(2) != 1 or out.stride(2) != 1 or not kv_cache.is_contiguous():
        raise ValueError("the numbers of a head of q and out must lie side by side, and the cache must be contiguous")
    if len(query_start_loc) <= len(seq_lens) or len(block_table) < len(seq_lens):
        raise ValueError(
            f"{len(seq_lens)} seq_lens need as many rows of block_table, not {len(block_table)}, and one number more "
            f"in query_start_loc, not {len(query_start_loc)}"
        )
    if block_table.stride(1) != 1 or requests.dtype != torch.int32:
        raise ValueError(f"rows of block_table must be contiguous, and requests int32, not {requests.dtype}")
    if not 1 <= max_query_len <= LARGEST_QUERY_LEN:
        raise ValueError(
            f"max_query_len={max_query_len} is not within 1 to {LARGEST_QUERY_LEN}: longer pieces go to paged_prefill"
        )
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window={sliding_window} must be at least 1, or None for all")


def decode_constants(
    q: torch.Tensor, kv_cache: torch.Tensor, max_query_len: int, sliding_window: int | None, tile: DecodeTile
) -> dict:
    """What the kernels of a model are compiled for. The lengths of a step are not among it."""
    num_heads, head_dim = q.shape[1:]
    group = num_heads // kv_cache.shape[3]
    block_d = max(16, triton.next_power_of_2(head_dim))
    rows = triton.next_power_of_2(max_query_len * group)
    return {
        "HEAD_DIM": head_dim,
        "BLOCK_D": block_d,
        "GROUP": group,
        # tl.dot wants at least 16 rows. More than these would not fit the registers: further programs take them.
        "BLOCK_M": min(max(16, rows), 64, 8192 // block_d) if tile.use_dot else min(rows, 8, 1024 // block_d),
        "BLOCK_SIZE": kv_cache.shape[2],
        "WINDOW": sliding_window or 0,
        "BLOCK_N": tile.block_n,
        "USE_DOT": tile.use_dot,
        "INTERPRET": interpreting(),
    }


@triton.jit(do_not_specialize=VARYING)
def _paged_decode(
    out_ptr,  # [T, H, D]
    q_ptr,  # [T, H, D]
    key_cache_ptr,  # [slots, Hkv, D]
    value_cache_ptr,  # [slots, Hkv, D]
    query_start_loc_ptr,  # [R + 1]
    seq_lens_ptr,  # [R]
    block_table_ptr,  # [R, max_blocks]
    requests_ptr,  # [B]
    out_token_stride,
    out_head_stride,
    q_token_stride,
    q_head_stride,
    table_stride,
    slot_stride,
    scale_log2,
    NUM_ROW_TILES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    USE_DOT: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """Grid (KV heads x row tiles, B): one program takes its rows through the whole context that they see.

    The first axis runs fastest: programs that start together read a token's heads, which lie side by side in memory.
    """
    request = tl.load(requests_ptr + tl.program_id(1)).to(tl.int64)
    kv_head = tl.program_id(0) // NUM_ROW_TILES
    first_row = tl.program_id(0) % NUM_ROW_TILES * BLOCK_M
    start, query_len, seq_len, first_seen = request_lengths(query_start_loc_ptr, seq_lens_ptr, request, WINDOW)
    tokens, heads, mine = packed_rows(first_row, query_len, kv_head, GROUP, BLOCK_M)
    lanes = tl.arange(0, BLOCK_D)
    kept = mine[:, None] & (lanes < HEAD_DIM)[None, :]
    q_rows = (start + tokens) * q_token_stride + heads * q_head_stride
    q = tl.load(q_ptr + q_rows[:, None] + lanes[None, :], mask=kept, other=0.0)  # [M, D]

    _, denominator, acc = attend(
        q,
        tl.where(mine, seq_len - query_len + tokens, -1),
        key_cache_ptr + kv_head * HEAD_DIM,
        value_cache_ptr + kv_head * HEAD_DIM,
        block_table_ptr + request * table_stride,
        first_seen,
        tl.where(first_row < query_len * GROUP, seq_len, 0),  # without rows there is nothing to read for
        slot_stride,
        scale_log2,
        HEAD_DIM, BLOCK_D, BLOCK_M, BLOCK_SIZE, WINDOW, BLOCK_N, USE_DOT, INTERPRET,
    )  # fmt: skip
    out = acc / tl.where(denominator == 0.0, 1.0, denominator)[:, None]  # a row that sees nothing: 0 / 1
    out_rows = (start + tokens) * out_token_stride + heads * out_head_stride
    tl.store(out_ptr + out_rows[:, None] + lanes[None, :], out.to(out_ptr.dtype.element_ty), mask=kept)


@triton.jit
def request_lengths(query_start_loc_ptr, seq_lens_ptr, request, WINDOW: tl.constexpr):
    """Its first row in q (64 bit), its query tokens, its tokens with KV, and the first position that any row sees."""
    start = tl.load(query_start_loc_ptr + request)
    query_len = tl.load(query_start_loc_ptr + request + 1) - start
    seq_len = tl.load(seq_lens_ptr + request)
    first_seen = seq_len * 0
    if WINDOW:
        first_seen = tl.maximum(seq_len - query_len - WINDOW + 1, 0)
    return start.to(tl.int64), query_len, seq_len, first_seen


@triton.jit
def packed_rows(first_row, query_len, kv_head, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Query token and query head of each row of a program, and which rows there are. Each [M]."""
    rows = first_row + tl.arange(0, BLOCK_M)
    return rows // GROUP, kv_head * GROUP + rows % GROUP, rows < query_len * GROUP


@triton.jit
def attend(
    q,  # [M, D]
    row_positions,  # [M], the last position that each row sees; -1 for a row that is not there
    key_head_ptr,  # slot 0 of this KV head
    value_head_ptr,
    table_ptr,  # this request's block ids
    first,
    end,
    slot_stride,
    scale_log2,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    USE_DOT: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """Online softmax over the positions first .. end - 1. Returns each row's maximum, denominator and sum of V."""
    max_score = tl.full([BLOCK_M], float("-inf"), tl.float32)  # of the scores times log2(e)
    denominator = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    lanes = tl.arange(0, BLOCK_D)
    num_tiles = tl.cdiv(tl.maximum(end - first, 0), BLOCK_N)
    # A `for`, not a `while`: only in a `for` Triton loads the next tiles while it computes this one. One loop with a
    # mask, not a clean one and a last tile by itself: that one would wait for memory alone.
    for tile in range(0, loop_bound(num_tiles, INTERPRET)):
        positions = first + tile * BLOCK_N + tl.arange(0, BLOCK_N)
        # What lies behind the end is never read: its block may be anybody's and hold a NaN, and 0 * NaN is NaN.
        wanted = positions < end
        slots = cache_slots(table_ptr, positions, wanted, BLOCK_SIZE)
        offsets = slots[:, None] * slot_stride + lanes[None, :]  # [N, D], 64 bit
        loaded = wanted[:, None] & (lanes < HEAD_DIM)[None, :]
        k = tl.load(key_head_ptr + offsets, mask=loaded, other=0.0)
        v = tl.load(value_head_ptr + offsets, mask=loaded, other=0.0)

        scores = _scores(q, k, USE_DOT, INTERPRET) * scale_log2  # [M, N]
        seen = wanted[None, :] & (positions[None, :] <= row_positions[:, None])
        if WINDOW:
            seen = seen & (positions[None, :] > row_positions[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        new_max = tl.maximum(max_score, tl.max(scores, 1))
        base = tl.where(new_max == float("-inf"), 0.0, new_max)  # -inf - -inf would be NaN
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(max_score - base)
        denominator = denominator * shrink + tl.sum(weights, 1)
        acc = _weighted_sum(acc * shrink[:, None], weights, v, USE_DOT, INTERPRET)
        max_score = new_max
    return max_score, denominator, acc


@triton.jit
def _scores(q, k, USE_DOT: tl.constexpr, INTERPRET: tl.constexpr):
    """q [M, D] times k [N, D] transposed, in fp32: [M, N]."""
    if USE_DOT:
        if INTERPRET:  # there tl.dot multiplies the bits of bfloat16 as integers
            q, k = q.to(tl.float32), k.to(tl.float32)
        return tl.dot(q, tl.trans(k), input_precision="ieee")  # tf32 would be wrong from the fourth digit on
    else:
        return tl.sum(q.to(tl.float32)[:, None, :] * k.to(tl.float32)[None, :, :], 2)


@triton.jit
def _weighted_sum(acc, weights, v, USE_DOT: tl.constexpr, INTERPRET: tl.constexpr):
    """acc [M, D] + weights [M, N] times v [N, D], in fp32."""
    if USE_DOT:
        weights = weights.to(v.dtype)
        if INTERPRET:
            weights, v = weights.to(tl.float32), v.to(tl.float32)
        return tl.dot(weights, v, acc, input_precision="ieee")
    else:
        return acc + tl.sum(weights[:, :, None] * v.to(tl.float32)[None, :, :], 1)
