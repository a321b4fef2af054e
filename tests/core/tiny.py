"""A scheduler small enough for paper: blocks of four tokens, and a stand-in for the model that answers 100, 101, …

Knows the scheduler's four calls; no rule.
"""

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import ModelRunnerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


def make(*requests, scheduler_cls=Scheduler, **limits):
    """A scheduler with blocks of four and everybody in its queue; the pools are smaller than their whole futures."""
    scheduler = scheduler_cls(SchedulerConfig(**{"block_size": 4, "refuse_unfittable": False, **limits}))
    for request in requests:
        scheduler.add_request(request)
    return scheduler


def req(request_id, prompt_len, max_tokens=16, stop_token_ids=(), **options):
    params = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop_token_ids)
    return Request(request_id, list(range(10, 10 + prompt_len)), params, **options)


def answer(scheduler, plan):
    """What a worker returns for this plan."""
    at_end = [r for r in plan.num_scheduled_tokens if scheduler.requests[r].num_new_tokens == 0]
    return ModelRunnerOutput({r: [100 + len(scheduler.requests[r].output_token_ids)] for r in at_end})


def step(scheduler):
    """One whole step; returns its plan and the news."""
    plan = scheduler.schedule()
    news = scheduler.update_from_output(plan, answer(scheduler, plan))
    scheduler.check_integrity()
    return plan, news


def ids(queue):
    return [request.request_id for request in queue]
