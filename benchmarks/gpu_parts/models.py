"""Models in real shapes with random weights: speed and parity need no files. Knows no request. Chapter 13."""

from dataclasses import replace

import torch

from benchmarks.gpu_parts.bench import Bench
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.models.ops import TorchOps, TritonOps
from mini_vllm.models.packed import make_fast
from mini_vllm.roofline import ModelCosts, get_model

QWEN, LLAMA = "qwen3-0.6b", "llama-3.1-8b"  # Llama 3.1 and 3 differ in nothing that costs time
LOGIT_SCALE = 8.0  # standard deviation of a logit: far apart, so that the best token is seldom in doubt


def config_of(bench: Bench, name: str, layers: int | None = None) -> ModelConfig:
    """The real sizes, with fewer layers on demand. For --smoke small ones, with the same kinds of parts."""
    config = get_model(name)
    if name.startswith("qwen3"):
        config = replace(config, qk_norm=True)
    if bench.smoke:
        sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 16}
        config = replace(config, **sizes, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096)
    return replace(config, num_hidden_layers=layers) if layers and not bench.smoke else config


def random_weights(bench: Bench, config: ModelConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The same for the same seed; drawn on the device, so that eight billion numbers take a second."""
    generator = bench.generator(11)
    weights = {}
    for name, shape in config.tensor_shapes().items():
        drawn = torch.randn(shape, generator=generator, dtype=dtype, device=bench.device)
        if "norm" in name:
            drawn = 1 + 0.1 * drawn
        elif "embed" in name or "lm_head" in name:
            drawn *= LOGIT_SCALE / config.hidden_size**0.5
        elif len(shape) > 1:
            drawn *= (2.0 if "q_proj" in name or "k_proj" in name else 1.0) / shape[-1] ** 0.5
        weights[name] = drawn
    return weights


def build_model(config: ModelConfig, weights: dict[str, torch.Tensor], fused: bool = True) -> LlamaForCausalLM:
    """Of these tensors, in their dtype, its linears joined; `weights` is emptied, so that no tensor is there twice.

    fused: the small operations by kernels/fused.py, else by torch.
    """
    model = LlamaForCausalLM(config, next(iter(weights.values())).dtype).load_weights(weights)
    weights.clear()
    make_fast(model, triton_ops=False)
    model.use_ops(TritonOps() if fused else TorchOps())
    return model


def does_not_fit(bench: Bench, config: ModelConfig, dtype: torch.dtype, spare: float = 1.5e9) -> str | None:
    """Why this model cannot run here; None if it can. `spare`: bytes for its KV and activations at least."""
    needed, free = ModelCosts(config, str(dtype).removeprefix("torch.")).stored_bytes + spare, bench.free_bytes()
    if bench.smoke or needed <= free:
        return None
    return f"needs {needed / 1e9:.1f} GB with {spare / 1e9:.1f} GB for its KV, {free / 1e9:.1f} GB are free"
