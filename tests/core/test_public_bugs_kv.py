"""Public bug reports about KV blocks and the prefix cache: ours does the right thing. Knows no model.

One test per case of `facts/public_bugs.json`, named by its id, driven from outside through `World`; what does not apply
stands at the head of test_public_bugs.py. Blocks hold 4 tokens unless said.
"""

import random
from functools import partial

import pytest

from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import ConfigError
from mini_vllm.stages.ch10_priority_aging import Scheduler as ClearForm
from tests.core.public_bugs_world import VOCABULARY, World, resumed_with, solo


@pytest.fixture(params=[Scheduler, ClearForm], ids=["core", "clear"])
def world(request):
    """Builds a world; both forms of the scheduler must pass."""
    return partial(World, request.param)


@pytest.fixture
def caching(world):
    return partial(world, enable_prefix_caching=True)


PREFIX = list(range(12))


def test_a04_the_chunk_is_what_the_hit_leaves(caching):
    """Stale cached count (nano-vllm#207, #211, #233): B computes exactly its 2 tokens behind the hit."""
    w = caching(num_gpu_blocks=8)
    w.add("A", PREFIX, 1)
    w.drain()
    w.add("B", [*PREFIX, 99, 98], 8)
    assert w.step() == {"B": 2}
    assert w.hits("B") == 12
    w.drain()
    assert w.outputs_are_right()


def test_a04_also_when_it_resumes(caching):
    """Stale cached count (nano-vllm#207, #211, #233): after a preemption, scheduled = known tokens - hit."""
    w = caching(num_gpu_blocks=8)
    w.add("A", PREFIX, 1)
    w.drain()
    w.add("hog", 15, 3)
    w.add("B", [*PREFIX, 99, 98], 8)
    for _ in range(3):
        w.step()
    assert (w.plans[-1].preempted_req_ids, w.requests["B"].num_tokens) == (["B"], 16)
    assert w.step() == {"B": 4}
    cached = w.plans[-1].scheduled_cached_reqs
    assert (cached.resumed_req_ids, cached.num_computed_tokens) == (["B"], [12])
    w.drain()
    assert w.outputs_are_right()


@pytest.mark.parametrize(("prompt_len", "hit"), [(4, 0), (8, 4), (12, 8)])
def test_a05_a_hit_never_covers_the_whole_prompt(caching, prompt_len, hit):
    """Hit covers the whole prompt (nano-vllm#144, #117; vllm#17999, #11186): the last block is computed again."""
    w = caching(num_gpu_blocks=8)
    prompt = list(range(prompt_len))
    w.add("A", prompt, 2)
    w.drain()
    w.add("B", prompt, 2)
    assert w.step() == {"B": 4}
    assert w.hits("B") == hit
    w.drain()
    w.add("C", [*prompt, 77], 2)  # the chain is whole: a longer one hits all of it
    assert w.step() == {"C": 1}
    w.drain()
    assert w.outputs["A"] == w.outputs["B"]
    assert w.outputs_are_right()


def test_a15_the_watermark_holds_back_newcomers_not_growth(world):
    """Watermark (vllm#44594, #11, #255): it asks newcomers beside others for head-room, and nobody else."""
    w = world(num_gpu_blocks=10, watermark=0.2)  # 2 blocks
    w.add("r0", 36, 5)
    assert w.step() == {"r0": 36}  # (i) alone: 9 of 10 blocks, no head-room asked
    assert w.step() == {"r0": 1}  # (iii) it grows into the reserve
    assert w.free == 0
    w.drain()
    w.add("r1", 19, 2)
    w.step()
    w.add("r2", 16, 1)
    assert w.step() == {"r1": 1}  # (ii) of 5 free blocks 4 would leave 1; now r1 ends
    assert w.plans[-1].blocked_reason in ("kv_watermark", "kv")  # the clear form has one word for all three
    assert w.step() == {"r2": 16}
    w.drain()


@pytest.mark.parametrize("watermark", [1.0, -0.1])
def test_a15_a_watermark_that_admits_nobody_is_refused(world, watermark):
    """Watermark (vllm#44594, #11, #255): a share of the pool, at least 0 and below 1."""
    with pytest.raises(ConfigError, match=f"watermark={watermark} must be a share"):
        world(watermark=watermark)


