"""Weights in the order in which a CPU's bfloat16 kernels read them. Knows oneDNN; changes no number. Chapter 14.

torch's plain linear lays every weight out anew at each call. oneDNN (in every CPU build of torch) can do that once, and
q, k and v, as gate and up, become one product each. `benchmarks/cpu_engine.py` measures what both give.
"""

import torch
from torch import Tensor, nn

from mini_vllm.models.llama import LlamaForCausalLM


class PackedLinear(nn.Module):
    """x [T, in] -> x · [w1; w2; …]ᵀ (+ bias) [T, sum of rows]: several weights in one product. bfloat16 on a CPU."""

    def __init__(self, weights: list[Tensor], biases: list[Tensor] | None = None) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(torch.cat(weights), None)
        self.bias = torch.cat(biases) if biases else None

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def can_pack(model: LlamaForCausalLM) -> bool:
    """True for bfloat16 on a CPU whose torch has the kernels."""
    on_cpu = model.model.embed_tokens.weight.device.type == "cpu"
    has_kernels = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return model.dtype == torch.bfloat16 and on_cpu and has_kernels


@torch.inference_mode()
def pack_linears(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Replace every linear by a packed one, layer by layer; returns the model, which loses the plain weights."""
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
        biases = [linear.bias for linear in qkv] if attention.q_proj.bias is not None else None
        attention.qkv_proj = PackedLinear([linear.weight for linear in qkv], biases)
        attention.q_proj = attention.k_proj = attention.v_proj = None
        attention.o_proj = PackedLinear([attention.o_proj.weight])
        mlp.gate_up_proj = PackedLinear([mlp.gate_proj.weight, mlp.up_proj.weight])
        mlp.gate_proj = mlp.up_proj = None
        mlp.down_proj = PackedLinear([mlp.down_proj.weight])
    embedding = model.model.embed_tokens
    head = embedding if model.lm_head is None else model.lm_head
    model.packed_head = PackedLinear([head.weight])
    model.lm_head = None
    # A copy, so that nothing refers to the mapped file any more and its pages are given back.
    embedding.weight = nn.Parameter(embedding.weight.clone(), requires_grad=False)
    return model
