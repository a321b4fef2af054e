"""How fast the simulator is, how much memory it takes, how right its clock is.

    python benchmarks/simulator.py [--quick] [--json FILE]

1. 1,000 requests of the Azure conversation trace at 2 per second, Llama-2-7B on an A100: CPU time, median of 7 runs.
2. A cold start: a fresh process that imports everything and simulates one request.
3. A million requests of the same kind: memory and speed, in a process of their own (about five minutes).
4. A sweep of 64 points of 1,000 requests on 2 processes: wall and CPU time.
5. The step-time model on cards that its fit has not seen (from benchmarks/step_time.py).
Vidur's numbers are stored, measured on another day; the yardstick says how this machine compares.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.step_time import three_ways
from benchmarks.yardstick import yardstick_ms
from mini_vllm.roofline import gpu_times
from mini_vllm.sim.clock import ModelClock
from mini_vllm.sim.metrics import summarize
from mini_vllm.sim.scenario import Scenario
from mini_vllm.sim.sweep import sweep
from mini_vllm.sim.systems import get_system

HERE = Path(__file__).resolve().parent
AZURE = Scenario(workload="azure-conversation", rate=2.0, num_requests=1000, seed=0)
SPEED_TARGET, COLD_TARGET_S, MEMORY_TARGET_MB, SWEEP_TARGET_S = 2000, 1.0, 200, 60
GRID = {
    "rate": [1.0, 2.0, 3.0, 4.0],
    "system": ["vllm-v0", "sarathi", "vllm", "reserve"],
    "max_num_seqs": [32, 64, 128, 256],
}
RUN_MANY = """
import json, resource, sys, time
from mini_vllm.sim.metrics import summarize
from mini_vllm.sim.scenario import Scenario
start = time.process_time()
result = Scenario(num_requests=int(sys.argv[1])).run()
metrics = summarize(result)
cpu_s = time.process_time() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"cpu_s": cpu_s, "peak": peak, "steps": metrics.steps, "itl_p99_ms": metrics.itl_ms.p99}))
"""


def speed(repeats: int) -> list[dict]:
    """Requests per second of CPU time, taken together with making the workload, the clock and the metrics."""
    rows = []
    for fast_forward in (False, True):
        seconds = []
        for _ in range(repeats):
            start = time.process_time()
            simulator = get_system("vllm").simulator(
                AZURE.config(), ModelClock(AZURE.step_time()), fast_forward=fast_forward
            )
            metrics = summarize(simulator.run(AZURE.requests()))
            seconds.append(time.process_time() - start)
        median = statistics.median(seconds)
        rows.append(
            {
                "fast_forward": fast_forward,
                "requests": metrics.num_requests,
                "steps": metrics.steps,
                "cpu_s": round(median, 4),
                "best_cpu_s": round(min(seconds), 4),
                "requests_per_s": round(metrics.num_requests / median),
                "us_per_step": round(1e6 * median / metrics.steps, 2),
            }
        )
    return rows


def cold_start(repeats: int) -> dict:
    """CPU and wall time of a fresh process, from `python` to its end."""
    code = "from mini_vllm.sim.scenario import Scenario; Scenario(num_requests=1).measure()"
    cpu, wall = [], []
    for _ in range(repeats):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, cwd=HERE.parent)
        wall.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return {"cpu_s": round(statistics.median(cpu), 3), "wall_s": round(statistics.median(wall), 3)}


def many_requests(count: int) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", RUN_MANY, str(count)], check=True, cwd=HERE.parent, capture_output=True, text=True
    )
    row = json.loads(done.stdout)
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, in KiB elsewhere
    return {
        "requests": count,
        "steps": row["steps"],
        "cpu_s": round(row["cpu_s"], 1),
        "requests_per_s": round(count / row["cpu_s"]),
        "peak_mb": round(row["peak"] * unit / 2**20, 1),
        "itl_p99_ms": row["itl_p99_ms"],
    }


def time_sweep(num_requests: int) -> dict:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    result = sweep(AZURE.changed(num_requests=num_requests).measure, GRID, workers=2)
    wall_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "points": len(result.rows),
        "requests": num_requests,
        "failed": len(result.failures),
        "workers": 2,
        "wall_s": round(wall_s, 1),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "pareto_ttft_p99_against_output_rate": result.pareto("ttft_ms.p99", "output_tokens_per_s"),
    }


def verdict(value: float, target: float, unit: str, at_least: bool = False) -> str:
    reached = value >= target if at_least else value <= target
    limit = f"{'at least' if at_least else 'at most'} {target:,} {unit}"
    return f"target {limit}: {'reached' if reached else 'NOT REACHED'}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed, memory and accuracy of the simulator.")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, 20,000 instead of a million requests")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "simulator.json")
    options = parser.parse_args()
    repeats = 3 if options.quick else 7
    peer = json.loads((HERE / "stored_peers.json").read_text(encoding="utf-8"))["simulator"][0]
    load = os.getloadavg()[0]
    result = {
        "what": "the simulator's speed, memory and step-time error",
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average_before": round(load, 1),
        "yardstick_ms": round(yardstick_ms(), 3),
        "scenario": {"workload": AZURE.workload, "rate": AZURE.rate, "model": AZURE.model, "hardware": AZURE.hardware},
    }
    print(f"yardstick {result['yardstick_ms']} ms, load average {load:.1f} on {os.cpu_count()} cores")

    result["speed"] = speed(repeats)
    print(f"\n1,000 requests, Azure conversation at 2/s, {AZURE.model} on {AZURE.hardware} (CPU time, with metrics):")
    for row in result["speed"]:
        how = "fast-forward" if row["fast_forward"] else "step by step"
        print(
            f"  {how}: {row['requests_per_s']:,} requests/s, {row['us_per_step']} µs a step of {row['steps']:,} steps"
        )
    fast = result["speed"][-1]["requests_per_s"]
    reached = verdict(fast, SPEED_TARGET, "requests/s", at_least=True)
    print(f"  {reached}; stored: {peer['name']} {peer['requests_per_s']} requests/s")

    result["cold_start"] = cold = cold_start(repeats)
    print(f"\ncold start: {cold['cpu_s']} s of CPU, {cold['wall_s']} s on the clock")
    print(f"  {verdict(cold['wall_s'], COLD_TARGET_S, 's')}; stored: {peer['name']} {peer['cold_start_s']} s")

    count = 20_000 if options.quick else 1_000_000
    print(f"\n{count:,} requests …", flush=True)
    result["many"] = many = many_requests(count)
    print(f"  peak {many['peak_mb']} MB, {many['requests_per_s']:,} requests/s of CPU time")
    print(f"  {verdict(many['peak_mb'], MEMORY_TARGET_MB, 'MB')}")

    print("\nsweep of 64 points …", flush=True)
    result["sweep"] = swept = time_sweep(100 if options.quick else 1000)
    print(
        f"  {swept['points']} points of {swept['requests']:,} requests on 2 processes: {swept['wall_s']} s, "
        f"{swept['cpu_s']} s of CPU, {swept['failed']} failed"
    )
    print(f"  {verdict(swept['wall_s'], SWEEP_TARGET_S, 's')}")
    print()
    sets = [s for s in gpu_times()["layers"]["sets"] if s["model"] == "llama-2-7b"]
    result["step_time"] = three_ways(sets)
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written: {options.json}")


if __name__ == "__main__":
    main()
