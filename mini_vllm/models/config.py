"""The shape of a Llama-family model. Knows sizes and names; knows no weights and no torch. Chapter 14."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
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
class ModelConfig:
    """Sizes of a Llama-family model; field names as in Hugging Face's config.json.

    vocab_size: rows of the embedding. hidden_size: numbers per token between layers.
    intermediate_size: width of the MLP. num_key_value_heads: KV heads, shared by groups of query heads (GQA).
    head_dim: numbers per head. rope_theta: base of the rotary frequencies.
    max_position_embeddings: longest sequence, in tokens, that the model was trained for.
    tie_word_embeddings: the output head is the embedding matrix itself.
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

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "tie_word_embeddings" and not 0 < value <= _LARGEST:
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
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.num_hidden_layers):
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in in_layer.items()}
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tensor_names: Collection[str]) -> "ModelConfig":
        """The sizes that a GGUF file states. `tensor_names`: the tensors that it holds.

        They tell whether the output head is one of its own, and bound the number of layers: what a model costs
        to build grows with that, and a file of a few bytes can state any.
        Raises CorruptModelFileError for another architecture, a missing, mistyped or absurd entry, or a variant
        of Llama that the forward pass does not compute (scaled RoPE, partial RoPE, experts).
        """
        architecture = metadata.get("general.architecture")
        if architecture != "llama":
            raise CorruptModelFileError(
                f"general.architecture is {architecture!r}; mini_vllm computes 'llama' "
                "(SmolLM2, Llama 2 and 3 without RoPE scaling). Take a file of such a model."
            )
        _refuse_variants(metadata, tensor_names)
        hidden = _entry(metadata, "embedding_length", int)
        heads = _entry(metadata, "attention.head_count", int)
        if hidden < 1 or heads < 1:
            raise CorruptModelFileError(f"the file states hidden size {hidden} and {heads} attention heads")
        head_dim = _entry(metadata, "attention.key_length", int, hidden // heads)
        rotated = _entry(metadata, "rope.dimension_count", int, head_dim)
        if rotated != head_dim:
            raise CorruptModelFileError(f"RoPE turns {rotated} of {head_dim} numbers; mini_vllm turns all of them")
        layers = _entry(metadata, "block_count", int)
        if layers > len(tensor_names):
            raise CorruptModelFileError(
                f"GGUF metadata llama.block_count is {layers:,}, but the file holds {len(tensor_names):,} tensors, and "
                "each layer has several. Fetch it again, or take a plain Llama-family file."
            )
        vocabulary = metadata.get("tokenizer.ggml.tokens")
        vocab_default = len(vocabulary) if isinstance(vocabulary, list) else None
        try:
            return cls(
                vocab_size=_entry(metadata, "vocab_size", int, vocab_default),
                hidden_size=hidden,
                intermediate_size=_entry(metadata, "feed_forward_length", int),
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=_entry(metadata, "attention.head_count_kv", int, heads),
                head_dim=head_dim,
                rope_theta=_entry(metadata, "rope.freq_base", float, 10_000.0),
                rms_norm_eps=_entry(metadata, "attention.layer_norm_rms_epsilon", float),
                max_position_embeddings=_entry(metadata, "context_length", int),
                tie_word_embeddings="output.weight" not in tensor_names,
            )
        except ConfigError as error:
            raise CorruptModelFileError(f"the file states an impossible model: {error}") from error

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

    def to_json(self) -> str:
        """A config.json that Hugging Face's LlamaConfig reads too."""
        extra = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
        return json.dumps(extra | asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "ModelConfig":
        """The inverse of `to_json`. Raises CorruptModelFileError when an entry is missing or impossible."""
        try:
            stored = json.loads(text)
            return cls(**{field.name: stored[field.name] for field in fields(cls)})
        except (ValueError, TypeError, KeyError, ConfigError) as error:
            raise CorruptModelFileError(f"config.json cannot be used: {error!r}") from error


def _entry(metadata: Mapping[str, Any], key: str, kind: type, default: Any = None) -> Any:
    value = metadata.get(f"llama.{key}", default)
    accepted = (int, float) if kind is float else kind
    if value is None or isinstance(value, bool) or not isinstance(value, accepted):
        found = "is missing" if value is None else f"is {value!r}"
        raise CorruptModelFileError(f"GGUF metadata llama.{key} {found}; expected a {kind.__name__}")
    return kind(value)


def _refuse_variants(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> None:
    scaling = metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in tensor_names:
        raise CorruptModelFileError(f"the model scales RoPE ({scaling!r}), which mini_vllm does not compute")
    experts = metadata.get("llama.expert_count", 0)
    if experts:
        raise CorruptModelFileError(f"the model has {experts} experts; mini_vllm computes dense models only")
