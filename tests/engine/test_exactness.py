"""Layer one of exactness: a tiny model in float64 gives the same tokens under every schedule, without exception."""

import random

import pytest
import torch

from mini_vllm.batching import ContinuousBatcher, PaddedBatcher, StaticBatcher
from mini_vllm.config import SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.engine.engine_core import EngineCore
from mini_vllm.models.tiny import tiny_model
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from tests.engine.dense_oracle import dense_generate, dense_logits

PROMPTS = 24


@pytest.fixture(scope="module")
def model():
    return tiny_model(0)


@pytest.fixture(scope="module")
def requests(model):
    """(prompt, max_tokens, expected output) of requests of many lengths."""
    rng = random.Random(7)
    made = []
    for _ in range(PROMPTS):
        prompt = [rng.randrange(model.config.vocab_size) for _ in range(rng.choice([1, 2, rng.randrange(1, 40)]))]
        max_tokens = rng.choice([1, 2, rng.randrange(1, 24)])
        made.append((prompt, max_tokens, dense_generate(model, prompt, max_tokens)))
    return made


def test_the_tiny_model_decides_clearly(model, requests):
    """The identity test below means something only if the best token is well ahead of the second."""
    margins, distinct = [], set()
    for prompt, _, expected in requests:
        top2 = dense_logits(model, prompt + expected).topk(2).values
        margins += (top2[:, 0] - top2[:, 1]).tolist()
        distinct.update(expected)
    assert sorted(margins)[len(margins) // 2] > 1
    assert min(margins) > 1e-6, "a tie would make token identity a matter of luck"
    assert len(distinct) > 20, "a model that repeats itself proves nothing"


def run(engine, wanted, arrivals, aborts=()):
    """Drive an engine: `arrivals` maps step -> indices into `wanted`; returns the outputs per index."""
    outputs = {i: [] for i in range(len(wanted))}
    finished = set()
    step = 0
    while engine.has_unfinished_requests() or any(s >= step for s in arrivals):
        for i in arrivals.get(step, ()):
            prompt, max_tokens, _ = wanted[i]
            params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
            engine.add_request(Request(str(i), prompt, params, priority=i % 3))
        engine.abort([str(i) for at, i in aborts if at == step])
        if engine.has_unfinished_requests():
            for news in engine.step():
                outputs[int(news.request_id)] += news.new_token_ids
                if news.finished:
                    assert news.request_id not in finished, "ended twice"
                    finished.add(news.request_id)
        if hasattr(engine.loop.scheduler, "check_integrity"):
            engine.loop.scheduler.check_integrity()
        step += 1
        assert step < 5_000, "hangs"
    return outputs, {int(i) for i in finished}


@pytest.mark.parametrize("seed", range(120))
def test_same_tokens_under_any_schedule(model, requests, seed):
    rng = random.Random(seed)
    wanted = rng.sample(requests, rng.randrange(1, 9))
    block_size = rng.choice([1, 2, 3, 5, 16])
    longest = max(len(p) + m for p, m, _ in wanted)
    least = -(-longest // block_size)
    max_num_seqs = rng.randrange(1, 6)
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(max_num_seqs, rng.choice([1, 3, 7, 16, 64])),
        max_model_len=longest,
        num_gpu_blocks=least + rng.choice([0, 1, 2, least, 3 * least]),
        block_size=block_size,
        enable_prefix_caching=rng.random() < 0.5,
        policy=rng.choice(["fcfs", "priority"]),
        long_prefill_token_threshold=rng.choice([0, 0, 2, 5]),
        watermark=rng.choice([0.0, 0.0, 0.2]),
        reserve_full_isl=rng.random() < 0.7,
    )
    # Some ask twice: with caching on, the second shares the blocks of the first, even while that one still runs.
    wanted += rng.sample(wanted, rng.randrange(len(wanted)))
    arrivals: dict[int, list[int]] = {}
    for i in range(len(wanted)):
        arrivals.setdefault(rng.choice([0, rng.randrange(12)]), []).append(i)
    aborts = [(rng.randrange(1, 25), i) for i in range(len(wanted)) if rng.random() < 0.15]
    outputs, finished = run(EngineCore(model, config), wanted, arrivals, aborts)
    aborted = {i for _, i in aborts}
    for i, (_, _, expected) in enumerate(wanted):
        if i in finished:
            assert outputs[i] == expected
        else:
            assert i in aborted
            assert outputs[i] == expected[: len(outputs[i])], "even what came before the abort is right"


def test_the_random_schedules_do_preempt_and_chunk(model, requests):
    """Guards the test above: its schedules must contain what it claims to cover."""
    wanted = sorted(requests, key=lambda r: -r[1])[:6]
    longest = max(len(p) + m for p, m, _ in wanted)
    config = SchedulerConfig(6, 7, longest, -(-longest // 4) + 3, 4)
    engine = EngineCore(model, config)
    outputs, _ = run(engine, wanted, {0: list(range(6))})
    assert [outputs[i] for i in range(6)] == [expected for _, _, expected in wanted]
    steps = engine.trace.steps
    assert any(step["preempted"] for step in steps)
    assert any(step["resumed"] for step in steps)
    assert any(0 < step["computed"][r][0] < len(wanted[int(r)][0]) for step in steps for r, _ in step["scheduled"])
    assert any({n == 1 for _, n in step["scheduled"]} == {True, False} for step in steps), "no mixed step"


def test_shared_blocks_give_the_same_tokens(model):
    """A long common start, with caching: later requests begin after it, and say what they would have said alone."""
    start = [(7 * i) % model.config.vocab_size for i in range(33)]
    wanted = [(start + [i, i + 1], 6, dense_generate(model, start + [i, i + 1], 6)) for i in range(4)]
    config = SchedulerConfig(4, 64, 64, 40, 4, enable_prefix_caching=True)
    engine = EngineCore(model, config)
    outputs, _ = run(engine, wanted, {0: [0, 1], 3: [2], 5: [3]})
    assert [outputs[i] for i in range(4)] == [expected for _, _, expected in wanted]
    hits = {r: n for step in engine.trace.steps for r, n in step["hits"].items()}
    assert hits == {"0": 0, "1": 32, "2": 32, "3": 32}


@pytest.mark.parametrize("batcher", [StaticBatcher, PaddedBatcher, ContinuousBatcher, Scheduler])
def test_the_policy_changes_when_never_what(model, requests, batcher):
    wanted = requests[:7]
    config = SchedulerConfig(3, 512, 64, 64, 16)
    outputs, finished = run(EngineCore(model, config, batcher), wanted, {0: [0, 1, 2], 2: [3, 4], 9: [5, 6]})
    assert finished == set(range(7))
    assert [outputs[i] for i in range(7)] == [expected for _, _, expected in wanted]


def test_the_plan_is_not_changed_by_the_run(model, requests):
    config = SchedulerConfig(4, 16, 64, 24, 4)
    engine = EngineCore(model, config)
    execute, seen = engine.runner.execute, []

    def watched(plan):
        before = repr(plan)
        output = execute(plan)
        seen.append(repr(plan) == before)
        return output

    engine.runner.execute = watched
    engine.reset()  # a run takes the runner's execute when it begins
    for i, (prompt, max_tokens, _) in enumerate(requests[:6]):
        engine.add_request(Request(str(i), prompt, SamplingParams(max_tokens=max_tokens)))
    while engine.has_unfinished_requests():
        engine.step()
    assert seen and all(seen)


def test_logits_only_where_a_token_is_sampled(model, monkeypatch):
    rows = []
    compute = type(model).compute_logits
    monkeypatch.setattr(type(model), "compute_logits", lambda self, h: rows.append(len(h)) or compute(self, h))
    engine = EngineCore(model, SchedulerConfig(2, 4, 64, 32, 4))
    engine.add_request(Request("long", [1] * 10, SamplingParams(max_tokens=2)))
    while engine.has_unfinished_requests():
        engine.step()
    assert rows == [1, 1], "10 prompt tokens in chunks of 4: two steps without a row, then one row a step"


def test_kv_pool_is_finite_after_zeroing(model):
    """A masked position still multiplies its value by zero; NaN there would spread."""
    engine = EngineCore(model, SchedulerConfig(2, 8, 64, 8, 4))
    assert all(torch.isfinite(cache).all() for cache in engine.runner.kv_caches)
