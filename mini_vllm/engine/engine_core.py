"""A scheduler and a model runner in one loop. Knows token ids; knows no text. Chapter 14."""

from collections.abc import Callable, Iterable, Sequence

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.output import ModelRunnerOutput, RequestOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.engine.async_loop import AsyncStepLoop, asynchronous
from mini_vllm.engine.attention.torch import TorchPagedAttention
from mini_vllm.engine.cuda_graphs import CudaGraphRecorder
from mini_vllm.engine.measured_loop import MeasuredStepLoop
from mini_vllm.engine.model_runner import ModelRunner
from mini_vllm.engine.stats import EngineStats
from mini_vllm.engine.warm_up import warm_up
from mini_vllm.errors import DuplicateRequestError, InvalidRequestError, SchedulerContractError
from mini_vllm.request import Request
from mini_vllm.trace.recorder import Trace, TraceRecorder


class EngineCore:
    """Refuses what can never work, then steps. The trace covers the run since the engine was last idle.

    make_recorder: builds the recorder of each such run; see `StepLoop`. end_token_ids: see `ModelRunner`.
    async_scheduling: plan a step while the one before runs; the news come one step later, and there is no trace.
    enforce_eager: on a GPU, launch every kernel of a decode step by itself instead of recorded CUDA graphs.
    """

    def __init__(
        self,
        model,
        config: SchedulerConfig,
        scheduler_cls: type = Scheduler,
        attn_backend=None,
        make_recorder: Callable[..., TraceRecorder] = TraceRecorder,
        *,
        end_token_ids: Sequence[int] = (),
        async_scheduling: bool = False,
        enforce_eager: bool = False,
    ):
        self.model = model
        self.config = config
        self.scheduler_cls = asynchronous(scheduler_cls) if async_scheduling else scheduler_cls
        self.make_recorder = make_recorder
        on_gpu = model.device.type == "cuda"
        attn_backend = attn_backend or TorchPagedAttention(model.config.sliding_window)
        if on_gpu:
            warm_up(config, model, attn_backend)
        records_graphs = on_gpu and not enforce_eager and getattr(attn_backend, "supports_cuda_graphs", False)
        self.runner = ModelRunner(
            model,
            config.num_gpu_blocks,
            config.block_size,
            attn_backend,
            end_token_ids=end_token_ids,
            num_speculative_tokens=config.num_speculative_tokens,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            recorder=CudaGraphRecorder(model.device) if records_graphs else None,
        )
        self.async_scheduling = async_scheduling
        self.stats = EngineStats(config.num_gpu_blocks)
        self.loop = self._new_loop()

    def _new_loop(
        self, make_recorder: Callable[..., TraceRecorder] = TraceRecorder
    ) -> MeasuredStepLoop | AsyncStepLoop:
        scheduler, execute, on_step = self.scheduler_cls(self.config), self.runner.execute, self.stats.add
        self.stats.begin_run()
        if self.async_scheduling:
            # A GPU gets the next step queued before the tokens of this one are on the host.
            on_gpu = self.model.device.type == "cuda"
            return AsyncStepLoop(scheduler, self.runner.launch if on_gpu else execute, on_step=on_step)
        return MeasuredStepLoop(
            scheduler, self.config, execute, kind="engine", make_recorder=make_recorder, on_step=on_step
        )

    @property
    def last_output(self) -> ModelRunnerOutput:
        """What the step computed whose news `step()` gave last."""
        return self.loop.last_output

    def reset(self) -> None:
        """A fresh scheduler and trace; whatever was under way is dropped. The weights and the KV pool stay."""
        self._renew(TraceRecorder)

    def _renew(self, make_recorder: Callable[..., TraceRecorder]) -> None:
        self.loop.close()
        self.runner.reset()
        self.loop = self._new_loop(make_recorder)

    @property
    def trace(self) -> Trace:
        return self.loop.trace

    def validate(self, request: Request) -> None:
        """Raise a subclass of InvalidRequestError if this request can never be served here."""
        vocab = self.model.config.vocab_size
        if request.request_id in self.used_request_ids():
            raise DuplicateRequestError(
                f"request id {request.request_id!r} is in use, or was earlier in this run; choose another"
            )
        outside = next((t for t in request.prompt_token_ids if not 0 <= t < vocab), None)
        if outside is not None:
            raise InvalidRequestError(
                f"request {request.request_id!r} holds token id {outside}; the vocabulary is 0..{vocab - 1}: was the "
                "text encoded with another model's tokenizer?"
            )
        KVCacheManager.refuse_if_never_fits(self.config, request)

    def add_request(self, request: Request, prompt: str | None = None) -> None:
        """Queue a request. `prompt` is its text, for the trace only."""
        self.validate(request)
        if not self.has_unfinished_requests():
            self._renew(self.make_recorder)  # not before: the file of a run that failed must stay
        self.loop.add_request(request, prompt)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests early. A scheduler that cannot do that loses everything: the engine must stay usable."""
        try:
            self.loop.abort(request_ids)
        except SchedulerContractError:
            self.reset()
            raise

    def used_request_ids(self) -> set[str]:
        """Ids that the present run has seen; none once the engine is idle, since the next request begins a new run."""
        return self.loop.request_ids if self.has_unfinished_requests() else set()

    def has_unfinished_requests(self) -> bool:
        try:
            return self.loop.has_unfinished_requests()
        except BaseException:
            self.reset()
            raise

    def step(self) -> list[RequestOutput]:
        """One step of the loop. If anything in it raises, the engine is emptied first, so that it stays usable.

        A request whose logits hold no number is ended, with the reason in `last_output.errors`; the others go on. With
        a scheduler that cannot end a request, that is a SchedulerContractError.
        """
        try:
            return [*self.loop.step(), *self._end_broken(self.last_output.errors)]
        except BaseException:
            self.reset()
            raise

    def _end_broken(self, errors: dict[str, str]) -> list[RequestOutput]:
        if errors and not hasattr(self.loop.scheduler, "finish_requests"):
            req_id, why = next(iter(errors.items()))
            raise SchedulerContractError(
                f"{type(self.loop.scheduler).__name__} has no finish_requests(request_ids), which is needed to end "
                f"{req_id!r}: {why}. All requests are dropped; write the method, or find out what the model was given"
            )
        return [RequestOutput(req_id, [], "error") for req_id in self.loop.abort(errors)]
