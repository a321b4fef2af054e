"""Attention of many query tokens a request over its cached KV. Knows tiles of packed rows; no scheduler. Chapter 13.

The G query heads of a KV head read the same K and V, so they are packed into rows, and a program takes BLOCK_M of them:

    row      0   1   2 | 3   4   5 | 6 ...      G = 3: row = token * G + head
    token    0   0   0 | 1   1   1 | 2
    head     0   1   2 | 0   1   2 | 0

A row sees the positions up to its token's own and, with a window, no older than that. For the rows of one program:

    position   0 ........ first_seen ........................... end_seen ..... seq_len
    KV tiles   |  never read  | mask |  seen by all rows  | mask |  never read  |
"""

import torch
import triton
import triton.language as tl

from mini_vllm.kernels.device_code import cache_slots, loop_bound
from mini_vllm.kernels.mode import interpreting, require_device
from mini_vllm.kernels.tiles import PrefillTile

# Triton compiles a kernel anew where such an argument becomes divisible by 16, or stops to be: a pause in mid-run.
VARYING = ["query_start_loc_ptr", "seq_lens_ptr", "block_table_ptr", "tiles_ptr", "table_stride", "group", "window"]
EVERYTHING = 2**30  # the window of a model without one: longer than any context
LOG2_E = 1.4426950408889634
LARGEST_HEAD_DIM = 256


def plan_tiles(
    query_lens: list[int], requests: list[int], group: int, block_m: int, device: torch.device | str
) -> torch.Tensor:
    """Which rows each program takes: [num_tiles, 2] int32 on `device`, a request and its first packed row.

    query_lens: query tokens of every request of the step; requests: the ones that the kernel is to serve. Made once a
    step, on the host, and used by every layer. The longest tiles of a request come first, so that the last programs
    to start are short.
    """
    if block_m < 1 or group < 1:
        raise ValueError(f"block_m={block_m} and group={group} must be at least 1")
    tiles = [(request, row) for request in requests for row in reversed(range(0, query_lens[request] * group, block_m))]
    pinned = torch.device(device).type == "cuda"  # out of other memory the copy would wait for the device
    return torch.tensor(tiles, dtype=torch.int32, pin_memory=pinned).view(-1, 2).to(device, non_blocking=True)


def paged_prefill(
    out: torch.Tensor,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    tiles_of_step: torch.Tensor,
    *,
    sliding_window: int | None = None,
    scale: float | None = None,
    tile: PrefillTile,
) -> None:
    """Writes the attention of the planned rows into `out`; other rows stay as they are.

    out, q: [T, num_heads, head_dim], numbers of a head side by side; kv_cache: [2, num_blocks, block_size,
    num_kv_heads, head_dim]; the others as in AttentionMetadata. tiles_of_step: from `plan_tiles`, made with
    group = num_heads / num_kv_heads and tile.block_m. scale: of the scores, 1 / sqrt(head_dim) if None.
    Raises ValueError for shapes that no kernel takes. Waits for nothing on the device.
    """
    require_device(q)
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = kv_cache.shape[2:4]
    scale = head_dim**-0.5 if scale is None else scale
    _refuse_wrong_shapes(out, q, kv_cache, query_start_loc, seq_lens, block_table, tiles_of_step, sliding_window, scale)
    if not len(tiles_of_step):
        return
    keys, values = kv_cache
    _paged_prefill[len(tiles_of_step), num_kv_heads](
        out,
        q,
        keys,
        values,
        query_start_loc,
        seq_lens,
        block_table,
        tiles_of_step,
        *q.stride()[:2],
        *out.stride()[:2],
        block_table.stride(0),
        num_kv_heads * head_dim,
        num_heads // num_kv_heads,
        sliding_window or EVERYTHING,
        scale * LOG2_E,
        HEAD_DIM=head_dim,
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)),  # tl.dot takes no less
        BLOCK_SIZE=block_size,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        INTERPRET=interpreting(),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def _refuse_wrong_shapes(
    out: torch.Tensor,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    tiles_of_step: torch.Tensor,
    sliding_window: int | None,
    scale: float,
) -> None:
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
        raise ValueError("the numbers of a head of q and out must lie side by side, and the cache be contiguous")
    num_requests = len(query_start_loc) - 1
    if len(seq_lens) != num_requests or len(block_table) != num_requests or block_table.stride(1) != 1:
        raise ValueError(
            f"query_start_loc is of {num_requests} requests: so must be the {len(seq_lens)} seq_lens and the "
            f"{len(block_table)} rows of block_table, each row contiguous"
        )
    if tiles_of_step.shape[1:] != (2,) or tiles_of_step.dtype != torch.int32 or not tiles_of_step.is_contiguous():
        has = f"{tuple(tiles_of_step.shape)} {tiles_of_step.dtype}"
        raise ValueError(f"tiles_of_step {has} is not [num_tiles, 2] of int32: take plan_tiles(...)")
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window={sliding_window} must be at least 1, or None for all")
    if not scale > 0:
        raise ValueError(f"scale={scale} must be greater than 0")


