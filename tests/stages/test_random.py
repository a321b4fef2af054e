"""Random workloads on every stage: watched, books checked after every step; and neighbours that must decide the same.

A stage differs from the one before only by what its chapter brings. Where that cannot matter, the two traces are equal.
"""

import random
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.integrity import check_integrity
from mini_vllm.errors import KVPoolExhaustedError
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.stages import STAGES, load_stage
from mini_vllm.trace.diff import diff

SEEDS = range(40)
LONGEST_PROMPT, MAX_MODEL_LEN = 16, 28
every = pytest.mark.parametrize("chapter", STAGES)
EVERY_SEED = pytest.mark.parametrize("seed", SEEDS)


def watched(cls):
    """The stage with its books checked whenever something has changed."""

    class Checked(cls):
        def schedule(self):
            plan = super().schedule()
            check_integrity(self)
            return plan

        def update_from_output(self, plan, output):
            news = super().update_from_output(plan, output)
            check_integrity(self)
            return news

    return Checked


def workload(rng):
    prefixes = [(), tuple(range(500, 510)), tuple(range(700, 716))]
    return [
        SimRequest(
            f"R{i}",
            rng.randint(1, LONGEST_PROMPT),
            rng.randint(1, 16),
            arrival_step=rng.choice((0, 0, rng.randint(0, 20))),
            priority=rng.randint(0, 2),
            prefix=rng.choice(prefixes),
        )
        for i in range(rng.randint(1, 12))
    ]


def limits(rng):
    """Tight, but so that each request could run alone, whole and come back whole."""
    block_size, max_num_seqs = rng.randint(1, 5), rng.randint(1, 6)
    return SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=MAX_MODEL_LEN + rng.choice((0, 0, 4, 20)),
        max_model_len=MAX_MODEL_LEN,
        num_gpu_blocks=-(-MAX_MODEL_LEN // block_size) + rng.choice((0, 1, 2, 4, 30)),
        block_size=block_size,
        enable_prefix_caching=rng.random() < 0.5,
        policy=rng.choice(("fcfs", "priority")),
        watermark=rng.choice((0.0, 0.0, 0.1, 0.3)),
        reserve_full_isl=rng.random() < 0.7,
        sliding_window=rng.choice((None, None, 6)),
        long_prefill_token_threshold=rng.choice((0, 0, 3)),
    )


def ample(config):
    """Neither of the two budgets can bind."""
    blocks = config.max_num_seqs * config.blocks_for(MAX_MODEL_LEN) + 40  # beside what a watermark of 0.3 keeps free
    return replace(config, max_num_batched_tokens=config.max_num_seqs * MAX_MODEL_LEN, num_gpu_blocks=2 * blocks)


def drawn(chapter, seed):
    rng = random.Random(seed)
    requests, config = workload(rng), limits(rng)
    if chapter == 4:
        config = ample(config)
    if chapter >= 9:  # pieces
        config = replace(config, max_num_batched_tokens=config.max_num_seqs + rng.choice((0, 2, 8)))
    return requests, config


def run(chapter, requests, config):
    """The trace; or the error, where a pool runs dry before chapter 8."""
    try:
        return simulate(requests, config, scheduler_cls=watched(load_stage(chapter)))
    except KVPoolExhaustedError as error:
        assert chapter in (6, 7)
        return str(error)


@cache
def runs(chapter):
    return [run(chapter, *drawn(chapter, seed)) for seed in SEEDS]


@every
def test_everybody_gets_all_tokens(chapter):
    for seed, trace in zip(SEEDS, runs(chapter), strict=True):
        if isinstance(trace, str):
            continue
        requests, config = drawn(chapter, seed)
        got = Counter(req_id for step in trace.steps for req_id, tokens in step["sampled"].items() for _ in tokens)
        assert got == {r.request_id: min(r.max_tokens, config.max_model_len - r.prompt_len) for r in requests}
        assert trace.steps[-1]["free_end"] == config.num_gpu_blocks


