"""One of every picture that the book can show, for the tests to measure. Knows the plots' names; asserts nothing."""

import json
import random
from functools import cache
from pathlib import Path

from mini_vllm.batching import ContinuousBatcher, PaddedBatcher, SimRequest, StaticBatcher, run_batches
from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.request import Request
from mini_vllm.sim.driver import simulate
from mini_vllm.viz import plots, switch_cost
from mini_vllm.viz.block_plots import Allocation
from tests.viz.player_traces import small_trace

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "vllm_traces"
ALT = "a picture of a run, drawn to be tested"
START = [1, 2, 3, 4, 5, 6, 7, 8]
EIGHT = [("A", 4, 3), ("B", 9, 12), ("C", 2, 5), ("D", 6, 2), ("E", 3, 7), ("F", 5, 4), ("G", 2, 9), ("H", 7, 1)]


def recorded(name: str) -> dict:
    """A recorded run of vLLM in the form that the pictures take."""
    run = json.loads((RECORDINGS / f"{name}.json").read_text(encoding="utf-8"))
    facts = {
        r["id"]: {"prompt_len": len(r["prompt_token_ids"]), "max_tokens": r["max_tokens"]}
        for r in run["scenario"]["requests"]
    }
    return {
        "header": {"kind": "vllm", "config": run["trace"]["config"], "requests": facts},
        "steps": run["trace"]["steps"],
    }


@cache
def crowded():
    """Thirty requests over a pool that is too small for eight of them at once."""
    rng = random.Random(3)
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=32, num_gpu_blocks=60)
    requests = [SimRequest(f"R{i}", rng.randint(8, 60), rng.randint(4, 30), arrival_step=2 * i) for i in range(30)]
    return simulate(requests, config)


def with_seconds(trace) -> dict:
    """The run with made-up wall times: each step takes 10 ms and 1 ms more for each token."""
    steps, now = [], 0.0
    for record in trace.steps:
        end = now + 0.010 + 0.001 * record["budget_used"]
        steps.append({**record, "t_start": now, "t_end": end})
        now = end
    return {"header": trace.header, "steps": steps}


def batches() -> dict:
    rules = {"static": StaticBatcher, "padded": PaddedBatcher, "continuous": ContinuousBatcher}
    return {n: run_batches(rule, [SimRequest(*r) for r in EIGHT], num_slots=4) for n, rule in rules.items()}


def begin_alike() -> list[Request]:
    return [Request("A", [*START, 9]), Request("B", [*START, 20, 21, 22, 23]), Request("C", [9] * 16)]


def pool_moments() -> dict:
    """A pool of ten blocks, the largest that is drawn: three requests in it, then all three done."""
    manager = KVCacheManager(SchedulerConfig(enable_prefix_caching=True, num_gpu_blocks=10))
    requests = begin_alike()
    for request in requests:
        hits = manager.get_computed_blocks(request)
        manager.allocate_slots(request, request.num_tokens - 4 * len(hits), hits=hits)
    moments = {"in use": plots.pool_state(manager.block_pool)}
    for request in requests:
        manager.free(request)
    return {**moments, "done": plots.pool_state(manager.block_pool)}


def spread(seed: int, mean: float) -> list[float]:
    rng = random.Random(seed)
    return [1 + rng.expovariate(1 / mean) for _ in range(150)]


