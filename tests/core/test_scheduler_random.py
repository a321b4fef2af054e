"""What must hold for every workload: random budgets, pools, arrivals, stop tokens and aborts, the watch always on.

The worker keeps real slots (`paged_worker.py`), so that a mistake in blocks, positions or recompute changes tokens.
Each property meets 400 seeded workloads that are dense in preemptions, and hypothesis, which finds small failing ones.
"""

import functools
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.config import SchedulerConfig
from tests.core.paged_worker import VOCABULARY, Job, Run, run_jobs

NUM_SEEDS = 400


def pool_that_carries_each(jobs, max_model_len: int, block_size: int) -> int:
    """Blocks of the largest request at its end: the smallest pool in which nobody is stuck for ever."""
    return max(-(-(min(len(j.prompt) + j.max_tokens, max_model_len) - 1) // block_size) for j in jobs)


def seeded_case(seed: int) -> tuple[list[Job], SchedulerConfig]:
    rng = random.Random(seed)
    alike = seed % 4 == 0  # all start together with one full block each, and outgrow it in the same step
    max_model_len, block_size = rng.randint(12, 40), rng.randint(1, 5)
    longest_prompt = min(16, max_model_len - 1)
    jobs = [
        Job(
            f"R{i}",
            tuple(rng.choices(range(VOCABULARY), k=block_size if alike else rng.randint(1, longest_prompt))),
            max_tokens=rng.randint(1, 2 * block_size if alike else 24),
            arrival_step=0 if alike else rng.choice((0, 0, 1, 2, 5, 9)),
            abort_step=rng.randint(0, 25) if rng.random() < 0.2 else None,
            stop_token_ids=(rng.randrange(VOCABULARY),) if rng.random() < 0.2 else (),
        )
        for i in range(rng.randint(3, 8))
    ]
    max_num_seqs = rng.randint(2, 8)
    least = pool_that_carries_each(jobs, max_model_len, block_size)
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + rng.randint(0, 16),
        max_model_len=max_model_len,
        num_gpu_blocks=max(least, min(len(jobs), max_num_seqs)) if alike else least + rng.randint(0, 4),
        block_size=block_size,
    )
    return jobs, config


@functools.cache
def seeded_run(seed: int) -> tuple[list[Job], SchedulerConfig, Run]:
    jobs, config = seeded_case(seed)
    return jobs, config, run_jobs(jobs, config)


@st.composite
def small_cases(draw):
    max_model_len = draw(st.integers(4, 12))
    token = st.integers(0, VOCABULARY - 1)
    jobs = [
        Job(
            f"R{i}",
            tuple(draw(st.lists(token, min_size=1, max_size=min(6, max_model_len - 1)))),
            max_tokens=draw(st.integers(1, 8)),
            arrival_step=draw(st.integers(0, 4)),
            abort_step=draw(st.none() | st.integers(0, 12)),
            stop_token_ids=tuple(draw(st.lists(token, max_size=1))),
        )
        for i in range(draw(st.integers(1, 5)))
    ]
    block_size, max_num_seqs = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 6)),
        max_model_len=max_model_len,
        num_gpu_blocks=pool_that_carries_each(jobs, max_model_len, block_size) + draw(st.integers(0, 3)),
        block_size=block_size,
    )
    return jobs, config


def solo(job: Job, config: SchedulerConfig) -> Run:
    """The same request alone on a machine that is large enough, never aborted."""
    roomy = replace(config, max_num_batched_tokens=64, num_gpu_blocks=64)
    return run_jobs([replace(job, arrival_step=0, abort_step=None)], roomy)


# --- the properties ---


def tokens_are_those_of_the_solo_run(jobs, config, run):
    for job in jobs:
        alone, tokens = solo(job, config), run.outputs[job.request_id]
        if run.ends[job.request_id] == ["abort"]:
            assert tokens == alone.outputs[job.request_id][: len(tokens)]
        else:
            assert (tokens, run.ends[job.request_id]) == (alone.outputs[job.request_id], alone.ends[job.request_id])


def each_request_ends_exactly_once(jobs, config, run):
    for job in jobs:
        request, ends = run.requests[job.request_id], run.ends[job.request_id]
        assert len(ends) == 1, f"{job.request_id} ended {len(ends)} times: {ends}"
        assert (request.finish_reason, request.output_token_ids) == (ends[0], run.outputs[job.request_id])
    told = Counter(req_id for plan in run.plans for req_id in plan.finished_req_ids)
    assert set(told.values()) <= {1}, "the worker is told twice"
    finished = [req_id for record in run.trace.steps for req_id in record["finished"]]
    assert sorted(finished) == sorted(j.request_id for j in jobs if run.ends[j.request_id] != ["abort"])