def test_a16_hits_that_stand_in_the_free_queue_are_not_free(caching):
    """Hit blocks counted as free (vllm#10507, #11565, #11310): 5 free less 3 hits are 2, and B needs 3 more."""
    w = caching(num_gpu_blocks=6)
    w.add("A", PREFIX, 1)
    w.add("D", 2, 3)
    w.step()
    w.add("B", [*PREFIX, *range(50, 62)], 1)
    pool = w.scheduler.kv_cache_manager.block_pool
    queue, cached, counts = pool.free_queue(), dict(pool.cached), list(pool.ref_count)
    assert (len(queue), len(cached)) == (5, 3)
    for _ in range(2):
        assert w.step() == {"D": 1}
        assert w.plans[-1].blocked_reason.startswith("kv")
        assert w.ends["D"] or (pool.free_queue(), pool.cached, pool.ref_count) == (queue, cached, counts)
    assert w.step() == {"B": 12}
    assert w.hits("B") == 12
    assert w.plans[-1].scheduled_new_reqs[0].block_ids[:3] == [1, 2, 3]
    w.drain()
    assert w.outputs_are_right()


def test_a17_the_tail_of_a_chain_is_evicted_before_its_head(caching):
    """Eviction order within a chain (llm-d-inference-sim#704, LMCache#443): C takes A's last block, 8 tokens hit."""
    w = caching(num_gpu_blocks=3)
    w.add("A", PREFIX, 1)
    w.step()
    last_block = w.plans[0].scheduled_new_reqs[0].block_ids[-1]
    w.add("C", 3, 1)
    w.step()
    assert w.plans[-1].scheduled_new_reqs[0].block_ids == [last_block]
    w.add("A again", PREFIX, 1)
    assert w.step() == {"A again": 4}
    assert w.hits("A again") == 8
    w.drain()
    assert w.outputs_are_right()


def test_a19_salts_and_adapters_are_domains_of_their_own(caching):
    """Cache key domains (vllm#44701, #30931; sglang#24638): equal words in different places share nothing."""
    w = caching()
    domains = {
        "r1": {"adapter": "x"},
        "r2": {"cache_salt": "x"},
        "r3": {},
        "r4": {"cache_salt": "x"},  # as r2
        "r5": {"cache_salt": ""},  # documented: an empty salt is a salt
        "r6": {"adapter": "x"},  # as r1
        "r7": {"adapter": "b", "cache_salt": "xa"},
        "r8": {"adapter": "ab", "cache_salt": "x"},  # joined without a border it would be r7
        "r9": {},  # as r3
    }
    for req_id, domain in domains.items():
        w.add(req_id, range(8), 1, **domain)
        w.drain()
    hits = {req_id: w.hits(req_id) for req_id in domains}
    assert hits == {"r1": 0, "r2": 0, "r3": 0, "r4": 4, "r5": 0, "r6": 4, "r7": 0, "r8": 0, "r9": 4}
    assert w.outputs_are_right()  # in this world KV depends on the adapter
    assert w.outputs["r1"] != w.outputs["r3"]


def test_a21_own_blocks_found_again_are_not_prefix_hits(caching):
    """Recompute counted as hits (vllm#25780, #25787, #36757; LMCache#2912): hits 0; each prompt is new once."""
    w = caching(num_gpu_blocks=10, max_num_batched_tokens=8)
    w.add("r1", 12, 24)
    w.add("r2", 20, 12)
    w.drain()
    new = [data for plan in w.plans for data in plan.scheduled_new_reqs]
    assert {data.req_id: len(data.prompt_token_ids) for data in new} == {"r1": 12, "r2": 20}
    assert len(new) == 2
    assert sum(data.num_computed_tokens for data in new) == 0
    own = [n for plan in w.plans for n in resumed_with(plan).values()]
    assert own and all(own)  # self-reuse is there, and told apart
    assert w.outputs_are_right()


def rejecting(prompt, known: list[int]) -> list[int]:
    """Three drafts of which the first is wrong."""
    return [(solo(prompt, len(known) + 1)[-1] + 1) % VOCABULARY] * 3


def test_a24_rejected_drafts_are_not_published():
    """Rejected drafts and caching (vllm#18668, #12193): computed rolls back to 7, only the accepted block is shared."""
    w = World(Scheduler, num_speculative_tokens=3, enable_prefix_caching=True, num_gpu_blocks=16)
    w.drafter = partial(rejecting, range(6))
    r = w.add("r", range(6), 9)
    w.step()
    assert r.num_tokens == 7
    assert w.step() == {"r": 4}  # positions 6..9
    assert (r.num_tokens, r.num_computed_tokens) == (8, 7)
    pool = w.scheduler.kv_cache_manager.block_pool
    assert [b for b in w.blocks("r") if pool.hash_of[b] is not None] == w.blocks("r")[:1]
    w.drafter = None
    w.add("same", r.token_ids, 3)  # 8 tokens
    w.step()
    assert w.hits("same") == 4
    assert w.writes.count(("r", 7)) == 2  # the rejected draft's slot is written again
    w.drain()
    assert w.outputs_are_right()


