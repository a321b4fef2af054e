"""Every stage serves the engine: a tiny model in float64 gives each request its own tokens, whatever the schedule."""

import random

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.integrity import check_integrity
from mini_vllm.engine.engine_core import EngineCore
from mini_vllm.errors import KVPoolExhaustedError
from mini_vllm.models.tiny import tiny_model
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.stages import STAGES, load_stage
from tests.engine.dense_oracle import dense_generate

LONGEST = 40


@pytest.fixture(scope="module")
def model():
    return tiny_model(1)


@pytest.fixture(scope="module")
def requests(model):
    """(prompt, max_tokens, expected output); some begin alike."""
    rng = random.Random(3)
    starts = [[], [rng.randrange(model.config.vocab_size) for _ in range(13)]]
    made = []
    for i in range(14):
        own = [rng.randrange(model.config.vocab_size) for _ in range(rng.randint(1, 10))]
        max_tokens = rng.randint(1, 12)
        prompt = starts[i % 2] + own
        made.append((prompt, max_tokens, dense_generate(model, prompt, max_tokens)))
    return made


def config_for(chapter, rng):
    seats, block_size = rng.randint(2, 5), rng.choice((2, 3, 4))
    one = -(-LONGEST // block_size)
    return SchedulerConfig(
        max_num_seqs=seats,
        max_num_batched_tokens=seats * LONGEST if chapter == 4 else LONGEST if chapter < 9 else seats + 3,
        max_model_len=LONGEST,
        num_gpu_blocks=seats * one if chapter in (4, 6, 7) else one + 2,
        block_size=block_size,
        enable_prefix_caching=chapter >= 7,
        policy="priority" if chapter == 10 else "fcfs",
    )


@pytest.mark.parametrize("chapter", STAGES)
@pytest.mark.parametrize("seed", range(6))
def test_same_tokens_whatever_the_stage_decides(model, requests, chapter, seed):
    rng = random.Random(seed)
    engine = EngineCore(model, config_for(chapter, rng), load_stage(chapter))
    wanted, arrivals = rng.sample(requests, 8), sorted(rng.randint(0, 10) for _ in range(8))
    outputs, step = {i: [] for i in range(8)}, 0
    while step <= arrivals[-1] or engine.has_unfinished_requests():
        for i in (i for i, at in enumerate(arrivals) if at == step):
            params = SamplingParams(max_tokens=wanted[i][1], ignore_eos=True)
            engine.add_request(Request(str(i), wanted[i][0], params, step, priority=i % 3))
        if engine.has_unfinished_requests():
            for news in engine.step():
                outputs[int(news.request_id)] += news.new_token_ids
            check_integrity(engine.loop.scheduler)
        step += 1
        assert step < 2_000, "hangs"
    assert [outputs[i] for i in range(8)] == [expected for _, _, expected in wanted]


def test_these_schedules_share_blocks_and_evict(model, requests):
    """Guards the test above. The longest four, at once and in little memory."""
    wanted = [r for r in sorted(requests, key=lambda r: -len(r[0]) - r[1]) if len(r[0]) > 13][:4]
    engine = EngineCore(model, SchedulerConfig(4, LONGEST, LONGEST, 10, 4, enable_prefix_caching=True), load_stage(8))
    for i, (prompt, max_tokens, _) in enumerate(wanted):
        engine.add_request(Request(str(i), prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True)))
    outputs = {i: [] for i in range(4)}
    while engine.has_unfinished_requests():
        for news in engine.step():
            outputs[int(news.request_id)] += news.new_token_ids
    assert [outputs[i] for i in range(4)] == [expected for _, _, expected in wanted]
    assert any(n for step in engine.trace.steps for n in step["hits"].values())
    assert any(step["preempted"] for step in engine.trace.steps)


def test_where_nobody_is_evicted_a_dry_pool_is_an_error_and_the_engine_stays_usable(model, requests):
    engine = EngineCore(model, SchedulerConfig(4, LONGEST, LONGEST, 10, 4), load_stage(6))
    wanted = sorted(requests, key=lambda r: -len(r[0]) - r[1])[:4]
    for i, (prompt, max_tokens, _) in enumerate(wanted):
        engine.add_request(Request(str(i), prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True)))
    with pytest.raises(KVPoolExhaustedError, match="before chapter 8 nobody is evicted"):
        while engine.has_unfinished_requests():
            engine.step()
    assert not engine.has_unfinished_requests()
    prompt, max_tokens, expected = wanted[0]
    engine.add_request(Request("again", prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True)))
    got = []
    while engine.has_unfinished_requests():
        got += [token for news in engine.step() for token in news.new_token_ids]
    assert got == expected
