"""The oracle of the engine tests: the whole sequence through dense attention, no cache, no batch. Knows no engine."""

import torch

from mini_vllm.engine.sampler import Sampler, SamplingRow
from mini_vllm.sampling_params import SamplingParams


class DenseCausal:
    """Causal attention over one whole sequence, written with matrices; ignores cache and metadata."""

    def __init__(self, window=None):
        self.window = window

    def forward(self, q, k, v, kv_cache, meta):
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        if self.window is not None:
            hidden |= torch.ones(scores.shape[1:], dtype=torch.bool).tril(-self.window)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v)


@torch.inference_mode()
def dense_logits(model, token_ids: list[int]) -> torch.Tensor:
    """Logits after each token: [len(token_ids), vocab]."""
    attend = DenseCausal(model.config.sliding_window)
    caches = [None] * model.config.num_hidden_layers
    hidden = model(torch.tensor(token_ids), torch.arange(len(token_ids)), caches, attend, None)
    return model.compute_logits(hidden)


def dense_generate(model, prompt: list[int], max_tokens: int, params: SamplingParams | None = None) -> list[int]:
    """Continuation (greedy, or by `params`), everything computed anew for every token."""
    token_ids, params = list(prompt), params or SamplingParams()
    for _ in range(max_tokens):
        row = SamplingRow(params, prompt, token_ids[len(prompt) :])
        token_ids.append(Sampler().sample(dense_logits(model, token_ids)[-1:], [row])[0].token_id)
    return token_ids[len(prompt) :]
