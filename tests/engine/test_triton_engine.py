"""The engine on our Triton kernels, in the interpreter: the tokens of the torch backend, tiny model and real one."""

import logging
from dataclasses import replace
from functools import partial

import pytest
import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.attention.torch import TorchPagedAttention
from mini_vllm.engine.ngram_proposer import NgramProposer
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.tiny import tiny_model
from tests.engine.test_exactness_mixed import WINDOW
from tests.engine.tiny_llm import tiny_loaded

pytest.importorskip("triton")

from mini_vllm.engine.attention.triton import TritonPagedAttention

LIMITS = {"max_model_len": 96, "num_gpu_blocks": 14, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 24}
PROMPTS = ["The same beginning, a", "The same beginning, and", "x", "121212121212"]


def loaded(window=None):
    model = tiny_model(0, dtype=torch.float32, config=replace(ModelConfig.tiny(), sliding_window=window))
    return replace(tiny_loaded(), model=model, config=model.config)


@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("settings", [{}, {"num_speculative_tokens": 3}, {"async_scheduling": True}])
def test_the_tokens_of_the_torch_backend(window, settings):
    """Chunks, a shared prefix, eviction, drafts, windows; margins of the tiny model are far above rounding."""
    params, outputs = SamplingParams(max_tokens=12), {}
    for name in ("torch", "triton"):
        llm = LLM(loaded(window), **LIMITS, attention_backend=name, enable_prefix_caching=True, **settings)
        llm.engine_core.runner.make_proposer = partial(NgramProposer, shortest=1)  # more drafts, right and wrong
        outputs[name] = [o.token_ids for o in llm.generate(PROMPTS, params)]
        assert type(llm.engine_core.runner.attn_backend) is {
            "torch": TorchPagedAttention, "triton": TritonPagedAttention
        }[name]  # fmt: skip
        stats = llm.stats.total
        assert stats["num_preempted"] > 0 or window, "a pool this small evicts"
        assert stats["num_drafts_verified"] > 0 or "num_speculative_tokens" not in settings
    assert outputs["triton"] == outputs["torch"]


@pytest.mark.model
@pytest.mark.timeout(900)
def test_the_real_model(caplog):
    prompts, params = ["The capital of France is", "1, 2, 3,"], SamplingParams(max_tokens=3)
    settings = {"device": "cpu", "max_model_len": 64, "num_gpu_blocks": 8}
    expected = LLM("smollm2-135m", attention_backend="torch", **settings).generate(prompts, params)
    with caplog.at_level(logging.WARNING):
        llm = LLM("smollm2-135m", attention_backend="triton", **settings)
    [notice] = [text for text in caplog.messages if "interpreter" in text]
    assert "because there is no GPU" in notice
    outputs = llm.generate(prompts, params)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in expected]
    assert outputs[0].text.startswith(" Paris")
