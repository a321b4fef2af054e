"""Sizes of well-known models, from their public config.json. Knows no weights and no cost. Chapter 2.

Each row is `config.json` of the repository named in `SOURCES`, on huggingface.co. The extra norms of Qwen3 (2 × 128
numbers a layer) and the RoPE scaling of Llama 3.1 change no cost and are left out.
"""

import difflib

from mini_vllm.errors import ConfigError
from mini_vllm.models.config import ModelConfig

SOURCES = {
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-2-70b": "meta-llama/Llama-2-70b-hf",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-4b": "Qwen/Qwen3-4B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
}

_SIZES: dict[str, tuple] = {
    # vocabulary, hidden, MLP, layers, heads, KV heads, head_dim, RoPE base, norm eps, context, tied
    "llama-2-7b": (32_000, 4096, 11_008, 32, 32, 32, 128, 1e4, 1e-5, 4096, False),
    "llama-2-70b": (32_000, 8192, 28_672, 80, 64, 8, 128, 1e4, 1e-5, 4096, False),
    "llama-3.1-8b": (128_256, 4096, 14_336, 32, 32, 8, 128, 5e5, 1e-5, 131_072, False),
    "llama-3.1-70b": (128_256, 8192, 28_672, 80, 64, 8, 128, 5e5, 1e-5, 131_072, False),
    "qwen3-0.6b": (151_936, 1024, 3072, 28, 16, 8, 128, 1e6, 1e-6, 40_960, True),
    "qwen3-4b": (151_936, 2560, 9728, 36, 32, 8, 128, 1e6, 1e-6, 40_960, True),
    "qwen3-8b": (151_936, 4096, 12_288, 36, 32, 8, 128, 1e6, 1e-6, 40_960, False),
    "smollm2-135m": (49_152, 576, 1536, 30, 9, 3, 64, 1e5, 1e-5, 8192, True),
}


def known_models() -> list[str]:
    """Names that `get_model` takes."""
    return list(_SIZES)


def get_model(name: str) -> ModelConfig:
    """The sizes of a known model; upper and lower case do not matter. Raises ConfigError that lists the names."""
    if not isinstance(name, str) or name.lower() not in _SIZES:
        near = difflib.get_close_matches(str(name).lower(), _SIZES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"model {name!r} is not one of {', '.join(_SIZES)}.{hint} For another one give its ModelConfig."
        )
    vocabulary, hidden, mlp, layers, heads, kv_heads, head_dim, base, eps, context, tied = _SIZES[name.lower()]
    return ModelConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=base,
        rms_norm_eps=eps,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
    )
