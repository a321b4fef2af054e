"""The front of the engine with the real model: bad input is refused and explained, and the engine stays usable."""

from dataclasses import replace

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import RequestOutput
from mini_vllm.core.scheduler import Scheduler
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
        assert "\ufffd" not in delta.text, "half a character was shown"
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
    "prompt longer than the model": (
        lambda llm: llm.generate([[5] * 9000], FEW),
        PromptTooLongError,
        "9000 prompt tokens",
    ),
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
    "chat with a text": (
        lambda llm: llm.chat("hello", FEW),
        InvalidRequestError,
        r"messages is a str \('hello'\): give a conversation, \[\{\"role\": \"user\"",
    ),
    "chat with a list of texts": (
        lambda llm: llm.chat(["hello"], FEW),
        InvalidRequestError,
        r"holds a str \('hello'\): give a conversation.*take generate\(\)",
    ),
    "a number as prompts": (
        lambda llm: llm.generate(5),
        InvalidRequestError,
        r"prompts is an int \(5\): give a text, a list of token ids",
    ),
    "nothing as prompts": (lambda llm: llm.generate(None), InvalidRequestError, "prompts is a NoneType"),
    "a dict as prompts": (lambda llm: llm.stream({"role": "user"}), InvalidRequestError, "prompts is a dict"),
    "bytes as prompts": (lambda llm: llm.generate(b"hi"), InvalidRequestError, "prompts is a bytes"),
    "a number among prompts": (lambda llm: llm.generate(["a", 5], FEW), InvalidRequestError, r"holds an int \(5\)"),
    "a word among ids": (
        lambda llm: llm.generate([[5, "a"]], FEW),
        InvalidRequestError,
        r"a str \('a'\), which is no tok",
    ),
    "params as a dict": (
        lambda llm: llm.generate("hi", {"max_tokens": 3}),
        InvalidRequestError,
        r"sampling_params is a dict \(\{'max_tokens': 3\}\): give a SamplingParams",
    ),
    "a dict among params": (lambda llm: llm.generate(["a"], [{}]), InvalidRequestError, "sampling_params holds a dict"),
    "one id as a text": (lambda llm: llm.generate("a", request_ids="x"), InvalidRequestError, "request_ids is a str"),
    "a stop token without a list": (lambda llm: SamplingParams(stop_token_ids=2), InvalidSamplingParamsError, r"\[2\]"),
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


class TakesNothing:
    pass


class TakesTwo:
    def __init__(self, config, clock):
        raise AssertionError("not to be built")


@pytest.mark.parametrize("scheduler_cls", [TakesNothing, TakesTwo, Scheduler(SchedulerConfig())])
def test_a_scheduler_class_of_another_form_is_refused_before_a_model_is_loaded(scheduler_cls):
    with pytest.raises(SchedulerContractError, match="is built with one argument, the SchedulerConfig"):
        LLM("no such model", scheduler_cls=scheduler_cls)


def test_a_text_ends_at_a_whole_character(llm, works_after, monkeypatch):
    whole, emoji = llm.tokenizer.encode("hi"), llm.tokenizer.encode("🙃")
    assert len(emoji) > 1
    script = iter(whole + emoji[:-1])
    sample = llm.engine_core.runner.execute

    def execute(plan):
        output = sample(plan)
        return replace(output, sampled_token_ids={req_id: [next(script)] for req_id in output.sampled_token_ids})

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine_core.runner, "execute", execute)
        (output,) = llm.generate("a", SamplingParams(max_tokens=len(whole + emoji) - 1, ignore_eos=True))
    assert (output.text, output.token_ids) == ("hi", whole + emoji[:-1])
    assert "".join(step.get("pieces", {}).get("R1", "") for step in llm.trace.steps) == "hi"


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
        seen.append((delta.request_id, delta.finish_reason))
        if seen.count(("R1", None)) == 3:
            llm.abort(["R1", "nobody"])
    assert seen.count(("R1", None)) == 3
    assert ("R1", "abort") in seen
    assert [reason for req_id, reason in seen if req_id == "R2"] == [None] * 11 + ["length"]


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


