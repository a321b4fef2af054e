"""Statistics of the steps: counted by hand, then against the trace and the model runner. Knows the tiny model."""

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.core.output import CachedRequestData, ModelRunnerOutput, NewRequestData, SchedulerOutput
from mini_vllm.engine.stats import EngineStats, MeasuredStep
from mini_vllm.errors import SchedulerContractError
from tests.engine.tiny_llm import tiny_loaded

LIMITS = {"max_model_len": 96, "num_gpu_blocks": 60, "block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 24}
PROMPTS = ["a", "bcd", "some longer text that takes two steps", "12345"]
NUM_PROMPT_TOKENS = sum(map(len, PROMPTS))
TEN = SamplingParams(max_tokens=10, ignore_eos=True)


@pytest.fixture(scope="module")
def loaded():
    return tiny_loaded()


def new(req_id, prompt_len, num_computed=0):
    return NewRequestData(req_id, [7] * prompt_len, SamplingParams(), [1], num_computed)


def step(plan, t_planned=(0.0, 0.001), t_run=(0.001, 0.005), t_updated=(0.005, 0.006), load=(2, 1, 90)):
    return MeasuredStep(plan, t_planned, *load, t_run, t_updated)


def test_two_steps_by_hand():
    """A (8 tokens, 4 of them cached) and a chunk of B (6 tokens), then a decode of A with two drafts and B's rest."""
    stats = EngineStats(num_gpu_blocks=100)
    first = SchedulerOutput([new("A", 8, 4), new("B", 6)], num_scheduled_tokens={"A": 4, "B": 3})
    stats.add(step(first), ModelRunnerOutput({"A": [5], "B": []}))
    second = SchedulerOutput(
        [],
        CachedRequestData(["A", "B"], [8, 3]),
        {"A": 3, "B": 3},
        {"A": [9, -1]},  # the second only fills the row
        preempted_req_ids=["C"],
    )
    later = {"t_planned": (0.006, 0.008), "t_run": (0.008, 0.012), "t_updated": (0.012, 0.013), "load": (2, 2, 80)}
    stats.add(step(second, **later), ModelRunnerOutput({"A": [9, 4], "B": [3]}))
    one, two = stats.steps
    assert (one.num_prefill_tokens, one.num_decode_tokens, one.num_cached_tokens, one.num_sampled_tokens) == (
        7,
        0,
        4,
        1,
    )
    assert (two.num_prefill_tokens, two.num_decode_tokens, two.num_cached_tokens, two.num_sampled_tokens) == (
        3,
        3,
        0,
        3,
    )
    assert (two.step, two.num_running, two.num_waiting, two.kv_blocks_used, two.num_preempted) == (1, 2, 2, 20, 1)
    assert (two.num_drafts_verified, two.num_drafts_accepted, stats.acceptance_rate) == (1, 1, 1.0)
    assert [two.planned_ms, two.run_ms, two.updated_ms, two.step_ms] == pytest.approx([2, 4, 1, 7])
    assert stats.total["step_ms"] == pytest.approx(13) and stats.total["num_prefill_tokens"] == 10
    assert stats.peak == {"num_running": 2, "num_waiting": 2, "kv_blocks_used": 20}
    assert str(stats).splitlines() == [
        "steps        2 in 0.01 s: planned 23.1%, run 61.5%, updated 15.4%",
        "computed     10 tokens of prefill, 3 of decode",
        "batch        6.5 tokens a step",
        "sampled      4 tokens, 307.7 a second",
        "requests     at most 2 ran and 2 waited at one time",
        "KV blocks    at most 20 of 100 in use (20%)",
        "cache hits   4 tokens",
        "preemptions  1",
        "drafts       1 verified, 1 accepted (100%)",
    ]


def test_overlapping_steps_count_the_clock_once():
    stats, plan = EngineStats(10), SchedulerOutput([new("A", 2)], num_scheduled_tokens={"A": 2})
    stats.add(step(plan, (0, 1), (1, 5), (5, 6), (1, 0, 10)), ModelRunnerOutput())
    again = SchedulerOutput([], CachedRequestData(["A"], [2]), {"A": 1})
    stats.add(step(again, (1, 2), (5, 9), (9, 10), (1, 0, 10)), ModelRunnerOutput())
    assert [s.step_ms for s in stats.steps] == pytest.approx([6000, 4000])


def test_only_the_latest_steps_stay_and_the_sums_go_on():
    stats, plan = EngineStats(10, keep_steps=3), SchedulerOutput([new("A", 2)], num_scheduled_tokens={"A": 2})
    for _ in range(8):
        stats.add(step(plan), ModelRunnerOutput({"A": [1]}))
    assert [s.step for s in stats.steps] == [5, 6, 7] and stats.total["num_sampled_tokens"] == 8
    stats.clear()
    assert (len(stats.steps), stats.total["steps"], stats.acceptance_rate) == (0, 0, None)
    assert str(stats) == "no steps yet"
    stats.add(step(plan), ModelRunnerOutput({"A": [1]}))
    assert stats.steps[0].step == 8


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_an_engine_counts_every_token_once(loaded, async_scheduling):
    llm = LLM(loaded, **LIMITS, async_scheduling=async_scheduling)
    for run in (1, 2):  # both count, though each has a loop of its own
        llm.generate(PROMPTS, TEN)
        total = llm.stats.total
        assert total["num_prefill_tokens"] == run * NUM_PROMPT_TOKENS
        assert total["num_sampled_tokens"] == run * 40 and total["num_decode_tokens"] == run * 36
        assert total["num_preempted"] == total["num_cached_tokens"] == 0
    assert llm.stats.peak["num_running"] == 4
    assert all(s.planned_ms > 0 and s.run_ms > 0 and s.updated_ms > 0 and s.step_ms > 0 for s in llm.stats.steps)
    parts = [s.planned_ms + s.run_ms + s.updated_ms for s in llm.stats.steps]
    if async_scheduling:
        assert all(s.step_ms > s.updated_ms for s in llm.stats.steps)
    else:
        assert [s.step_ms for s in llm.stats.steps] == pytest.approx(parts)


@pytest.mark.parametrize("drafts", [0, 3])
def test_steps_say_what_the_trace_says(loaded, drafts):
    """Also where KV is short and requests are evicted."""
    limits = LIMITS | {"num_gpu_blocks": 22, "max_num_batched_tokens": 40, "num_speculative_tokens": drafts}
    llm = LLM(loaded, **limits)
    llm.generate([*PROMPTS, "abcabcabcabc"], SamplingParams(max_tokens=30, ignore_eos=True))
    records, stats = llm.trace.steps, llm.stats
    assert len(records) == len(stats.steps)
    for record, seen in zip(records, stats.steps, strict=True):
        assert seen.num_prefill_tokens + seen.num_decode_tokens == record["budget_used"]
        assert (seen.num_running, seen.num_waiting) == (len(record["running"]), len(record["waiting"]))
        assert seen.kv_blocks_used == 22 - record["free"] and seen.num_preempted == len(record["preempted"])
        assert seen.num_sampled_tokens == sum(map(len, record["sampled"].values()))
        assert seen.step_ms >= 1000 * (record["t_end"] - record["t_start"])  # which it encloses
    assert stats.total["num_preempted"] > 0 and stats.total["num_prefill_tokens"] > NUM_PROMPT_TOKENS + 12
    runner = llm.engine_core.runner
    assert stats.total["num_drafts_verified"] == runner.num_drafted and (runner.num_drafted > 0) == (drafts > 0)
    assert stats.total["num_drafts_accepted"] == runner.num_accepted


def test_hits_of_the_prefix_cache_are_counted(loaded):
    llm = LLM(loaded, **LIMITS, enable_prefix_caching=True)
    first = llm.stream(["eight tokens and more"], TEN)  # 21 tokens: 5 whole blocks
    next(first)
    llm.generate(["eight tokens and more"], TEN)
    assert llm.stats.total["num_cached_tokens"] == 20 and llm.stats.total["num_prefill_tokens"] == 22
    assert "cache hits   20 tokens" in str(llm.stats)


class OnlyPlans:
    """A scheduler whose second plan breaks the contract."""

    def __new__(cls, config):
        from mini_vllm.core.scheduler import Scheduler

        scheduler, plans = Scheduler(config), []
        schedule = scheduler.schedule

        def planned():
            plans.append(schedule())
            if len(plans) == 2:
                plans[-1].num_scheduled_tokens["R1"] = 99
            return plans[-1]

        scheduler.schedule = planned
        return scheduler


def test_a_step_that_fails_is_not_counted_and_nothing_is_lost(loaded):
    llm = LLM(loaded, **LIMITS, scheduler_cls=OnlyPlans)
    with pytest.raises(SchedulerContractError, match="99 tokens"):
        llm.generate(["abc"], TEN)
    assert llm.stats.total["steps"] == 1
