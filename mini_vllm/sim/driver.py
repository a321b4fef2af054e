"""Runs a scheduler on a step clock: every step takes one tick and costs nothing. Knows no model. Chapters 1 to 12."""

from collections.abc import Iterable

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.errors import ConfigError, DuplicateRequestError, InvalidRequestError, MiniVLLMError
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sim.fake_runner import FakeModelRunner
from mini_vllm.sim.sim_request import SimRequest
from mini_vllm.trace.recorder import Trace

__all__ = ["SimRequest", "simulate"]


def simulate(
    requests: Iterable[SimRequest],
    config: SchedulerConfig | None = None,
    *,
    scheduler_cls: type = Scheduler,
    max_steps: int = 100_000,
) -> Trace:
    """Run `requests` to the end; returns the trace. Requests of one step are added in the order given.

    A scheduler that breaks the contract or stalls is a named error (`core.watch`), with the arithmetic in it.
    """
    config = config or SchedulerConfig()
    requests = list(requests) if isinstance(requests, Iterable) else [requests]
    if wrong := [r for r in requests if not isinstance(r, SimRequest)]:
        raise InvalidRequestError(f"{wrong[0]!r} is no SimRequest; give SimRequest(id, prompt_len, max_tokens)")
    if not isinstance(config, SchedulerConfig) or not callable(scheduler_cls):
        raise ConfigError(f"got {config=}, {scheduler_cls=}; give a SchedulerConfig(…) and a scheduler's class")
    if len({r.request_id for r in requests}) != len(requests):
        raise DuplicateRequestError(f"an id stands twice in {[r.request_id for r in requests]}; give each its own")
    to_come = sorted(requests, key=lambda r: r.arrival_step)
    loop = StepLoop(scheduler_cls(config), config, FakeModelRunner().execute, kind="sim", clock=None)
    while to_come or loop.has_unfinished_requests():
        if loop.step_index >= max_steps:
            unfinished = len(loop.watch.requests) + len(to_come)
            raise MiniVLLMError(f"not done after {max_steps} steps, {unfinished} requests unfinished")
        while to_come and to_come[0].arrival_step <= loop.step_index:
            r = to_come.pop(0)
            params = SamplingParams(max_tokens=r.max_tokens, ignore_eos=True)
            loop.add_request(Request(r.request_id, r.prompt_token_ids(), params, r.arrival_step, priority=r.priority))
        loop.step(more_to_come=bool(to_come))
    return loop.trace
