"""Sampling through `LLM`: seeds, answers in a row, stop texts, log-probabilities, and logits that are no numbers."""

import math

import pytest
import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.batching import ContinuousBatcher
from mini_vllm.errors import SchedulerContractError
from mini_vllm.stages.ch04_admit_retire import Scheduler as Stage4
from tests.engine.dense_oracle import dense_logits
from tests.engine.tiny_llm import tiny_loaded

LIMITS = {"max_model_len": 96, "num_gpu_blocks": 60, "block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 24}
PROMPTS = ["a", "bcd", "some longer text", "12345"]
WARM = SamplingParams(max_tokens=10, temperature=1.0, seed=3)


@pytest.fixture(scope="module")
def loaded():
    return tiny_loaded()


@pytest.fixture
def llm(loaded):
    return LLM(loaded, **LIMITS)


def texts(outputs):
    return [output.text for output in outputs]


def test_a_seed_decides_whoever_is_in_the_batch(loaded, llm):
    alone = [llm.generate([prompt], WARM)[0].text for prompt in PROMPTS]
    assert texts(llm.generate(PROMPTS, WARM)) == alone
    assert texts(LLM(loaded, **LIMITS | {"max_num_batched_tokens": 6}).generate(PROMPTS[::-1], WARM)) == alone[::-1]
    assert texts(llm.generate(PROMPTS, SamplingParams(max_tokens=10, temperature=1.0, seed=4))) != alone
    assert texts(llm.generate(PROMPTS, SamplingParams(max_tokens=10))) != alone


def test_without_a_seed_every_answer_is_another_and_a_new_engine_repeats_them(loaded):
    params, runs = SamplingParams(max_tokens=10, temperature=1.0), []
    for _ in range(2):
        llm = LLM(loaded, **LIMITS, seed=1)
        runs.append(texts(llm.generate(["a"], params)) + texts(llm.generate(["a"], params)))
    assert runs[0] == runs[1] and runs[0][0] != runs[0][1]
    assert texts(LLM(loaded, **LIMITS, seed=2).generate(["a"], params)) != runs[0][:1]


def test_several_answers_to_one_prompt(llm):
    params = SamplingParams(max_tokens=10, temperature=1.0, seed=3, n=3)
    outputs = llm.generate(["a", "b"], params)
    assert [(o.request_id, o.prompt, o.index) for o in outputs] == [
        (f"R{i}/{j}", p, j - 1) for i, p in ((1, "a"), (2, "b")) for j in (1, 2, 3)
    ]
    assert len(set(texts(outputs[:3]))) == 3
    assert outputs[0].text == llm.generate(["a"], WARM)[0].text  # the first is the one that n=1 gives
    assert outputs[1].text == llm.generate(["a"], SamplingParams(max_tokens=10, temperature=1.0, seed=4))[0].text


def test_names_of_answers_do_not_collide_while_they_run(llm):
    stream = llm.stream(["a"], SamplingParams(max_tokens=5, temperature=1.0, n=2))
    next(stream)
    assert [o.request_id for o in llm.generate(["b"], SamplingParams(max_tokens=1))] == ["R2"]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_stop_text_anywhere_ends_the_answer_and_is_never_streamed(llm, prompt):
    whole = llm.generate([prompt], WARM)[0].text
    for start in range(len(whole)):
        for length in (1, 2, 3):
            stop = whole[start : start + length]
            seen = ""
            stream = llm.stream([prompt], SamplingParams(max_tokens=10, temperature=1.0, seed=3, stop=(stop,)))
            for delta in stream:
                seen += delta.text
                assert stop not in seen
            [output] = stream.results
            assert seen == output.text == whole[: whole.index(stop)]
            assert (output.finish_reason, output.stop_reason) == ("stop", stop)
            assert llm.tokenizer.decode(output.token_ids) == whole[: whole.index(stop) + len(stop)]
            assert not llm.has_unfinished_requests()
            assert llm.engine_core.loop.scheduler.kv_cache_manager.num_free_blocks == LIMITS["num_gpu_blocks"]


def test_a_stop_text_that_may_stay_and_one_that_is_too_early(llm):
    whole = llm.generate(["a"], WARM)[0].text
    stop = whole[2:4]
    options = {"max_tokens": 10, "temperature": 1.0, "seed": 3, "stop": (stop,)}
    kept = llm.generate(["a"], SamplingParams(**options, include_stop_str_in_output=True))[0]
    assert kept.text == whole[: whole.index(stop) + 2] and kept.finish_reason == "stop"
    late = llm.generate(["a"], SamplingParams(**options, min_tokens=whole.index(stop) + 2))[0]
    assert late.text[: whole.index(stop) + 2] == whole[: whole.index(stop) + 2]


def test_what_only_looked_like_a_stop_text_is_in_the_answer(llm):
    whole = llm.generate(["a"], WARM)[0].text
    outputs = llm.generate(["a"], SamplingParams(max_tokens=10, temperature=1.0, seed=3, stop=(whole[-1] + "!!!",)))
    assert outputs[0].text == whole and outputs[0].finish_reason == "length" and outputs[0].stop_reason is None


class OnlyFour:
    """A learner's scheduler has no finish_requests."""

    def __init__(self, config):
        self._inner = Stage4(config)
        self.add_request = self._inner.add_request
        self.schedule, self.update_from_output = self._inner.schedule, self._inner.update_from_output
        self.has_unfinished_requests = self._inner.has_unfinished_requests


def test_a_scheduler_with_four_methods_samples_but_has_no_stop_text(loaded):
    llm = LLM(loaded, **LIMITS, scheduler_cls=OnlyFour)
    assert texts(llm.generate(PROMPTS[:2], WARM)) == texts(LLM(loaded, **LIMITS).generate(PROMPTS[:2], WARM))
    with pytest.raises(SchedulerContractError, match="OnlyFour has no finish_requests"):
        llm.generate(["a"], SamplingParams(stop="x"))


def test_logprobs_of_every_token(llm):
    [output] = llm.generate(["bcd"], SamplingParams(max_tokens=6, temperature=1.0, seed=3, logprobs=2))
    ids = llm.tokenizer.encode("bcd") + output.token_ids
    expected = torch.log_softmax(dense_logits(llm.engine_core.model, ids).float(), -1)
    assert len(output.logprobs) == 6
    for i, entry in enumerate(output.logprobs):
        row = expected[2 + i]
        assert entry.token_id == output.token_ids[i] and len(entry.top) == 2
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
        assert max(entry.top.values()) == pytest.approx(float(row.max()), abs=1e-4)
    assert llm.generate(["bcd"], WARM)[0].logprobs is None


@pytest.mark.parametrize("caching", [False, True])
def test_a_request_whose_logits_are_no_numbers_ends_and_the_others_go_on(loaded, caching, monkeypatch):
    """Its KV is full of NaN, and its blocks go to others afterwards."""
    llm = LLM(loaded, **LIMITS, enable_prefix_caching=caching)
    expected = texts(llm.generate(PROMPTS, SamplingParams(max_tokens=10)))
    embed = llm.engine_core.model.model.embed_tokens
    forward = embed.forward
    monkeypatch.setattr(embed, "forward", lambda ids: forward(ids).masked_fill((ids == 0)[:, None], math.nan))
    prompts = [PROMPTS[0], "bad \0", *PROMPTS[1:]]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=10))
    assert [o.finish_reason for o in outputs] == ["length", "error", "length", "length", "length"]
    assert "not finite" in outputs[1].error and outputs[1].token_ids == [] and outputs[0].error is None
    assert texts(outputs[:1] + outputs[2:]) == expected
    manager = llm.engine_core.loop.scheduler.kv_cache_manager
    assert manager.num_free_blocks == LIMITS["num_gpu_blocks"]
    long = ["x" * 40, "y" * 40, "z" * 40]  # together they need every block that was left behind
    alone = [llm.generate([p], SamplingParams(max_tokens=10))[0].text for p in long]
    assert texts(llm.generate(long, SamplingParams(max_tokens=10))) == alone
    assert all(o.finish_reason == "length" for o in llm.generate(long, SamplingParams(max_tokens=10)))


