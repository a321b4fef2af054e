"""Weights in the order in which products read them fastest. Knows oneDNN; changes no number. Chapter 14.

q, k and v, as gate and up, become one product each. In bfloat16 on a CPU, torch's plain linear lays every weight out
anew at each call; oneDNN (in every CPU build of torch) can do that once. `benchmarks/cpu_engine.py` measures both.
"""

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


class PackedLinear(nn.Module):
    """The same in bfloat16 on a CPU, with the weights in oneDNN's own order.

    oneDNN's product costs some 17 µs a call before it reads a weight, and reads them slowly for few rows; there our
    compiled one takes its place, where it knows that order.
    """

    def __init__(self, weights: list[Tensor], biases: list[Tensor] | None = None) -> None:
        super().__init__()
        joined = torch.cat(weights) if len(weights) > 1 else weights[0]
        self.packed = torch.ops.mkldnn._reorder_linear_weight(joined, None)
        self.bias = torch.cat(biases) if biases else None
        self.out_features = len(joined)
        self.pointer = cpu_ops.pointer_to(self.packed, *joined.shape)

    def forward(self, x: Tensor) -> Tensor:
        if self.pointer is not None and x.shape[0] <= cpu_ops.FEW_TOKENS:
            return cpu_ops.few_tokens_product(x, self.pointer, self.bias, self.out_features)
        # .default: looking for the overload would cost as much as a small product's arithmetic.
        return torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, "none", [], "")


def can_pack(model: LlamaForCausalLM) -> bool:
    """True on a GPU, and for bfloat16 on a CPU whose torch has the kernels."""
    has_kernels = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return model.device.type == "cuda" or (model.dtype == torch.bfloat16 and has_kernels)


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
    embedding = model.model.embed_tokens
    head = embedding if model.lm_head is None else model.lm_head
    model.packed_head = make([head.weight])
    model.lm_head = None
    if make is PackedLinear:
        # Copies of what is left, norms too: one view into the mapped file keeps all of its pages.
        for weight in model.parameters():
            weight.data = weight.data.clone()
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
