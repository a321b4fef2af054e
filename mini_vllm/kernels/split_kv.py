"""Decoding with the context cut into splits, and the merge of their results (flash-decoding). Chapter 13.

One request with 4 KV heads keeps 4 programs busy, and a GPU has a hundred multiprocessors or more. So each context is
cut, each split gets a program of its own, and a second kernel merges the parts:

    context      | split 0 | split 1 | split 2 |
    each gives   maximum m, denominator l, sum of V acc       (scores within its split only)
    merge        m = max m_i    l = sum l_i * 2 ** (m_i - m)    acc = sum acc_i * 2 ** (m_i - m)    out = acc / l
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from mini_vllm.kernels.paged_decode import (
    LOG2_E,
    VARYING,
    attend,
    decode_constants,
    packed_rows,
    refuse_wrong_inputs,
    request_lengths,
)
from mini_vllm.kernels.tiles import DecodeTile

SMALLEST_SPLIT = 256  # tokens; below, writing and merging the parts costs more than the split wins
MOST_SPLITS = 64  # a power of two
PROGRAMS_PER_SM = 2  # while one waits for memory or sums, the other keeps loads in flight
FULL_ENOUGH = 0.85


class Workspace(NamedTuple):
    """What the splits hand to the merge, in fp32. Rows are packed (token * G + head); contents before do not matter."""

    acc: torch.Tensor  # [B, num_kv_heads, splits, rows, head_dim]
    max_score: torch.Tensor  # [B, num_kv_heads, splits, rows]
    denominator: torch.Tensor  # [B, num_kv_heads, splits, rows]

    @classmethod
    def empty(cls, shape: tuple[int, ...], device: torch.device | str) -> "Workspace":
        """Room for launches of this `workspace_shape`. A CUDA graph holds its own: in a graph nothing is allocated."""
        return cls(
            torch.empty(shape, dtype=torch.float32, device=device),
            torch.empty(shape[:-1], dtype=torch.float32, device=device),
            torch.empty(shape[:-1], dtype=torch.float32, device=device),
        )


def workspace_shape(
    num_requests: int, num_heads: int, num_kv_heads: int, head_dim: int, num_splits: int, max_query_len: int = 1
) -> tuple[int, ...]:
    """Of the acc that `paged_decode_split` needs for this many requests and splits."""
    return num_requests, num_kv_heads, num_splits, max_query_len * num_heads // num_kv_heads, head_dim


def num_splits(num_sms: int, num_requests: int, num_kv_heads: int, max_seq_len: int) -> int:
    """Into how many splits each context is cut; 1: take `paged_decode`, which needs no merge.

    num_sms: multiprocessors of the card; num_kv_heads: of this card's share of the model; max_seq_len: the longest of
    the batch, or the most that a CUDA graph is to serve.
    The GPU runs num_sms * PROGRAMS_PER_SM programs at a time, a wave. Of all counts the fewest splits are taken whose
    waves are nearly as full as the best count's: an almost empty last wave wastes a whole one.
    """
    most = min(MOST_SPLITS, max_seq_len // SMALLEST_SPLIT)

    def fullness(splits: int) -> float:
        waves = num_requests * num_kv_heads * splits / (num_sms * PROGRAMS_PER_SM)
        return waves / -(-waves // 1)

    best = max((fullness(splits) for splits in range(1, most + 1)), default=1.0)
    return next((splits for splits in range(1, most + 1) if fullness(splits) >= FULL_ENOUGH * best), 1)


def paged_decode_split(
    out: torch.Tensor,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    requests: torch.Tensor,
    *,
    num_splits: int,
    workspace: Workspace | None = None,
    max_query_len: int = 1,
    sliding_window: int | None = None,
    scale: float | None = None,
    tile: DecodeTile,
) -> None:
    """`paged_decode` with every context cut into num_splits parts; see there.

    Each program works out its share from its request's own length, on the device: a request with few tiles leaves
    splits empty, and a CUDA graph of this call serves any lengths.
    workspace: of exactly this launch's sizes; allocated if None.
    """
    refuse_wrong_inputs(
        out, q, kv_cache, query_start_loc, seq_lens, block_table, requests, max_query_len, sliding_window
    )
    if not 1 <= num_splits <= MOST_SPLITS:
        raise ValueError(f"num_splits={num_splits} is not within 1 to {MOST_SPLITS}")
    if len(requests) == 0:
        return
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = kv_cache.shape[3]
    shape = workspace_shape(len(requests), num_heads, num_kv_heads, head_dim, num_splits, max_query_len)
    if workspace is None:
        workspace = Workspace.empty(shape, q.device)
    if workspace.acc.shape != shape:
        raise ValueError(
            f"workspace of {tuple(workspace.acc.shape)}, but this launch needs {shape}: see workspace_shape"
        )
    constants = decode_constants(q, kv_cache, max_query_len, sliding_window, tile)
    num_rows = max_query_len * constants["GROUP"]
    num_row_tiles = triton.cdiv(num_rows, constants["BLOCK_M"])
    _decode_one_split[(num_kv_heads * num_row_tiles, len(requests), num_splits)](
        *workspace,
        q,
        *kv_cache,
        query_start_loc,
        seq_lens,
        block_table,
        requests,
        *q.stride()[:2],
        block_table.stride(0),
        kv_cache.stride(2),
        LOG2_E * (head_dim**-0.5 if scale is None else scale),
        NUM_ROWS=num_rows,
        NUM_ROW_TILES=num_row_tiles,
        **constants,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    _merge_splits[(num_rows, num_kv_heads, len(requests))](
        out,
        *workspace,
        query_start_loc,
        requests,
        *out.stride()[:2],
        num_splits,
        HEAD_DIM=head_dim,
        BLOCK_D=constants["BLOCK_D"],
        GROUP=constants["GROUP"],
        BLOCK_S=MOST_SPLITS,  # not the next power of two: each would be compiled when it first comes, in mid-run
    )


@triton.jit(do_not_specialize=VARYING)
def _decode_one_split(
    acc_ptr,  # [B, Hkv, splits, rows, D]
    max_score_ptr,  # [B, Hkv, splits, rows]
    denominator_ptr,  # [B, Hkv, splits, rows]
    q_ptr,  # [T, H, D]
    key_cache_ptr,  # [slots, Hkv, D]
    value_cache_ptr,  # [slots, Hkv, D]
    query_start_loc_ptr,  # [R + 1]
    seq_lens_ptr,  # [R]
    block_table_ptr,  # [R, max_blocks]
    requests_ptr,  # [B]
    q_token_stride,
    q_head_stride,
    table_stride,
    slot_stride,
    scale_log2,
    NUM_ROWS: tl.constexpr,
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
    """Grid (KV heads x row tiles, B, splits): one program takes its rows through one split of the context."""
    request = tl.load(requests_ptr + tl.program_id(1)).to(tl.int64)
    kv_head = tl.program_id(0) // NUM_ROW_TILES
    first_row = tl.program_id(0) % NUM_ROW_TILES * BLOCK_M
    start, query_len, seq_len, first_seen = request_lengths(query_start_loc_ptr, seq_lens_ptr, request, WINDOW)
    tokens, heads, mine = packed_rows(first_row, query_len, kv_head, GROUP, BLOCK_M)
    lanes = tl.arange(0, BLOCK_D)
    kept = mine[:, None] & (lanes < HEAD_DIM)[None, :]

    # Whole tiles, shared out evenly; of 5 tiles in 4 splits they get 2, 2, 1 and 0.
    num_tiles = tl.cdiv(tl.maximum(seq_len - first_seen, 0), BLOCK_N)
    split_len = tl.cdiv(num_tiles, tl.num_programs(2)) * BLOCK_N
    first = first_seen + tl.program_id(2) * split_len
    end = tl.where(first_row < query_len * GROUP, tl.minimum(first + split_len, seq_len), 0)
    q_rows = (start + tokens) * q_token_stride + heads * q_head_stride
    q = tl.load(q_ptr + q_rows[:, None] + lanes[None, :], mask=kept, other=0.0)  # [M, D]
    max_score, denominator, acc = attend(
        q,
        tl.where(mine, seq_len - query_len + tokens, -1),
        key_cache_ptr + kv_head * HEAD_DIM,
        value_cache_ptr + kv_head * HEAD_DIM,
        block_table_ptr + request * table_stride,
        first,
        end,
        slot_stride,
        scale_log2,
        HEAD_DIM, BLOCK_D, BLOCK_M, BLOCK_SIZE, WINDOW, BLOCK_N, USE_DOT, INTERPRET,
    )  # fmt: skip

    num_kv_heads = tl.num_programs(0) // NUM_ROW_TILES
    part = (tl.program_id(1) * num_kv_heads + kv_head).to(tl.int64) * tl.num_programs(2) + tl.program_id(2)
    own_rows = first_row + tl.arange(0, BLOCK_M)
    rows = part * NUM_ROWS + own_rows
    mine = mine & (own_rows < NUM_ROWS)  # the next part begins there
    tl.store(max_score_ptr + rows, max_score, mask=mine)
    tl.store(denominator_ptr + rows, denominator, mask=mine)
    # An empty split says so by its maximum, -inf; its acc is neither written nor read.
    written = kept & (mine & (max_score > float("-inf")))[:, None]
    tl.store(acc_ptr + rows[:, None] * HEAD_DIM + lanes[None, :], acc, mask=written)


@triton.jit(do_not_specialize=["query_start_loc_ptr", "requests_ptr", "num_splits"])
def _merge_splits(
    out_ptr,  # [T, H, D]
    acc_ptr,  # [B, Hkv, splits, rows, D]
    max_score_ptr,  # [B, Hkv, splits, rows]
    denominator_ptr,  # [B, Hkv, splits, rows]
    query_start_loc_ptr,  # [R + 1]
    requests_ptr,  # [B]
    out_token_stride,
    out_head_stride,
    num_splits,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Grid (rows, KV heads, B): one program merges the splits of one row of one KV head."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    request = tl.load(requests_ptr + tl.program_id(2)).to(tl.int64)
    start = tl.load(query_start_loc_ptr + request).to(tl.int64)
    query_len = tl.load(query_start_loc_ptr + request + 1) - start
    token = row // GROUP
    if token < query_len:
        splits = tl.arange(0, BLOCK_S)
        lanes = tl.arange(0, BLOCK_D)
        parts = (tl.program_id(2) * tl.num_programs(1) + kv_head).to(tl.int64) * num_splits + splits
        rows = parts * tl.num_programs(0) + row
        max_score = tl.load(max_score_ptr + rows, mask=splits < num_splits, other=float("-inf"))
        full = max_score > float("-inf")
        denominator = tl.load(denominator_ptr + rows, mask=full, other=0.0)
        kept = full[:, None] & (lanes < HEAD_DIM)[None, :]
        acc = tl.load(acc_ptr + rows[:, None] * HEAD_DIM + lanes[None, :], mask=kept, other=0.0)  # [S, D]

        largest = tl.max(max_score, 0)
        weights = tl.exp2(max_score - tl.where(largest == float("-inf"), 0.0, largest))  # of an empty split: 0
        total = tl.sum(weights * denominator, 0)
        out = tl.sum(weights[:, None] * acc, 0) / tl.where(total == 0.0, 1.0, total)  # a row that sees nothing: 0 / 1
        head = kv_head * GROUP + row % GROUP
        out_row = out_ptr + (start + token) * out_token_stride + head * out_head_stride
        tl.store(out_row + lanes, out.to(out_ptr.dtype.element_ty), mask=lanes < HEAD_DIM)
