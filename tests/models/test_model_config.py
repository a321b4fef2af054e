"""Sizes of a model, from GGUF metadata and from config.json. Chapter 14."""

from dataclasses import asdict, replace

import pytest
import torch

from mini_vllm.errors import ConfigError, CorruptModelFileError
from mini_vllm.models.config import ModelConfig, item_bytes
from mini_vllm.models.gguf_config import config_from_gguf
from mini_vllm.models.hf_config import config_from_json, config_to_json

SMOLLM2 = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "llama.vocab_size": 49152,
    "llama.rope.dimension_count": 64,
}
NAMES = [f"tensor {number}" for number in range(2 + 9 * 30)]


def test_from_gguf():
    config = config_from_gguf(SMOLLM2, NAMES)
    assert (config.head_dim, config.num_key_value_heads, config.tie_word_embeddings) == (64, 3, True)
    assert not config_from_gguf(SMOLLM2, [*NAMES, "output.weight"]).tie_word_embeddings


def test_kv_bytes_per_token_by_hand():
    # 2 (key, value) · 30 layers · 3 KV heads · 64 numbers · bytes per number
    config = config_from_gguf(SMOLLM2, NAMES)
    assert config.kv_bytes_per_token(torch.bfloat16) == 23_040
    assert config.kv_bytes_per_token("float32") == 46_080
    with pytest.raises(ConfigError, match="int3"):
        item_bytes("int3")


def test_number_of_weights():
    shapes = config_from_gguf(SMOLLM2, NAMES).tensor_shapes().values()
    assert sum(torch.Size(shape).numel() for shape in shapes) == 134_515_008


def test_json_round_trip():
    config = config_from_gguf(SMOLLM2, NAMES)
    assert config_from_json(config_to_json(config)) == config
    for broken in ("", "[]", "{}", config_to_json(config)[:100], config_to_json(config).replace("576", "0")):
        with pytest.raises(CorruptModelFileError):
            config_from_json(broken)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.architecture", "mamba", "'mamba'"),
        ("llama.block_count", None, "block_count is missing"),
        ("llama.block_count", "thirty", "'thirty'"),
        ("llama.block_count", 0, "num_hidden_layers=0"),
        ("llama.block_count", 273, "block_count states 273 layers, but the file holds 272 tensors"),
        ("llama.block_count", 1 << 63, "num_hidden_layers"),
        ("llama.context_length", 1 << 31, "max_position_embeddings=2147483648 must be .* at most 2,147,483,647"),
        ("llama.vocab_size", 1 << 63, "vocab_size"),
        ("llama.feed_forward_length", 1 << 40, "intermediate_size"),
        ("llama.embedding_length", 9 << 40, "hidden_size"),
        ("llama.rope.freq_base", float("inf"), "rope_theta=inf"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), "rms_norm_eps=nan"),
        ("llama.attention.head_count", 0, "0 attention heads"),
        ("llama.attention.head_count_kv", 4, "num_key_value_heads=4"),
        ("llama.rope.dimension_count", 32, "32 of 64"),
        ("llama.rope.scaling.type", "yarn", "'yarn'"),
        ("llama.expert_count", 8, "8 experts"),
    ],
)
def test_what_is_refused(key, value, message):
    metadata = {**SMOLLM2, key: value}
    if value is None:
        del metadata[key]
    if key == "llama.embedding_length":
        del metadata["llama.rope.dimension_count"]
    with pytest.raises(CorruptModelFileError, match=message):
        config_from_gguf(metadata, NAMES)


def test_impossible_sizes():
    with pytest.raises(ConfigError, match="head_dim=7"):
        replace(ModelConfig.tiny(), head_dim=7)
    with pytest.raises(ConfigError, match="hidden_size=0"):
        replace(ModelConfig.tiny(), hidden_size=0)
    assert asdict(ModelConfig.tiny())["vocab_size"] == 128
