"""Weights in the order in which products read them fastest. Knows oneDNN; changes no number. Chapter 14.

q, k and v, as gate and up, become one product each. In bfloat16 on a CPU, torch's plain linear lays every weight out
anew at each call; oneDNN (in every CPU build of torch) can do that once. `benchmarks/cpu_engine.py` measures both.
"""

import ctypes
import sys
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_vllm.models import cpu_ops
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.models.ops import TritonOps


class JoinedLinear(nn.Module):
    """x [T, in] -> x · [w1; w2; …]ᵀ (+ bias) [T, sum of rows]: several weights in one product."""

    def __init__(self, weights: list[Tensor], biases: list[Tensor] | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat(weights) if len(weights) > 1 else weights[0], requires_grad=False)
        self.bias = torch.cat(biases) if biases else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def padded_rows(rows: int, exact: int = 1) -> int:
    """The next number of rows for which products are prepared; up to `exact` it is any.

    oneDNN takes 3 ms and 3 MB for each number in a model of 135M, and keeps it; a server meets every number up to its
    token budget. Above 16 rows at most a quarter is added.
    """
    if rows <= exact:
        return rows
    step = next((step for limit, step in ((32, 4), (64, 8), (128, 16), (256, 32)) if rows <= limit), 64)
    return -(-rows // step) * step


class PackedLinear(nn.Module):
    """The same in bfloat16 on a CPU, with the weights in oneDNN's own order.

    oneDNN's product costs some 17 µs a call before it reads a weight, and reads them slowly for few rows; there our
    compiled one takes its place, if it knows that order.
    """

    def __init__(self, weights: list[Tensor], biases: list[Tensor] | None = None) -> None:
        super().__init__()
        joined = torch.cat(weights) if len(weights) > 1 else weights[0]
        self.packed = torch.ops.mkldnn._reorder_linear_weight(joined, None)
        self.bias = torch.cat(biases) if biases else None
        self.out_features = len(joined)
        self.pointer = cpu_ops.pointer_to(self.packed, *joined.shape)
        self.exact = 1 if self.pointer is None else cpu_ops.FEW_TOKENS

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if self.pointer is not None and rows <= self.exact:
            return cpu_ops.few_tokens_product(x, self.pointer, self.bias, self.out_features)
        if (padded := padded_rows(rows, self.exact)) != rows:  # not in the layers: the runner has padded all of it
            x = F.pad(x, (0, 0, 0, padded - rows))
        # .default: looking for the overload would cost as much as a small product's arithmetic.
        return torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, "none", [], "")[:rows]


class PackedEmbedding(nn.Module):
    """A tied embedding that takes its rows out of the packed head: one copy of the largest weight, not two."""

    def __init__(self, head: PackedLinear, hidden_size: int) -> None:
        super().__init__()
        self.head = head  # its memory is what `weight` shows
        self.weight = cpu_ops.view_of_packed(head.packed, head.out_features, hidden_size)

    def forward(self, input_ids: Tensor) -> Tensor:
        rows_of_block = self.weight.shape[2]
        return self.weight[input_ids // rows_of_block, :, input_ids % rows_of_block].flatten(1)


def can_pack(model: LlamaForCausalLM) -> bool:
    """True on a GPU, and for bfloat16 on a CPU that oneDNN has kernels for: without AVX-512 or AMX it refuses."""
    if model.device.type == "cuda":
        return True
    has_kernels = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return model.dtype == torch.bfloat16 and has_kernels and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def give_back_freed_memory() -> None:
    """What loading took and freed: glibc would keep it, in case somebody wants it again."""
    if sys.platform.startswith("linux") and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


@torch.inference_mode()
def pack_linears(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Replace every linear by a joined one, layer by layer; returns the model, which loses the plain weights."""
    make = JoinedLinear if model.device.type == "cuda" else PackedLinear
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
        biases = [linear.bias for linear in qkv] if attention.q_proj.bias is not None else None
        attention.qkv_proj = make([linear.weight for linear in qkv], biases)
        attention.q_proj = attention.k_proj = attention.v_proj = None
        attention.o_proj = make([attention.o_proj.weight])
        mlp.gate_up_proj = make([mlp.gate_proj.weight, mlp.up_proj.weight])
        mlp.gate_proj = mlp.up_proj = None
        mlp.down_proj = make([mlp.down_proj.weight])
    embedding, is_tied = model.model.embed_tokens, model.lm_head is None
    model.packed_head = make([embedding.weight if model.lm_head is None else model.lm_head.weight])
    model.lm_head = None
    if make is PackedLinear:
        linears = (module for module in model.modules() if isinstance(module, PackedLinear))
        model.padded_rows = partial(padded_rows, exact=min(linear.exact for linear in linears))
        if is_tied and model.packed_head.pointer is not None:
            model.model.embed_tokens = PackedEmbedding(model.packed_head, model.config.hidden_size)
        # Copies of what is left, norms too: one view into the mapped file keeps all of its pages.
        for weight in model.parameters():
            weight.data = weight.data.clone()
        give_back_freed_memory()
    return model


def make_fast(model: LlamaForCausalLM, triton_ops: bool = True) -> LlamaForCausalLM:
    """Join or pack the linears and take faster small operations, as far as device and dtype have them."""
    if can_pack(model):
        pack_linears(model)
    if cpu_ops.can_use_cpu_ops(model.dtype, model.device):
        model.use_ops(cpu_ops.CpuOps())
    elif model.device.type == "cuda" and triton_ops:
        model.use_ops(TritonOps())
    return model
