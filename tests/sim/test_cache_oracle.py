"""The cache that knows the future, on traces small enough for paper; and never behind the real order of eviction."""

import random

import pytest

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.errors import ConfigError
from mini_vllm.sim.cache_oracle import oracle_hit_rate
from mini_vllm.sim.trace_files import MOONCAKE_BLOCK, TraceWorkload, load_trace, unlimited_hit_rate
from mini_vllm.sim.workloads import Arrival


def trace(*prompts: str, tail: int = 1) -> TraceWorkload:
    """Prompts as letters, one a block; each ends with `tail` tokens of its own."""
    rows = []
    for number, prompt in enumerate(prompts):
        segments = [(ord(letter), MOONCAKE_BLOCK) for letter in prompt] + [(1000 + number, tail)] * (tail > 0)
        rows.append(Arrival(0.0, sum(size for _, size in segments), 1, segments=tuple(segments)))
    return TraceWorkload("test", tuple(rows))


def found(workload: TraceWorkload, num_blocks: int) -> int:
    """Blocks found in all."""
    total = sum(row.prompt_tokens for row in workload.rows)
    return round(oracle_hit_rate(workload, num_blocks) * total / MOONCAKE_BLOCK)


def by_the_pool(workload: TraceWorkload, num_blocks: int) -> int:
    pool, hits = BlockPool(num_blocks), 0
    for row in workload.rows:
        names = [content.to_bytes(8, "little") for content, size in row.segments if size == MOONCAKE_BLOCK]
        blocks = []
        for name in names[: (row.prompt_tokens - 1) // MOONCAKE_BLOCK]:
            if (block := pool.find(name)) is None:
                break
            blocks.append(block)
        pool.touch(blocks)
        fresh = pool.take(len(row.segments) - len(blocks))
        for block, name in zip(fresh, names[len(blocks) :], strict=False):
            pool.register(block, name)
        pool.free([*blocks, *fresh][::-1])
        hits += len(blocks)
    return hits


def test_it_keeps_what_comes_back_soonest():
    # Room for two blocks: of A, B, C only A and B come back. LRU has lost A when it comes.
    assert found(trace("A", "B", "C", "A", "B"), 2) == 2
    assert found(trace("A", "B", "C", "A", "B"), 1) == 1


def test_it_keeps_the_front_of_a_chain():
    assert found(trace("ABC", "XY", "ABC"), 2) == 2, "A and B; C behind them is what goes"


def test_a_block_is_found_only_behind_the_ones_before_it():
    # B comes back without A before it, which a real trace never says; nobody may reach it.
    assert found(trace("AB", "XB", "AB"), 9) == 2


def test_one_token_at_least_is_computed():
    assert found(trace("AB", "AB", tail=0), 9) == 1 and found(trace("AB", "AB"), 9) == 2


def test_an_endless_oracle_finds_what_an_endless_cache_finds():
    for name in ("mooncake-conversation", "mooncake-synthetic"):
        sample = load_trace(name).first(300)
        assert oracle_hit_rate(sample, 10**6) == pytest.approx(unlimited_hit_rate(sample), abs=1e-4)


def test_it_is_never_behind_the_pool():
    rng = random.Random(4)
    for _ in range(60):
        texts = ["".join(rng.choice("abcdefgh") + str(rng.randint(0, 1)) for _ in range(3)) for _ in range(4)]
        # Equal letters mean equal text before: a name is the whole prefix, as in a real trace.
        names: dict[str, int] = {}
        rows = []
        for _ in range(25):
            text = rng.choice(texts)[: 2 * rng.randint(1, 3)]
            ids = [names.setdefault(text[:end], len(names) + 1) for end in range(2, len(text) + 1, 2)]
            segments = [*((i, MOONCAKE_BLOCK) for i in ids), (10_000 + len(rows), 1)]
            rows.append(Arrival(0.0, MOONCAKE_BLOCK * len(ids) + 1, 1, segments=tuple(segments)))
        workload = TraceWorkload("random", tuple(rows))
        # The pool also needs a block for each tail, so it gets one more.
        assert all(found(workload, size) >= by_the_pool(workload, size + 1) - 1 for size in (4, 6, 8))


def test_a_trace_without_content_is_refused():
    with pytest.raises(ConfigError, match="says nothing about the content"):
        oracle_hit_rate(load_trace("azure-code").first(5), 10)