def test_learners_batcher_with_parameters(loaded):
    outputs = LLM(loaded, **LIMITS, scheduler_cls=ContinuousBatcher).generate(PROMPTS, WARM)
    assert texts(outputs) == texts(LLM(loaded, **LIMITS).generate(PROMPTS, WARM))


def test_a_stop_text_among_accepted_drafts_cuts_off_the_tokens_behind_it(loaded):
    limits = LIMITS | {"max_num_batched_tokens": 40}
    plain, drafting = LLM(loaded, **limits), LLM(loaded, **limits, num_speculative_tokens=4)
    options = {"max_tokens": 40, "ignore_eos": True, "repetition_penalty": 0.05}  # below 1: it likes repeating
    whole = plain.generate(["abcabcabc"], SamplingParams(**options))[0].text
    for length in range(2, 9):
        params = SamplingParams(**options, stop=(whole[:length],))
        expected, found = (llm.generate(["abcabcabc"], params)[0] for llm in (plain, drafting))
        assert (found.token_ids, found.text) == (expected.token_ids, expected.text)
        params = SamplingParams(**options, stop=(whole[20 : 20 + length],))
        expected, found = (llm.generate(["abcabcabc"], params)[0] for llm in (plain, drafting))
        assert (found.token_ids, found.text) == (expected.token_ids, expected.text)
    assert drafting.engine_core.runner.num_accepted > 0
