"""Runs in which users hang up, or a grammar is not compiled yet: logs, and a learner's scheduler. Chapter 4.

Knows the step loop and its records; judges nothing. Imports of the scheduler wait until a run is asked for.
"""

import random
import string
from typing import Any

from mini_vllm.grading.exercise import NUM_CASES, Case
from mini_vllm.grading.step_traces import RECORDED

EVENTS = ("arrivals", "aborted", "preempted", "scheduled", "finished")  # the order in which they happen in a step


def logged_run(rng: random.Random) -> list[dict[str, Any]]:
    """The log of a real run: seats, budget and blocks are scarce, and now and then a user hangs up."""
    from mini_vllm.config import SchedulerConfig
    from mini_vllm.core.scheduler import Scheduler
    from mini_vllm.core.step_loop import StepLoop
    from mini_vllm.request import Request
    from mini_vllm.sampling_params import SamplingParams
    from mini_vllm.sim.fake_runner import FakeModelRunner

    budget = rng.choice([3, 6])
    config = SchedulerConfig(
        max_num_seqs=3, max_num_batched_tokens=budget, num_gpu_blocks=4, block_size=4, max_model_len=20
    )
    loop = StepLoop(Scheduler(config), config, FakeModelRunner().execute, kind="sim", clock=None)
    names = rng.sample(string.ascii_uppercase, rng.randint(3, 5))
    arrival, to_come = 0, []
    for name in names:
        to_come.append((arrival, name))
        arrival += rng.choice([0, 0, 1, 3])
    while to_come or loop.has_unfinished_requests():
        while to_come and to_come[0][0] <= loop.step_index:
            params = SamplingParams(max_tokens=rng.randint(1, 8), ignore_eos=True)
            loop.add_request(Request(to_come.pop(0)[1], [1] * rng.randint(1, 9), params))
        if loop.watch.requests and rng.random() < 0.08:
            loop.abort([rng.choice(list(loop.watch.requests))])
        loop.step(more_to_come=bool(to_come))
    steps = [{**step, "scheduled": [name for name, _ in step["scheduled"]]} for step in loop.trace.steps]
    return [{name: step[name] for name in ("step", *EVENTS)} for step in steps]


def draw_held_cases(rng: random.Random) -> list[Case]:
    """[requests, seats, ready]: requests (id, prompt, output, arrival step); ready: id -> the step before which its
    grammar is compiled. Who is not in `ready` needs none.
    """
    cases: list[Case] = [
        [[["A", 2, 2, 0]], 1, {}],
        [[["A", 2, 1, 0], ["B", 2, 1, 0]], 1, {}],
        [[["A", 2, 2, 0], ["B", 2, 3, 0]], 1, {"A": 1}],
        [[["A", 2, 1, 0], ["B", 2, 2, 0], ["C", 2, 1, 0]], 1, {"A": 1}],
        [[["A", 2, 3, 0], ["B", 2, 1, 0], ["C", 2, 1, 0]], 1, {"B": 4}],
        [[["A", 2, 1, 0], ["B", 2, 1, 0], ["C", 2, 1, 0]], 1, {"A": 2, "B": 2}],
        [[["A", 2, 2, 0], ["B", 2, 2, 0], ["C", 2, 2, 0]], 3, {"A": 1}],
        [[["A", 2, 1, 0], ["B", 2, 1, 0], ["C", 2, 3, 0], ["D", 2, 1, 0]], 2, {"A": 9, "B": 9}],
    ]
    while len(cases) < NUM_CASES:
        arrival, requests, ready = 0, [], {}
        for name in rng.sample(string.ascii_uppercase, rng.randint(3, 7)):
            requests.append([name, rng.randint(1, 9), rng.choice([1, 1, 2, 3, 5]), arrival])
            if rng.random() < 0.5:
                ready[name] = arrival + rng.choice([0, 1, 1, 2, 4, 7])
            arrival += rng.choice([0, 0, 0, 1, 2])
        cases.append([requests, rng.randint(1, 3), ready])
    return cases


def run_with_grammars(
    scheduler_cls: type, requests: list[list], num_seats: int, ready: dict[str, int]
) -> list[dict[str, Any]]:
    """The step records of a run in which some requests are held back until their grammar is compiled."""
    from mini_vllm.config import SchedulerConfig
    from mini_vllm.core.step_loop import StepLoop
    from mini_vllm.request import Request
    from mini_vllm.sampling_params import SamplingParams
    from mini_vllm.sim.fake_runner import FakeModelRunner

    config = SchedulerConfig(max_num_seqs=num_seats, max_num_batched_tokens=1024, num_gpu_blocks=128, block_size=4)
    scheduler = scheduler_cls(config)
    loop = StepLoop(scheduler, config, FakeModelRunner().execute, kind="sim", clock=None)
    to_come, held = list(requests), {}
    while to_come or loop.has_unfinished_requests():
        step = loop.step_index
        while to_come and to_come[0][3] <= step:
            name, prompt_len, max_tokens, _ = to_come.pop(0)
            loop.add_request(Request(name, [1] * prompt_len, SamplingParams(max_tokens=max_tokens, ignore_eos=True)))
            if name in ready:
                scheduler.hold(name)
                held[name] = ready[name]
        for name in [name for name, at in held.items() if at <= step]:
            scheduler.grammar_ready(name)
            del held[name]
        loop.step(more_to_come=bool(to_come or held))
    return [{name: record[name] for name in RECORDED} for record in loop.trace.steps]


def as_a_run(name: str, arguments: tuple) -> str:
    requests, num_seats, ready = arguments
    told = ", ".join(
        f"{who} ({prompt} + {output} tokens, comes at {arrival}"
        + (f", grammar ready before {ready[who]})" if who in ready else ")")
        for who, prompt, output, arrival in requests
    )
    return f"{name} with {num_seats} seat{'s' if num_seats > 1 else ''}: {told}"
