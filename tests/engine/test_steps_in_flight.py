"""Steps queued before the tokens of the step before are on the host, as on a GPU: the same tokens all the same."""

import math
import random
import threading

import pytest
import torch

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import CachedRequestData, NewRequestData, SchedulerOutput
from mini_vllm.engine.engine_core import EngineCore
from mini_vllm.engine.model_runner import ModelRunner
from mini_vllm.engine.request_state import UNKNOWN
from mini_vllm.engine.sampler import likeliest
from mini_vllm.models.tiny import tiny_model
from mini_vllm.sampling_params import SamplingParams
from tests.engine.dense_oracle import dense_generate
from tests.engine.test_exactness_mixed import MODELS, Case, drive, random_engine, worlds  # noqa: F401  a fixture

PROMPT = [5, 9, 2]
GREEDY = SamplingParams(max_tokens=20)


@pytest.fixture(scope="module")
def model():
    return tiny_model(0)


def begin(req_id="A", params=GREEDY):
    return SchedulerOutput([NewRequestData(req_id, PROMPT, params, [1, 2, 3], 0)], num_scheduled_tokens={req_id: 3})


def go_on(computed, req_id="A"):
    return SchedulerOutput([], CachedRequestData([req_id], [computed]), {req_id: 1})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(6))
def test_the_same_tokens(worlds, name, seed):  # noqa: F811
    """Greedy and drawn, evicted and resumed, aborted: the async loop reads a step only when the next is queued."""
    rng = random.Random(f"in flight/{name}/{seed}")
    model, cases = worlds[name]
    if seed % 2:  # only those that need not be waited for
        model, cases = greedy_world(name, model, cases)
    chosen = rng.sample(cases, rng.randrange(1, 9))
    chosen += rng.sample(chosen, rng.randrange(len(chosen)))
    config = SchedulerConfig(**{**vars(random_engine(rng, model, cases).config), "num_speculative_tokens": 0})
    engine = EngineCore(model, config, async_scheduling=True)
    engine.runner.execute = engine.runner.launch  # as on a GPU; the loop is made anew with the first request
    engine.reset()
    drive(engine, chosen, rng)


def greedy_world(name, model, cases, made={}):  # noqa: B006  one for all seeds
    if name not in made:
        made[name] = [Case(c.prompt, GREEDY, dense_generate(model, c.prompt, 20)) for c in cases]
    return model, made[name]


def test_a_token_is_used_before_the_host_has_seen_it(model):
    expected = dense_generate(model, PROMPT, 3)
    runner = ModelRunner(model, 8, 4)
    first = runner.launch(begin())
    second = runner.launch(go_on(3))
    assert runner.states["A"].token_ids == [*PROMPT, UNKNOWN, UNKNOWN]
    third = runner.launch(go_on(4))  # at most two are kept: the first is read by now
    assert runner.states["A"].token_ids == [*PROMPT, expected[0], UNKNOWN, UNKNOWN]
    results = [step.result().sampled_token_ids["A"] for step in (third, second, first, first)]  # in any order, twice
    assert results == [[expected[2]], [expected[1]], [expected[0]], [expected[0]]]
    assert runner.states["A"].token_ids == PROMPT + expected


def test_who_needs_to_see_the_texts_is_waited_for(model):
    params = SamplingParams(max_tokens=20, repetition_penalty=1.5)
    expected = dense_generate(model, PROMPT, 4, params)
    runner, plans = ModelRunner(model, 8, 4), [begin(params=params), *map(go_on, (3, 4, 5))]
    steps = [runner.launch(plan) for plan in plans]
    assert runner.states["A"].token_ids == PROMPT + expected
    assert [step.result().sampled_token_ids["A"] for step in steps] == [[t] for t in expected]


def test_a_greedy_neighbour_of_a_penalised_request(model):
    """One in flight is greedy alone; the step after needs everybody's tokens."""
    runner = ModelRunner(model, 8, 4)
    runner.launch(begin())
    both = go_on(3)
    both.scheduled_new_reqs = [
        NewRequestData("B", PROMPT, SamplingParams(max_tokens=9, presence_penalty=1.0), [4, 5], 0)
    ]
    both.num_scheduled_tokens["B"] = 3
    runner.launch(both)
    assert runner.states["A"].token_ids == PROMPT + dense_generate(model, PROMPT, 2)
    assert UNKNOWN not in runner.states["B"].token_ids


def test_logits_that_are_no_numbers_end_one_request(model, monkeypatch):
    embed = model.model.embed_tokens
    forward = embed.forward
    monkeypatch.setattr(embed, "forward", lambda ids: forward(ids).masked_fill((ids == 2)[:, None], math.nan))
    runner = ModelRunner(model, 8, 4)
    first, second = runner.launch(begin()), runner.launch(go_on(3))
    assert "not finite" in first.result().errors["A"] and first.result().sampled_token_ids == {"A": []}
    assert second.result() and runner.states["A"].token_ids[3] == 0
    assert UNKNOWN not in runner.states["A"].token_ids


def test_likeliest():
    logits = torch.tensor([[0.0, 2.0, 1.0], [math.nan, 1.0, 2.0], [-math.inf] * 3, [-math.inf, -5.0, -math.inf]])
    assert likeliest(logits).tolist() == [1, -1, -1, 1]


def test_two_threads_may_ask_for_one_result(model):
    runner = ModelRunner(model, 8, 4)
    step = runner.launch(begin())
    told = []
    step._settle = lambda mine, tokens, output: told.append(tokens)
    threads = [threading.Thread(target=step.result) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 1


def test_a_forgotten_engine_starts_afresh(model):
    runner = ModelRunner(model, 8, 4)
    runner.launch(begin())
    runner.reset()
    assert runner.states == {}
    assert runner.execute(begin()).sampled_token_ids == {"A": dense_generate(model, PROMPT, 1)}
    assert runner.states["A"].row == 0, "the row of the forgotten one is free again"
