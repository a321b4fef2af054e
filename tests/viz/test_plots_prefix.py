"""Chains and pools as drawn: every name once, forks where tokens part, the queue in its order. Knows no run."""

import pytest
from matplotlib.colors import to_hex

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.errors import ConfigError
from mini_vllm.request import Request
from mini_vllm.viz.plots import free_queue, hash_chains, pool_state
from mini_vllm.viz.prefix_plots import OWN, SHARED

ALT = "a picture of a prefix cache, drawn to be tested"
START = [1, 2, 3, 4, 5, 6, 7, 8]
A, B = Request("A", [*START, 9]), Request("B", [*START, 20, 21, 22, 23])
SALTED = Request("S", START, cache_salt="bob")


def texts(picture) -> list[str]:
    [ax] = picture.figure.axes
    return [text.get_text() for text in ax.texts]


def fills(picture) -> list[str]:
    [ax] = picture.figure.axes
    return [to_hex(patch.get_facecolor()).upper() for patch in ax.patches]


def test_a_shared_beginning_is_drawn_once_and_forks():
    picture = hash_chains([A, B, SALTED], 4, alt=ALT)
    shown = texts(picture)
    assert shown.count("1 2 3 4") == shown.count("5 6 7 8") == 2, "once for A and B, once under the salt"
    assert shown.count("20 21 22 23") == 1 and shown.count("no name") == 1 and "9" in shown
    assert {"root", "salt 'bob'", "A", "B", "S"} <= set(shown)
    assert fills(picture).count(SHARED) == 2 and fills(picture).count(OWN) == 3


def test_names_are_those_of_the_cache():
    hash_chains([A], 4, alt=ALT)
    shown = texts(hash_chains([A], 4, alt=ALT))
    assert [text for text in shown if text.endswith("…")] == [h[:2].hex() + "…" for h in A.block_hashes]


def test_chains_refuse_what_they_cannot_hold():
    with pytest.raises(ConfigError, match="0 requests cannot be drawn"):
        hash_chains([], 4, alt=ALT)
    with pytest.raises(ConfigError, match="B has 6 full blocks; the picture holds 4: shorten it"):
        hash_chains([B], 2, alt=ALT)


def pool_of(num_blocks: int):
    config = SchedulerConfig(enable_prefix_caching=True, num_gpu_blocks=num_blocks)
    manager = KVCacheManager(config)
    for request in (A, B):
        hits = manager.get_computed_blocks(request)
        manager.allocate_slots(request, request.num_tokens - 4 * len(hits), hits=hits)
    return manager


def test_a_pool_is_drawn_with_owners_and_in_the_order_of_its_queue():
    manager = pool_of(6)
    moments = {"both run": pool_state(manager.block_pool)}
    manager.free(A)
    manager.free(B)
    moments["both done"] = pool_state(manager.block_pool)
    assert [block for block, _, _ in moments["both done"].free] == manager.block_pool.free_queue()
    shown = texts(free_queue(moments, names={A.block_hashes[0]: "A1"}, alt=ALT))
    assert {"1 ×2", "2 ×2", "3 ×1", "4 ×1", "both run", "both done"} <= set(shown)
    order = [text for text in shown[shown.index("both done") :] if text.isdigit()]
    assert order == ["3", "5", "6", "4", "2", "1"]
    assert shown.count("A1") == 2 and shown.count("↑ taken next") == 2


def test_a_moment_stays_as_it_was():
    manager = pool_of(6)
    before = pool_state(manager.block_pool)
    manager.free(A)
    assert before != pool_state(manager.block_pool) and before.in_use[0] == (1, A.block_hashes[0], 2)


def test_pools_refuse_what_they_cannot_hold():
    with pytest.raises(ConfigError, match="nothing to draw"):
        free_queue({}, alt=ALT)
    with pytest.raises(ConfigError, match="a pool of 11 blocks is too large to draw; 10 fit"):
        free_queue({"now": pool_state(pool_of(11).block_pool)}, alt=ALT)
