"""What a scheduling step costs: CPU time of `schedule()` + `update_from_output()`, without any model.

    python benchmarks/scheduler.py [--quick] [--json FILE]

Steady decode: n requests with prompts of 128 to 143 tokens, block size 16, one token a request and step; the median
over 400 steps, best of 3 rounds. The stored peers were measured on another day and machine of the same kind; the
yardstick, a fixed piece of pure Python timed in this run, says how this machine compares.
"""

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.yardstick import yardstick_ms
from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import ModelRunnerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

HERE = Path(__file__).resolve().parent
BLOCK_SIZE = 16


def make_scheduler(num_requests: int, num_steps: int, caching: bool, num_blocks: int | None = None) -> Scheduler:
    config = SchedulerConfig(
        max_num_seqs=max(num_requests, 1),
        max_num_batched_tokens=max(8192, 160 * num_requests),
        max_model_len=16_384,
        num_gpu_blocks=num_blocks or num_requests * (-(-(160 + 2 * num_steps) // BLOCK_SIZE)) + 64,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=caching,
    )
    return Scheduler(config)


def add_requests(scheduler: Scheduler, count: int, max_tokens: int, first: int = 0) -> list[Request]:
    added = []
    for i in range(first, first + count):
        prompt = [(i * 7919 + j) % 50_000 for j in range(128 + i % 16)]
        added.append(Request(f"r{i}", prompt, SamplingParams(max_tokens, True), float(i)))
        scheduler.add_request(added[-1])
    return added


def one_step(scheduler: Scheduler, token: int) -> tuple[float, float]:
    """Microseconds of CPU for the two calls; making the fake output is not counted."""
    clock = time.process_time_ns
    start = clock()
    plan = scheduler.schedule()
    planned = clock()
    output = ModelRunnerOutput({req_id: [token] for req_id in plan.num_scheduled_tokens})
    begin = clock()
    scheduler.update_from_output(plan, output)
    end = clock()
    return (planned - start) / 1000, (end - begin) / 1000


def steady_decode(num_requests: int, caching: bool, fast_path: bool, num_steps: int, rounds: int = 3) -> dict:
    """With `core/fast_path.py`, or with the clear loop of `schedule()` alone."""
    best = None
    for _ in range(rounds):
        scheduler = make_scheduler(num_requests, num_steps, caching)
        scheduler.fast_path = fast_path
        add_requests(scheduler, num_requests, max_tokens=num_steps + 50)
        for _ in range(8):
            one_step(scheduler, 7)
        gc.collect()
        gc.disable()
        times = [one_step(scheduler, step % 1000) for step in range(num_steps)]
        gc.enable()
        row = {
            "running": num_requests,
            "caching": caching,
            "fast_path": fast_path,
            "schedule_us": round(statistics.median(t[0] for t in times), 1),
            "update_us": round(statistics.median(t[1] for t in times), 1),
            "mean_us": round(statistics.fmean(sum(t) for t in times), 1),
        }
        row["step_us"] = round(row["schedule_us"] + row["update_us"], 1)
        if best is None or row["step_us"] < best["step_us"]:
            best = row
    return best


def waiting_line(num_waiting: int, num_steps: int) -> dict:
    """64 run, the rest waits and cannot enter: the cost must not depend on the length of the line."""
    scheduler = make_scheduler(64, num_steps, caching=True)
    add_requests(scheduler, 64, max_tokens=num_steps + 50)
    for _ in range(8):
        one_step(scheduler, 7)
    add_requests(scheduler, num_waiting, max_tokens=16, first=64)
    times = [sum(one_step(scheduler, step % 1000)) for step in range(num_steps)]
    return {"waiting": num_waiting, "running": 64, "step_us": round(statistics.median(times), 1)}


def mixed_load(num_requests: int, caching: bool) -> dict:
    """Arrivals, chunks, evictions and ends together: 1,000 requests through a pool that is too small."""
    scheduler = make_scheduler(64, 0, caching, num_blocks=600)
    requests = add_requests(scheduler, num_requests, max_tokens=96)
    steps, total_us = 0, 0.0
    while scheduler.has_unfinished_requests():
        total_us += sum(one_step(scheduler, steps % 1000))
        steps += 1
    return {
        "requests": num_requests,
        "caching": caching,
        "steps": steps,
        "preemptions": sum(request.num_preemptions for request in requests),
        "requests_per_s": round(num_requests / (total_us / 1e6)),
        "step_us": round(total_us / steps, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU time of the scheduler alone.")
    parser.add_argument("--quick", action="store_true", help="fewer steps and sizes")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "scheduler.json")
    options = parser.parse_args()
    num_steps = 100 if options.quick else 400
    sizes = (1, 16, 256) if options.quick else (1, 16, 64, 256, 1024)
    before = yardstick_ms()
    decode = [
        steady_decode(n, caching, fast_path, num_steps)
        for n in sizes
        for caching in (False, True)
        for fast_path in (False, True)
    ]
    lines = [waiting_line(n, num_steps) for n in ((10, 10_000) if options.quick else (10, 1_000, 10_000, 100_000))]
    mixed = [mixed_load(200 if options.quick else 1_000, caching) for caching in (False, True)]
    result = {
        "what": "CPU microseconds of schedule() + update_from_output(), median of a step",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "yardstick_ms": [round(before, 3), round(yardstick_ms(), 3)],
        "steady_decode": decode,
        "waiting_line": lines,
        "mixed_load": mixed,
    }
    peers = json.loads((HERE / "stored_peers.json").read_text(encoding="utf-8"))["scheduler"]
    print(f"yardstick {result['yardstick_ms'][0]} ms before, {result['yardstick_ms'][1]} ms after")
    print(f"{'running':>8} {'caching':>8} {'loop':>6} {'schedule':>9} {'update':>8} {'step us':>8}   stored peers, us")
    for row in decode:
        shown = ", ".join(
            f"{p['name']} {p['step_us']:,}"
            for p in peers
            if (p["running"], p["caching"]) == (row["running"], row["caching"])
        )
        loop = "fast" if row["fast_path"] else "clear"
        print(
            f"{row['running']:8} {row['caching']!s:>8} {loop:>6} {row['schedule_us']:9} {row['update_us']:8} "
            f"{row['step_us']:8}   {shown}"
        )
    for row in lines:
        print(f"{row['waiting']:>8} waiting: {row['step_us']} us a step, 64 running")
    for row in mixed:
        print(
            f"mixed, caching {row['caching']}: {row['requests_per_s']:,} requests/s, {row['step_us']} us a step, "
            f"{row['preemptions']} preemptions"
        )
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written: {options.json}")


if __name__ == "__main__":
    main()
