"""Plays a workload to a scheduler on a clock. Knows arrivals and timestamps; decides nothing. Chapter 12.

The scheduler is the engine's own, driven through the same two calls; only the clock is a model:

    arrivals due -> add_request -> [ schedule -> worker: how long? who gets a token? -> update_from_output ]
         ^                                                                              |
         '---- closed workloads: who finished sends again ------------------------------'
"""

import functools
import heapq
import math
from collections.abc import Callable, Iterable
from typing import Any

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.output import ModelRunnerOutput, RequestOutput, SchedulerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.core.watch import MAX_IDLE_STEPS
from mini_vllm.errors import ConfigError, InvalidRequestError, SchedulerStalledError
from mini_vllm.request import Request
from mini_vllm.roofline.arguments import require_instance
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sim.clock import Clock, StepLoad
from mini_vllm.sim.fast_forward import can_fast_forward, fast_forward
from mini_vllm.sim.request_log import Live, RequestLog
from mini_vllm.sim.result import SimResult
from mini_vllm.sim.worker import SimWorker
from mini_vllm.sim.workloads import Arrival, Startable, prompt_token_ids, require_sound, start
from mini_vllm.trace.recorder import TraceRecorder
from mini_vllm.trace.writer import TraceWriter


class Simulator:
    """One kind of server: a scheduler with its configuration, and a clock.

    charge: see `SimWorker`. fast_forward: take steps at once that would only repeat; the result is the same.
    watch: check every plan (`core.watch`); None is for all schedulers but this package's own. One that shows no
        `kv_cache_manager` is always watched, since nobody else could say how full its pool is.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        clock: Clock,
        *,
        scheduler_cls: Callable[[SchedulerConfig], Any] = Scheduler,
        make_charge: Callable[[], Callable[[SchedulerOutput, StepLoad], StepLoad]] | None = None,
        fast_forward: bool = True,
        watch: bool | None = None,
    ):
        require_instance(config, SchedulerConfig, "config")
        if isinstance(clock, type) or not hasattr(clock, "after"):
            raise ConfigError(f"the clock is {clock!r}; give an instance of ModelClock or FixedClock")
        if not callable(scheduler_cls):
            raise ConfigError(
                f"scheduler_cls is {scheduler_cls!r}; give a class, which is built with the SchedulerConfig"
            )
        if config.num_speculative_tokens:
            raise ConfigError(
                f"num_speculative_tokens={config.num_speculative_tokens}: the simulator has no model that could draft; "
                "set it to 0"
            )
        self.config = config
        self.clock = clock
        self.scheduler_cls = scheduler_cls
        self.make_charge = make_charge
        self.fast_forward = fast_forward
        is_ours = scheduler_cls.__module__.startswith("mini_vllm.")
        self.watch = not is_ours if watch is None else watch

    def run(
        self,
        workload: Startable | Iterable[Arrival],
        *,
        warmup_s: float = 0.0,
        until_s: float = math.inf,
        drop_unfittable: bool = False,
        token_times: bool = False,
        trace: bool | TraceWriter = False,
    ) -> SimResult:
        """Play `workload` to the end, or until the first step that would start at `until_s` or later.

        warmup_s: requests that arrive earlier are served, but left out of the metrics. drop_unfittable: pass over
        requests that could never fit, and list them, instead of raising. token_times: keep the time of each token.
        trace: record every step (slow; for the step player): True keeps the steps, a writer gets them one by one.
        """
        for name, value in (("warmup_s", warmup_s), ("until_s", until_s)):
            if not isinstance(value, int | float) or not value >= 0:
                raise ConfigError(f"{name}={value!r} must be a number of seconds, at least 0")
        if not isinstance(trace, bool | TraceWriter):
            raise ConfigError(f"trace={trace!r}; give True, False, or TraceWriter({trace!r}) for a file of that name")
        return _Run(self, workload, warmup_s, until_s, drop_unfittable, token_times, trace).play()


@functools.lru_cache(maxsize=4096)
def _emitting(tokens: int) -> SamplingParams:
    """Exactly so many tokens. Kept, since checking parameters takes as long as a few steps."""
    return SamplingParams(tokens, ignore_eos=True)


class _BareLoop:
    """The two calls and nothing else; the fast alternative to `core.step_loop.StepLoop`."""

    def __init__(self, scheduler: Any, execute: Callable[[SchedulerOutput], ModelRunnerOutput]):
        self.scheduler = scheduler
        self.execute = execute
        self.add_request = scheduler.add_request
        self.has_unfinished_requests = scheduler.has_unfinished_requests
        self.idle_steps = 0

    def step(self, more_to_come: bool) -> list[RequestOutput]:
        plan = self.scheduler.schedule()
        if plan.num_scheduled_tokens or more_to_come:
            self.idle_steps = 0
        else:
            self.idle_steps += 1
            if self.idle_steps >= MAX_IDLE_STEPS:
                raise SchedulerStalledError(
                    f"{type(self.scheduler).__name__} stalled: nothing was scheduled in {self.idle_steps} steps and "
                    f"nothing is to come; the plan says {plan.blocked_reason!r}"
                )
        return self.scheduler.update_from_output(plan, self.execute(plan))


class _Run:
    def __init__(
        self,
        simulator: Simulator,
        workload: Startable | Iterable[Arrival],
        warmup_s: float,
        until_s: float,
        drop_unfittable: bool,
        token_times: bool,
        trace: bool | TraceWriter,
    ):
        self.simulator = simulator
        self.config = simulator.config
        self.until_s = until_s
        self.drop_unfittable = drop_unfittable
        self.token_times = token_times
        self.scheduler = simulator.scheduler_cls(self.config)
        charge = simulator.make_charge() if simulator.make_charge else None
        self.worker = worker = SimWorker(simulator.clock, self._used_blocks, charge, warmup_s)
        self.trace = trace
        self.loop: Any = _BareLoop(self.scheduler, worker.execute)
        is_watched = trace or simulator.watch or not hasattr(self.scheduler, "kv_cache_manager")
        if is_watched:
            writer = trace if isinstance(trace, TraceWriter) else None
            keep_steps = None if trace is True else 0
            make_recorder = functools.partial(TraceRecorder, keep_steps=keep_steps, writer=writer)
            self.loop = StepLoop(
                self.scheduler,
                self.config,
                worker.execute,
                kind="sim",
                clock=lambda: worker.now,
                make_recorder=make_recorder,
            )
        is_fast = simulator.fast_forward and not (is_watched or charge)
        self.can_fast_forward = is_fast and can_fast_forward(self.scheduler)
        self.log = RequestLog()
        self.arrival_of: dict[str, Arrival] = {}
        self.refused: list[tuple[int, str]] = []
        self.times: dict[int, list[float]] = {}
        self.source = start(workload)
        self.num_open = self.num_seen = self.num_brought = 0
        self.latest_s = 0.0
        self.next_open = self._draw()
        self.brought: list[tuple[float, int, Arrival]] = []  # by those who finished: a heap by time
        self.steady = False  # the next step is sure to be like the one before

    def _used_blocks(self) -> int:
        """KV blocks that somebody holds."""
        pool = self.loop.watch if isinstance(self.loop, StepLoop) else self.scheduler.kv_cache_manager
        return self.config.num_gpu_blocks - pool.num_free_blocks

    # --- who comes ---

    def _draw(self) -> Arrival | None:
        arrival = next(self.source.arrivals, None)
        if arrival is not None:
            require_sound(arrival, self.num_open, self.latest_s)
            self.num_open += 1
            self.latest_s = arrival.arrived_s
        return arrival

    def _next_arrival_s(self) -> float:
        open_s = self.next_open.arrived_s if self.next_open else math.inf
        return min(open_s, self.brought[0][0]) if self.brought else open_s

    def _add_due(self) -> None:
        """Hand over everybody who has come by now, in the order of arrival."""
        due_s = min(self.worker.now, self.until_s)
        while self._next_arrival_s() <= due_s:
            self.steady = False
            arrival = self.next_open
            if arrival is None or (self.brought and self.brought[0][0] < arrival.arrived_s):
                arrival = heapq.heappop(self.brought)[2]
            else:
                self.next_open = self._draw()
            self._add(arrival)

    def _add(self, arrival: Arrival) -> None:
        seen = self.num_seen
        self.num_seen += 1
        req_id, params = str(seen), _emitting(arrival.output_tokens)
        prompt = prompt_token_ids(arrival, seen)
        request = Request(req_id, prompt, params, arrival.arrived_s, priority=arrival.priority)
        try:
            if not isinstance(self.scheduler, Scheduler):  # ours refuses by itself
                KVCacheManager.refuse_if_never_fits(self.config, request)
            self.loop.add_request(request)
        except InvalidRequestError as error:
            if not self.drop_unfittable:
                raise type(error)(f"request {seen} of the workload, at {arrival.arrived_s:g} s: {error}") from error
            self.refused.append((seen, str(error)))
            self._bring(self.source.after(arrival, self.worker.now))
            return
        live = Live(
            req_id,
            self.log.add(arrival.arrived_s, arrival.prompt_tokens),
            arrival.prompt_tokens,
            arrival.arrived_s >= self.worker.warmup_s,
        )
        self.arrival_of[req_id] = arrival
        self.worker.live[req_id] = live
        if self.token_times:
            self.worker.keep_times(live)

    def _bring(self, arrival: Arrival | None) -> None:
        if arrival is not None:
            require_sound(arrival, self.num_seen, self.worker.now)
            self.num_brought += 1
            heapq.heappush(self.brought, (arrival.arrived_s, self.num_brought, arrival))

    # --- what happens ---

    def play(self) -> SimResult:
        """From the first arrival to the last token, or to the horizon."""
        worker, loop = self.worker, self.loop
        while True:
            self._add_due()
            next_s = self._next_arrival_s()
            if not loop.has_unfinished_requests():
                if next_s == math.inf:
                    return self._result()
                if next_s > self.until_s:
                    worker.now = max(worker.now, self.until_s)  # it was at rest until then
                    return self._result()
                worker.now = self.simulator.clock.wake(next_s)
                continue
            if worker.now >= self.until_s:
                return self._result()
            if self.steady and fast_forward(self.scheduler, worker, min(next_s, self.until_s)):
                continue
            news = loop.step(more_to_come=next_s < math.inf)
            somebody_left = self._retire(news)
            self.steady = (
                self.can_fast_forward
                and self.scheduler.all_decode
                and (not self.scheduler.waiting or (worker.repeats and not somebody_left))
            )

    def _retire(self, news: list[RequestOutput]) -> bool:
        """Close the books on those who finished; returns whether there were any."""
        done = [item.request_id for item in news if item.finish_reason is not None]
        for req_id in done:
            live = self.worker.live.pop(req_id)
            self._close(live, finished=True)
            self._bring(self.source.after(self.arrival_of.pop(req_id), self.worker.now))
        return bool(done)

    def _close(self, live: Live, finished: bool) -> None:
        self.log.write(live, finished)
        if live.times is not None:
            self.times[live.row] = list(live.times)

    def _result(self) -> SimResult:
        for live in self.worker.live.values():
            self._close(live, finished=False)
        if isinstance(self.loop, StepLoop):
            self.loop.recorder.close()
        worker = self.worker
        return SimResult(
            self.config,
            self.log,
            worker.totals,
            worker.gaps_us,
            worker.now,
            worker.warmup_s,
            self.refused,
            self.times,
            self.loop.trace if self.trace is True else None,
        )