@every
def test_no_step_is_over_budget_and_who_waits_is_told_why(chapter):
    for seed, trace in zip(SEEDS, runs(chapter), strict=True):
        for step in () if isinstance(trace, str) else trace.steps:
            assert sum(n for _, n in step["scheduled"]) <= drawn(chapter, seed)[1].token_budget
            assert bool(step["waiting"]) == (step["blocked_reason"] is not None)


@pytest.mark.parametrize("chapter", [n for n in STAGES if n < 10])
def test_they_enter_in_the_order_of_their_arrival(chapter):
    for trace in runs(chapter):
        if not isinstance(trace, str):
            arrived = [req_id for step in trace.steps for req_id in step["arrivals"]]
            assert [req_id for step in trace.steps for req_id in step["new"]] == arrived


@pytest.mark.parametrize("chapter", [n for n in STAGES if n < 9])
def test_known_tokens_enter_in_one_piece(chapter):
    for trace in runs(chapter):
        for step in () if isinstance(trace, str) else trace.steps:
            late = set(step["running"]) - {*step["new"], *step["resumed"]}
            assert all(n == 1 for req_id, n in step["scheduled"] if req_id in late)


def test_the_runs_reach_what_each_chapter_is_about():
    """A workload that evicts nobody proves nothing about eviction."""
    seen = {chapter: Counter() for chapter in STAGES}
    for chapter in STAGES:
        for trace in runs(chapter):
            if isinstance(trace, str):
                seen[chapter]["dry"] += 1
                continue
            for step in trace.steps:
                seen[chapter][step["blocked_reason"]] += 1
                seen[chapter]["evicted"] += len(step["preempted"])
                seen[chapter]["hits"] += sum(map(bool, step["hits"].values()))
    assert seen[4]["max_num_seqs"] > 20 and set(seen[4]) <= {None, "max_num_seqs", "evicted", "hits"}
    assert min(seen[5]["token_budget"], seen[5]["kv_reservation"]) > 8
    for chapter in (6, 7):
        assert seen[chapter]["dry"] > 3
    for chapter in (8, 9, 10):
        assert seen[chapter]["evicted"] > 20 and seen[chapter]["preempted_this_step"] > 20
        assert min(seen[chapter][reason] for reason in ("kv_full_sequence", "kv_watermark", "kv_chunk")) > 5, chapter
    assert [bool(seen[chapter]["hits"]) for chapter in STAGES] == [False] * 3 + [True] * 4
    assert not any(seen[chapter]["evicted"] for chapter in (4, 5, 6, 7))


# --- neighbours ---


def same(first, second, requests, config):
    a, b = (run(chapter, requests, config) for chapter in (first, second))
    if isinstance(a, str) or isinstance(b, str):
        assert a == b
    else:
        assert diff(a, b, reasons=True) is None
    return a


@EVERY_SEED
def test_with_ample_budgets_4_to_6_decide_the_same(seed):
    requests, config = drawn(4, seed)
    config = replace(config, sliding_window=None)
    same(4, 5, requests, config)
    same(5, 6, requests, config)


@EVERY_SEED
def test_without_a_cache_7_is_6(seed):
    requests, config = drawn(6, seed)
    same(6, 7, requests, replace(config, enable_prefix_caching=False))


@EVERY_SEED
def test_while_nobody_runs_dry_8_is_7(seed):
    requests, config = drawn(7, seed)
    trace = run(7, requests, config)
    if isinstance(trace, str):
        assert any(step["preempted"] for step in run(8, requests, config).steps)
    else:
        assert diff(trace, run(8, requests, config), reasons=True) is None


@EVERY_SEED
def test_without_chunks_9_is_8(seed):
    requests, config = drawn(8, seed)
    same(8, 9, requests, replace(config, enable_chunked_prefill=False, long_prefill_token_threshold=0))


@EVERY_SEED
def test_by_arrival_10_is_9(seed):
    requests, config = drawn(9, seed)
    same(9, 10, requests, replace(config, policy="fcfs"))
