"""FLOPs and bytes: a tiny model by hand; parameters as published, and as all tensors together have them."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.errors import ConfigError
from mini_vllm.models.config import ModelConfig
from mini_vllm.roofline import ModelCosts, StepWork, get_model, known_models

# hidden 32, MLP 64, 2 layers, 4 heads and 2 KV heads of 8, vocabulary 128.
TINY = ModelCosts(ModelConfig.tiny(), "float32")
MATRICES = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 64  # Q; K and V; output; MLP: of one layer


def test_a_tiny_decode_by_hand():
    cost = TINY.step(StepWork.decode(3, context=10))
    assert cost.linear_flops == 3 * 2 * 2 * MATRICES
    assert cost.attention_flops == 30 * 2 * 4 * 8 * 4  # pairs, layers, heads, head_dim, (QK and PV) x 2
    assert cost.head_flops == 3 * 2 * 128 * 32
    assert cost.weight_bytes == 4 * (2 * MATRICES + 128 * 32)
    assert cost.kv_bytes == 30 * 2 * 2 * 16 * 4  # tokens, layers, (K, V), KV heads x head_dim, bytes
    assert cost.intensity == cost.flops / cost.bytes


def test_a_chunk_that_samples_nothing_leaves_the_head_alone():
    middle = TINY.step(StepWork.prefill(5, sampled=False))
    last = TINY.step(StepWork.prefill(5))
    assert middle.head_flops == 0
    assert last.weight_bytes - middle.weight_bytes == 4 * 128 * 32


def test_a_prompt_computes_the_head_once():
    assert TINY.step(StepWork.prefill(50)).head_flops == TINY.step(StepWork.decode(1, 50)).head_flops


def test_an_empty_step_costs_nothing():
    cost = TINY.step(StepWork())
    assert cost.flops == cost.bytes == 0


def test_a_tied_head_is_stored_once_and_read_all_the_same():
    tied = ModelCosts(replace(TINY.config, tie_word_embeddings=True), "float32")
    assert TINY.stored_bytes - tied.stored_bytes == 4 * 128 * 32
    assert tied.step(StepWork.decode(1, 1)) == TINY.step(StepWork.decode(1, 1))


def test_half_the_bytes_same_flops():
    half, work = ModelCosts(TINY.config, "bfloat16"), StepWork.decode(2, 7)
    assert half.step(work).flops == TINY.step(work).flops
    assert half.step(work).bytes * 2 == TINY.step(work).bytes


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("qwen3-0.6b", 596_049_920 - 28 * 256),  # without the norms of Q and K
        ("qwen3-4b", 4_022_468_096 - 36 * 256),
        ("qwen3-8b", 8_190_735_360 - 36 * 256),
        ("smollm2-135m", 134_515_008),
    ],
)
def test_parameters_as_published(name, published):
    assert ModelCosts(get_model(name)).total_params == published


def test_every_known_model_has_a_published_count_above():
    listed = next(mark for mark in test_parameters_as_published.pytestmark if mark.name == "parametrize").args[1]
    assert sorted(known_models()) == sorted(name for name, _ in listed)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 200), st.integers(1, 40), st.integers(1, 60), st.integers(1, 5), st.integers(1, 4),
    st.integers(1, 4), st.integers(1, 8), st.booleans(),
)  # fmt: skip
def test_parameters_are_those_of_all_tensors(vocab, hidden, mlp, layers, kv_heads, group, half_dim, tied):
    config = replace(
        ModelConfig.tiny(),
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=kv_heads * group,
        num_key_value_heads=kv_heads,
        head_dim=2 * half_dim,
        tie_word_embeddings=tied,
    )
    shapes = config.tensor_shapes()
    costs = ModelCosts(config, "float32")
    assert costs.total_params == sum(math.prod(shape) for shape in shapes.values())
    # The linear layers are all matrices but the two tables, each 2 FLOP a weight.
    tables = ("model.embed_tokens.weight", "lm_head.weight")
    matrices = sum(math.prod(shape) for name, shape in shapes.items() if len(shape) == 2 and name not in tables)
    assert costs.linear_flops_per_token == 2 * matrices


def test_qwen3_8b_reads_15_14_gb_a_step():
    assert round(ModelCosts(get_model("qwen3-8b")).step(StepWork.decode(1, 1)).weight_bytes / 1e9, 2) == 15.14


def test_kv_bytes_of_smollm2():
    assert ModelCosts(get_model("smollm2-135m"), "bfloat16").kv_bytes_per_token == 23_040


def test_bad_arguments():
    with pytest.raises(ConfigError, match="config is the class ModelConfig; give an instance"):
        ModelCosts(ModelConfig)
    with pytest.raises(ConfigError, match="config is 'llama-2-7b', a str; give a ModelConfig"):
        ModelCosts("llama-2-7b")
    with pytest.raises(ConfigError, match="dtype 'int3'"):
        ModelCosts(get_model("llama-2-7b"), "int3")
    with pytest.raises(ConfigError, match="work is the class StepWork"):
        TINY.step(StepWork)


def test_an_unknown_model_is_told_the_known_ones():
    with pytest.raises(ConfigError, match=r"'llama-3-8b' is not one of .*llama-2-7b.*Did you mean 'llama-3.1-8b'"):
        get_model("llama-3-8b")
    assert get_model("Llama-2-7B") == get_model("llama-2-7b")
