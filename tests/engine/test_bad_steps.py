"""What goes wrong within a step: broken logits under a learner's scheduler, an abort at any moment. Tiny model."""

import math

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.errors import KVPoolTooSmallError, SchedulerContractError
from tests.engine.test_sampling_in_engine import OnlyFour
from tests.engine.tiny_llm import tiny_loaded

LIMITS = {"max_model_len": 96, "num_gpu_blocks": 60, "block_size": 4, "max_num_seqs": 3, "max_num_batched_tokens": 12}
TEN = SamplingParams(max_tokens=10, ignore_eos=True)


@pytest.fixture
def loaded():
    return tiny_loaded()


def break_logits_of(llm, token_id, monkeypatch):
    """Whoever has this token gets NaN from its embedding."""
    embed = llm.engine_core.model.model.embed_tokens
    forward = embed.forward
    monkeypatch.setattr(embed, "forward", lambda ids: forward(ids).masked_fill((ids == token_id)[:, None], math.nan))


def test_broken_logits_under_a_scheduler_that_cannot_end_a_request(loaded, monkeypatch):
    llm = LLM(loaded, **LIMITS, scheduler_cls=OnlyFour)
    expected = llm.generate("good", TEN)[0].text
    other = llm.stream("good", TEN, request_ids=["other"])
    next(other)
    with monkeypatch.context() as patch:
        break_logits_of(llm, 1, patch)
        message = (
            r"OnlyFour has no finish_requests\(request_ids\), which is needed to end 'R1': "
            "the model's logits are not finite numbers. All requests are dropped"
        )
        with pytest.raises(SchedulerContractError, match=message):
            llm.generate("bad \1", TEN)
    assert [delta.finish_reason for delta in other if delta.finished] == ["error"]
    assert "which is needed to end 'R1'" in other.results[0].error
    assert not llm.has_unfinished_requests() and llm.generate("good", TEN)[0].text == expected


def test_a_failed_step_tells_the_others_why(loaded, monkeypatch):
    llm = LLM(loaded, **LIMITS)
    other = llm.stream("good", TEN)
    next(other)
    with monkeypatch.context() as patch:
        patch.setattr(llm.engine_core.model, "compute_logits", lambda hidden: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            llm.generate("another", TEN)
    list(other)
    assert (other.results[0].finish_reason, other.results[0].error) == (
        "error",
        "a step failed for all: division by zero",
    )


PROMPTS = {"long": "x" * 30, "mid": "some words", "short": "ab", "late": "the last to come"}


def run_with_an_abort(llm, victim, at, inside, monkeypatch):
    """Aborts `victim` in step `at`: while the model runs, or between two steps. Returns all outputs."""
    stream = llm.stream(list(PROMPTS.values()), TEN, request_ids=list(PROMPTS))
    runner, count = llm.engine_core.runner, 0
    with monkeypatch.context() as patch:
        if inside:
            execute = runner.execute

            def aborting(plan):
                nonlocal count
                output = execute(plan)
                if count == at:
                    llm.abort([victim])
                count += 1
                return output

            patch.setattr(llm.engine_core.loop, "_execute", aborting)
        while llm.has_unfinished_requests():
            if not inside and count == at:
                llm.abort([victim])
            llm.step()
            count += not inside
    list(stream)
    return {output.request_id: output for output in stream.results}


@pytest.mark.parametrize("inside", [False, True], ids=["between steps", "while the model runs"])
@pytest.mark.parametrize("blocks", [60, 17], ids=["room for all", "they evict each other"])
@pytest.mark.parametrize("victim", PROMPTS)
def test_an_abort_at_any_moment_hits_one_request_only(loaded, monkeypatch, victim, blocks, inside):
    """It waits, is in the middle of its prompt, decodes, was evicted, or is over: in every third step one try."""
    llm = LLM(loaded, **LIMITS | {"num_gpu_blocks": blocks})
    alone = {name: LLM(loaded, **LIMITS).generate(prompt, TEN)[0].token_ids for name, prompt in PROMPTS.items()}
    llm.generate(list(PROMPTS.values()), TEN, request_ids=list(PROMPTS))
    num_steps, seen = len(llm.trace.steps), set()
    for at in range(0, num_steps, 3):
        outputs = run_with_an_abort(llm, victim, at, inside, monkeypatch)
        for name, output in outputs.items():
            if name == victim and output.finish_reason == "abort":
                assert output.token_ids == alone[name][: len(output.token_ids)] and len(output.token_ids) < 10
            else:
                assert (output.finish_reason, output.token_ids) == ("length", alone[name])
        seen.add(outputs[victim].finish_reason)
        manager = llm.engine_core.loop.scheduler.kv_cache_manager
        assert manager.num_free_blocks == blocks and not llm.has_unfinished_requests()
    assert "abort" in seen


def test_one_request_may_take_the_whole_pool_and_no_more(loaded):
    llm = LLM(loaded, **LIMITS | {"num_gpu_blocks": 9})  # 36 tokens
    with pytest.raises(KVPoolTooSmallError, match=r"needs up to 10 KV blocks for 37 tokens .* has 9"):
        llm.generate("x" * 28, TEN)
    [output] = llm.generate("x" * 27, TEN)
    assert len(output.token_ids) == 10 and llm.stats.peak["kv_blocks_used"] == 9
