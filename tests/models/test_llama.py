"""The forward pass against transformers, and against itself in other chunks. Chapter 14."""

import math
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mini_vllm.errors import CorruptModelFileError
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.hf_config import config_to_json
from mini_vllm.models.llama import LlamaForCausalLM, RMSNorm, RotaryEmbedding, stretch
from mini_vllm.models.ops import rotate
from mini_vllm.models.tiny import tiny_model

from .variants import LLAMA3, VARIANTS

ROOT = Path(__file__).parents[2]


def transformers_model(ours: LlamaForCausalLM):
    transformers = pytest.importorskip("transformers")
    import json

    entries = json.loads(config_to_json(ours.config))
    config = transformers.AutoConfig.for_model(**entries, attn_implementation="sdpa")
    theirs = transformers.AutoModelForCausalLM.from_config(config).to(ours.dtype).eval()
    missing, surplus = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert surplus == []
    assert missing == (["lm_head.weight"] if ours.config.tie_word_embeddings else [])
    theirs.tie_weights()
    return theirs


def random_ids(seed: int, n: int, vocab_size: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab_size) for _ in range(n)]


def test_the_model_imports_nothing_of_the_engine():
    script = "import sys, mini_vllm.models.llama; print([name for name in sys.modules if '_vllm.engine' in name])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_rotation_by_a_quarter_turn():
    # Position 1, frequency 1: number 0 pairs with number 1; angle 1 radian.
    config = ModelConfig.tiny()
    rope = RotaryEmbedding(config)
    cos, sin = rope(torch.tensor([0, 1]), torch.float64)
    assert cos.shape == (2, 1, config.head_dim)
    x = torch.zeros(2, 1, config.head_dim, dtype=torch.float64)
    x[:, 0, 0] = 1.0
    turned = rotate(x, cos, sin)
    assert torch.equal(turned[0], x[0])  # position 0 turns nothing
    assert turned[1, 0, 0] == pytest.approx(0.5403023, abs=1e-6)  # cos 1
    assert turned[1, 0, config.head_dim // 2] == pytest.approx(0.8414710, abs=1e-6)  # sin 1


def test_rms_norm_of_threes_and_fours():
    norm = RMSNorm(2, 0.0, torch.float32)
    norm.load_state_dict({"weight": torch.tensor([1.0, 2.0])}, assign=True)
    out = norm(torch.tensor([[3.0, 4.0]]))  # root mean square √12.5
    assert torch.allclose(out, torch.tensor([[3 / 12.5**0.5, 8 / 12.5**0.5]]))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_equals_transformers(run_dense, name):
    model = tiny_model(3, dtype=torch.float32, logit_scale=1.0, config=VARIANTS[name])
    ids = random_ids(1, 300, model.config.vocab_size)
    with torch.inference_mode():
        expected = transformers_model(model)(torch.tensor([ids]), use_cache=False).logits[0]
    assert (run_dense(model, ids) - expected).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("name", "plain"),
    [("qwen2", {"qkv_bias": False}), ("qwen3", {"qk_norm": False}), ("llama 3.1", {"rope_scaling": None})],
)
def test_what_makes_a_variant_shows(run_dense, name, plain):
    """Else the comparison above would pass without it."""
    model, ids = tiny_model(3, config=VARIANTS[name]), random_ids(1, 300, 128)
    config = replace(model.config, **plain)
    kept = {key: weight for key, weight in model.state_dict().items() if key in config.tensor_shapes()}
    without = LlamaForCausalLM(config, torch.float64).load_weights(kept)
    assert (run_dense(model, ids) - run_dense(without, ids)).abs().max() > 0.1


def test_stretched_frequencies_by_hand():
    """Wavelengths 10, 102.4 and 10,000 with an original length of 256: fast, half-way, slow."""
    frequency = 2 * math.pi / torch.tensor([10.0, 102.4, 10_000.0], dtype=torch.float64)
    # 256 / 102.4 = 2.5 lies half-way between 1 and 4: half as it was, half divided by 8.
    expected = frequency * torch.tensor([1.0, 0.5 + 0.5 / 8, 1 / 8])
    assert torch.allclose(stretch(frequency, LLAMA3), expected, rtol=1e-12, atol=0)


