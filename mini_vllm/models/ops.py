"""The small operations between a model's matrix products, in plain torch. Knows rows of numbers. Chapter 14.

This is the clear form, and the one for exact numbers: operation by operation as in Hugging Face's models. Where many
small calls cost more than their work, a class with the same four methods takes its place: `models.cpu_ops` (compiled
C, bfloat16 on a CPU) or `TritonOps` below (a GPU).
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, heads, head_dim], turned by its position. Number i is paired with number i + head_dim / 2."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class TorchOps:
    """Each method gives new tensors or changes those it got: use what it returns, and not what it was given."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [T, D] or [T, heads, D]: each row divided by its root mean square, then scaled. In float32 at least."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return weight * wide.to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """x, residual [T, D] → (rms_norm of their sum, their sum)."""
        total = residual + x
        return self.rms_norm(total, weight, eps), total

    def rotate(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """q [T, num_heads, D], k [T, num_kv_heads, D], turned by their positions."""
        return rotate(q, cos, sin), rotate(k, cos, sin)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """gate_up [T, 2 · I], gate first → silu(gate) · up [T, I]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up


class TritonOps(TorchOps):
    """One kernel launch an operation; see `kernels.fused`."""

    def __init__(self) -> None:
        from mini_vllm.kernels import fused

        self.rms_norm = fused.rms_norm  # type: ignore[method-assign]
        self.add_rms_norm = fused.add_rms_norm  # type: ignore[method-assign]
        self.silu_and_mul = fused.silu_and_mul  # type: ignore[method-assign]
        self._rotate_in_place = fused.rotate_

    def rotate(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        self._rotate_in_place(q, k, cos, sin)
        return q, k
