"""K and V land in their slots, and nowhere else. Knows no attention."""

import pytest
import torch

from mini_vllm.kernels.kv_store import store_kv

SHAPES = [(1, 64), (2, 80), (3, 96), (8, 16), (1, 256), (5, 3)]  # num_kv_heads, head_dim


def filled(num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype=torch.float32) -> torch.Tensor:
    """A cache in the middle of memory: what a wrong slot -1 writes before its start harms no test but its own."""
    shape = (2, num_blocks, block_size, num_kv_heads, head_dim)
    return torch.full((4, *shape[1:]), -7.0, dtype=dtype)[1:3]


def stored(k, v, kv_cache, slots) -> torch.Tensor:
    """What plain indexing makes of the cache; slot -1 is left out."""
    right = kv_cache.clone()
    flat = right.view(2, -1, *right.shape[3:])
    live = slots >= 0
    flat[0, slots[live]] = k[live]
    flat[1, slots[live]] = v[live]
    return right


def test_two_tokens_by_eye():
    cache = filled(2, 2, 1, 1)
    k = torch.tensor([10.0, 20.0]).view(2, 1, 1)
    store_kv(k, k + 1, cache, torch.tensor([3, 1]))
    assert cache[0].flatten().tolist() == [-7, 20, -7, 10]
    assert cache[1].flatten().tolist() == [-7, 21, -7, 11]


def test_slot_minus_one_writes_nothing():
    cache = filled(2, 2, 1, 1)
    k = torch.ones(3, 1, 1)
    store_kv(k, k, cache, torch.tensor([-1, 0, -1]))
    assert cache[0].flatten().tolist() == [1, -7, -7, -7]


@pytest.mark.parametrize(("num_kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_every_shape_and_dtype_exactly(num_kv_heads, head_dim, dtype):
    rng = torch.Generator().manual_seed(head_dim)
    k = torch.randn(6, num_kv_heads, head_dim, generator=rng).to(dtype)
    v = torch.randn(6, num_kv_heads, head_dim, generator=rng).to(dtype)
    slots = torch.randperm(5 * 3, generator=rng)[:6]
    slots[2] = -1
    cache = filled(5, 3, num_kv_heads, head_dim, dtype)
    right = stored(k, v, cache, slots)
    store_kv(k, v, cache, slots)
    assert torch.equal(cache, right)


def test_strided_views_of_a_joined_projection():
    """q, k and v of one matrix product: [T, H + 2 Hkv, D], and here each second token of it."""
    qkv = torch.arange(4 * 5 * 8, dtype=torch.float32).view(4, 5, 8)[::2]
    k, v = qkv[:, 1:3], qkv[:, 3:5]
    slots = torch.tensor([1, 4])
    cache = filled(3, 2, 2, 8)
    right = stored(k, v, cache, slots)
    store_kv(k, v, cache, slots)
    assert torch.equal(cache, right)


def test_no_tokens():
    cache = filled(1, 2, 1, 4)
    store_kv(torch.empty(0, 1, 4), torch.empty(0, 1, 4), cache, torch.empty(0, dtype=torch.int64))
    assert (cache == -7).all()


K = torch.zeros(2, 1, 4)
SLOTS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("k", "v", "cache", "slots", "said"),
    [
        (K, K[:1], filled(1, 2, 1, 4), SLOTS, r"k \(2, 1, 4\) and v \(1, 1, 4\)"),
        (K, K, filled(1, 2, 2, 4), SLOTS, r"cache's last\s+two numbers \(2, 4\)"),
        (K, K, filled(1, 2, 1, 4), SLOTS[:1], r"slot_mapping \(1,\)"),
        (K, K, filled(1, 2, 1, 4).half(), SLOTS, "cache torch.float16 must be of one dtype"),
        (K, K, filled(1, 2, 1, 4), SLOTS.int(), r"torch.int32.*slot_mapping.long\(\)"),
        (K[:, :, ::2], K[:, :, :2], filled(1, 2, 1, 2), SLOTS, "side by side"),
        (K, K, filled(2, 2, 1, 4).transpose(1, 2), SLOTS, "contiguous"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(k, v, cache, slots, said):
    with pytest.raises(ValueError, match=said):
        store_kv(k, v, cache, slots)