POINTS = {f"{s} seqs": (0.2 * s**0.7 + s % 3, 90 * s / (s + 20)) for s in (4, 8, 16, 24, 32, 48, 64)}
ROOFS = {"T4": (65e12, 320e9), "A100": (312e12, 2.04e12)}
PICTURES = {
    "slot_time": lambda: plots.slot_time(batches(), alt=ALT),
    "slot_time of a trace": lambda: plots.slot_time({"vLLM's rules": crowded()}, alt=ALT),
    "gantt": lambda: plots.gantt({"small": small_trace(), "recorded": recorded("98_worked_example_full")}, alt=ALT),
    "gantt in seconds": lambda: plots.gantt(with_seconds(crowded()), unit="s", alt=ALT),
    "kv_occupancy": lambda: plots.kv_occupancy(
        {"shared": recorded("17_prefix_system_aligned"), "crowded": crowded()}, alt=ALT
    ),
    "twin_gauges": lambda: plots.twin_gauges({"small": small_trace(), "crowded": crowded()}, alt=ALT),
    "queue_lengths": lambda: plots.queue_lengths(crowded(), alt=ALT),
    "itl_strip": lambda: plots.itl_strip(crowded(), target=2, alt=ALT),
    "itl_strip in ms": lambda: plots.itl_strip(with_seconds(crowded()), unit="s", target=30, log_y=True, alt=ALT),
    "lines": lambda: plots.lines(
        {name: ([2, 4, 8], [0.1 * k, 0.2 * k, 0.3 * k]) for k, name in enumerate(("c = 0.25", "c = 0.5", "c = 1"))},
        points={"c = 1": ([2, 4], [0.21, 0.39])},
        x_label="slots", y_label="bubble waste", percent=True, log2_x=True, alt=ALT,
    ),
    "ten lines": lambda: plots.lines(
        {f"policy {k}": (range(5), [k + k * x for x in range(5)]) for k in range(10)},
        x_label="load (requests/s)", y_label="wait (s)", alt=ALT,
    ),
    "cdf": lambda: plots.cdf(
        {f"policy {k}": spread(k, 3 + k) for k in range(9)}, x_label="slowdown (×)", log_x=True, alt=ALT
    ),
    "pareto": lambda: plots.pareto(
        POINTS, series={name: "narrow" if len(name) < 7 else "wide" for name in POINTS},
        x_label="TPOT p99 (ms)", y_label="throughput (tokens/s)", alt=ALT,
    ),
    "stacked_bars": lambda: plots.stacked_bars(
        {f"{rate}/s {rule}": {"company": c, "others": 2.0 * rate, "prefill": 0.4, "more": 0.1}
         for rate in (1, 2) for rule, c in (("static", 3.5), ("continuous", 0))},
        x_label="mean TTFT (s)", alt=ALT,
    ),
    "switch cost": lambda: switch_cost.bars(
        {m: {"FCFS": 39.0, "SRTF": 1.67, "RR": 266.0} for m in switch_cost.MACHINES}
    ),
    "memory_grid": lambda: plots.memory_grid(
        {name: [k // 40 % 3 for k in range(start, start + 6400)] for name, start in (("one piece", 0), ("blocks", 40))},
        alt=ALT,
    ),
    "block_map": lambda: plots.block_map(recorded("98_worked_example_full"), [8, 33], alt=ALT),
    "allocation": lambda: plots.allocation(
        {
            "goes on": Allocation(16, 32, 1, 4, 33, [1, 2], 1, 0, False, [6]),
            "enters": Allocation(16, 0, 8, 0, 40, [], 2, 1, True, None),
        },
        alt=ALT,
    ),
    "hash_chains": lambda: plots.hash_chains([*begin_alike(), Request("S", START, cache_salt="bob")], 4, alt=ALT),
    "free_queue": lambda: plots.free_queue(pool_moments(), alt=ALT),
    "kv_reads": lambda: plots.kv_reads(
        [5, 2, 9, 7, 1, 3, 8], 20, block_size=3, block_n=8, num_blocks=11, alt=ALT
    ),
    "prefill_tiles": lambda: plots.prefill_tiles(
        {f"window {window}": plots.tile_map(48, 96, group=4, block_m=32, block_n=16, sliding_window=window)
         for window in (None, 24)},
        alt=ALT,
    ),
    "roofline": lambda: plots.roofline(
        ROOFS, measured={"decode": ([1, 2, 4], [3e11, 6e11, 1.1e12]), "prefill": ([200], [6e13])},
        stored={"decode": ([1, 4], [1.9e12, 7e12])}, alt=ALT,
    ),
}  # fmt: skip


@cache
def picture(name: str):
    """The picture of that name, drawn once."""
    return PICTURES[name]()
