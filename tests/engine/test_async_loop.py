"""The engine one step ahead: the same tokens, aborts and errors in mid-flight, and plans made while a step runs."""

import math
import random
import threading

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.batching import ContinuousBatcher
from mini_vllm.config import SchedulerConfig
from mini_vllm.core.async_scheduler import AsyncScheduler
from mini_vllm.core.output import ModelRunnerOutput
from mini_vllm.engine import async_loop
from mini_vllm.engine.async_loop import AsyncStepLoop
from mini_vllm.engine.engine_core import EngineCore
from mini_vllm.errors import ConfigError, DuplicateRequestError
from mini_vllm.request import Request
from tests.engine.test_exactness_mixed import MODELS, drive, random_engine, worlds  # noqa: F401  a fixture
from tests.engine.tiny_llm import tiny_loaded

LIMITS = {"max_model_len": 96, "num_gpu_blocks": 60, "block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 24}
PROMPTS = ["a", "bcd", "some longer text", "12345"]
PARAMS = SamplingParams(max_tokens=10)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(12))
def test_the_same_tokens_one_step_ahead(worlds, name, seed):  # noqa: F811
    rng = random.Random(f"async/{name}/{seed}")
    model, cases = worlds[name]
    chosen = rng.sample(cases, rng.randrange(1, 9))
    chosen += rng.sample(chosen, rng.randrange(len(chosen)))
    config = random_engine(rng, model, cases).config
    config = SchedulerConfig(**{**vars(config), "num_speculative_tokens": 0})
    drive(EngineCore(model, config, async_scheduling=True), chosen, rng)


@pytest.fixture(scope="module")
def loaded():
    return tiny_loaded()


@pytest.fixture
def llm(loaded):
    return LLM(loaded, **LIMITS, async_scheduling=True)


def test_text_streams_stops_and_aborts(loaded, llm):
    expected = LLM(loaded, **LIMITS).generate(PROMPTS, PARAMS)
    assert [o.text for o in llm.generate(PROMPTS, PARAMS)] == [o.text for o in expected]
    stop = expected[2].text[3:5]
    [stopped] = llm.generate(PROMPTS[2:3], SamplingParams(max_tokens=10, stop=(stop,)))
    assert stopped.finish_reason == "stop" and stopped.text == expected[2].text.partition(stop)[0]
    stream = llm.stream(PROMPTS, PARAMS, request_ids=["1", "2", "3", "4"])
    next(stream)
    llm.abort(["2"])
    for _ in stream:
        pass
    assert [o.finish_reason for o in stream.results] == ["length", "abort", "length", "length"]
    assert not llm.has_unfinished_requests()
    assert llm.engine_core.loop.scheduler.kv_cache_manager.num_free_blocks == LIMITS["num_gpu_blocks"]


def test_logits_that_are_no_numbers(loaded, llm, monkeypatch):
    expected = [o.text for o in llm.generate(PROMPTS, PARAMS)]
    embed = llm.engine_core.model.model.embed_tokens
    forward = embed.forward
    monkeypatch.setattr(embed, "forward", lambda ids: forward(ids).masked_fill((ids == 1)[:, None], math.nan))
    outputs = llm.generate([*PROMPTS[:2], "bad \1", *PROMPTS[2:]], PARAMS)
    assert [o.finish_reason for o in outputs] == ["length", "length", "error", "length", "length"]
    assert [o.text for o in outputs if not o.error] == expected


def test_a_step_that_fails_leaves_a_usable_engine(llm, monkeypatch):
    runner, execute = llm.engine_core.runner, llm.engine_core.runner.execute
    expected = llm.generate(["abc"], PARAMS)[0].text

    def fails(plan):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(runner, "execute", fails)
    llm.engine_core.reset()
    with pytest.raises(RuntimeError, match="out of luck"):
        llm.generate(["abc"], PARAMS)
    monkeypatch.setattr(runner, "execute", execute)
    llm.engine_core.reset()
    assert llm.generate(["abc"], PARAMS)[0].text == expected


def test_a_plan_is_made_while_the_step_before_it_runs():
    config = SchedulerConfig(1, 8, 64, 20, 4)
    scheduler, first_runs, go_on = AsyncScheduler(config), threading.Event(), threading.Event()

    def execute(plan):
        first_runs.set()
        assert go_on.wait(10)
        return ModelRunnerOutput({req_id: [5] for req_id in plan.num_scheduled_tokens})

    loop = AsyncStepLoop(scheduler, execute)
    loop.add_request(Request("A", [1, 2, 3], SamplingParams(max_tokens=3)))
    assert loop.step() == [] and first_runs.wait(10)
    threading.Timer(0.05, go_on.set).start()
    [news] = loop.step()  # plans step 1 at once, then waits for step 0
    assert news.new_token_ids == [5]
    while loop.has_unfinished_requests():
        loop.step()
    first, second = list(loop.timeline)[:2]
    assert first.t_planned[0] < first.t_planned[1] <= second.t_planned[0]
    assert second.t_planned[1] < first.t_run[1] <= first.t_updated[0]
    loop.close()
    assert threading.active_count() < 20


def test_a_run_that_never_ends_does_not_collect_names(loaded, llm, monkeypatch):
    monkeypatch.setattr(async_loop, "KEEP_IDS", 3)
    first = llm.stream("long", SamplingParams(max_tokens=60, ignore_eos=True), request_ids=["first"])
    for i in range(6):
        llm.generate("a", SamplingParams(max_tokens=2, ignore_eos=True), request_ids=[f"r{i}"])
    assert llm.engine_core.used_request_ids() == {"first", "r3", "r4", "r5"}
    with pytest.raises(DuplicateRequestError, match="'first'"):
        llm.generate("a", PARAMS, request_ids=["first"])
    assert len(list(first)) > 0 and len(first.results[0].token_ids) == 60


def test_what_it_cannot_do_is_said(loaded, llm):
    with pytest.raises(ConfigError, match="async_scheduling with ContinuousBatcher"):
        LLM(loaded, **LIMITS, async_scheduling=True, scheduler_cls=ContinuousBatcher)
    with pytest.raises(ConfigError, match="num_speculative_tokens=3"):
        LLM(loaded, **LIMITS, async_scheduling=True, num_speculative_tokens=3)
    with pytest.raises(ConfigError, match="no trace with async_scheduling"):
        _ = llm.trace