def no_step_breaks_a_limit(jobs, config, run):
    for record in run.trace.steps:
        assert record["budget_used"] == sum(n for _, n in record["scheduled"]) <= config.max_num_batched_tokens
        assert all(n >= 1 for _, n in record["scheduled"])
        assert len(record["running"]) <= config.max_num_seqs
        blocks = [block for table in record["blocks"].values() for block in table]
        assert len(blocks) == len(set(blocks)) and set(blocks) <= set(range(1, config.num_gpu_blocks + 1))
        assert len(blocks) + record["free"] == config.num_gpu_blocks
    for request in run.requests.values():
        assert request.num_tokens <= config.max_model_len


def the_preempted_are_at_the_head_and_nobody_enters_beside_them(jobs, config, run):
    for record in (r for r in run.trace.steps if r["preempted"]):
        victims = record["preempted"]
        # Taken from the tail one by one, put to the front one by one: their order in `running` is kept.
        assert record["waiting"] == victims[::-1] + record["waiting_before"]
        assert sorted(record["running_before"]) == sorted(record["running"] + victims)
        assert record["new"] == record["resumed"] == []
        assert record["blocked_reason"] == "preempted_this_step"


def the_queue_is_served_in_order_and_the_reason_it_stopped_is_true(jobs, config, run):
    for record in run.trace.steps:
        entered = [req_id for req_id, _ in record["scheduled"] if req_id not in record["running_before"]]
        assert sorted(entered) == sorted(record["new"] + record["resumed"])
        if not record["preempted"]:
            assert entered + record["waiting"] == record["waiting_before"]
        reason, budget_left = record["blocked_reason"], config.max_num_batched_tokens - record["budget_used"]
        assert (reason is None) == (not record["waiting"])
        full_house = len(record["running"]) == config.max_num_seqs
        assert full_house == (reason == "max_num_seqs") or not record["waiting"]
        if reason == "token_budget":
            assert budget_left == 0
        if reason == "kv_full_sequence":
            assert budget_left > 0
            head = run.requests[record["waiting"][0]]
            assert config.blocks_for(head.num_prompt_tokens + len(head.output_token_ids)) > record["free"]


def the_head_of_running_always_gets_on(jobs, config, run):
    """No livelock: whoever was admitted first of those who run is scheduled in every step."""
    for record in run.trace.steps:
        if record["running_before"]:
            assert record["scheduled"][0][0] not in record["preempted"]
        assert record["scheduled"] or not record["waiting_before"], "an idle step with somebody waiting"


def the_same_input_gives_the_same_trace(jobs, config, run):
    again = run_jobs(jobs, config)
    assert again.trace == run.trace
    assert [repr(plan) for plan in again.plans] == [repr(plan) for plan in run.plans]


PROPERTIES = [
    tokens_are_those_of_the_solo_run,
    each_request_ends_exactly_once,
    no_step_breaks_a_limit,
    the_preempted_are_at_the_head_and_nobody_enters_beside_them,
    the_queue_is_served_in_order_and_the_reason_it_stopped_is_true,
    the_head_of_running_always_gets_on,
    the_same_input_gives_the_same_trace,
]


@pytest.mark.parametrize("holds", PROPERTIES)
def test_on_seeded_workloads(holds):
    for seed in range(NUM_SEEDS):
        try:
            holds(*seeded_run(seed))
        except Exception as error:
            error.add_note(f"workload: seeded_case({seed})")
            raise


@pytest.mark.parametrize("holds", PROPERTIES)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(case=small_cases())
def test_on_small_workloads(holds, case):
    jobs, config = case
    holds(jobs, config, run_jobs(jobs, config))


def test_the_seeded_workloads_reach_every_corner():
    """Guards the generator: if it went soft, every property above would pass for nothing."""
    seen: Counter[str] = Counter()
    for seed in range(NUM_SEEDS):
        _, _, run = seeded_run(seed)
        seen.update(f"aborted while {state}" for state in run.state_at_abort.values())
        seen.update(end for ends in run.ends.values() for end in ends)
        computed: Counter[str] = Counter()
        for record in run.trace.steps:
            victims = record["preempted"]
            seen["preempted"] += len(victims)
            seen["two in one step"] += len(victims) > 1
            seen["preempted in mid-prompt"] += any(computed[v] < run.requests[v].num_prompt_tokens for v in victims)
            seen["resumed beside a new one"] += bool(record["resumed"] and record["new"])
            seen[f"blocked by {record['blocked_reason']}"] += 1
            computed.update(dict(record["scheduled"]))
            computed.update({victim: -computed[victim] for victim in victims})
    short = {what: (seen[what], least) for what, least in AT_LEAST.items() if seen[what] < least}
    assert not short, f"(seen, at least): {short}; all: {dict(seen)}"


AT_LEAST = {
    "preempted": 500,
    "two in one step": 20,
    "preempted in mid-prompt": 20,
    "resumed beside a new one": 20,
    "aborted while WAITING": 50,
    "aborted while RUNNING": 50,
    "aborted while PREEMPTED": 10,
    "stop": 50,
    "length": 1000,
    "blocked by max_num_seqs": 500,
    "blocked by token_budget": 500,
    "blocked by kv_full_sequence": 500,
    "blocked by preempted_this_step": 500,
}
