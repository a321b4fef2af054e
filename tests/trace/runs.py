"""Runs for the tests of the trace: tiny ones to read, random ones, and a recorded one on our own recorder."""

import random
from dataclasses import fields
from pathlib import Path

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.sim.fake_runner import FakeModelRunner
from mini_vllm.trace.replay import read_recording
from mini_vllm.trace.trace import Trace

TINY = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8, num_gpu_blocks=2, block_size=4)


def tiny_trace() -> Trace:
    """A and B fill the two blocks; in step 1 A takes B's block and B starts over in step 2."""
    return simulate([SimRequest("A", 4, 2), SimRequest("B", 4, 2)], TINY)


def random_trace(seed: int) -> Trace:
    """A small pool, late arrivals, chunks, now and then caching, priorities, a window."""
    rng = random.Random(seed)
    config = SchedulerConfig(
        max_num_seqs=rng.randint(1, 5),
        max_num_batched_tokens=rng.choice([8, 16, 40]),
        num_gpu_blocks=rng.randint(12, 24),
        enable_prefix_caching=rng.random() < 0.5,
        policy=rng.choice(["fcfs", "priority"]),
        sliding_window=rng.choice([None, None, 9]),
        reserve_full_isl=rng.random() < 0.5,
    )
    requests = [
        SimRequest(f"r{i}", rng.randint(1, 20), rng.randint(1, 25), rng.randint(0, 20), rng.randint(0, 2))
        for i in range(rng.randint(1, 9))
    ]
    return simulate(requests, config)


def run_of_recording(path: Path) -> StepLoop:
    """A recorded run's requests through `StepLoop`, for as many steps as vLLM took. Synchronous, without drafts."""
    data = read_recording(path)
    requests, real = data["scenario"]["requests"], data["trace"]
    limits = {f.name: real["config"][f.name] for f in fields(SchedulerConfig) if f.name in real["config"]}
    config = SchedulerConfig(**limits, refuse_unfittable=False, unpublish_given_back=False)
    loop = StepLoop(Scheduler(config), config, FakeModelRunner().execute, kind="sim", clock=None)
    for number in range(len(real["steps"])):
        for entry in (r for r in requests if r["arrival_step"] == number):
            loop.add_request(_request_of(entry))
        loop.abort([r["id"] for r in requests if r.get("abort_step") == number])
        loop.step(more_to_come=True)
    return loop


def _request_of(entry: dict) -> Request:
    params = SamplingParams(entry["max_tokens"], True, tuple(entry.get("stop_token_ids", ())))
    arrival_time = entry.get("arrival_time", entry["arrival_step"])
    return Request(entry["id"], entry["prompt_token_ids"], params, arrival_time, priority=entry.get("priority", 0))