def test_a24_a_block_is_published_as_soon_as_its_last_token_is_accepted():
    """Rejected drafts and caching (vllm#18668, #12193): nor too few: with position 7 computed, block 1 is shared."""
    w = World(Scheduler, num_speculative_tokens=3, enable_prefix_caching=True, num_gpu_blocks=16)
    w.drafter = partial(rejecting, range(6))
    r = w.add("r", range(6), 9)
    w.step()
    w.drafter = None
    w.step()
    assert (r.num_tokens, r.num_computed_tokens) == (8, 7)
    assert w.step() == {"r": 1}
    assert r.num_computed_tokens == 8
    w.add("same", r.token_ids, 3)  # 9 tokens, 8 of them in full blocks
    w.step()
    assert w.hits("same") == 8
    w.drain()
    assert w.outputs_are_right()


def test_a24_accepted_drafts_count_as_computed():
    """Rejected drafts and caching (vllm#18668, #12193): right drafts give the same tokens in fewer steps."""
    w = World(Scheduler, num_speculative_tokens=3, enable_prefix_caching=True, num_gpu_blocks=16)
    w.drafter = lambda known: solo(range(6), len(known) + 3)[-3:]
    r = w.add("r", range(6), 9)
    w.drain()
    assert len(w.plans) == 3  # 1 + 4 + 4 tokens
    w.drafter = None
    w.add("same", r.token_ids, 1)  # of 15 tokens 14 were computed, the last block in r's last step
    w.drain()
    assert w.hits("same") == 12
    assert w.outputs_are_right()


def test_a24_padding_is_cut_with_the_piece():
    """Rejected drafts and caching (vllm#18668, #12193): an admission padded to 1 + k is cut by the chunk threshold."""
    w = World(
        Scheduler, num_speculative_tokens=3, enable_prefix_caching=True, max_num_seqs=2, long_prefill_token_threshold=2
    )  # fmt: skip
    w.add("a", range(5), 1)
    w.drain()
    w.add("other", 2, 8)
    w.step()
    b = w.add("b", range(5), 4)  # 4 tokens hit, 1 to compute, padded with 3 to 4, cut to 2
    plan = w.plan()
    assert len(plan.scheduled_spec_decode_tokens.get("b", [])) < plan.num_scheduled_tokens["b"]
    w.finish_step()
    assert (b.num_tokens, b.num_computed_tokens) == (6, 5)  # not less than before: the hit block is not its own
    w.drain()
    assert w.outputs_are_right()
    assert min(position for req_id, position in w.writes if req_id == "b") == 4


def test_a37_a_resumed_request_asks_for_the_blocks_of_all_its_tokens(world):
    """Whole-block arithmetic (sglang#7434, #9989, #4977): 13 tokens are 4 blocks: not with 3 or 2 free, but with 4."""
    w = world(num_gpu_blocks=6, policy="priority")
    w.add("r2", 6, 12, priority=9)
    for _ in range(6):
        w.step()
    w.add("X", 2, 6)
    w.add("Y", 5, 4)
    w.step()
    w.step()
    assert (w.plans[-1].preempted_req_ids, w.requests["r2"].num_tokens) == (["r2"], 13)
    seen = [w.free]
    for _ in range(2):
        assert w.step() == {"X": 1, "Y": 1}
        assert w.plans[-1].blocked_reason.startswith("kv")
        seen.append(w.free)
    assert seen == [3, 3, 4]  # before the third there were 2: X had taken one, and Y ended after it
    assert w.step() == {"X": 1, "r2": 13}
    assert len(w.blocks("r2")) == 4
    w.drain()
    assert w.outputs_are_right()


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_a37_blocks_are_conserved_over_500_steps(world, block_size):
    """Whole-block arithmetic (sglang#7434, #9989, #4977): free + held = N in each step, and everything finishes."""
    rng = random.Random(block_size)
    w = world(
        block_size=block_size, num_gpu_blocks=-(-40 // block_size), max_num_seqs=4, max_num_batched_tokens=8,
        enable_prefix_caching=True,
    )  # fmt: skip
    added = 0
    while len(w.plans) < 500:
        if len(w.waiting()) < 3:
            w.add(f"r{added}", [rng.randrange(2) for _ in range(rng.randint(1, 20))], rng.randint(1, 20))
            added += 1
        w.step()
    w.drain()
    assert w.outputs_are_right()
    assert w.num_preemptions > 5
