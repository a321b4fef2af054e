"""Steps of nobody's tokens, so that later ones find everything compiled. Knows shapes; knows no request. Chapter 14."""

import torch

from mini_vllm.config import SchedulerConfig
from mini_vllm.engine.attention.backend import AttentionBackend
from mini_vllm.engine.device import current
from mini_vllm.engine.input_batch import InputBatch
from mini_vllm.engine.kv_pool import KVPool
from mini_vllm.models.llama import LlamaForCausalLM

# Rows of one request: a decode, drafts, a short piece, a longer one. Kernels are compiled for 1, 2, 4, 8 and more.
PIECES = (1, 2, 4, 8, 17)


def warm_up(config: SchedulerConfig, model: LlamaForCausalLM, attn_backend: AttentionBackend) -> None:
    """Run each kind of step once, with a context as short and as long as may be. Triton compiles a kernel when it is
    first launched, which takes up to a second: better now than in front of a user."""
    for n in (n for n in PIECES if n <= min(config.max_num_batched_tokens, config.max_model_len)):
        for context_len in (n, config.max_model_len):
            dummy_step(model, attn_backend, config.block_size, [(context_len - n, n)])


@torch.inference_mode()
def dummy_step(
    model: LlamaForCausalLM,
    attn_backend: AttentionBackend,
    block_size: int,
    pieces: list[tuple[int, int]],
    num_logits: int = 1,
) -> None:
    """One forward of pieces (history, new tokens), all in the null block of a pool that is thrown away; then logits."""
    with current(model.device):
        pool = KVPool(model.config, model.dtype, model.device, 0, block_size)
        batch = InputBatch(model.device, block_size)
        rows = [batch.add_row([0] * -(-(history + n) // block_size)) for history, n in pieces]
        query_lens = [n for _, n in pieces]
        inputs = batch.fill([0] * sum(query_lens), rows, [history for history, _ in pieces], query_lens)
        hidden = model(inputs.input_ids, inputs.positions, pool.caches, attn_backend, inputs.meta)
        model.compute_logits(hidden[:num_logits]).max(dim=-1)
