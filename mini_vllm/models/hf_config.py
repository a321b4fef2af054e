"""config.json, as Hugging Face's hub keeps it, read and written. Knows its spellings; knows no weights. Chapter 14."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from mini_vllm.errors import ConfigError, CorruptModelFileError
from mini_vllm.models.config import ModelConfig, RopeScaling

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
_ARCHITECTURES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def config_to_json(config: ModelConfig) -> str:
    """A config.json that transformers reads too (its `rope_parameters` spelling came in version 5)."""
    kind = model_type(config)
    entries = {
        k: v for k, v in asdict(config).items() if k not in ("rope_scaling", "rope_theta", "qkv_bias", "qk_norm")
    }
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling:
        rope |= {"rope_type": "llama3"} | asdict(config.rope_scaling)
    extra: dict[str, Any] = {
        "architectures": [f"{_ARCHITECTURES[kind]}ForCausalLM"],
        "model_type": kind,
        "hidden_act": "silu",
    }
    if kind.startswith("qwen"):  # these models ask for their window in a second entry
        extra["use_sliding_window"] = config.sliding_window is not None
        extra["layer_types"] = _layer_types(config)
    return json.dumps(extra | entries | {"rope_parameters": rope}, indent=2) + "\n"


def model_type(config: ModelConfig) -> str:
    """The name under which transformers knows this variant of Llama."""
    if config.qkv_bias or config.qk_norm:
        return "qwen3" if config.qk_norm else "qwen2"
    return "mistral" if config.sliding_window else "llama"


def config_from_json(text: str, source: str = "config.json") -> ModelConfig:
    """Raises CorruptModelFileError that names what is missing or impossible, or what mini_vllm does not compute."""
    try:
        stored = json.loads(text)
    except ValueError as error:
        raise CorruptModelFileError(f"{source} cannot be used: it is no JSON ({error})") from error
    if not isinstance(stored, dict):
        raise CorruptModelFileError(f"{source} cannot be used: it holds a {type(stored).__name__}, not an object")
    kind = stored.get("model_type")
    if kind not in MODEL_TYPES:
        raise CorruptModelFileError(f"{source}: model_type is {kind!r}; mini_vllm computes {', '.join(MODEL_TYPES)}")
    _refuse_variants(stored, kind, source)
    rope = stored.get("rope_parameters") or stored.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise CorruptModelFileError(f"{source}: the rope entry is {rope!r}, not an object")
    try:
        hidden, heads = _number(stored, "hidden_size", int), _number(stored, "num_attention_heads", int)
        if heads < 1:
            raise ConfigError(f"num_attention_heads={heads} must be greater than 0")
        return ModelConfig(
            hidden_size=hidden,
            num_attention_heads=heads,
            num_key_value_heads=_number(stored, "num_key_value_heads", int, heads),
            head_dim=_number(stored, "head_dim", int, hidden // heads),
            rope_theta=_number(rope, "rope_theta", float, stored.get("rope_theta", 10_000.0)),
            rms_norm_eps=_number(stored, "rms_norm_eps", float),
            tie_word_embeddings=stored.get("tie_word_embeddings", False) is True,
            qkv_bias=kind == "qwen2",
            qk_norm=kind == "qwen3",
            sliding_window=_window(stored, kind),
            rope_scaling=_scaling(rope),
            **{
                name: _number(stored, name, int)
                for name in ("vocab_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings")
            },
        )
    except ConfigError as error:
        raise CorruptModelFileError(f"{source} cannot be used: {error}") from error


def _number(entries: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = entries.get(name)
    value = default if value is None else value
    accepted = (int, float) if kind is float else kind
    if value is None or isinstance(value, bool) or not isinstance(value, accepted):
        found = "is missing" if value is None else f"is {value!r}"
        raise ConfigError(f"{name} {found}; expected a {kind.__name__}")
    return kind(value)


def _scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ConfigError(f"the model scales RoPE by {kind!r}; mini_vllm computes 'llama3'")
    kinds = {field.name: int if field.name.startswith("original") else float for field in fields(RopeScaling)}
    return RopeScaling(**{name: _number(rope, name, number) for name, number in kinds.items()})


def _window(stored: Mapping[str, Any], kind: str) -> int | None:
    if stored.get("sliding_window") is None or kind == "llama":
        return None
    if kind.startswith("qwen") and not stored.get("use_sliding_window", False):
        return None
    return _number(stored, "sliding_window", int)


def _layer_types(config: ModelConfig) -> list[str]:
    return ["sliding_attention" if config.sliding_window else "full_attention"] * config.num_hidden_layers


def _refuse_variants(stored: Mapping[str, Any], kind: str, source: str) -> None:
    """What would give fluent nonsense: parts that the forward pass does not have."""
    layers = stored.get("layer_types")
    mixed = isinstance(layers, list) and len(set(map(str, layers))) > 1
    # Before version 5 of transformers only the layers from max_window_layers on slid, in Qwen models.
    first = stored.get("max_window_layers")
    mixed |= layers is None and _window(stored, kind) is not None and kind.startswith("qwen") and first not in (None, 0)
    for is_there, what in (
        (stored.get("attention_bias") is True, "biases in all of attention (attention_bias)"),
        (stored.get("mlp_bias") is True, "biases in the MLP (mlp_bias)"),
        (stored.get("hidden_act", "silu") != "silu", f"the activation {stored.get('hidden_act')!r}"),
        (stored.get("partial_rotary_factor", 1.0) != 1.0, "partial RoPE"),
        (stored.get("quantization_config") is not None, "quantised weights"),
        (mixed, "a sliding window in some layers only"),
    ):
        if is_there:
            raise CorruptModelFileError(f"{source}: the model has {what}, which mini_vllm does not compute")
