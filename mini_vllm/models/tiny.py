"""A random model of a few kilobytes for exactness tests. Knows a seed; knows no file. Chapter 14."""

import torch

from mini_vllm.models.config import ModelConfig
from mini_vllm.models.llama import LlamaForCausalLM


def tiny_model(
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float64,
    logit_scale: float = 8.0,
    config: ModelConfig | None = None,
) -> LlamaForCausalLM:
    """A Llama model with random weights, the same for the same seed on every machine.

    In float64 the order of a sum changes a logit by about 1e-13, and `logit_scale` (the standard deviation of
    the logits) puts the best token more than 1 ahead of the second in most steps. Two correct engines must
    then agree on every token, whatever batches they form.
    """
    config = config or ModelConfig.tiny()
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in config.tensor_shapes().items():
        # Draw in float64 for every dtype, so that the float32 model is the float64 model rounded.
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        if "norm" in name:
            drawn = 1.0 + 0.1 * drawn
        elif "embed_tokens" not in name:
            drawn = drawn / shape[-1] ** 0.5
        if "q_proj" in name or "k_proj" in name:
            drawn = 2.0 * drawn  # sharper attention: a wrong key shows in the next token
        if name == "lm_head.weight" or (config.tie_word_embeddings and "embed_tokens" in name):
            drawn = drawn * logit_scale
        weights[name] = drawn.to(dtype)
    return LlamaForCausalLM(config, dtype).load_weights(weights)
