"""The torch backend against dense attention: ragged batches, shuffled pages, every page size."""

import random

import pytest
import torch

from mini_vllm.engine.attention.backend import AttentionMetadata
from mini_vllm.engine.attention.torch import TorchPagedAttention


def dense_one(q, k, v, window=None):
    """q: [n, H, D] are the last n of the L positions in k, v: [L, Hkv, D]; each row sees `window` positions at most."""
    n, length, groups = q.shape[0], k.shape[0], q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    for i in range(n):
        end = length - n + i + 1
        seen = slice(max(0, end - (window or end)), end)
        for h in range(q.shape[1]):
            scores = k[seen, h // groups] @ q[i, h] / q.shape[-1] ** 0.5
            out[i, h] = scores.softmax(0) @ v[seen, h // groups]
    return out


def ragged_case(rng, block_size, heads, kv_heads, head_dim, pieces, window=None):
    """pieces: (history, new tokens) of each request. Returns inputs, cache with the history in it, expected output.

    All that nobody may look at holds NaN: free blocks, free slots, and blocks out of every window.
    """
    generator = torch.Generator().manual_seed(rng.randrange(2**31))

    def rand(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    widths = [-(-(history + n) // block_size) for history, n in pieces]
    blocks = list(range(1, sum(widths) + 4))
    rng.shuffle(blocks)
    cache = torch.full((2, len(blocks) + 1, block_size, kv_heads, head_dim), torch.nan, dtype=torch.float64)
    cache[:, 0] = 0.0  # the null block
    q_rows, k_rows, v_rows, slots, starts, tables, expected = [], [], [], [], [0], [], []
    for (history, n), width in zip(pieces, widths, strict=True):
        table = [blocks.pop() for _ in range(width)]
        k, v, q = rand(history + n, kv_heads, head_dim), rand(history + n, kv_heads, head_dim), rand(n, heads, head_dim)
        for p in range(history):
            cache[0, table[p // block_size], p % block_size] = k[p]
            cache[1, table[p // block_size], p % block_size] = v[p]
        slots += [table[p // block_size] * block_size + p % block_size for p in range(history, history + n)]
        q_rows.append(q), k_rows.append(k[history:]), v_rows.append(v[history:])
        starts.append(starts[-1] + n)
        gone = max(0, history - window + 1) // block_size if window else 0  # blocks that no row of this step sees
        cache[:, table[:gone]] = torch.nan
        tables.append([0] * gone + table[gone:])
        expected.append(dense_one(q, k, v, window))
    lens = [history + n for history, n in pieces]
    meta = AttentionMetadata(
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(lens, dtype=torch.int32),
        torch.tensor([t + [0] * (max(widths) - len(t)) for t in tables], dtype=torch.int32),
        torch.tensor(slots),
        max(n for _, n in pieces),
        max(lens),
    )
    return torch.cat(q_rows), torch.cat(k_rows), torch.cat(v_rows), cache, meta, torch.cat(expected)


CASES = {
    "one decode": [(5, 1)],
    "one prefill": [(0, 7)],
    "a chunk with history": [(4, 3)],
    "a prompt of one token": [(0, 1)],
    "decodes of unequal length": [(1, 1), (9, 1), (30, 1)],
    "everything in one batch": [(0, 6), (7, 1), (3, 4), (0, 1), (19, 1), (16, 5)],
}


@pytest.mark.parametrize("block_size", [1, 3, 8, 16])
@pytest.mark.parametrize("name", CASES)
def test_equals_dense_attention(name, block_size):
    rng = random.Random(f"{name}/{block_size}")
    q, k, v, cache, meta, expected = ragged_case(rng, block_size, 6, 2, 8, CASES[name])
    out = TorchPagedAttention().forward(q, k, v, cache, meta)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_random_batches_and_group_sizes(seed):
    rng = random.Random(seed)
    kv_heads = rng.choice([1, 2, 3])
    heads = kv_heads * rng.choice([1, 3, 4, 7])
    pieces = [(rng.choice([0, rng.randrange(40)]), rng.choice([1, 1, rng.randrange(1, 20)])) for _ in range(6)]
    q, k, v, cache, meta, expected = ragged_case(rng, rng.choice([1, 4, 16]), heads, kv_heads, 16, pieces)
    backend = TorchPagedAttention()
    torch.testing.assert_close(backend.forward(q, k, v, cache, meta), expected, atol=1e-12, rtol=1e-12)
    # The second layer of the same step reuses what the first prepared.
    torch.testing.assert_close(backend.forward(q, k, v, cache, meta), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("window", [1, 4, 7, 16, 100])
@pytest.mark.parametrize("block_size", [1, 3, 8])
def test_a_window_and_blocks_given_back(window, block_size):
    rng = random.Random(f"{window}/{block_size}")
    pieces = [(0, 6), (7, 1), (3, 4), (0, 1), (29, 1), (16, 5), (22, 3)]
    q, k, v, cache, meta, expected = ragged_case(rng, block_size, 6, 2, 8, pieces, window)
    out = TorchPagedAttention(window).forward(q, k, v, cache, meta)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)


def test_writes_only_its_own_slots():
    rng = random.Random(1)
    q, k, v, cache, meta, _ = ragged_case(rng, 4, 2, 1, 8, [(5, 2), (3, 1)])
    cache.nan_to_num_(nan=7.0)
    before = cache.clone()
    TorchPagedAttention().forward(q, k, v, cache, meta)
    changed = (cache != before).flatten(3).any(-1)  # [2, blocks, block_size]
    touched = {int(b) * 4 + int(o) for _, b, o in changed.nonzero()}
    assert touched == set(meta.slot_mapping.tolist())
