"""Packed weights: the same numbers as plain ones, for every variant, and only where the kernels are. Chapter 14."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from mini_vllm.core.output import NewRequestData, SchedulerOutput
from mini_vllm.engine.attention.select import select_backend
from mini_vllm.engine.model_runner import ModelRunner
from mini_vllm.models import cpu_ops
from mini_vllm.models.packed import PackedLinear, can_pack, pack_linears, padded_rows
from mini_vllm.models.tiny import tiny_model
from mini_vllm.sampling_params import SamplingParams

from .test_llama import random_ids
from .variants import TINY, VARIANTS

needs_kernels = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),
    reason="this torch has no oneDNN",
)


@needs_kernels
@pytest.mark.parametrize("num_rows", [1, 3, 32, 100])
def test_several_weights_in_one_product(num_rows):
    generator = torch.Generator().manual_seed(num_rows)
    x, *weights = (torch.randn(n, 48, generator=generator).bfloat16() for n in (num_rows, 64, 16, 16))
    biases = [torch.randn(len(w), generator=generator).bfloat16() for w in weights]
    expected = torch.cat([x.double() @ w.double().T + b.double() for w, b in zip(weights, biases, strict=True)], dim=1)
    with torch.inference_mode():
        found = PackedLinear(weights, biases)(x)
    assert ((found.double() - expected).abs() <= 0.01 * expected.abs().clamp(min=1)).all()


@needs_kernels
@pytest.mark.parametrize("name", VARIANTS)
def test_a_packed_model_computes_what_the_plain_one_does(run_dense, name):
    config = replace(VARIANTS[name], hidden_size=64)
    ids = random_ids(3, 40, config.vocab_size)
    plain = run_dense(tiny_model(1, dtype=torch.bfloat16, logit_scale=1.0, config=config), ids).float()
    model = pack_linears(tiny_model(1, dtype=torch.bfloat16, logit_scale=1.0, config=config))
    exact = run_dense(tiny_model(1, dtype=torch.float64, logit_scale=1.0, config=config), ids).float()
    packed = run_dense(model, ids).float()
    # Both round to bfloat16 on the way; neither is further from float64 than the other by much.
    assert (packed - exact).abs().mean() < 1.2 * (plain - exact).abs().mean() + 1e-3
    assert (packed - plain).abs().mean() < 0.1


def test_few_sizes_are_prepared():
    sizes = [padded_rows(rows) for rows in range(1, 513)]
    assert all(rows <= size and (size <= 1.25 * rows or size - rows < 4) for rows, size in enumerate(sizes, 1))
    assert len(set(sizes)) == 25 and sizes == sorted(sizes)
    some = (1, 2, 5, 29, 32, 33, 100, 131, 300, 512)
    assert [padded_rows(rows, exact=2) for rows in some] == [1, 2, 8, 32, 32, 40, 112, 160, 320, 512]


@needs_kernels
@pytest.mark.parametrize("rows", [0, 4, 5, 16, 17, 29, 33, 131])
def test_rows_between_two_sizes(rows):
    """Whole numbers, so that the sums are exact."""
    dice = torch.Generator().manual_seed(rows)
    x, weight = (torch.randint(-8, 9, shape, generator=dice).bfloat16() for shape in ((rows, 96), (64, 96)))
    with torch.inference_mode():
        assert torch.equal(PackedLinear([weight])(x), (x.double() @ weight.double().T).bfloat16())


@needs_kernels
@pytest.mark.parametrize("backend", ["torch", "auto", "triton"])
def test_rows_that_no_request_owns_leave_no_trace(backend, monkeypatch):
    """13 tokens of a prompt and one of another run as 16 rows; the KV cache has what those 14 have put there."""
    monkeypatch.setattr(cpu_ops, "FEW_TOKENS", 4)
    config = replace(TINY, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
    model = pack_linears(tiny_model(1, dtype=torch.bfloat16, config=config))
    rows_seen = []
    embed = model.model.embed_tokens
    embed.register_forward_hook(lambda module, args, out: rows_seen.append(len(out)))
    attention = select_backend(backend, config, model.dtype, model.device, 8)
    runner = ModelRunner(model, num_gpu_blocks=4, block_size=8, attn_backend=attention)
    for cache in runner.kv_caches:
        cache.fill_(7)
    plan = SchedulerOutput(num_scheduled_tokens={"a": 13, "b": 1})
    for req_id, prompt, blocks in (("a", 13, [3, 1]), ("b", 1, [2])):
        plan.scheduled_new_reqs.append(NewRequestData(req_id, [5] * prompt, SamplingParams(), blocks, 0))
    output = runner.execute(plan)
    assert rows_seen == [16] and [len(tokens) for tokens in output.sampled_token_ids.values()] == [1, 1]
    for cache in runner.kv_caches:
        written = (cache != 7).flatten(3).any(-1).all(0)  # of each slot, K and V
        assert written.nonzero().tolist() == sorted([[3, p] for p in range(8)] + [[1, p] for p in range(5)] + [[2, 0]])


@needs_kernels
def test_a_tied_embedding_is_read_out_of_the_head():
    plain = tiny_model(1, dtype=torch.bfloat16, config=replace(TINY, hidden_size=64, tie_word_embeddings=True))
    weight = plain.model.embed_tokens.weight.clone()
    embedding = pack_linears(plain).model.embed_tokens
    ids = torch.tensor(random_ids(3, 40, plain.config.vocab_size))
    with torch.inference_mode():
        assert torch.equal(embedding(ids), weight[ids])
        assert embedding(ids[:0]).shape == (0, 64)


def test_only_bfloat16_is_packed():
    assert not can_pack(tiny_model(0)) and not can_pack(tiny_model(0, dtype=torch.float32))


def test_a_cpu_without_the_kernels_keeps_plain_weights():
    """Without AVX-512, oneDNN refuses bfloat16 weights; the model must run nevertheless."""
    code = (
        "import torch; from mini_vllm.models.packed import can_pack, make_fast; "
        "from mini_vllm.models.tiny import tiny_model; "
        "model = make_fast(tiny_model(0, dtype=torch.bfloat16)); "
        "print(can_pack(model), model.compute_logits(torch.ones(2, model.config.hidden_size).bfloat16()).shape[0])"
    )
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "2"], done.stderr


@needs_kernels
def test_the_plain_weights_are_gone():
    model = pack_linears(tiny_model(0, dtype=torch.bfloat16))
    # Of two dimensions there is nothing left but the embedding, and where it can be read out of the head not even that.
    assert sum(p.numel() for p in model.parameters() if p.ndim == 2) in (0, model.model.embed_tokens.weight.numel())
