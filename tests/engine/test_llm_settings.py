"""Settings of the scheduler through `LLM`: they arrive, and a wrong one is refused before a model is loaded."""

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.errors import ConfigError, InvalidRequestError
from tests.engine.dense_oracle import dense_generate
from tests.engine.tiny_llm import tiny_loaded

LIMITS = {"max_model_len": 96, "num_gpu_blocks": 40, "block_size": 4, "max_num_seqs": 4}
START = "In the beginning there was a prefix that all of them had. "


@pytest.fixture(scope="module")
def loaded():
    return tiny_loaded()


def test_they_arrive(loaded):
    settings = {
        "enable_chunked_prefill": False,
        "enable_prefix_caching": True,
        "long_prefill_token_threshold": 7,
        "long_prefill_token_threshold_adaptive": True,
        "max_num_scheduled_tokens": 200,
        "policy": "priority",
        "reserve_full_isl": False,
        "watermark": 0.1,
    }
    config = LLM(loaded, **LIMITS, **settings).engine_core.config
    assert {name: getattr(config, name) for name in settings} == settings


def test_the_tokens_of_a_prefix_hit_are_those_without_a_cache(loaded):
    prompts = [START + end for end in ("Anna", "Bert", "", "Anna")]
    expected = [dense_generate(loaded.model, loaded.tokenizer.encode(p), 8) for p in prompts]
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    for caching in (False, True):
        llm = LLM(loaded, **LIMITS, enable_prefix_caching=caching, max_num_batched_tokens=48)
        assert [o.token_ids for o in llm.generate(prompts, params)] == expected
        hits = sum(n for step in llm.trace.steps for n in step["hits"].values())
        assert (hits > 100) == caching  # 56 shared tokens, three times


def test_who_is_urgent_enters_first(loaded):
    prompts, params = ["a", "b", "c"], SamplingParams(max_tokens=2, ignore_eos=True)

    def admitted(policy, priority):
        llm = LLM(loaded, **{**LIMITS, "max_num_seqs": 1}, policy=policy)
        llm.generate(prompts, params, request_ids=["10", "9", "8"], priority=priority)
        return [req_id for step in llm.trace.steps for req_id in step["new"]]

    assert admitted("priority", [2, 1, 0]) == ["8", "9", "10"]
    assert admitted("priority", [1, 0, 1]) == ["9", "10", "8"]
    assert admitted("priority", None) == ["10", "9", "8"]  # in the order of arrival, not of their names
    assert admitted("fcfs", [2, 1, 0]) == ["10", "9", "8"]


@pytest.mark.parametrize("priority", [[1], [1, 2, 3], 5, "12"])
def test_a_priority_for_each_prompt(loaded, priority):
    llm = LLM(loaded, **LIMITS)
    with pytest.raises(
        InvalidRequestError, match=r"priority is .* for 2 prompts: give a list of whole numbers, one for each"
    ):
        llm.generate(["a", "b"], priority=priority)
    assert not llm.has_unfinished_requests()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"enable_prefix_cache": True}, r"no setting enable_prefix_cache \(did you mean enable_prefix_caching\?\)"),
        ({"temperature": 1}, r"no setting temperature; for its scheduler it takes .*enable_chunked_prefill, "),
        ({"sliding_window": 8}, "sliding_window=8 is for the simulator: this engine cannot serve with it"),
        ({"max_loras": 2}, "max_loras=2 is for the simulator"),
        ({"unpublish_given_back": False}, "unpublish_given_back=False is for the simulator"),
    ],
)
def test_what_it_cannot_do_is_said_before_a_model_is_loaded(settings, message):
    with pytest.raises(ConfigError, match=message):
        LLM("no such model", **settings)


def test_a_value_out_of_range_is_refused_as_by_the_configuration(loaded):
    with pytest.raises(ConfigError, match=r"watermark=2 must be a share of the pool"):
        LLM(loaded, **LIMITS, watermark=2)


def test_one_step_gives_its_pieces_and_the_streams_get_them_too(loaded):
    llm, params = LLM(loaded, **LIMITS), SamplingParams(max_tokens=3, ignore_eos=True)
    assert not llm.has_unfinished_requests() and llm.step() == []
    first = llm.stream("one", params)
    pieces = llm.step()
    second = llm.stream("two", params)
    while llm.has_unfinished_requests():
        pieces += llm.step()
    assert [(p.request_id, p.finished) for p in pieces] == [
        ("R1", False), ("R1", False), ("R2", False), ("R1", True), ("R2", False), ("R2", True),
    ]  # fmt: skip
    assert [list(first), list(second)] == [[p for p in pieces if p.request_id == r] for r in ("R1", "R2")]
