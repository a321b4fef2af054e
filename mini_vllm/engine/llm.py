"""Text in, text out: the front of the engine. Knows tokenizer, chat template and EngineCore. Chapters 0 and 14."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import RequestOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.engine.engine_core import EngineCore
from mini_vllm.errors import ConfigError, DuplicateRequestError, EmptyPromptError, InvalidRequestError
from mini_vllm.loaders.weights import LoadedModel, load_model
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.tokenization.detokenizer import IncrementalDetokenizer
from mini_vllm.trace.recorder import Trace

Prompt = str | Sequence[int] | Sequence[dict]


@dataclass
class CompletionOutput:
    """One finished request. `finish_reason`: "stop" (end token), "length" (max_tokens or max_model_len), "abort",
    or "error" (a step failed while it was running)."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass(frozen=True)
class TextDelta:
    """A piece of one request's text, as soon as it is final: never half a character."""

    request_id: str
    text: str
    finish_reason: str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class LLM:
    """A model, its tokenizer and a scheduler, on this machine's CPU.

    model: a known name ("smollm2-135m") or the path of a .gguf file.
    dtype: "float32" (exact) or "bfloat16" (half the memory, faster).
    scheduler_cls: any class with the four methods of a scheduler; it is built with the `SchedulerConfig`.
    max_model_len, max_num_seqs, max_num_batched_tokens, num_gpu_blocks, block_size: see `SchedulerConfig`.
    """

    def __init__(
        self,
        model: str | LoadedModel = "smollm2-135m",
        *,
        dtype: str = "float32",
        scheduler_cls: type = Scheduler,
        max_model_len: int = 2048,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 512,
        num_gpu_blocks: int = 512,
        block_size: int = 16,
    ):
        loaded = load_model(model, dtype=dtype) if isinstance(model, str) else model
        longest = loaded.config.max_position_embeddings
        if max_model_len > longest:
            raise ConfigError(f"max_model_len={max_model_len} is beyond the model's context of {longest}; lower it")
        self.tokenizer = loaded.tokenizer
        self.chat_template = loaded.chat_template
        config = SchedulerConfig(max_num_seqs, max_num_batched_tokens, max_model_len, num_gpu_blocks, block_size)
        self.engine_core = EngineCore(loaded.model, config, scheduler_cls)
        self._outputs: dict[str, CompletionOutput] = {}
        self._detokenizers: dict[str, IncrementalDetokenizer] = {}
        self._undelivered: list[TextDelta] = []

    @property
    def trace(self) -> Trace:
        """Step records of the latest run; `StepPlayer(llm.trace)` shows it."""
        return self.engine_core.trace

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        request_ids: Sequence[str] | None = None,
        progress: bool | None = None,
    ) -> list[CompletionOutput]:
        """Complete all prompts together; outputs stand in the order of the prompts.

        prompts: each a text, a list of token ids, or a conversation (a list of {"role", "content"}), which the
            model's chat template turns into a prompt. sampling_params: one for all, or one for each.
        progress: a bar on standard error; by default only on a terminal.
        """
        requests, texts = self._make_requests(prompts, sampling_params, request_ids)
        results = self._submit(requests, texts)
        with _progress_bar(len(results), progress) as advance:
            for delta in self._run([r.request_id for r in requests]):
                if delta.finished:
                    advance()
        return results

    def chat(
        self,
        messages: Sequence[dict] | Sequence[Sequence[dict]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **kwargs,
    ) -> list[CompletionOutput]:
        """`generate` for one conversation (a list of {"role", "content"}) or a list of them."""
        return self.generate(messages or [[]], sampling_params, **kwargs)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        request_ids: Sequence[str] | None = None,
    ) -> Iterator[TextDelta]:
        """Pieces of text as the steps produce them. Leaving the loop early aborts what is unfinished."""
        # Checked here and not at the first next(): a bad prompt is refused where it was given.
        requests, texts = self._make_requests(prompts, sampling_params, request_ids)
        self._submit(requests, texts)
        return self._run([r.request_id for r in requests])

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests early; their blocks are free for the next step. Unknown ids are passed over."""
        self.engine_core.abort(request_ids)
        for req_id in request_ids:
            if (output := self._outputs.pop(req_id, None)) is not None:
                output.finish_reason = "abort"
                self._detokenizers.pop(req_id)

    def _make_requests(self, prompts, sampling_params, request_ids) -> tuple[list[Request], list[str | None]]:
        """Validate everything before anything enters the engine: a bad prompt leaves the good ones untouched."""
        if isinstance(prompts, str) or (prompts and isinstance(prompts[0], dict)):
            prompts = [prompts]
        if prompts and isinstance(prompts[0], int):
            raise InvalidRequestError("prompts is one list of token ids; wrap it in a list: [[1, 2, 3]]")
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params or SamplingParams()] * len(prompts)
        if request_ids is None:
            unused = (name for name in (f"R{i}" for i in count(1)) if name not in self._outputs)
            request_ids = list(islice(unused, len(prompts)))
        for name, values in (("sampling_params", sampling_params), ("request_ids", request_ids)):
            if len(values) != len(prompts):
                raise InvalidRequestError(f"{len(prompts)} prompts but {len(values)} {name}; give one for each")
        if len(set(request_ids)) != len(request_ids):
            raise DuplicateRequestError(f"request_ids holds an id twice: {list(request_ids)}")
        requests: list[Request] = []
        texts: list[str | None] = []
        for req_id, prompt, params in zip(request_ids, prompts, sampling_params, strict=True):
            text, token_ids = self._encode(prompt)
            if not token_ids:
                raise EmptyPromptError(
                    f"prompt {len(requests) + 1} of {len(prompts)} ({req_id}) is empty: 0 tokens, at least 1 needed"
                )
            request = Request(req_id, token_ids, params, eos_token_id=self.tokenizer.eos_token_id)
            self.engine_core.validate(request)
            requests.append(request)
            texts.append(text)
        return requests, texts

    def _encode(self, prompt: Any) -> tuple[str | None, list[int]]:
        """What to show of a prompt (None where only ids are known), and its token ids."""
        if isinstance(prompt, str):
            return prompt, self.tokenizer.encode(prompt)
        if prompt and isinstance(prompt[0], int):
            return None, list(prompt)
        if not prompt:
            return None, []
        if self.chat_template is None:
            raise ConfigError("this model has no chat template, so it was not trained to chat; send text instead")
        token_ids = self.chat_template.encode(prompt)  # refuses what is no conversation
        shown = prompt[-1]["content"]
        return shown if isinstance(shown, str) else None, token_ids

    def _submit(self, requests: list[Request], texts: list[str | None]) -> list[CompletionOutput]:
        results = []
        for request, text in zip(requests, texts, strict=True):
            shown = text if text is not None else self.tokenizer.decode(request.prompt_token_ids)
            self.engine_core.add_request(request, shown)
            output = CompletionOutput(request.request_id, text, request.prompt_token_ids)
            self._outputs[request.request_id] = output
            self._detokenizers[request.request_id] = IncrementalDetokenizer(self.tokenizer)
            results.append(output)
        return results

    def _run(self, request_ids: list[str]) -> Iterator[TextDelta]:
        """Step until these requests are done; whatever happens, none of them is left behind in the engine."""
        ids = set(request_ids)
        try:
            while True:
                if mine := [delta for delta in self._undelivered if delta.request_id in ids]:
                    self._undelivered = [delta for delta in self._undelivered if delta.request_id not in ids]
                    yield from mine
                elif ids & self._outputs.keys():
                    self._step()
                else:
                    return
        finally:
            self.abort([req_id for req_id in request_ids if req_id in self._outputs])
            self._undelivered = [delta for delta in self._undelivered if delta.request_id not in ids]

    def _step(self) -> None:
        """One step for everyone in the engine; another stream's pieces wait in `_undelivered` until it asks."""
        try:
            deltas = [self._take(news) for news in self.engine_core.step()]
        except BaseException:
            # The engine has emptied itself. Whoever asked sees the exception, all others that they were cut off.
            for output in self._outputs.values():
                output.finish_reason = "error"
                self._undelivered.append(TextDelta(output.request_id, "", "error"))
            self._outputs.clear()
            self._detokenizers.clear()
            raise
        self.engine_core.loop.recorder.add_pieces({d.request_id: d.text for d in deltas if d.text})
        self._undelivered += deltas

    def _take(self, news: RequestOutput) -> TextDelta:
        output = self._outputs[news.request_id]
        detokenizer = self._detokenizers[news.request_id]
        output.token_ids += news.new_token_ids
        text = detokenizer.add(news.new_token_ids)
        if news.finished:
            text += detokenizer.flush()
            output.finish_reason = news.finish_reason
            del self._outputs[news.request_id], self._detokenizers[news.request_id]
        output.text += text
        return TextDelta(news.request_id, text, news.finish_reason)


class _progress_bar:
    """`with _progress_bar(n, show) as advance`: a bar on standard error, or nothing."""

    def __init__(self, total: int, show: bool | None):
        self.total = total
        self.show = sys.stderr.isatty() if show is None else show

    def __enter__(self):
        if not self.show:
            return lambda: None
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

        columns = ("requests", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=Console(stderr=True))
        self.bar.start()
        task = self.bar.add_task("requests", total=self.total)
        return lambda: self.bar.advance(task)

    def __exit__(self, *exc_info):
        if self.show:
            self.bar.stop()
