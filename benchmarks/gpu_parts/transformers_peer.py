"""transformers' continuous batching on our random weights, as it comes. Knows their API, not our engine. Chapter 13.

Start, warm-up and the making of its cache are not counted.
"""

import json
import time
from dataclasses import dataclass

import torch

from benchmarks.gpu_parts.bench import Bench
from benchmarks.gpu_parts.engine import Workload
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.hf_config import config_to_json


@dataclass(frozen=True)
class PeerRun:
    """tokens: of the requests that finished; whole: all did. attention: what they chose for it."""

    seconds: float
    tokens: int
    whole: bool
    attention: str


def their_model(bench: Bench, config: ModelConfig, weights: dict[str, torch.Tensor]):
    """Their Llama or Qwen3 around these tensors."""
    import transformers

    transformers.logging.set_verbosity_error()
    entries = json.loads(config_to_json(config))
    theirs = transformers.AutoConfig.for_model(entries.pop("model_type"), **entries, attn_implementation="sdpa")
    with torch.device(bench.device):
        model = transformers.AutoModelForCausalLM.from_config(theirs, dtype=bench.dtype).eval()
    missing = model.load_state_dict(weights, strict=False, assign=True).missing_keys
    if wrong := [name for name in missing if name != "lm_head.weight" or not config.tie_word_embeddings]:
        raise ValueError(f"transformers wants weights that our shapes lack: {wrong[:3]}")
    model.tie_weights()
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    return model


def serve_transformers(
    bench: Bench,
    config: ModelConfig,
    weights: dict[str, torch.Tensor],
    workload: Workload,
    limit_s: float,
    may_switch: bool = True,
) -> PeerRun:
    """Break off after `limit_s`. may_switch: to FlashAttention, where they find it; else torch's attention."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = their_model(bench, config, weights)
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=1024)
    sizes = {"page_size": 16, "num_blocks": 16 * len(workload), "max_batch_tokens": 64} if bench.smoke else {}
    settings = ContinuousBatchingConfig(
        auto_switch_to_flash=may_switch, **sizes
    )  # on a GPU the sizes are theirs to choose
    with torch.inference_mode():
        manager = model.init_continuous_batching(generation, settings)
        manager.start()
        try:
            attention = str(model.config._attn_implementation)
            _serve(manager, [(prompt, min(4, tokens)) for prompt, tokens in workload[:4]], "w", limit_s)
            return PeerRun(*_serve(manager, workload, "r", limit_s), attention)
        finally:
            manager.stop(block=True)


def _serve(manager, workload: Workload, name: str, limit_s: float) -> tuple[float, int, bool]:
    start, left, got = time.perf_counter(), {}, 0
    for i, (prompt, tokens) in enumerate(workload):
        req_id = manager.add_request(list(prompt), request_id=f"{name}{i}", max_new_tokens=tokens, eos_token_id=-1)
        left[req_id] = tokens
    while left and time.perf_counter() - start < limit_s:
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            if getattr(result, "error", None):
                raise RuntimeError(f"transformers gave up on a request: {result.error}")
            got += len(result.generated_tokens)
            left.pop(result.request_id, None)
    return time.perf_counter() - start, got, not left
