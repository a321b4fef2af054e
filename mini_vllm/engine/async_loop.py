"""Plans the next step while the present one runs. Knows plans and a worker; decides nothing. Chapter 11.

    main thread    plan 0 | plan 1 | wait, update 0, plan 2 | wait, update 1, …
    worker thread         | run 0  | run 1                  | run 2 …

The worker is one thread, so steps run in the order of their plans: a block that one plan frees and the next gives away
is read before it is written anew.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from mini_vllm.core.async_scheduler import AsyncScheduler
from mini_vllm.core.output import ModelRunnerOutput, RequestOutput, SchedulerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.engine.stats import MeasuredStep
from mini_vllm.engine.step_in_flight import StepInFlight
from mini_vllm.errors import ConfigError, DuplicateRequestError
from mini_vllm.request import Request
from mini_vllm.trace.recorder import Trace

KEEP_IDS = 10_000  # of ended requests, so that a name is not given twice; a run may last for weeks


class AsyncStepLoop:
    """One run of an `AsyncScheduler`, one step ahead of the worker. Same calls as `StepLoop`, but for the trace.

    timeline: the latest `keep_steps` steps with their times, for the two-lane picture of chapter 11.
    on_step: gets each step, and what it computed, when it has been taken in.
    """

    def __init__(
        self,
        scheduler: AsyncScheduler,
        execute: Callable[[SchedulerOutput], ModelRunnerOutput | StepInFlight],
        clock: Callable[[], float] = time.perf_counter,
        keep_steps: int = 1000,
        on_step: Callable[[MeasuredStep, ModelRunnerOutput], None] = lambda step, output: None,
    ):
        self.scheduler, self.execute = scheduler, execute
        self.timeline: deque[MeasuredStep] = deque(maxlen=keep_steps)
        self.last_output = ModelRunnerOutput()
        self._latest_ids: dict[str, None] = {}  # in the order of their arrival
        self._clock, self._t_zero = clock, clock()
        self._on_step = on_step
        self._t_device_free = 0.0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="mini_vllm-worker")
        self._in_flight: tuple[MeasuredStep, Future] | None = None

    def add_request(self, request: Request, prompt: str | None = None) -> None:
        if request.request_id in self._latest_ids or request.request_id in self.scheduler.requests:
            raise DuplicateRequestError(f"request id {request.request_id!r} is in use, or was earlier in this run")
        self.scheduler.add_request(request)
        self._latest_ids[request.request_id] = None
        if len(self._latest_ids) > KEEP_IDS:
            del self._latest_ids[next(iter(self._latest_ids))]

    @property
    def request_ids(self) -> set[str]:
        """Of this run: the unfinished ones, and the latest that ended."""
        return {*self._latest_ids, *self.scheduler.requests}

    def add_pieces(self, texts: dict[str, str]) -> None:
        """There is no trace to put them into."""

    def abort(self, request_ids: Iterable[str]) -> list[str]:
        """End requests early; returns their ids. What the step in flight computes for them is dropped later."""
        known = [req_id for req_id in request_ids if req_id in self.scheduler.requests]
        self.scheduler.finish_requests(known)
        return known

    def has_unfinished_requests(self) -> bool:
        """Once nobody is left, the step in flight is one that nobody needs: it is waited for, and dropped."""
        if not self.scheduler.has_unfinished_requests():
            self._take_in()
            return False
        return True

    def step(self) -> list[RequestOutput]:
        """Plan a step and hand it over, then take in the one before it. The first step of a run gives no news."""
        start, scheduler = self._now(), self.scheduler
        plan = scheduler.schedule()
        load = len(scheduler.running), len(scheduler.waiting), scheduler.kv_cache_manager.num_free_blocks
        step = MeasuredStep(plan, (start, self._now()), *load)
        handed_over = step, self._worker.submit(self._run, step)
        news = self._take_in()
        self._in_flight = handed_over
        return news

    def _take_in(self) -> list[RequestOutput]:
        """The news of the step in flight, once it is done."""
        if self._in_flight is None:
            return []
        (step, future), self._in_flight = self._in_flight, None
        output = future.result()
        if isinstance(output, StepInFlight):  # queued on a GPU: it ran from when the step before it was done
            queued, output = step.t_run[0], output.result()
            step.t_run = max(queued, self._t_device_free), self._now()
        self._t_device_free = step.t_run[1]
        self.last_output = output
        start = self._now()
        news = self.scheduler.update_from_output(step.plan, self.last_output)
        step.t_updated = start, self._now()
        self.timeline.append(step)
        self._on_step(step, self.last_output)
        return news

    @property
    def trace(self) -> Trace:
        raise ConfigError(
            "there is no trace with async_scheduling: a step record tells what was known when the step was planned. "
            "For the player leave async_scheduling off; for the times see llm.engine_core.loop.timeline"
        )

    def close(self) -> None:
        """Wait for the step in flight and drop it; the loop cannot be used any more."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._in_flight = None

    def _run(self, step: MeasuredStep) -> ModelRunnerOutput | StepInFlight:
        start = self._now()
        output = self.execute(step.plan)
        step.t_run = start, self._now()
        return output

    def _now(self) -> float:
        return self._clock() - self._t_zero


def asynchronous(scheduler_cls: type) -> type:
    """The scheduler that plans one step ahead. Raises ConfigError where there is none."""
    if scheduler_cls is Scheduler:
        return AsyncScheduler
    if issubclass(scheduler_cls, AsyncScheduler):
        return scheduler_cls
    raise ConfigError(
        f"async_scheduling with {scheduler_cls.__name__}: a scheduler one step ahead must count what it does not know "
        "yet; derive it from core.AsyncScheduler, or leave async_scheduling off"
    )
