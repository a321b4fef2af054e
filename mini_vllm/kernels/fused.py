"""Norm, rotation and gate, one pass over memory each. Knows rows of numbers; knows no request and no page. Chapter 14.

In eager torch an RMSNorm is seven small kernels that each read and write the whole row. Between the matrix products of
a decode step such kernels move few bytes, but each costs a launch. Here each row is read once and written once.

The numbers are those of `models.ops.TorchOps`: arithmetic in float32, rounded to the tensors' dtype where torch rounds.
A program is one row or one token, so no program waits for another and any number of tokens fits the same code.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_vllm.kernels.mode import require_device

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_LONGEST_ROW = 32768  # numbers that one program can keep in registers
_GATE_BLOCK = 1024


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, D] or [T, heads, D] → each row divided by its root mean square, times weight [D]; contiguous.

    Rows may lie apart (a slice of a joined qkv); the numbers of a row must lie side by side.
    Raises ValueError for other shapes, dtypes or strides.
    """
    if x.ndim not in (2, 3):
        raise ValueError(f"x is {list(x.shape)}; rms_norm takes [T, D] or [T, heads, D]. Reshape it first.")
    _check_rows(x=x)
    _check_weight(weight, x)
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    heads = x.shape[1] if x.ndim == 3 else 1
    strides = x.stride(0), x.stride(-2)
    _rms_norm_kernel[(x.shape[0], heads)](x, weight, normed, *strides, eps, heads, **_row_launch(x.shape[-1]))
    return normed


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x and residual [T, D] → (rms_norm of their sum, their sum), both new and contiguous. Raises as rms_norm."""
    if x.ndim != 2 or x.shape != residual.shape:
        shapes = f"{list(x.shape)} and {list(residual.shape)}"
        raise ValueError(f"x and residual must both be [T, D], and are {shapes}. Reshape them first.")
    _check_rows(x=x, residual=residual)
    _check_weight(weight, x)
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(normed)
    _add_rms_norm_kernel[(x.shape[0],)](
        x, residual, weight, normed, total, x.stride(0), residual.stride(0), eps, **_row_launch(x.shape[1])
    )
    return normed, total


def rotate_(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn q [T, num_heads, D] and k [T, num_kv_heads, D] in place, as `models.ops.rotate` does; views are fine.

    cos, sin: [T, 1, D] in the dtype of q and k. Raises ValueError where shapes, dtypes or strides do not fit.
    """
    num_tokens, _, head_dim = q.shape
    if (k.shape[0], k.shape[2]) != (num_tokens, head_dim) or head_dim % 2:
        shapes = f"{list(q.shape)} and {list(k.shape)}"
        raise ValueError(f"q and k are {shapes}; both must be [T, heads, D] with the same T and the same even D.")
    if cos.shape != (num_tokens, 1, head_dim) or sin.shape != cos.shape:
        shapes = f"{list(cos.shape)} and {list(sin.shape)}"
        raise ValueError(f"cos and sin are {shapes}; both must be {[num_tokens, 1, head_dim]} to fit q.")
    _check_rows(q=q, k=k, cos=cos, sin=sin)
    heads, kv_heads, half = q.shape[1], k.shape[1], head_dim // 2
    block_q, block_k, block_half = (triton.next_power_of_2(n) for n in (heads, kv_heads, half))
    # torch rounds each product before it adds them, so the compiler must not fuse the two.
    _rotate_kernel[(num_tokens,)](
        q, k, cos, sin, q.stride(0), q.stride(1), k.stride(0), k.stride(1), cos.stride(0), sin.stride(0),
        heads, block_q, kv_heads, block_k, half, block_half,
        num_warps=_warps(block_q * block_half), enable_fp_fusion=False,
    )  # fmt: skip


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 · I], gate first → silu(gate) · up [T, I], contiguous. Raises ValueError for other shapes."""
    if gate_up.ndim != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up is {list(gate_up.shape)}; silu_and_mul takes [T, 2 * I]: gate, then up.")
    _check_rows(gate_up=gate_up)
    num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    grid = (num_tokens, triton.cdiv(width, _GATE_BLOCK))
    _silu_and_mul_kernel[grid](gate_up, out, gate_up.stride(0), WIDTH=width, BLOCK=_GATE_BLOCK, num_warps=4)
    return out


def _check_rows(**tensors: Tensor) -> None:
    first = next(iter(tensors.values()))
    require_device(first)
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES or tensor.dtype != first.dtype:
            known = "one of float16, bfloat16 and float32, the same for all"
            raise ValueError(f"{name} is {tensor.dtype}; the fused kernels take {known}. Use the torch form.")
        if tensor.stride(-1) != 1:
            raise ValueError(f"the numbers of {name}'s rows lie {tensor.stride(-1)} apart, not 1. Call .contiguous().")


def _check_weight(weight: Tensor, x: Tensor) -> None:
    length = x.shape[-1]
    if weight.shape != (length,) or weight.dtype != x.dtype or not weight.is_contiguous():
        have = f"{list(weight.shape)} {weight.dtype}"
        raise ValueError(f"weight is {have}; it must be [{length}] {x.dtype} and contiguous, as the rows of x.")
    if length > _LONGEST_ROW:
        raise ValueError(f"a row of {length} numbers; one program holds {_LONGEST_ROW}. Use the torch form.")


def _warps(numbers: int) -> int:
    """Sixteen numbers a thread, at most 16 warps."""
    return max(1, min(16, numbers // (16 * 32)))


def _row_launch(length: int) -> dict[str, int]:
    block = triton.next_power_of_2(length)
    return {"D": length, "BLOCK_D": block, "num_warps": _warps(block)}


@triton.jit
def _product(a, b):
    """a · b rounded to their dtype, then wide again."""
    return (a.to(tl.float32) * b.to(tl.float32)).to(a.dtype).to(tl.float32)


@triton.jit
def _normed(row, weight_ptr, lanes, eps, D: tl.constexpr):
    """row [BLOCK_D], zeros past D → row / root mean square · weight, in the row's dtype."""
    wide = row.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / D + eps)
    weight = tl.load(weight_ptr + lanes, mask=lanes < D, other=0.0)
    return _product((wide * scale).to(row.dtype), weight).to(row.dtype)


