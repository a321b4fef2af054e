"""Packed weights: the same numbers as plain ones, for every variant, and only where the kernels are. Chapter 14."""

from dataclasses import replace

import pytest
import torch

from mini_vllm.models.packed import PackedLinear, can_pack, pack_linears
from mini_vllm.models.tiny import tiny_model

from .test_llama import random_ids
from .variants import VARIANTS

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


def test_only_bfloat16_is_packed():
    assert not can_pack(tiny_model(0)) and not can_pack(tiny_model(0, dtype=torch.float32))


@needs_kernels
def test_the_plain_weights_are_gone():
    model = pack_linears(tiny_model(0, dtype=torch.bfloat16))
    assert sum(p.numel() for p in model.parameters() if p.ndim == 2) == model.model.embed_tokens.weight.numel()
