"""The front of the engine with the real model: bad input is refused and explained, and the engine stays usable."""

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.errors import (
    ConfigError,
    DuplicateRequestError,
    EmptyPromptError,
    InvalidRequestError,
    InvalidSamplingParamsError,
    KVPoolTooSmallError,
    PromptTooLongError,
    SchedulerContractError,
    UnknownModelError,
)

pytestmark = pytest.mark.model
FEW = SamplingParams(max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def llm():
    return LLM(max_model_len=128, num_gpu_blocks=16)


@pytest.fixture
def works_after(llm):
    """Whatever a test did to the engine: it must be empty and still give the right words."""
    yield
    assert not llm.engine_core.has_unfinished_requests()
    assert llm.generate("The capital of Italy is", FEW)[0].text.startswith(" Rome")
    assert llm.engine_core.loop.watch.num_free_blocks == 16


def test_generates(llm):
    first, second = llm.generate(["The capital of Italy is", "1, 2, 3, 4,"], FEW)
    assert first.text.startswith(" Rome")
    assert second.text.startswith(" 5")
    assert len(first.token_ids) == len(second.token_ids) == 4
    assert first.finish_reason == "length"


def test_chat_ends_by_itself(llm):
    (output,) = llm.chat(
        [{"role": "user", "content": "What is the capital of France? Answer in one word."}], SamplingParams(60)
    )
    assert "Paris" in output.text
    assert output.finish_reason == "stop"
    assert "<|im_end|>" not in output.text


def test_a_conversation_may_stand_among_texts_and_ids(llm):
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    ids = llm.tokenizer.encode("The capital of Italy is")
    outputs = llm.generate([chat, "The capital of Italy is", ids], SamplingParams(max_tokens=8))
    assert "Paris" in outputs[0].text
    assert outputs[1].text == outputs[2].text
    assert [o.prompt for o in outputs] == [chat[0]["content"], "The capital of Italy is", None]
    assert llm.trace.header["requests"]["R1"]["prompt"] == chat[0]["content"], "the trace shows what a person typed"


def test_stream_gives_the_same_text_in_pieces(llm):
    prompts = ["Emoji: 🙂🙃 and 漢字,", "The capital of Italy is"]
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    pieces: dict[str, str] = {"R1": "", "R2": ""}
    finished = []
    for delta in llm.stream(prompts, params):
        assert "\ufffd" not in delta.text or delta.finished, "half a character was shown"
        pieces[delta.request_id] += delta.text
        finished += [delta.request_id] * delta.finished
    assert sorted(finished) == ["R1", "R2"]
    assert [pieces["R1"], pieces["R2"]] == [o.text for o in llm.generate(prompts, params)]


def test_trace_of_a_run_holds_its_text(llm):
    outputs = llm.generate(["The capital of Italy is"], FEW)
    told = "".join(step.get("pieces", {}).get("R1", "") for step in llm.trace.steps)
    assert told == outputs[0].text
    assert llm.trace.header["kind"] == "engine"
    assert all(0 <= step["t_start"] <= step["t_end"] for step in llm.trace.steps)


BAD = {
    "empty text": (lambda llm: llm.generate([""], FEW), EmptyPromptError, "0 tokens"),
    "empty ids": (lambda llm: llm.generate([[]], FEW), EmptyPromptError, "0 tokens"),
    "one bad prompt among good ones": (lambda llm: llm.generate(["good", ""], FEW), EmptyPromptError, "prompt 2 of 2"),
    "prompt as long as the context": (
        lambda llm: llm.generate([[5] * 128], FEW),
        PromptTooLongError,
        "max_model_len is 128",
    ),
    "prompt longer than the model": (lambda llm: llm.generate([[5] * 9000], FEW), PromptTooLongError, "allows 8192"),
    "max_tokens 0": (
        lambda llm: llm.generate(["a"], SamplingParams(max_tokens=0)),
        InvalidSamplingParamsError,
        "max_tokens=0",
    ),
    "max_tokens of the wrong kind": (lambda llm: SamplingParams(max_tokens="4"), InvalidSamplingParamsError, "'4'"),
    "token id beyond the vocabulary": (lambda llm: llm.generate([[49152]], FEW), InvalidRequestError, "49151"),
    "negative token id": (lambda llm: llm.generate([[-1]], FEW), InvalidRequestError, "-1"),
    "flat list of ids": (lambda llm: llm.generate([1, 2, 3], FEW), InvalidRequestError, r"\[\[1, 2, 3\]\]"),
    "too few params": (lambda llm: llm.generate(["a", "b"], [FEW]), InvalidRequestError, "2 prompts but 1"),
    "the same id twice": (
        lambda llm: llm.generate(["a", "b"], FEW, request_ids=["x", "x"]),
        DuplicateRequestError,
        "x",
    ),
    "empty chat": (lambda llm: llm.chat([], FEW), EmptyPromptError, "0 tokens"),
    "chat without content": (lambda llm: llm.chat([{"role": "user"}], FEW), InvalidRequestError, "content"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(llm, works_after, name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call(llm)


def test_unknown_model_says_what_is_known():
    with pytest.raises(UnknownModelError, match="smollm2-135m"):
        LLM("gpt-17")


def test_a_pool_too_small_for_one_request_says_by_how_much():
    small = LLM(max_model_len=128, num_gpu_blocks=2)
    with pytest.raises(
        KVPoolTooSmallError, match=r"needs up to 3 KV blocks for 33 tokens \(30 prompt \+ 4 new, .*16 a block\).*has 2"
    ):
        small.generate([[5] * 30], FEW)
    assert small.generate([[5] * 20], FEW)[0].finish_reason == "length"


def test_context_beyond_the_model_is_refused():
    with pytest.raises(ConfigError, match="8192"):
        LLM(max_model_len=9000)


def test_a_sequence_ends_at_max_model_len(llm):
    (output,) = llm.generate([[5] * 120], SamplingParams(max_tokens=100, ignore_eos=True))
    assert len(output.token_ids) == 8
    assert output.finish_reason == "length"


def test_leaving_a_stream_early_frees_everything(llm, works_after):
    for delta in llm.stream(["one", "two", "three"], SamplingParams(max_tokens=50, ignore_eos=True)):
        if delta.request_id == "R2":
            break
    del delta


def test_two_streams_at_once_lose_nothing(llm, works_after):
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    prompts = ["The capital of Italy is", "1, 2, 3, 4,"]
    want = [o.text for o in llm.generate(prompts, params)]
    first = llm.stream([prompts[0]], params)
    text = [next(first).text]
    second = llm.stream([prompts[1]], params)
    text.append("".join(delta.text for delta in second))
    text[0] += "".join(delta.text for delta in first)
    assert text == want
    assert max(len(step["scheduled"]) for step in llm.trace.steps) == 2, "they did not share steps"


def test_abort_in_mid_stream(llm, works_after):
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    seen = []
    for delta in llm.stream(["one", "two"], params):
        seen.append(delta.request_id)
        if seen.count("R1") == 3:
            llm.abort(["R1", "nobody"])
    assert seen.count("R1") == 3
    assert seen.count("R2") == 12


def test_a_scheduler_that_breaks_the_contract_leaves_the_engine_usable(llm, works_after, monkeypatch):
    schedule = llm.engine_core.scheduler_cls.schedule

    def lies(self):
        plan = schedule(self)
        plan.num_scheduled_tokens.update(R1=99)
        return plan

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine_core.scheduler_cls, "schedule", lies)
        with pytest.raises(SchedulerContractError, match="99 tokens of 'R1'"):
            llm.generate(["one", "two"], FEW)


def test_a_model_that_fails_in_mid_step_leaves_the_engine_usable(llm, works_after, monkeypatch):
    def breaks(hidden):
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine_core.model, "compute_logits", breaks)
        with pytest.raises(RuntimeError, match="out of luck"):
            llm.generate(["one"], FEW)


def test_a_failed_step_ends_the_other_streams_too(llm, works_after, monkeypatch):
    other = llm.stream(["one"], SamplingParams(max_tokens=9, ignore_eos=True))
    next(other)
    with monkeypatch.context() as patch:
        patch.setattr(llm.engine_core.model, "compute_logits", lambda hidden: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            llm.generate(["two"], FEW)
    assert [delta.finish_reason for delta in other] == ["error"]


def test_bfloat16_writes_sense():
    """No claim on tokens in bfloat16; but it must answer."""
    (output,) = LLM(dtype="bfloat16", num_gpu_blocks=16, max_model_len=128).generate("The capital of Italy is", FEW)
    assert output.text.startswith(" Rome")