@triton.jit(do_not_specialize=VARYING)
def _paged_prefill(
    out_ptr,  # [T, H, D]
    q_ptr,  # [T, H, D]
    k_ptr,  # [slots, Hkv, D]
    v_ptr,  # [slots, Hkv, D]
    query_start_loc_ptr,  # [R + 1]
    seq_lens_ptr,  # [R]
    block_table_ptr,  # [R, width]
    tiles_ptr,  # [num_tiles, 2]
    q_token_stride,
    q_head_stride,
    out_token_stride,
    out_head_stride,
    table_stride,
    slot_stride,
    group,
    window,
    scale_log2,  # 2 ** (x * log2(e)) = e ** x, and exp2 is what the hardware has
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """Grid (tiles of the step, KV heads): one program takes BLOCK_M packed rows of one request through its context."""
    request = tl.load(tiles_ptr + 2 * tl.program_id(0)).to(tl.int64)
    first_row = tl.load(tiles_ptr + 2 * tl.program_id(0) + 1)
    kv_head = tl.program_id(1)
    start = tl.load(query_start_loc_ptr + request).to(tl.int64)
    query_len = (tl.load(query_start_loc_ptr + request + 1) - start).to(tl.int32)
    history = tl.load(seq_lens_ptr + request) - query_len  # tokens before the first of this piece

    rows = first_row + tl.arange(0, BLOCK_M)
    tokens = rows // group
    heads = kv_head * group + rows % group
    lanes = tl.arange(0, BLOCK_D)
    mine = (rows < query_len * group)[:, None] & (lanes < HEAD_DIM)[None, :]
    q_offsets = (start + tokens) * q_token_stride + heads * q_head_stride
    q = tl.load(q_ptr + q_offsets[:, None] + lanes[None, :], mask=mine, other=0.0)  # [M, D]

    # The positions of the first and the last token of this tile, and what they let all rows, or any row, see.
    oldest = history + first_row // group
    newest = history + (tl.minimum(first_row + BLOCK_M, query_len * group) - 1) // group
    first_seen = tl.maximum(oldest - window + 1, 0)
    end_seen = tl.maximum(newest + 1, 0)
    first_tile = first_seen // BLOCK_N
    end_tile = tl.cdiv(end_seen, BLOCK_N)
    full_first = tl.cdiv(tl.maximum(newest - window + 1, 0), BLOCK_N)
    full_end = tl.maximum(tl.maximum(oldest + 1, 0) // BLOCK_N, full_first)

    max_score = tl.full([BLOCK_M], float("-inf"), tl.float32)  # largest score of each row so far, times log2(e)
    denominator = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    table_row = block_table_ptr + request * table_stride
    k_ptr += kv_head * HEAD_DIM
    v_ptr += kv_head * HEAD_DIM
    # Online softmax may take the tiles in any order: first those without a mask, then those on the left and right.
    for i in range(loop_bound(full_first, INTERPRET), loop_bound(full_end, INTERPRET)):
        positions = i * BLOCK_N + tl.arange(0, BLOCK_N)
        acc, max_score, denominator = _attend(
            acc, max_score, denominator, q, k_ptr, v_ptr, table_row, positions, lanes, slot_stride, scale_log2,
            history + tokens, window, first_seen, end_seen, HEAD_DIM, BLOCK_D, BLOCK_SIZE, False, INTERPRET,
        )  # fmt: skip
    num_left = full_first - first_tile
    for i in range(0, loop_bound(num_left + end_tile - full_end, INTERPRET)):
        which = tl.where(i < num_left, first_tile + i, full_end + i - num_left)
        positions = which * BLOCK_N + tl.arange(0, BLOCK_N)
        acc, max_score, denominator = _attend(
            acc, max_score, denominator, q, k_ptr, v_ptr, table_row, positions, lanes, slot_stride, scale_log2,
            history + tokens, window, first_seen, end_seen, HEAD_DIM, BLOCK_D, BLOCK_SIZE, True, INTERPRET,
        )  # fmt: skip

    acc = acc / tl.where(denominator == 0.0, 1.0, denominator)[:, None]  # a row that sees nothing: zeros
    out_offsets = (start + tokens) * out_token_stride + heads * out_head_stride
    tl.store(out_ptr + out_offsets[:, None] + lanes[None, :], acc.to(out_ptr.dtype.element_ty), mask=mine)


@triton.jit
def _attend(
    acc,  # [M, D]
    max_score,  # [M]
    denominator,  # [M]
    q,  # [M, D]
    k_ptr,
    v_ptr,
    table_row,
    positions,  # [N]
    lanes,  # [D]
    slot_stride,
    scale_log2,
    row_positions,  # [M]
    window,
    first_seen,
    end_seen,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    MASKED: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """One KV tile: scores, their share of the softmax, and the sums of V. Returns the new acc, maximum, denominator."""
    wanted = positions >= 0
    if MASKED:
        # Nobody sees the others: their blocks may be anybody's by now and hold a NaN, and 0 * NaN is NaN.
        wanted = (positions >= first_seen) & (positions < end_seen)
    slots = cache_slots(table_row, positions, wanted, BLOCK_SIZE)
    offsets = slots[:, None] * slot_stride + lanes[None, :]  # [N, D]
    if MASKED:
        loaded = wanted[:, None] & (lanes < HEAD_DIM)[None, :]
        k = tl.load(k_ptr + offsets, mask=loaded, other=0.0)
        v = tl.load(v_ptr + offsets, mask=loaded, other=0.0)
    elif HEAD_DIM != BLOCK_D:
        k = tl.load(k_ptr + offsets, mask=(lanes < HEAD_DIM)[None, :], other=0.0)
        v = tl.load(v_ptr + offsets, mask=(lanes < HEAD_DIM)[None, :], other=0.0)
    else:
        k = tl.load(k_ptr + offsets)
        v = tl.load(v_ptr + offsets)

    if INTERPRET:  # there tl.dot multiplies the bits of bfloat16 as integers
        q, k, v = q.to(tl.float32), k.to(tl.float32), v.to(tl.float32)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # [M, N]
    if MASKED:
        ages = row_positions[:, None] - positions[None, :]
        scores = tl.where((ages >= 0) & (ages < window), scores, float("-inf"))
    new_max = tl.maximum(max_score, tl.max(scores, 1) * scale_log2)
    base = tl.where(new_max == float("-inf"), 0.0, new_max)  # -inf - -inf would be NaN
    weights = tl.exp2(scores * scale_log2 - base[:, None])
    shrink = tl.exp2(max_score - base)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return acc, new_max, denominator * shrink + tl.sum(weights, 1)
