"""A scheduler and a model runner in one loop. Knows token ids; knows no text. Chapter 14."""

from collections.abc import Callable, Iterable, Sequence

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.output import ModelRunnerOutput, RequestOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.engine.async_loop import AsyncStepLoop, asynchronous
from mini_vllm.engine.model_runner import ModelRunner
from mini_vllm.errors import DuplicateRequestError, InvalidRequestError, SchedulerContractError
from mini_vllm.request import Request
from mini_vllm.trace.recorder import Trace, TraceRecorder


class EngineCore:
    """Refuses what can never work, then steps. The trace covers the run since the engine was last idle.

    make_recorder: builds the recorder of each such run; see `StepLoop`. end_token_ids: see `ModelRunner`.
    async_scheduling: plan a step while the one before runs; the news come one step later, and there is no trace.
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
    ):
        self.model = model
        self.config = config
        self.scheduler_cls = asynchronous(scheduler_cls) if async_scheduling else scheduler_cls
        self.make_recorder = make_recorder
        self.runner = ModelRunner(
            model,
            config.num_gpu_blocks,
            config.block_size,
            attn_backend,
            end_token_ids=end_token_ids,
            num_speculative_tokens=config.num_speculative_tokens,
        )
        self.async_scheduling = async_scheduling
        self.loop = self._new_loop()

    def _new_loop(self) -> StepLoop | AsyncStepLoop:
        scheduler, execute = self.scheduler_cls(self.config), self.runner.execute
        if self.async_scheduling:
            return AsyncStepLoop(scheduler, execute)
        return StepLoop(scheduler, self.config, execute, kind="engine", make_recorder=self.make_recorder)

    @property
    def last_output(self) -> ModelRunnerOutput:
        """What the step computed whose news `step()` gave last."""
        return self.loop.last_output

    def reset(self) -> None:
        """A fresh scheduler and trace; whatever was under way is dropped. The weights and the KV pool stay."""
        self.loop.close()
        self.runner.states.clear()
        self.loop = self._new_loop()

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
            self.reset()
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

        A request whose logits hold no number is ended, with the reason in `last_output.errors`; the others go on.
        """
        try:
            news = self.loop.step()
            if self.last_output.errors:
                news += [RequestOutput(req_id, [], "error") for req_id in self.loop.abort(self.last_output.errors)]
            return news
        except BaseException:
            self.reset()
            raise
