"""The probes of `facts/performance.md` §1, which other small engines failed: ours passes each. Knows no model.

At the level of blocks, with the tokens that `World` draws from what stands in them.
"""

from functools import partial

import pytest

from mini_vllm.core.scheduler import Scheduler
from mini_vllm.stages.ch10_priority_aging import Scheduler as ClearForm
from tests.core.public_bugs_world import World


@pytest.fixture(params=[Scheduler, ClearForm], ids=["core", "clear"])
def world(request):
    """Builds a world; both forms of the scheduler must pass."""
    return partial(World, request.param)


@pytest.fixture
def caching(world):
    return partial(world, enable_prefix_caching=True)


def test_probe_equal_blocks_after_different_blocks_are_not_shared(caching):
    """mini-vllm shared block 1 of two prompts whose block 0 differs: a block's name must cover its whole prefix."""
    w = caching()
    w.add("a", [1, 2, 3, 4, 9, 9, 9, 9, 5], 4)
    w.drain()
    w.add("b", [4, 3, 2, 1, 9, 9, 9, 9, 5], 4)
    assert w.step() == {"b": 9}
    w.add("c", [1, 2, 3, 4, 9, 9, 9, 9, 6], 4)
    w.drain()
    assert (w.hits("b"), w.hits("c")) == (0, 8)
    assert w.outputs_are_right()


def test_probe_20_blocks_4_requests_of_64_and_64(world):
    """mini-vllm ran out of memory at step 16: too little room for all must end in preemptions, not in an error."""
    w = world(block_size=16, num_gpu_blocks=20, max_num_batched_tokens=512)
    for i in range(4):
        w.add(f"r{i}", 64, 64)
    w.drain()
    assert w.outputs_are_right()
    assert 1 <= w.num_preemptions <= 4  # whole-sequence admission: no thrash


def test_probe_16_requests_of_60_to_75_and_64_with_60_blocks(world):
    """nano-vllm-fork, kvstream fail it; inferris thrashes (438 preemptions); nano-vllm: 130 steps, 7 preemptions."""
    w = world(block_size=16, num_gpu_blocks=60, max_num_seqs=16, max_num_batched_tokens=4096, max_model_len=512)
    for i in range(16):
        w.add(f"r{i}", 60 + i, 64)
    w.drain()
    assert w.outputs_are_right()
    assert {len(tokens) for tokens in w.outputs.values()} == {64}
    assert len(w.plans) <= 130
    assert w.num_preemptions <= 16


def test_probe_those_who_join_a_running_request_get_their_own_tokens(world):
    """smol-vllm gave 3 of 3 the tokens of another: outputs are joined by id, not by position."""
    w = world()
    w.add("first", 3, 12)
    w.step()
    w.step()
    for name in "xyz":
        w.add(name, 5, 6)
    w.drain()
    assert w.outputs_are_right()
    assert len({tuple(tokens[:6]) for tokens in w.outputs.values()}) == 4


def test_probe_a_shared_prefix_of_48_tokens_changes_no_output(world):
    """mini-infer's outputs differed with the cache on, and for the repeated first prompt."""
    prompts = [[*range(48), 100 + i, *range(i)] for i in range(3)] + [[*range(48), 100]]
    outputs = []
    for enable_prefix_caching in (False, True):
        w = world(block_size=16, enable_prefix_caching=enable_prefix_caching)
        for i, prompt in enumerate(prompts):
            w.add(f"r{i}", prompt, 8)
            w.drain()
        assert [w.hits(f"r{i}") for i in range(4)] == [0, *[48 * enable_prefix_caching] * 3]
        outputs.append(w.outputs)
    assert outputs[0] == outputs[1]
    assert outputs[1]["r0"] == outputs[1]["r3"]
    assert w.outputs_are_right()


@pytest.mark.parametrize("at_once", [False, True])
def test_probe_6_distinct_prompts_of_64_tokens_with_14_blocks(caching, at_once):
    """mini-infer had a MemoryError at the 4th, since nothing was evicted: idle cached blocks are room."""
    w = caching(block_size=16, num_gpu_blocks=14, max_num_batched_tokens=512)
    for i in range(6):
        w.add(f"r{i}", 64, 4)
        if not at_once:
            w.drain()
    w.drain()
    assert w.outputs_are_right()
    assert len(w.scheduler.kv_cache_manager.block_pool.cached) <= 14
