"""One conformance test for every attention backend: the kernels' reference, on ragged batches of every kind.

The Triton backend runs in the interpreter here; tests/conftest.py chooses it.
"""

import random

import pytest
import torch

from mini_vllm.engine.attention.backend import AttentionMetadata
from mini_vllm.engine.attention.torch import TorchPagedAttention
from mini_vllm.kernels.reference import TOLERANCE, max_error, paged_attention

NUM_SMS = {"triton": 1, "triton, split": 200}  # so many that every context of 512 tokens is cut
BACKENDS = ("torch", *NUM_SMS)


def make_backend(name, heads, kv_heads, head_dim, dtype, window=None):
    if name == "torch":
        return TorchPagedAttention(window)
    pytest.importorskip("triton")
    from mini_vllm.engine.attention.triton import TritonPagedAttention

    backend = TritonPagedAttention(heads, kv_heads, head_dim, dtype, "cpu", window)
    backend.num_sms = NUM_SMS[name]
    return backend


def ragged_batch(seed, pieces, heads, kv_heads, head_dim, block_size, dtype, window=None):
    """q, k, v, cache and metadata for pieces (history, new tokens); whatever nobody may look at holds NaN."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    tokens = sum(n for _, n in pieces)
    # As the joined product of q, k and v leaves them: views of one row.
    q, k, v = rand(tokens, heads + 2 * kv_heads, head_dim).split((heads, kv_heads, kv_heads), dim=1)
    widths = [-(-(history + n) // block_size) for history, n in pieces]
    blocks = rng.sample(range(1, sum(widths) + 4), sum(widths))
    cache = torch.full((2, sum(widths) + 4, block_size, kv_heads, head_dim), torch.nan, dtype=dtype)
    cache[:, 0] = 0.0  # the null block
    flat, slots, starts, tables = cache.view(2, -1, kv_heads, head_dim), [], [0], []
    for (history, n), width in zip(pieces, widths, strict=True):
        table = [blocks.pop() for _ in range(width)]
        mine = [table[p // block_size] * block_size + p % block_size for p in range(history + n)]
        seen = mine[max(0, history - window + 1) if window else 0 : history]
        flat[:, seen] = rand(2, len(seen), kv_heads, head_dim)
        slots += mine[history:]
        starts.append(starts[-1] + n)
        tables.append(table + [0] * (max(widths) - width))
    lens = [history + n for history, n in pieces]
    meta = AttentionMetadata(
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(lens, dtype=torch.int32),
        torch.tensor(tables, dtype=torch.int32),
        torch.tensor(slots),
        max(n for _, n in pieces),
        max(lens),
    )
    return q, k, v, cache, meta


def check(name, pieces, heads=6, kv_heads=2, head_dim=16, block_size=4, dtype=torch.float32, window=None, seed=0):
    q, k, v, cache, meta = ragged_batch(seed, pieces, heads, kv_heads, head_dim, block_size, dtype, window)
    backend = make_backend(name, heads, kv_heads, head_dim, dtype, window)
    out = backend.forward(q, k, v, cache, meta)
    again = backend.forward(q, k, v, cache, meta)  # the second layer uses what the first has prepared
    assert torch.equal(out, again) and out.shape == q.shape and out.dtype == dtype
    stored = cache.view(2, -1, kv_heads, head_dim)[:, meta.slot_mapping]
    assert torch.equal(stored[0], k) and torch.equal(stored[1], v)
    wide = cache.double().nan_to_num()  # the reference reads what the window hides, too, with weight 0
    lens = meta.query_start_loc, meta.seq_lens, meta.block_table
    expected = paged_attention(q.double(), wide, *lens, sliding_window=window)
    assert max_error(out, expected, meta.query_start_loc) <= TOLERANCE[dtype]
    return meta


CASES = {
    "one decode": [(5, 1)],
    "decodes of unequal length": [(1, 1), (9, 1), (30, 1), (0, 1)],
    "a prompt": [(0, 13)],
    "a chunk with history": [(4, 11)],
    "drafts": [(17, 4), (3, 1), (20, 8), (9, 2)],
    "everything in one batch": [(0, 9), (7, 1), (3, 4), (0, 1), (19, 1), (16, 15), (2, 8)],
}


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(name, case):
    check(name, CASES[case])


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("window", [1, 5, 16])
def test_a_window(name, window):
    check(name, CASES["everything in one batch"], window=window, block_size=3)


@pytest.mark.parametrize("name", BACKENDS)
def test_contexts_long_enough_to_split(name):
    meta = check(name, [(700, 1), (30, 1), (640, 3)], block_size=16)
    if name == "triton, split":
        assert [mine.splits > 1 for mine in meta.scratch["decodes"]] == [True, True]


@pytest.mark.parametrize("name", ["torch", "triton"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(name, dtype):
    check(name, [(9, 1), (0, 11), (6, 3)], heads=4, kv_heads=4, dtype=dtype)


@pytest.mark.parametrize("name", ["torch", "triton"])
@pytest.mark.parametrize("seed", range(4))
def test_random_batches(name, seed):
    rng = random.Random(seed)
    kv_heads, block_size = rng.choice([1, 2]), rng.choice([1, 3, 16])
    pieces = [(rng.choice([0, rng.randrange(40)]), rng.choice([1, 1, 3, rng.randrange(1, 20)])) for _ in range(5)]
    check(name, pieces, kv_heads * rng.choice([1, 3, 4]), kv_heads, 16, block_size, seed=seed)


def routed_backend(**tiles):
    """The backend of a card that has no tile for some kinds of pieces."""
    backend = make_backend("triton", 6, 2, 16, torch.float32)
    for name, tile in tiles.items():
        setattr(backend, name, tile)
    return backend


def test_what_has_no_tile_goes_to_torch():
    from mini_vllm.kernels.tiles import INTERPRETER_DECODE, Routed

    nothing, every = Routed("too small a card"), (1, 2, 4, 8)
    alone = {"decode_tiles": {width: INTERPRETER_DECODE if width == 1 else nothing for width in every}}
    prefill = {"prefill_tile": nothing}
    taken_by_torch = {
        "prefill": (prefill, [9, 15]),
        "drafts, but prefill takes them": (alone, []),
        "drafts and prefill": (alone | prefill, [9, 4, 15, 8]),
        "all": (prefill | {"decode_tiles": dict.fromkeys(every, nothing)}, [9, 1, 4, 1, 1, 15, 8]),
    }
    q, k, v, cache, meta = ragged_batch(3, CASES["everything in one batch"], 6, 2, 16, 4, torch.float32)
    for what, (tiles, query_lens) in taken_by_torch.items():
        backend, meta.scratch = routed_backend(**tiles), {}
        out = backend.forward(q, k, v, cache, meta)
        lens = meta.query_start_loc, meta.seq_lens, meta.block_table
        expected = paged_attention(q.double(), cache.double().nan_to_num(), *lens)
        assert max_error(out, expected, meta.query_start_loc) <= TOLERANCE[torch.float32], what
        assert (meta.scratch["torch"][1].query_lens if meta.scratch["torch"] else []) == query_lens, what
        assert backend.supports_cuda_graphs == (what != "all") and bool(backend.routed) == ("prefill_tile" in tiles)


def test_rows_that_are_nobodys_store_nothing_and_give_zeros():
    q, k, v, cache, meta = ragged_batch(1, [(5, 1), (9, 1)], 6, 2, 16, 4, torch.float32)
    backend = make_backend("triton", 6, 2, 16, torch.float32)
    alone = backend.forward(q, k, v, cache.clone(), meta)
    pad = 3
    padded = AttentionMetadata(
        torch.arange(2 + pad + 1, dtype=torch.int32),
        torch.cat((meta.seq_lens, torch.zeros(pad, dtype=torch.int32))),
        torch.cat((meta.block_table, torch.full((pad, meta.block_table.shape[1]), 99, dtype=torch.int32))),
        torch.cat((meta.slot_mapping, torch.full((pad,), -1))),
        1,
        meta.max_seq_len,
    )
    wide = [torch.cat((x, torch.full_like(x[:1], 7.0).expand(pad, -1, -1))) for x in (q, k, v)]
    before = cache.clone()
    out = backend.forward(*wide, cache, padded)
    assert torch.equal(out[:2], alone) and torch.equal(out[2:], torch.zeros_like(out[2:]))
    changed = (cache != before).logical_and(~(cache.isnan() & before.isnan())).flatten(3).any(-1).any(0).flatten()
    assert changed.nonzero().flatten().tolist() == sorted(meta.slot_mapping.tolist())


def test_lengths_are_read_back_where_the_host_does_not_give_them():
    *_, meta = ragged_batch(0, CASES["drafts"], 6, 2, 16, 4, torch.float32)
    assert meta.query_lens == [4, 1, 8, 2] and meta.context_lens == [21, 4, 28, 11]
