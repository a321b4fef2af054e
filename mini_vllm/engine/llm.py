"""Text in, text out: the front of the engine. Knows its parts and their order, little else. Chapters 0 and 14."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.engine.attention.select import check_backend_name, select_backend
from mini_vllm.engine.attention.torch import TorchPagedAttention
from mini_vllm.engine.device import resolve_device, resolve_dtype
from mini_vllm.engine.engine_core import EngineCore
from mini_vllm.engine.gpu_memory import fill_memory
from mini_vllm.engine.input_processor import (
    InputProcessor,
    Prompt,
    check_conversations,
    check_scheduler_class,
    check_scheduler_settings,
)
from mini_vllm.engine.output_processor import CompletionOutput, OutputProcessor, TextDelta, TextStream
from mini_vllm.engine.run_records import RunRecords
from mini_vllm.engine.stats import EngineStats
from mini_vllm.errors import ConfigError, InvalidRequestError
from mini_vllm.loaders.weights import LoadedModel, load_model
from mini_vllm.models.packed import make_fast
from mini_vllm.roofline.samples import StepSample
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.trace.recorder import Trace

__all__ = ["LLM", "CompletionOutput", "TextDelta", "TextStream"]
DEFAULT_NUM_BLOCKS = 512  # on a CPU; what fits is taken on a GPU


class LLM:
    """A model, its tokenizer and a scheduler, on this machine's GPU or CPU.

    model: a known name ("smollm2-135m"), the path of a .gguf file, or of a folder as on Hugging Face's hub; or what
        `load_model` gives, which then says device and dtype, and is served as it is: a named one has its weights laid
        out for speed (see `models.packed.make_fast`).
    device: "auto" (an NVIDIA GPU if there is one), "cpu", "cuda", "cuda:1".
    dtype: "float32" (exact), "bfloat16" or "float16" (half the memory, faster); "auto" is float32 on a CPU, bfloat16 on
        a GPU that has it, else float16.
    attention_backend: "auto", "torch" or "triton", our kernels; on a CPU those run in Triton's interpreter, slowly.
    num_gpu_blocks: KV blocks; None is 512 on a CPU, and on a GPU what fits into gpu_memory_utilization of its memory
        beside the weights and the largest step.
    enforce_eager: on a GPU, launch decode steps kernel by kernel instead of as recorded CUDA graphs.
    async_scheduling: plan each step while the one before runs; faster where planning counts, but without a trace.
    seed: of the random numbers of requests that bring no seed of their own.
    scheduler_cls: any class with the four methods of a scheduler; it is built with the `SchedulerConfig`.
    trace_steps: how many of the latest steps `trace` keeps; None is all. trace_file: a file that gets every step of the
        latest run as it goes on (.gz: compressed, complete when the next run begins or after `close()`).
    max_model_len, max_num_seqs, max_num_batched_tokens, block_size: see `SchedulerConfig`, as for
    scheduler_settings: `enable_prefix_caching`, `policy` and the others that this engine can serve with.
    """

    def __init__(
        self,
        model: str | LoadedModel = "smollm2-135m",
        *,
        device: str = "auto",
        dtype: str = "auto",
        attention_backend: str = "auto",
        scheduler_cls: type = Scheduler,
        max_model_len: int = 2048,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 512,
        num_gpu_blocks: int | None = None,
        gpu_memory_utilization: float = 0.9,
        block_size: int = 16,
        seed: int = 0,
        async_scheduling: bool = False,
        enforce_eager: bool = False,
        trace_steps: int | None = 4000,
        trace_file: str | Path | None = None,
        **scheduler_settings: Any,
    ):
        check_scheduler_class(scheduler_cls)
        check_scheduler_settings(scheduler_settings)
        self._records = RunRecords(trace_steps, trace_file, async_scheduling)
        check_backend_name(attention_backend)
        if isinstance(model, LoadedModel):
            loaded = model
        else:
            where = resolve_device(device)
            loaded = load_model(model, dtype=resolve_dtype(dtype, where), device=where)
        longest = loaded.config.max_position_embeddings
        if max_model_len > longest:
            raise ConfigError(f"max_model_len={max_model_len} is beyond the model's context of {longest}; lower it")
        self.tokenizer = loaded.tokenizer
        self.chat_template = loaded.chat_template
        config = SchedulerConfig(
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            DEFAULT_NUM_BLOCKS if num_gpu_blocks is None else num_gpu_blocks,
            block_size,
            sliding_window=loaded.config.sliding_window,
            **scheduler_settings,
        )
        network = loaded.model
        backend = select_backend(attention_backend, loaded.config, network.dtype, network.device, block_size)
        if not isinstance(model, LoadedModel):
            make_fast(network, triton_ops=not isinstance(backend, TorchPagedAttention))
        if num_gpu_blocks is None and network.device.type == "cuda":
            config = fill_memory(config, network, backend, gpu_memory_utilization)
        eos = loaded.tokenizer.eos_token_id
        ends = (*loaded.end_token_ids, *([] if eos is None else [eos]))
        self.engine_core = EngineCore(
            network,
            config,
            scheduler_cls,
            backend,
            make_recorder=self._records.recorder,
            end_token_ids=ends,
            async_scheduling=async_scheduling,
            enforce_eager=enforce_eager,
        )
        self.name = loaded.name
        self._inputs = InputProcessor(
            loaded.tokenizer, loaded.chat_template, self.engine_core, loaded.end_token_ids, seed
        )
        self._outputs = OutputProcessor(loaded.tokenizer, self.engine_core)

    @property
    def trace(self) -> Trace:
        """Step records of the latest run, its last `trace_steps`; `StepPlayer(llm.trace)` shows it."""
        return self.engine_core.trace

    @property
    def stats(self) -> EngineStats:
        """What all steps so far did and how long they took; `print(llm.stats)` says it in a few lines."""
        return self.engine_core.stats

    def step_time_samples(self) -> list[StepSample]:
        """The steps of `trace` for a step-time model: `roofline.calibrate` takes them, `write_samples` stores them."""
        return self._records.samples(self.trace, self.engine_core.model, self.name)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        request_ids: Sequence[str] | None = None,
        priority: Sequence[int] | None = None,
        progress: bool | None = None,
    ) -> list[CompletionOutput]:
        """Complete all prompts together; outputs stand in the order of the prompts, the `n` answers of one in a row.

        prompts: each a text, a list of token ids, or a conversation (a list of {"role", "content"}), which the
            model's chat template turns into a prompt. sampling_params: one for all, or one for each.
        priority: one number for each prompt, smaller is sooner; for schedulers with policy="priority".
        progress: a bar on standard error; by default only on a terminal.
        """
        stream = self.stream(prompts, sampling_params, request_ids=request_ids, priority=priority)
        with _progress_bar(len(stream.results), progress) as advance:
            try:
                for delta in stream:
                    if delta.finished:
                        advance()
            finally:
                stream.close()
        return stream.results

    def chat(
        self,
        messages: Sequence[dict] | Sequence[Sequence[dict]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **kwargs,
    ) -> list[CompletionOutput]:
        """`generate` for one conversation (a list of {"role", "content"}) or a list of them."""
        check_conversations(messages)
        return self.generate(messages or [[]], sampling_params, **kwargs)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        request_ids: Sequence[str] | None = None,
        priority: Sequence[int] | None = None,
    ) -> TextStream:
        """Pieces of text as the steps produce them. Leaving the loop early aborts what is unfinished.

        What is wrong with a prompt is said here, and not at the first piece.
        """
        return self._outputs.submit(*self._inputs.process(prompts, sampling_params, request_ids, priority))

    def step(self) -> list[TextDelta]:
        """One step for everybody who is in the engine: the pieces of text that it gave. Their streams get them, too.

        For those who want to look on, or to send requests between two steps; `generate` and `stream` do it by
        themselves.
        """
        return self._outputs.step()

    def has_unfinished_requests(self) -> bool:
        return self.engine_core.has_unfinished_requests()

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests early; their blocks are free for the next step. Unknown ids are passed over."""
        if isinstance(request_ids, str):
            raise InvalidRequestError(f"abort got the text {request_ids!r}; give a list of ids: [{request_ids!r}]")
        self._outputs.abort(request_ids)

    def close(self) -> None:
        """End the run: what is unfinished is aborted, and `trace_file` is complete. The next request begins another."""
        self._outputs.close()


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
