"""Token ids back to text, each piece to whom it belongs. Knows streams and detokenizers; plans nothing. Chapter 14."""

import contextlib
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mini_vllm.core.output import RequestOutput
from mini_vllm.engine.answer_text import AnswerText
from mini_vllm.engine.engine_core import EngineCore
from mini_vllm.engine.sampler import TokenLogprobs
from mini_vllm.errors import SchedulerContractError
from mini_vllm.request import Request


@dataclass
class CompletionOutput:
    """One finished answer. `finish_reason`: "stop" (end token, stop token or stop text), "length" (max_tokens or
    max_model_len), "abort", or "error" (`error` says what: its logits were no numbers, or a step failed).

    stop_reason: the stop text that ended it. index: which of the prompt's `n` answers. logprobs: one entry a token,
    where they were asked for.

    `text` ends at a whole character, as in vLLM: where the last tokens are only the first bytes of one, those
    tokens stand in `token_ids` and the character is left out of `text`.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | None = None
    index: int = 0
    logprobs: list[TokenLogprobs] | None = None
    error: str | None = None


@dataclass(frozen=True)
class TextDelta:
    """A piece of one request's text, as soon as it is final: never half a character."""

    request_id: str
    text: str
    finish_reason: str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class TextStream:
    """The pieces of some requests, in the order of the steps. Dropping it, even unread, aborts what is unfinished."""

    def __init__(self, processor: "OutputProcessor", results: list[CompletionOutput]):
        self.results = results
        self._processor = processor
        self._pieces: deque[TextDelta] = deque()
        self._open = {output.request_id for output in results}

    def __iter__(self) -> "TextStream":
        return self

    def __next__(self) -> TextDelta:
        while not self._pieces:
            if not self._open:
                raise StopIteration
            self._processor.step()
        return self._pieces.popleft()

    def push(self, delta: TextDelta) -> None:
        self._pieces.append(delta)
        if delta.finished:
            self._open.discard(delta.request_id)

    def close(self) -> None:
        """End early. Never raises: it also runs where an exception is already on its way."""
        with contextlib.suppress(Exception):
            self._processor.abort(self._open)
        self._pieces.clear()
        self._open.clear()

    __del__ = close


@dataclass
class _OpenRequest:
    output: CompletionOutput
    text: "AnswerText"
    stream: "weakref.ref[TextStream]"  # weak: a stream that nobody holds any more must be able to end

    def push(self, delta: TextDelta) -> None:
        if (stream := self.stream()) is not None:
            stream.push(delta)


class OutputProcessor:
    """Steps the engine for whoever asks first, and hands every piece to the stream that it belongs to."""

    def __init__(self, tokenizer, engine_core: EngineCore):
        self.tokenizer = tokenizer
        self.engine_core = engine_core
        self._open: dict[str, _OpenRequest] = {}

    def submit(
        self, requests: list[Request], texts: list[str | None], indices: Sequence[int] | None = None
    ) -> TextStream:
        """Put validated requests into the engine, all or none. indices: which of its prompt's answers each is."""
        results = [
            CompletionOutput(r.request_id, text, r.prompt_token_ids, index=index)
            for r, text, index in zip(requests, texts, indices or [0] * len(requests), strict=True)
        ]
        stream = TextStream(self, results)
        try:
            for request, output in zip(requests, results, strict=True):
                shown = output.prompt if output.prompt is not None else self.tokenizer.decode(request.prompt_token_ids)
                self.engine_core.add_request(request, shown)
                if request.sampling_params.logprobs is not None:
                    output.logprobs = []
                text = AnswerText(self.tokenizer, request.sampling_params)
                entry = _OpenRequest(output, text, weakref.ref(stream))
                self._open[request.request_id] = entry
        except BaseException as error:
            self._cut_off(f"the engine failed while it took in new requests: {error or type(error).__name__}")
            raise
        return stream

    def step(self) -> list[TextDelta]:
        """One step for everyone in the engine. If it fails, the caller sees why, all others that they were cut off."""
        try:
            deltas = [self._take(news) for news in self.engine_core.step()]
            self.engine_core.loop.add_pieces({d.request_id: d.text for d, _ in deltas if d.text})
        except BaseException as error:
            self._cut_off(f"a step failed for all: {error or type(error).__name__}")
            raise
        for delta, entry in deltas:
            entry.push(delta)
        return [delta for delta, _ in deltas]

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests early; their streams get a last piece that says so. Ids that are not open are passed over."""
        aborted = [req_id for req_id in list(request_ids) if req_id in self._open]
        if not aborted:
            return
        for req_id in aborted:
            self._end(req_id, "abort")
        try:
            self.engine_core.abort(aborted)
        except SchedulerContractError as error:  # it cannot abort one request, so the engine has dropped all
            self._cut_off(str(error))
            raise

    def close(self) -> None:
        """End the run: everybody is aborted, and the trace's file is complete."""
        with contextlib.suppress(SchedulerContractError):
            self.abort(self._open)
        self.engine_core.loop.close()

    def _take(self, news: RequestOutput) -> tuple[TextDelta, _OpenRequest]:
        entry = self._open[news.request_id]
        output, reason = entry.output, news.finish_reason
        text, num_used = entry.text.add(news.new_token_ids)
        output.token_ids += news.new_token_ids[:num_used]
        if output.logprobs is not None:
            output.logprobs += self.engine_core.last_output.logprobs.get(news.request_id, [])[:num_used]
        if entry.text.stopped_by is not None:
            output.stop_reason, reason = entry.text.stopped_by, "stop"
            if not news.finished:
                self.engine_core.abort([news.request_id])
        if reason is not None:
            text += entry.text.rest()
            output.finish_reason, output.error = reason, self.engine_core.last_output.errors.get(news.request_id)
            del self._open[news.request_id]
        output.text += text
        return TextDelta(news.request_id, text, reason), entry

    def _end(self, req_id: str, reason: str, error: str | None = None) -> None:
        entry = self._open.pop(req_id)
        entry.output.finish_reason, entry.output.error = reason, error
        entry.push(TextDelta(req_id, "", reason))

    def _cut_off(self, error: str) -> None:
        """Empty the engine and tell every open stream; the engine is usable afterwards."""
        self.engine_core.reset()
        for req_id in list(self._open):
            self._end(req_id, "error", error)
