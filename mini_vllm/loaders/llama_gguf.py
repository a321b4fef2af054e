"""Llama weights as a GGUF file names and orders them. Knows both namings; knows no cache. Chapter 14."""

from collections.abc import Iterator

import torch
from torch import Tensor

from mini_vllm.errors import CorruptModelFileError
from mini_vllm.loaders.gguf import GGUFFile
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.gguf_config import config_from_gguf
from mini_vllm.models.gguf_rope import ROPE_FACTORS

# GGUF name → Hugging Face name, without the ".weight" or ".bias" that both end in.
_WHOLE_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}


def gguf_config(gguf: GGUFFile) -> ModelConfig:
    """The sizes that the file states. Raises CorruptModelFileError, see `config_from_gguf`."""
    factors = gguf.tensor(ROPE_FACTORS).flatten().tolist() if ROPE_FACTORS in gguf.tensors else None
    return config_from_gguf(gguf.metadata, gguf.tensors, factors)


def gguf_names(config: ModelConfig) -> dict[str, str]:
    """Hugging Face name → GGUF name, for every weight of the model."""
    to_gguf = {ours: theirs for theirs, ours in (_WHOLE_MODEL | _IN_LAYER).items()}
    names = {}
    for name in config.tensor_shapes():
        stem, kind = name.rsplit(".", 1)
        if stem.startswith("model.layers."):
            layer, part = stem.removeprefix("model.layers.").split(".", 1)
            names[name] = f"blk.{layer}.{to_gguf[part]}.{kind}"
        else:
            names[name] = f"{to_gguf[stem]}.{kind}"
    return names


def llama_weights(gguf: GGUFFile, config: ModelConfig, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Every weight as (Hugging Face name, tensor of `dtype`), decoded one at a time as the iterator moves on.

    The call itself decodes nothing, but raises CorruptModelFileError that names the missing, surplus and
    misshapen tensors of the file.
    """
    names, shapes = gguf_names(config), config.tensor_shapes()
    missing = [name for name in names.values() if name not in gguf.tensors]
    surplus = sorted(gguf.tensors.keys() - {*names.values(), ROPE_FACTORS})
    misshapen = [
        f"{theirs} {list(gguf.tensors[theirs].shape)} instead of {list(shapes[ours])}"
        for ours, theirs in names.items()
        if theirs in gguf.tensors and gguf.tensors[theirs].shape != shapes[ours]
    ]
    if missing or surplus or misshapen:
        raise CorruptModelFileError(
            f"{gguf.path} does not hold the {len(names)} tensors that its metadata describes: "
            f"missing {missing[:8]}, surplus {surplus[:8]}, misshapen {misshapen[:8]}. "
            "Fetch it again, or take a plain Llama-family file."
        )
    return _decoded(gguf, config, dtype, names)


def _decoded(
    gguf: GGUFFile, config: ModelConfig, dtype: torch.dtype, names: dict[str, str]
) -> Iterator[tuple[str, Tensor]]:
    has_own_order = gguf.metadata["general.architecture"] == "llama"  # Qwen's files keep Hugging Face's
    for ours, theirs in names.items():
        weight = gguf.tensor(theirs, dtype)
        if has_own_order and theirs.endswith("attn_q.weight"):
            weight = unpermute(weight, config.num_attention_heads)
        elif has_own_order and theirs.endswith("attn_k.weight"):
            weight = unpermute(weight, config.num_key_value_heads)
        yield ours, weight


def unpermute(weight: Tensor, num_heads: int) -> Tensor:
    """weight [num_heads · head_dim, in]: GGUF's row order → the order that `models.ops.rotate` expects.

    GGUF lays the two numbers of a rotary pair side by side (0, 1), Hugging Face half a head apart (0, d/2).
    With the wrong order the model still speaks, but nonsense.
    """
    rows, columns = weight.shape
    half = rows // num_heads // 2
    return weight.view(num_heads, half, 2, columns).transpose(1, 2).reshape(rows, columns)