def test_chunks_do_not_change_float64_logits(run_dense):
    model = tiny_model(0)
    ids = random_ids(7, 40, 128)
    whole = run_dense(model, ids)
    for chunks in ([1] * 40, [17, 1, 22], [39, 1]):
        assert (run_dense(model, ids, chunks) - whole).abs().max() < 1e-11


def test_tiny_margin_and_dependence_on_the_past(run_dense):
    margins, changed = [], []
    for seed in range(12):
        model = tiny_model(seed)
        ids = random_ids(seed, 64, 128)
        logits = run_dense(model, ids)
        best = logits.topk(2, dim=-1).values
        margins += (best[:, 0] - best[:, 1]).tolist()
        other = [(ids[0] + 1) % 128, *ids[1:]]  # only the oldest token differs
        changed.append((run_dense(model, other)[1:].argmax(-1) != logits[1:].argmax(-1)).float().mean().item())
    assert torch.tensor(margins).median() > 1.0
    assert sum(changed) / len(changed) > 0.02  # a wrong key far back does show in the tokens


def test_tiny_model_is_a_function_of_its_seed():
    first, again, other = tiny_model(5), tiny_model(5), tiny_model(6)
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(first.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])
    rounded = tiny_model(5, dtype=torch.float32).state_dict()[name]
    assert torch.equal(rounded, first.state_dict()[name].float())


def test_all_wrong_tensors_in_one_error():
    model = tiny_model(0)
    weights = dict(model.state_dict())
    del weights["model.norm.weight"]
    weights["model.extra.weight"] = torch.zeros(1)
    weights["lm_head.weight"] = weights["lm_head.weight"][:5]
    weights["model.layers.0.self_attn.q_proj.weight"] = weights["model.layers.0.self_attn.q_proj.weight"].float()
    with pytest.raises(CorruptModelFileError) as caught:
        LlamaForCausalLM(model.config, torch.float64).load_weights(weights)
    message = str(caught.value)
    for part in (
        "1 missing: model.norm.weight",
        "1 surplus: model.extra.weight",
        "lm_head.weight [5, 32] not [128, 32]",
        "model.layers.0.self_attn.q_proj.weight torch.float32",
    ):
        assert part in message


def test_loading_copies_nothing():
    weights = dict(tiny_model(0).state_dict())
    model = LlamaForCausalLM(ModelConfig.tiny(), torch.float64).load_weights(weights)
    for name, tensor in model.state_dict().items():
        assert tensor.data_ptr() == weights[name].data_ptr()
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_arguments_that_do_not_fit(dense_backend):
    model = tiny_model(0)
    with pytest.raises(ValueError, match=r"\[3\] and \[2\]"):
        model(torch.zeros(3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), [], dense_backend, 0)
    with pytest.raises(ValueError, match="1 KV caches for 2 layers"):
        model(torch.zeros(2, dtype=torch.int64), torch.arange(2), [torch.zeros(1)], dense_backend, 0)


PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "1, 2, 3, 5, 8, 13, 21, 34, 55, ",
    "数の並び 🙂 and a long-ish sentence about trains, bridges and rivers. " * 8,
]


@pytest.mark.model
def test_smollm2_equals_transformers_in_fp32(run_dense):
    from mini_vllm.loaders.weights import load_model

    loaded = load_model("smollm2-135m", "float32")
    theirs = transformers_model(loaded.model)
    for prompt in PROMPTS:
        ids = loaded.tokenizer.encode(prompt)
        with torch.inference_mode():
            expected = theirs(torch.tensor([ids]), use_cache=False).logits[0]
        found = run_dense(loaded.model, ids)
        assert (found - expected).abs().max().item() <= 1e-4
        # A decode step on top of a prefill computes the same last row in another shape.
        stepped = run_dense(loaded.model, ids, [len(ids) - 1, 1])
        assert (stepped[-1] - expected[-1]).abs().max().item() <= 5e-4
        assert stepped[-1].argmax() == expected[-1].argmax()


@pytest.mark.model
def test_smollm2_knows_where_paris_is(run_dense):
    from mini_vllm.loaders.weights import load_model

    loaded = load_model("smollm2-135m", "bfloat16")
    ids = loaded.tokenizer.encode("The capital of France is")
    assert loaded.tokenizer.decode([int(run_dense(loaded.model, ids)[-1].argmax())]) == " Paris"
