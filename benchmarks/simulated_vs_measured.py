"""Does the simulator predict what the engine then does? The CPU engine, on a workload that its calibration never saw.

    python benchmarks/simulated_vs_measured.py [--json FILE] [--samples FILE]

1. Calibrate: the engine serves other prompts, made up at random; the constants of the step-time model are fitted to the
   times of its steps. --samples keeps them, one JSON object a line.
2. Predict: the simulator plays the 32 requests of benchmarks/workloads/cpu_32_requests.json, all there at once.
3. Measure: the engine serves them. Both are summed up by the same definitions, and the differences are printed.
Takes about three minutes on two cores that nobody else uses, and means little on others. Needs the model: mini-vllm
fetch.
"""

import argparse
import json
import os
import random
import statistics
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mini_vllm import LLM, SamplingParams
from mini_vllm.roofline import (
    ModelCosts,
    StepSample,
    StepTimeModel,
    calibrate,
    get_model,
    probe,
    samples_from_trace,
    write_samples,
)
from mini_vllm.sim.clock import ModelClock
from mini_vllm.sim.metrics import Distribution, percentile
from mini_vllm.sim.simulator import Simulator
from mini_vllm.sim.workloads import Arrival
from mini_vllm.trace.trace import Trace

HERE = Path(__file__).resolve().parent
MODEL, DTYPE = "smollm2-135m", "bfloat16"
SERVER = {"max_num_seqs": 32, "max_num_batched_tokens": 512, "num_gpu_blocks": 1024}
LIMITS = {"output_tokens_per_s": 0.10, "ttft_p50_ms": 0.15, "itl_p50_ms": 0.15}


def back_to_back(trace: Trace) -> Trace:
    """The same steps, each as long as it takes until the next one begins: text and queues are part of its time."""
    steps = [{**step, "t_end": after["t_start"]} for step, after in pairwise(trace.steps)]
    return Trace(trace.header, [*steps, *trace.steps[-1:]])


def serve(requests: list[tuple[list[int], int]]) -> Trace:
    """The engine's trace of one run over (prompt, output tokens), all of them there at the start."""
    llm = LLM(MODEL, dtype=DTYPE, **SERVER)
    params = [SamplingParams(max_tokens=tokens, ignore_eos=True) for _, tokens in requests]
    llm.generate([prompt for prompt, _ in requests], params, progress=False)
    return llm.trace


def random_requests(seed: int, count: int) -> list[tuple[list[int], int]]:
    rng = random.Random(seed)
    return [
        ([rng.randrange(100, 40_000) for _ in range(rng.randint(16, 256))], rng.randint(16, 128)) for _ in range(count)
    ]


def calibration_samples(machine: str) -> list[StepSample]:
    samples = []
    for seed, count in ((1, 32), (2, 8), (3, 2), (4, 32)):
        samples += samples_from_trace(back_to_back(serve(random_requests(seed, count))), machine, DTYPE, MODEL)
        print(f"  {count} random requests, seed {seed}: {len(samples)} steps so far", flush=True)
    return samples


def measured(trace: Trace) -> dict[str, float]:
    """By the definitions of `sim.metrics`, from the engine's timestamps; all requests arrive when the run begins."""
    begin = trace.steps[0]["t_start"]
    times: dict[str, list[float]] = {}
    for step in trace.steps:
        for req_id in step["sampled"]:
            times.setdefault(req_id, []).append(step["t_end"] - begin)
    return summary(list(times.values()))


def predicted(config, clock: ModelClock, requests: list[tuple[list[int], int]]) -> dict[str, float]:
    workload = [Arrival(0.0, len(prompt), tokens) for prompt, tokens in requests]
    return summary(list(Simulator(config, clock).run(workload, token_times=True).token_times.values()))


def summary(token_times: list[list[float]]) -> dict[str, float]:
    ttft = Distribution.of(1e3 * times[0] for times in token_times)
    itl = sorted(1e3 * (b - a) for times in token_times for a, b in pairwise(times))
    end_s = max(times[-1] for times in token_times)
    return {
        "output_tokens_per_s": sum(map(len, token_times)) / end_s,
        "ttft_p50_ms": ttft.p50,
        "ttft_p99_ms": ttft.p99,
        "itl_p50_ms": percentile(itl, 50),
        "itl_p99_ms": percentile(itl, 99),
        "end_s": end_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The simulator against the CPU engine.")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "simulated_vs_measured.json")
    parser.add_argument("--samples", type=Path, help="write the step-time samples of the calibration to this file")
    options = parser.parse_args()
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        print(f"load average {load:.1f} on {cores} cores: others are working, the times below mean little")
    machine = probe("cpu", DTYPE)
    hardware = {machine.device: machine.spec}
    print(f"calibrating on {machine.device}, {MODEL} in {DTYPE}")
    samples = calibration_samples(machine.device)
    if options.samples:
        write_samples(options.samples, samples)
    calibration = calibrate(samples, hardware=hardware)
    accuracy = calibration.accuracy
    print(f"  error of a step on these runs: {accuracy.mape:.1%} on average, worst {accuracy.worst:+.0%}")

    rows = json.loads((HERE / "workloads" / "cpu_32_requests.json").read_text(encoding="utf-8"))["requests"]
    requests = [(row["prompt_ids"], row["max_new_tokens"]) for row in rows]
    clock = ModelClock(StepTimeModel(ModelCosts(get_model(MODEL), DTYPE), machine.spec, calibration.constants))
    config = LLM(MODEL, dtype=DTYPE, **SERVER).engine_core.config
    foreseen = predicted(config, clock, requests)
    print(f"\n{len(requests)} requests, {sum(n for _, n in requests):,} output tokens; three runs of the engine")
    runs = [measured(serve(requests)) for _ in range(3)]
    found = {name: statistics.median(run[name] for run in runs) for name in foreseen}
    print(f"  {'':22} {'simulated':>10} {'measured':>10} {'difference':>11}   (lowest and highest of the runs)")
    errors = {}
    for name, value in foreseen.items():
        errors[name] = value / found[name] - 1
        low, high = min(run[name] for run in runs), max(run[name] for run in runs)
        limit = f", limit {LIMITS[name]:.0%}" if name in LIMITS else ""
        print(f"  {name:22} {value:10.1f} {found[name]:10.1f} {errors[name]:+11.1%}   ({low:.1f} to {high:.1f}){limit}")
    is_reached = all(abs(errors[name]) <= limit for name, limit in LIMITS.items())
    print("all within their limits" if is_reached else "NOT within the limits")
    result = {
        "what": "simulated against measured: CPU engine, 32 requests at once",
        "load_average_before": load,
        "machine": machine.to_dict(),
        "server": SERVER,
        "model": MODEL,
        "dtype": DTYPE,
        "calibration": {
            "constants": asdict(calibration.constants),
            "accuracy": asdict(accuracy),
            "steps": len(samples),
        },
        "simulated": foreseen,
        "measured_median": found,
        "measured_runs": runs,
        "difference": errors,
        "limits": LIMITS,
        "within_limits": is_reached,
    }
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written: {options.json}")


if __name__ == "__main__":
    main()
