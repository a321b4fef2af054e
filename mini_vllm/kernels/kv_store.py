"""Writes K and V of a step's tokens into their slots of the cache. Knows slots; no request, no scores. Chapter 13."""

import torch
import triton
import triton.language as tl

from mini_vllm.kernels.mode import require_device


def store_kv(k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Copies row t of k and v to slot slot_mapping[t] of the cache; slot -1 writes nothing.

    k, v: [T, num_kv_heads, head_dim], may be views with strides, numbers of a head side by side.
    kv_cache: [2, num_blocks, block_size, num_kv_heads, head_dim], contiguous; slot_mapping: [T] int64.
    Raises ValueError for shapes that do not fit together. Waits for nothing on the device.
    """
    num_tokens, num_kv_heads, head_dim = k.shape
    if v.shape != k.shape or kv_cache.shape[3:] != k.shape[1:] or slot_mapping.shape != (num_tokens,):
        raise ValueError(
            f"k {tuple(k.shape)} and v {tuple(v.shape)} must both be [T, num_kv_heads, head_dim] with the cache's last "
            f"two numbers {tuple(kv_cache.shape[3:])}, and slot_mapping {tuple(slot_mapping.shape)} must be [T]"
        )
    if not k.dtype == v.dtype == kv_cache.dtype:
        raise ValueError(f"k {k.dtype}, v {v.dtype} and the cache {kv_cache.dtype} must be of one dtype: convert k, v")
    if slot_mapping.dtype != torch.int64:
        raise ValueError(f"slot_mapping is {slot_mapping.dtype}, but slots are int64: use slot_mapping.long()")
    if k.stride(2) != 1 or v.stride(2) != 1 or not kv_cache.is_contiguous():
        raise ValueError("the numbers of a head of k and v must lie side by side, and the cache must be contiguous")
    require_device(k)
    if num_tokens == 0:
        return
    _store_kv[(num_tokens,)](
        k,
        v,
        *kv_cache,
        slot_mapping,
        *k.stride()[:2],
        *v.stride()[:2],
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        BLOCK_H=triton.next_power_of_2(num_kv_heads),
        BLOCK_D=triton.next_power_of_2(head_dim),
    )


@triton.jit(do_not_specialize=["slot_mapping_ptr"])
def _store_kv(
    k_ptr,  # [T, Hkv, D]
    v_ptr,  # [T, Hkv, D]
    key_cache_ptr,  # [slots, Hkv, D]
    value_cache_ptr,  # [slots, Hkv, D]
    slot_mapping_ptr,  # [T]
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Grid (T,): one program copies one token, all of its heads."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)  # 64 bit: a slot times its numbers passes 2**31 in a large pool
    heads = tl.arange(0, BLOCK_H)[:, None]
    lanes = tl.arange(0, BLOCK_D)[None, :]
    # Rows that pad a batch to the size of a CUDA graph have slot -1. Plain indexing would write them to the last slot.
    mask = (heads < num_kv_heads) & (lanes < head_dim) & (slot >= 0)
    k = tl.load(k_ptr + token * k_token_stride + heads * k_head_stride + lanes, mask=mask)
    v = tl.load(v_ptr + token * v_token_stride + heads * v_head_stride + lanes, mask=mask)
    there = slot * num_kv_heads * head_dim + heads * head_dim + lanes
    tl.store(key_cache_ptr + there, k, mask=mask)
    tl.store(value_cache_ptr + there, v, mask=mask)
