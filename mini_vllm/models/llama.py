"""Llama-family models as one ragged forward pass. Knows tokens and positions; knows no request. Chapter 14.

The tokens of all requests of a step lie in one row, `[T]`: three prompt tokens of A, one decode token of B, …
Only attention must know whose token is whose, and that is the backend's business; all else here works on each
token alone. Numbers are those of Hugging Face's Llama, Mistral, Qwen2 and Qwen3 models, operation by operation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_vllm.errors import CorruptModelFileError
from mini_vllm.models.config import ModelConfig, RopeScaling
from mini_vllm.models.ops import TorchOps

if TYPE_CHECKING:  # the engine imports the model, so the model imports nothing of the engine
    from mini_vllm.engine.attention.backend import AttentionBackend

_NAMES_SHOWN = 8


def _weight(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    # On "meta" there are no bytes: the mapped file's tensors take this place, so nothing is filled twice.
    return nn.Parameter(torch.empty(*shape, dtype=dtype, device="meta"), requires_grad=False)


class Linear(nn.Module):
    """x [T, in_features] → x · weightᵀ (+ bias) [T, out_features]; only Qwen2 has biases."""

    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype, bias: bool = False) -> None:
        super().__init__()
        self.weight = _weight(out_features, in_features, dtype=dtype)
        self.bias = _weight(out_features, dtype=dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Embedding(nn.Module):
    """input_ids [T] → their rows [T, hidden]."""

    def __init__(self, vocab_size: int, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = _weight(vocab_size, hidden_size, dtype=dtype)

    def forward(self, input_ids: Tensor) -> Tensor:
        return F.embedding(input_ids, self.weight)


class RMSNorm(nn.Module):
    """Divide each row by its root mean square, then scale; see `TorchOps.rms_norm`."""

    ops: TorchOps = TorchOps()

    def __init__(self, hidden_size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = _weight(hidden_size, dtype=dtype)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.ops.rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(the norm of residual + x, residual + x): what every layer needs of its input."""
        return self.ops.add_rms_norm(x, residual, self.weight, self.eps)


class RotaryEmbedding:
    """Cosines and sines that tell a token its position. Computed once a step, used by every layer."""

    def __init__(self, config: ModelConfig) -> None:
        self.head_dim = config.head_dim
        self.theta = config.rope_theta
        self.scaling = config.rope_scaling

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions [T] → cos and sin, each [T, 1, head_dim] in `dtype` (the 1 is for the heads)."""
        wide = torch.promote_types(dtype, torch.float32)
        even = torch.arange(0, self.head_dim, 2, dtype=torch.int64, device=positions.device)
        frequency = 1.0 / (self.theta ** (even.to(wide) / self.head_dim))  # radians a token
        if self.scaling is not None:
            frequency = stretch(frequency, self.scaling)
        angle = positions.to(wide)[:, None] * frequency  # [T, head_dim / 2]
        angle = torch.cat((angle, angle), dim=-1)[:, None, :]
        return angle.cos().to(dtype), angle.sin().to(dtype)


def stretch(frequency: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's longer context: slow frequencies turn `factor` times slower, fast ones as before; see RopeScaling."""
    wavelength = 2 * math.pi / frequency
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = (scaling.original_max_position_embeddings / wavelength - low) / (high - low)  # 0: slow, 1: fast
    share = share.clamp(0, 1)
    return (1 - share) * frequency / scaling.factor + share * frequency


class Attention(nn.Module):
    ops: TorchOps = TorchOps()

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        hidden, head_dim = config.hidden_size, config.head_dim
        self.q_proj = Linear(hidden, self.num_heads * head_dim, dtype, bias=config.qkv_bias)
        self.k_proj = Linear(hidden, self.num_kv_heads * head_dim, dtype, bias=config.qkv_bias)
        self.v_proj = Linear(hidden, self.num_kv_heads * head_dim, dtype, bias=config.qkv_bias)
        self.o_proj = Linear(self.num_heads * head_dim, hidden, dtype)
        self.qkv_proj: nn.Module | None = None  # all three in one, where `models.packed` has put it
        self.q_norm = RMSNorm(head_dim, config.rms_norm_eps, dtype) if config.qk_norm else None
        self.k_norm = RMSNorm(head_dim, config.rms_norm_eps, dtype) if config.qk_norm else None

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], kv_cache: Tensor, backend: "AttentionBackend", meta: Any
    ) -> Tensor:
        if self.qkv_proj is not None:
            qkv = self.qkv_proj(x).view(-1, self.num_heads + 2 * self.num_kv_heads, self.head_dim)
            q, k, v = qkv.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
        else:
            q = self.q_proj(x).view(-1, self.num_heads, self.head_dim)
            k = self.k_proj(x).view(-1, self.num_kv_heads, self.head_dim)
            v = self.v_proj(x).view(-1, self.num_kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.ops.rotate(q, k, *rope)
        out = backend.forward(q, k, v, kv_cache, meta)  # [T, num_heads, head_dim]
        return self.o_proj(out.reshape(-1, self.num_heads * self.head_dim))


class MLP(nn.Module):
    ops: TorchOps = TorchOps()

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, dtype)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, dtype)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, dtype)
        self.gate_up_proj: nn.Module | None = None  # see Attention.qkv_proj

    def forward(self, x: Tensor) -> Tensor:
        if self.gate_up_proj is not None:
            return self.down_proj(self.ops.silu_and_mul(self.gate_up_proj(x)))
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.self_attn = Attention(config, dtype)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.mlp = MLP(config, dtype)

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        rope: tuple[Tensor, Tensor],
        kv_cache: Tensor,
        backend: "AttentionBackend",
        meta: Any,
    ) -> tuple[Tensor, Tensor]:
        """x [T, hidden] is what the layer before adds to the stream `residual`; returns this layer's two.

        Adding and norm are always neighbours that way, so that one kernel can do both.
        """
        if residual is None:
            normed, residual = self.input_layernorm(x), x
        else:
            normed, residual = self.input_layernorm.add(x, residual)
        x = self.self_attn(normed, rope, kv_cache, backend, meta)
        normed, residual = self.post_attention_layernorm.add(x, residual)
        return self.mlp(normed), residual


