"""Runs a scheduler on a step clock: every step takes one tick and costs nothing. Knows no model. Chapters 1 to 12."""

from collections.abc import Iterable
from dataclasses import dataclass

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.errors import MiniVLLMError
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.trace.recorder import Trace


@dataclass(frozen=True)
class SimRequest:
    """A request of known length: it will emit exactly `max_tokens` tokens."""

    request_id: str
    prompt_len: int
    max_tokens: int
    arrival_step: int = 0


class FakeModelRunner:
    """Stands in for the model: whoever reached the end of its known tokens gets token 1000 + output index."""

    def __init__(self):
        self.state: dict[str, list[int]] = {}  # id -> [computed, known, prompt length]

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        for new in plan.scheduled_new_reqs:
            self.state[new.req_id] = [0, len(new.prompt_token_ids), len(new.prompt_token_ids)]
        for cached in plan.scheduled_cached_reqs:
            self.state[cached.req_id][0] = cached.num_computed_tokens
        sampled = {}
        for req_id, n in plan.num_scheduled_tokens.items():
            state = self.state[req_id]
            state[0] += n
            reached_end = state[0] == state[1]
            sampled[req_id] = [1000 + state[1] - state[2]] if reached_end else []
            state[1] += reached_end
        return ModelRunnerOutput(sampled)


def simulate(
    requests: Iterable[SimRequest], config: SchedulerConfig | None = None, *, scheduler_cls=Scheduler, max_steps=100_000
) -> Trace:
    """Run `requests` to the end; returns the trace. Requests of one step are added in the order given."""
    config = config or SchedulerConfig()
    to_come = sorted(requests, key=lambda r: r.arrival_step)
    loop = StepLoop(scheduler_cls(config), config, FakeModelRunner().execute, kind="sim", clock=None)
    while to_come or loop.has_unfinished_requests():
        if loop.step_index >= max_steps:
            raise MiniVLLMError(f"not done after {max_steps} steps, {len(loop.watch.requests)} requests unfinished")
        while to_come and to_come[0].arrival_step <= loop.step_index:
            r = to_come.pop(0)
            params = SamplingParams(max_tokens=r.max_tokens, ignore_eos=True)
            loop.add_request(Request(r.request_id, [0] * r.prompt_len, params, arrival_time=r.arrival_step))
        loop.step(more_to_come=bool(to_come))
    return loop.trace
