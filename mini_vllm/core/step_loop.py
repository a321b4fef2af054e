"""The loop every server runs: plan, execute, update. Knows the two calls of a scheduler and of a model runner.

Simulator and engine drive a scheduler through this one loop; only `execute` and the clock differ. Chapter 4.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.output import ModelRunnerOutput, RequestOutput, SchedulerOutput
from mini_vllm.core.watch import SchedulerWatch
from mini_vllm.errors import DuplicateRequestError, SchedulerContractError
from mini_vllm.request import Request
from mini_vllm.trace.recorder import Trace, TraceRecorder

MOST_BLOCKS_LOOKED_THROUGH = 1024  # in each step, if prefixes are cached


class StepLoop:
    """One run of one scheduler.

        add_request -> [ schedule -> execute -> update_from_output ] -> news
                            ^______________________________|

    execute: takes the plan, returns what was sampled (a model, or a stand-in for one).
    clock: seconds; None is the step clock, on which step k lasts from k to k + 1.
    make_recorder: builds the recorder of the run; `functools.partial(TraceRecorder, keep_steps=…, writer=…)` bounds it.
    """

    def __init__(
        self,
        scheduler: Any,
        config: SchedulerConfig,
        execute: Callable[[SchedulerOutput], ModelRunnerOutput],
        *,
        kind: str,
        clock: Callable[[], float] | None = time.perf_counter,
        make_recorder: Callable[..., TraceRecorder] = TraceRecorder,
    ):
        self.scheduler = scheduler
        self.execute = execute
        self.watch = SchedulerWatch(scheduler, config)
        self.recorder = make_recorder(config, kind, type(scheduler).__name__, clock="seconds" if clock else "steps")
        self.step_index = 0
        self.last_output = ModelRunnerOutput()
        self._clock = clock
        self._t_zero = clock() if clock else 0.0
        self._arrivals: list[str] = []
        self._aborted: list[str] = []

    @property
    def trace(self) -> Trace:
        return self.recorder.trace

    def add_request(self, request: Request, prompt: str | None = None) -> None:
        if request.request_id in self.watch.requests:
            raise DuplicateRequestError(f"request id {request.request_id!r} is in use; wait for it or choose another")
        self.scheduler.add_request(request)
        self.watch.arrived(request)
        self.recorder.arrived(request, self.step_index, prompt)
        self._arrivals.append(request.request_id)

    @property
    def request_ids(self) -> set[str]:
        """Of this run, the ended ones too."""
        return set(self.trace.header["requests"])

    def add_pieces(self, texts: dict[str, str]) -> None:
        """Text that the latest step made final, for the trace: request id -> text."""
        self.recorder.add_pieces(texts)

    def close(self) -> None:
        self.recorder.close()

    def abort(self, request_ids: str | Iterable[str]) -> list[str]:
        """End one request or several early; returns their ids. Those not in the run any more are passed over."""
        given = (request_ids,) if isinstance(request_ids, str) else request_ids
        request_ids = [req_id for req_id in given if req_id in self.watch.requests]
        if request_ids:
            if not hasattr(self.scheduler, "finish_requests"):
                raise SchedulerContractError(
                    f"{self.watch.name} has no finish_requests(request_ids), which an abort needs: {request_ids}"
                )
            self.scheduler.finish_requests(request_ids)
            self.watch.left(request_ids)
            self._aborted += request_ids
        return request_ids

    def has_unfinished_requests(self) -> bool:
        unfinished = self.scheduler.has_unfinished_requests()
        self.watch.check_unfinished(unfinished)
        return unfinished

    def _now(self, tick: int) -> float:
        """Time since the run began; `tick` is the time on the step clock."""
        return self._clock() - self._t_zero if self._clock else float(tick)

    def _cached_blocks(self) -> list[int] | None:
        """Blocks that carry a hash, for the trace's block map; None where nothing is cached, or too much to draw."""
        config, manager = self.watch.config, getattr(self.scheduler, "kv_cache_manager", None)
        is_seen = config.enable_prefix_caching and config.num_gpu_blocks <= MOST_BLOCKS_LOOKED_THROUGH
        if not is_seen or not isinstance(manager, KVCacheManager):
            return None
        return [block for block, block_hash in enumerate(manager.block_pool.hash_of) if block_hash is not None]

    def step(self, more_to_come: bool = False) -> list[RequestOutput]:
        """One step. `more_to_come`: arrivals are still expected, so an empty step is no sign of a stall."""
        watch, t_start = self.watch, self._now(self.step_index)
        before = {
            "arrivals": self._arrivals,
            "aborted": self._aborted,
            "waiting_before": list(watch.waiting),
            "running_before": list(watch.running),
            "free_before": watch.num_free_blocks,
        }
        computed_before = dict(watch.computed)
        self._arrivals, self._aborted = [], []
        plan = self.scheduler.schedule()
        watch.planned(plan)
        if more_to_come:
            watch.idle_steps = 0
        self.recorder.planned(self.step_index, watch, plan, before, computed_before, self._cached_blocks())
        self.last_output = output = self.execute(plan)
        news = self.scheduler.update_from_output(plan, output)
        watch.updated(plan, output, news)
        self.recorder.updated(watch, output, news, t_start, self._now(self.step_index + 1))
        self.step_index += 1
        return news