@triton.jit
def _rms_norm_kernel(
    x_ptr, weight_ptr, normed_ptr, stride_t, stride_h, eps, heads, D: tl.constexpr, BLOCK_D: tl.constexpr
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)  # 64 bit: T times a stride may pass 2^31
    lanes = tl.arange(0, BLOCK_D)
    row = tl.load(x_ptr + token * stride_t + head * stride_h + lanes, mask=lanes < D, other=0.0)
    normed = _normed(row, weight_ptr, lanes, eps, D)
    tl.store(normed_ptr + (token * heads + head) * D + lanes, normed, mask=lanes < D)


@triton.jit
def _add_rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, normed_ptr, total_ptr, stride_x, stride_r, eps,
    D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK_D)
    x = tl.load(x_ptr + token * stride_x + lanes, mask=lanes < D, other=0.0)
    residual = tl.load(residual_ptr + token * stride_r + lanes, mask=lanes < D, other=0.0)
    total = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)
    tl.store(total_ptr + token * D + lanes, total, mask=lanes < D)
    tl.store(normed_ptr + token * D + lanes, _normed(total, weight_ptr, lanes, eps, D), mask=lanes < D)


@triton.jit
def _rotate_heads(
    x_ptr, stride_h, cos_ptr, sin_ptr,
    HEADS: tl.constexpr, BLOCK_H: tl.constexpr, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    """All heads of one token, [HEADS, HALF] pairs. Both numbers of a pair are read before either is written."""
    heads, lanes = tl.arange(0, BLOCK_H)[:, None], tl.arange(0, BLOCK_HALF)[None, :]
    inside = (heads < HEADS) & (lanes < HALF)
    first_ptrs = x_ptr + heads * stride_h + lanes
    first = tl.load(first_ptrs, mask=inside, other=0.0)
    second = tl.load(first_ptrs + HALF, mask=inside, other=0.0)
    cos_first = tl.load(cos_ptr + lanes, mask=lanes < HALF, other=0.0)
    sin_first = tl.load(sin_ptr + lanes, mask=lanes < HALF, other=0.0)
    cos_second = tl.load(cos_ptr + HALF + lanes, mask=lanes < HALF, other=0.0)
    sin_second = tl.load(sin_ptr + HALF + lanes, mask=lanes < HALF, other=0.0)
    turned_first = _product(first, cos_first) - _product(second, sin_first)
    turned_second = _product(second, cos_second) + _product(first, sin_second)
    tl.store(first_ptrs, turned_first.to(first.dtype), mask=inside)
    tl.store(first_ptrs + HALF, turned_second.to(first.dtype), mask=inside)


@triton.jit
def _rotate_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, stride_qt, stride_qh, stride_kt, stride_kh, stride_cos, stride_sin,
    NUM_HEADS: tl.constexpr, BLOCK_Q: tl.constexpr, NUM_KV_HEADS: tl.constexpr, BLOCK_K: tl.constexpr,
    HALF: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    cos, sin = cos_ptr + token * stride_cos, sin_ptr + token * stride_sin
    _rotate_heads(q_ptr + token * stride_qt, stride_qh, cos, sin, NUM_HEADS, BLOCK_Q, HALF, BLOCK_HALF)
    _rotate_heads(k_ptr + token * stride_kt, stride_kh, cos, sin, NUM_KV_HEADS, BLOCK_K, HALF, BLOCK_HALF)


@triton.jit
def _silu_and_mul_kernel(gate_up_ptr, out_ptr, stride_t, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_up_ptr + token * stride_t + lanes, mask=lanes < WIDTH, other=0.0)
    up = tl.load(gate_up_ptr + token * stride_t + WIDTH + lanes, mask=lanes < WIDTH, other=0.0)
    wide = gate.to(tl.float32)
    silu = (wide / (1 + tl.exp(-wide))).to(gate.dtype)
    tl.store(out_ptr + token * WIDTH + lanes, _product(silu, up), mask=lanes < WIDTH)