class LlamaModel(nn.Module):
    """Embedding, layers and final norm. Exists so that weights bear the field's names ("model.layers.0…")."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.layers = nn.ModuleList(DecoderLayer(config, dtype) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)


class LlamaForCausalLM(nn.Module):
    """A Llama-family model without weights; `load_weights` gives it some.

    dtype: of weights and activations; float32, bfloat16, float16, or float64 for exactness tests.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self.model = LlamaModel(config, dtype)
        self.rope = RotaryEmbedding(config)
        self.packed_head: nn.Module | None = None
        self.padded_rows: Callable[[int], int] = lambda rows: rows  # how many to give it instead; see `models.packed`
        self.lm_head = None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size, dtype)

    @torch.inference_mode()
    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[Tensor],
        attn_backend: "AttentionBackend",
        meta: Any,
    ) -> Tensor:
        """One step of all requests: input_ids [T] and positions [T] (int64) → hidden states [T, hidden_size].

        kv_caches: one tensor [2, num_blocks, block_size, num_kv_heads, head_dim] per layer, written in place.
        meta goes to the backend untouched. Raises ValueError when the arguments do not fit each other.
        """
        if input_ids.ndim != 1 or input_ids.shape != positions.shape:
            shapes = f"{list(input_ids.shape)} and {list(positions.shape)}"
            raise ValueError(f"input_ids and positions must both be [T], and are {shapes}")
        if len(kv_caches) != len(self.model.layers):
            raise ValueError(f"{len(kv_caches)} KV caches for {len(self.model.layers)} layers; one each is needed")
        x, residual = self.model.embed_tokens(input_ids), None
        rope = self.rope(positions, self.dtype)
        for layer, kv_cache in zip(self.model.layers, kv_caches, strict=True):
            x, residual = layer(x, residual, rope, kv_cache, attn_backend, meta)
        return self.model.norm(x) if residual is None else self.model.norm.add(x, residual)[0]

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, hidden_size] → logits [N, vocab_size]. Give it only the rows to draw from."""
        if self.packed_head is not None:
            return self.packed_head(hidden)
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return F.linear(hidden, head.weight)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.norm.weight.device

    def use_ops(self, ops: TorchOps) -> "LlamaForCausalLM":
        """Let these do the small operations in every layer; returns self."""
        for module in self.modules():
            if hasattr(module, "ops"):
                module.ops = ops
        return self

    def load_weights(self, weights: Mapping[str, Tensor]) -> "LlamaForCausalLM":
        """Take these tensors as the weights, without a copy; returns self.

        Raises CorruptModelFileError that names every missing, surplus or misshapen tensor at once.
        """
        wanted = self.config.tensor_shapes()
        problems = _listed("missing", [name for name in wanted if name not in weights])
        problems += _listed("surplus", [name for name in weights if name not in wanted])
        found = {name: tuple(tensor.shape) for name, tensor in weights.items() if name in wanted}
        misshapen = {name: shape for name, shape in found.items() if shape != wanted[name]}
        problems += _listed("misshapen", [f"{n} {list(s)} not {list(wanted[n])}" for n, s in misshapen.items()])
        other_dtype = {n: w.dtype for n, w in weights.items() if n in wanted and w.dtype != self.dtype}
        problems += _listed(f"not {self.dtype}", [f"{name} {dtype}" for name, dtype in other_dtype.items()])
        if problems:
            raise CorruptModelFileError(
                f"the weights do not fit the model's configuration ({len(wanted)} tensors): "
                f"{'; '.join(problems)}. "
                "Take weights and configuration from one source, or fetch the model again with --force."
            )
        self.load_state_dict(dict(weights), assign=True)
        self.requires_grad_(False)
        return self


def _listed(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(names[:_NAMES_SHOWN])
    rest = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return [f"{len(names)} {what}: {shown}{rest}"]
