"""The oracle of the engine tests: the whole sequence through dense attention, no cache, no batch. Knows no engine."""

import torch


class DenseCausal:
    """Causal attention over one whole sequence, written with matrices; ignores cache and metadata."""

    def forward(self, q, k, v, kv_cache, meta):
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v)


@torch.inference_mode()
def dense_logits(model, token_ids: list[int]) -> torch.Tensor:
    """Logits after each token: [len(token_ids), vocab]."""
    caches = [None] * model.config.num_hidden_layers
    hidden = model(torch.tensor(token_ids), torch.arange(len(token_ids)), caches, DenseCausal(), None)
    return model.compute_logits(hidden)


def dense_generate(model, prompt: list[int], max_tokens: int) -> list[int]:
    """Greedy continuation, everything computed anew for every token."""
    token_ids = list(prompt)
    for _ in range(max_tokens):
        token_ids.append(int(dense_logits(model, token_ids)[-1].argmax()))
    return token_ids[len(prompt) :]
