"""The simplest attention that can be right, for tests of the model. Knows no paging. Chapter 14."""

import pytest
import torch


class DenseCausalBackend:
    """All tokens of the step are one sequence; the cache is used as one long row of keys and values."""

    def forward(self, q, k, v, kv_cache, meta):
        """meta: number of tokens that are in the cache already."""
        n_past, n_new = meta, q.shape[0]
        rows = kv_cache.view(2, -1, *kv_cache.shape[3:])
        rows[0, n_past : n_past + n_new] = k
        rows[1, n_past : n_past + n_new] = v
        keys, values = rows[:, : n_past + n_new].transpose(1, 2)
        visible = torch.ones(n_new, n_past + n_new, dtype=torch.bool, device=q.device).tril(n_past)
        out = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None], keys[None], values[None], attn_mask=visible, enable_gqa=True
        )
        return out[0].transpose(0, 1)


@pytest.fixture
def dense_backend():
    return DenseCausalBackend()


@pytest.fixture
def run_dense(dense_backend):
    """run_dense(model, ids, chunks) → logits [len(ids), vocab]; fed in pieces of these sizes."""

    def run(model, ids, chunks=None):
        config = model.config
        blocks = -(-len(ids) // 16)
        shape = (2, blocks, 16, config.num_key_value_heads, config.head_dim)
        kv_caches = [torch.zeros(shape, dtype=model.dtype) for _ in range(config.num_hidden_layers)]
        logits, done = [], 0
        for size in chunks or [len(ids)]:
            piece = torch.tensor(ids[done : done + size])
            positions = torch.arange(done, done + len(piece))
            hidden = model(piece, positions, kv_caches, dense_backend, done)
            logits.append(model.compute_logits(hidden))
            done += size
        return torch.cat(logits)

    return run
