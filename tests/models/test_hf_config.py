"""config.json in the spellings that are out there, and what is refused. Chapter 14."""

import json
from dataclasses import replace

import pytest

from mini_vllm.errors import CorruptModelFileError
from mini_vllm.models.config import ModelConfig, RopeScaling
from mini_vllm.models.hf_config import config_from_json, config_to_json

from .variants import TINY, VARIANTS

LLAMA_31_8B = {  # the entries that count, as the hub's file has them
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
QWEN25_05B = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def read(entries: dict) -> ModelConfig:
    return config_from_json(json.dumps(entries))


def test_llama_31_8b_and_its_size():
    config = read(LLAMA_31_8B)
    assert config.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 8192) and config.rope_theta == 500_000
    assert config.head_dim == 128 and config.sliding_window is None and not config.qkv_bias
    numbers = sum(a * (b[0] if b else 1) for a, *b in config.tensor_shapes().values())
    assert numbers == 8_030_261_248  # the size that the model's card states
    assert config.kv_bytes_per_token("bfloat16") == 128 * 1024


def test_a_window_that_is_switched_off():
    config = read(QWEN25_05B)
    assert config.qkv_bias and config.sliding_window is None and config.tie_word_embeddings
    assert "model.layers.0.self_attn.q_proj.bias" in config.tensor_shapes()
    assert "model.layers.0.self_attn.o_proj.bias" not in config.tensor_shapes()


def test_newer_spelling_of_rope():
    older = read(LLAMA_31_8B)
    rope = {**LLAMA_31_8B["rope_scaling"], "rope_theta": 500000.0}
    newer = {k: v for k, v in LLAMA_31_8B.items() if not k.startswith("rope_")} | {"rope_parameters": rope}
    assert read(newer) == older


@pytest.mark.parametrize("config", [*VARIANTS.values(), replace(TINY, sliding_window=20)])
def test_round_trip_also_through_transformers(config):
    text = config_to_json(config)
    assert config_from_json(text) == config
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoConfig.for_model(**json.loads(text))
    assert config_from_json(theirs.to_json_string()) == config


def test_qwen_windows():
    sliding = {**QWEN25_05B, "use_sliding_window": True, "max_window_layers": 0}
    assert read(sliding).sliding_window == 32768
    with pytest.raises(CorruptModelFileError, match="sliding window in some layers only"):
        read({**sliding, "max_window_layers": 21})
    with pytest.raises(CorruptModelFileError, match="sliding window in some layers only"):
        read({**sliding, "layer_types": ["full_attention", "sliding_attention"]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'; mini_vllm computes llama, mistral, qwen2, qwen3"),
        ({"model_type": None}, "model_type is None"),
        ({"hidden_size": None}, "hidden_size is missing; expected a int"),
        ({"hidden_size": "big"}, "hidden_size is 'big'"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"num_attention_heads": 0}, "num_attention_heads=0"),
        ({"num_key_value_heads": 5}, "num_key_value_heads=5"),
        ({"num_hidden_layers": 1 << 40}, "num_hidden_layers"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"partial_rotary_factor": 0.5}, "partial RoPE"),
        ({"quantization_config": {"bits": 4}}, "quantised weights"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "scales RoPE by 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "scales RoPE by 'linear'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        ({"rope_scaling": {**LLAMA_31_8B["rope_scaling"], "factor": 0}}, "factor=0"),
        ({"rope_scaling": {**LLAMA_31_8B["rope_scaling"], "high_freq_factor": 1.0}}, "must be below"),
        ({"rope_scaling": [8.0]}, "rope entry is"),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(CorruptModelFileError, match=message):
        read(LLAMA_31_8B | change)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '"llama"'])
def test_no_object(text):
    with pytest.raises(CorruptModelFileError, match=r"config\.json cannot be used"):
        config_from_json(text)
