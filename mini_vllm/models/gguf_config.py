"""The sizes that a GGUF file states, as a `ModelConfig`. Knows GGUF's keys; knows no weights. Chapter 14."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mini_vllm.errors import ConfigError, CorruptModelFileError
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.gguf_rope import scaling_of

ARCHITECTURES = ("llama", "qwen2", "qwen3")


def config_from_gguf(
    metadata: Mapping[str, Any], tensor_names: Collection[str], rope_factors: Sequence[float] | None = None
) -> ModelConfig:
    """`tensor_names`: the tensors that the file holds. They tell whether the output head is one of its own, and
    bound the number of layers. rope_factors: the numbers of its tensor rope_freqs.weight, if it has one.

    Raises CorruptModelFileError for another architecture, a missing, mistyped or absurd entry, or a variant that
    the forward pass does not compute (experts, partial RoPE, RoPE scaled in another way than Llama 3.1's).
    """
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise CorruptModelFileError(
            f"general.architecture is {architecture!r}; mini_vllm computes {', '.join(ARCHITECTURES)} "
            "(SmolLM2, Llama 2 and 3, Qwen2, Qwen3). Take a file of such a model."
        )
    entries = _Entries(architecture, metadata)
    _refuse_variants(entries)
    hidden = entries.get("embedding_length", int)
    heads = entries.get("attention.head_count", int)
    if hidden < 1 or heads < 1:
        raise CorruptModelFileError(f"the file states hidden size {hidden} and {heads} attention heads")
    head_dim = entries.get("attention.key_length", int, hidden // heads)
    rotated = entries.get("rope.dimension_count", int, head_dim)
    if rotated != head_dim:
        raise CorruptModelFileError(f"RoPE turns {rotated} of {head_dim} numbers; mini_vllm turns all of them")
    vocabulary = metadata.get("tokenizer.ggml.tokens")
    vocab_default = len(vocabulary) if isinstance(vocabulary, list) else None
    theta = entries.get("rope.freq_base", float, 10_000.0)
    try:
        config = ModelConfig(
            vocab_size=entries.get("vocab_size", int, vocab_default),
            hidden_size=hidden,
            intermediate_size=entries.get("feed_forward_length", int),
            num_hidden_layers=entries.get("block_count", int),
            num_attention_heads=heads,
            num_key_value_heads=entries.get("attention.head_count_kv", int, heads),
            head_dim=head_dim,
            rope_theta=theta,
            rms_norm_eps=entries.get("attention.layer_norm_rms_epsilon", float),
            max_position_embeddings=entries.get("context_length", int),
            tie_word_embeddings="output.weight" not in tensor_names,
            qkv_bias=architecture == "qwen2",
            qk_norm=architecture == "qwen3",
            sliding_window=entries.get("attention.sliding_window", int, 0) or None,
            rope_scaling=None if rope_factors is None else scaling_of(rope_factors, theta, head_dim),
        )
    except ConfigError as error:
        raise CorruptModelFileError(f"the file states an impossible model: {error}") from error
    config.refuse_more_layers_than(tensor_names, f"GGUF metadata {architecture}.block_count")
    return config


class _Entries:
    """The metadata entries of one architecture, each with its type checked."""

    def __init__(self, architecture: str, metadata: Mapping[str, Any]) -> None:
        self.architecture, self.metadata = architecture, metadata

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        accepted = (int, float) if kind is float else kind
        if value is None or isinstance(value, bool) or not isinstance(value, accepted):
            found = "is missing" if value is None else f"is {value!r}"
            raise CorruptModelFileError(f"GGUF metadata {self.architecture}.{key} {found}; expected a {kind.__name__}")
        return kind(value)


def _refuse_variants(entries: _Entries) -> None:
    scaling = entries.get("rope.scaling.type", str, "none")
    if scaling != "none":
        raise CorruptModelFileError(
            f"the file scales RoPE by {scaling!r}; mini_vllm computes Llama 3.1's way, which a GGUF file states in its "
            "tensor rope_freqs.weight. Take another model, or one that was not stretched."
        )
    if experts := entries.get("expert_count", int, 0):
        raise CorruptModelFileError(f"the model has {experts} experts; mini_vllm computes dense models only")
