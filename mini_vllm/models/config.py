"""The shape of a Llama-family model. Knows sizes and names; knows no file, no weights and no torch. Chapter 14."""

import math
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from mini_vllm.errors import ConfigError, CorruptModelFileError

# Bytes of one number; the keys are torch's names without "torch.".
_ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_LARGEST = 2**31 - 1  # of any size: tokens, blocks and their lengths are int32; real models stay far below


def item_bytes(dtype: Any) -> int:
    """Bytes of one number of `dtype`, a torch dtype or the name of one. Raises ConfigError if unknown."""
    name = str(dtype).removeprefix("torch.")
    if name not in _ITEM_BYTES:
        raise ConfigError(f"dtype {dtype!r} is not one of {', '.join(_ITEM_BYTES)}")
    return _ITEM_BYTES[name]


@dataclass(frozen=True)
class RopeScaling:
    """How Llama 3.1 and later stretch the rotary wavelengths, so that a model trained on
    `original_max_position_embeddings` tokens reads more. Names as in config.json ("rope_type": "llama3").

        wavelength   short              |   between   |   long
                     original / high_freq_factor      original / low_freq_factor
        frequency    as it is           |  blended    |   divided by `factor`
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (0 < value < math.inf):
                raise ConfigError(f"rope scaling: {field.name}={value!r} must be greater than 0 and finite")
        if self.low_freq_factor >= self.high_freq_factor:
            raise ConfigError(
                f"rope scaling: low_freq_factor={self.low_freq_factor} must be below "
                f"high_freq_factor={self.high_freq_factor}"
            )


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a Llama-family model; field names as in Hugging Face's config.json.

    vocab_size: rows of the embedding. hidden_size: numbers per token between layers.
    intermediate_size: width of the MLP. num_key_value_heads: KV heads, shared by groups of query heads (GQA).
    head_dim: numbers per head. rope_theta: base of the rotary frequencies.
    max_position_embeddings: longest sequence, in tokens, that the model was trained for.
    tie_word_embeddings: the output head is the embedding matrix itself.
    qkv_bias: query, key and value add a bias (Qwen2). qk_norm: they are normalised per head, before the rotation
    (Qwen3). sliding_window: a token sees itself and the `sliding_window` - 1 before it (Mistral); None is all.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            is_size = not isinstance(value, bool | RopeScaling) and not (value is None and field.default is None)
            if is_size and not 0 < value <= _LARGEST:
                raise ConfigError(f"{field.name}={value!r} must be greater than 0 and at most {_LARGEST:,}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}: query heads share KV heads in equal groups"
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim={self.head_dim} is odd; rotary embedding turns pairs of numbers")

    def kv_bytes_per_token(self, dtype: Any) -> int:
        """Bytes that one token takes in the KV cache: a key and a value, in every layer."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * item_bytes(dtype)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight, as Hugging Face names them."""
        hidden, mlp = self.hidden_size, self.intermediate_size
        q_size, kv_size = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        in_layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (q_size, hidden),
            "self_attn.k_proj.weight": (kv_size, hidden),
            "self_attn.v_proj.weight": (kv_size, hidden),
            "self_attn.o_proj.weight": (hidden, q_size),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (mlp, hidden),
            "mlp.up_proj.weight": (mlp, hidden),
            "mlp.down_proj.weight": (hidden, mlp),
        }
        if self.qkv_bias:
            in_layer |= {f"self_attn.{x}_proj.bias": (q_size if x == "q" else kv_size,) for x in "qkv"}
        if self.qk_norm:
            in_layer |= {f"self_attn.{x}_norm.weight": (self.head_dim,) for x in "qk"}
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.num_hidden_layers):
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in in_layer.items()}
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes

    def refuse_more_layers_than(self, tensor_names: Collection[str], source: str) -> None:
        """What a model costs to build grows with its layers, and a file of a few bytes can state any number."""
        if self.num_hidden_layers > len(tensor_names):
            raise CorruptModelFileError(
                f"{source} states {self.num_hidden_layers:,} layers, but the file holds {len(tensor_names):,} tensors, "
                "and each layer has several. Fetch it again, or take a plain Llama-family file."
            )

    @classmethod
    def tiny(cls) -> "ModelConfig":
        """Two layers and 128 tokens: everything that a real model has, in milliseconds."""
        return cls(
            vocab_size=128,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            rope_theta=10_000.0,
            rms_norm_eps=1e-5,
            max_position_embeddings=1024,
            tie_word_embeddings=False,
        )