def stream(llm, prompt, count):
    return llm.stream([prompt], SamplingParams(max_tokens=count, ignore_eos=True))


def text_of(deltas):
    return "".join(delta.text for delta in deltas)


def test_a_slow_reader_loses_nothing_to_a_new_stream(llm, works_after):
    alone = [text_of(stream(llm, prompt, count)) for prompt, count in [("AAAA", 6), ("CCCC", 3)]]
    slow = stream(llm, "AAAA", 6)
    first = next(slow).text
    llm.generate("BBBB", SamplingParams(max_tokens=12, ignore_eos=True))  # steps the slow one to its end, too
    assert text_of(stream(llm, "CCCC", 3)) == alone[1], "a new stream must not get an old one's words"
    assert first + text_of(slow) == alone[0]


def test_a_stream_that_nobody_reads_is_aborted(llm, works_after):
    unread = stream(llm, "private", 30)
    del unread
    assert not llm.engine_core.has_unfinished_requests()


def test_ids_are_not_given_twice_within_a_run(llm, works_after):
    held = stream(llm, "one", 20)
    next(held)
    llm.generate("two", FEW)
    llm.generate("three", FEW)
    assert list(llm.trace.header["requests"]) == ["R1", "R2", "R3"]
    with pytest.raises(DuplicateRequestError, match="'R2'"):
        llm.generate("four", FEW, request_ids=["R2"])
    held.close()


def test_an_abort_ends_the_stream_with_a_last_piece(llm, works_after):
    deltas = stream(llm, "one", 20)
    next(deltas)
    llm.abort(["R1"])
    assert [(d.text, d.finish_reason) for d in deltas] == [("", "abort")]
    with pytest.raises(InvalidRequestError, match="'R1'"):
        llm.abort("R1")


class FourMethods:
    """A learner's scheduler: the right one, but with the four methods only."""

    def __init__(self, config):
        inner = Scheduler(config)
        for name in ("add_request", "schedule", "update_from_output", "has_unfinished_requests"):
            setattr(self, name, getattr(inner, name))


class AddsNews(Scheduler):
    def update_from_output(self, plan, output):
        return [*super().update_from_output(plan, output), RequestOutput("ghost", [1])]


class RefusesCompany(Scheduler):
    def add_request(self, request):
        if len(self.waiting):
            raise RuntimeError("one is enough")
        super().add_request(request)


@pytest.fixture
def with_scheduler(llm):
    before = llm.engine_core.scheduler_cls

    def use(scheduler_cls):
        llm.engine_core.scheduler_cls = scheduler_cls
        llm.engine_core.reset()

    yield use
    use(before)


def test_four_methods_serve_and_an_early_exit_hangs_nobody(llm, works_after, with_scheduler):
    with_scheduler(FourMethods)
    assert llm.generate("The capital of Italy is", FEW)[0].text.startswith(" Rome")
    first, second = stream(llm, "aa", 9), stream(llm, "bb", 9)
    next(first), next(second)
    first.close()  # it cannot abort one request, so all others are cut off, and told so
    assert [d.finish_reason for d in second if d.finished] == ["error"]
    assert llm.generate("The capital of Italy is", FEW)[0].text.startswith(" Rome")


@pytest.mark.parametrize("wrong", [AddsNews, RefusesCompany])
def test_a_learners_mistake_is_told_and_leaves_the_engine_usable(llm, works_after, with_scheduler, wrong):
    with_scheduler(wrong)
    with pytest.raises((SchedulerContractError, RuntimeError), match=r"ghost|one is enough"):
        llm.generate(["one", "two"], FEW)
    assert not llm.engine_core.has_unfinished_requests()
    with_scheduler(Scheduler)
    assert len(llm.generate(["one", "two"], FEW)) == 2


def test_bfloat16_writes_sense():
    """No claim on tokens in bfloat16; but it must answer."""
    (output,) = LLM(dtype="bfloat16", num_gpu_blocks=16, max_model_len=128).generate("The capital of Italy is", FEW)
    assert output.text.startswith(" Rome")
