"""Part g: step times for the simulator: whole steps of the engine's runner, by the wall clock. Chapters 12 and 13.

A sample is one step: its plan goes in, its tokens come out on the host. Decodes are steps that follow each other, as in
a run; the KV is as if the prefix cache had it (its contents cost nothing). The simulator's own model is fitted to all,
and how far it is off is said.
"""

import statistics
import time
from dataclasses import asdict

from benchmarks.gpu_parts.bench import Bench, OutOfTimeError
from benchmarks.gpu_parts.engine import blocks_that_fit, build_engine, plan_of, warm_up
from benchmarks.gpu_parts.machine import copy_bytes_per_s, gemm_flop_per_s, spec
from benchmarks.gpu_parts.models import LLAMA, QWEN, build_model, config_of, does_not_fit, random_weights
from mini_vllm import SchedulerConfig
from mini_vllm.core.output import CachedRequestData, SchedulerOutput
from mini_vllm.roofline import HardwareSpec, ModelCosts, StepSample, StepWork, calibrate

BLOCK, REPEATS = 16, 5
STEP_TOKENS, LONGEST = 8192, 40_000  # limits of the engine: new tokens of a step beside the decodes, context
Pieces = list[tuple[int, int]]  # (new tokens, computed before)


def steps_of(bench: Bench) -> list[Pieces]:
    """Decodes, prompts, chunks, and mixtures of them."""
    if bench.smoke:
        return [[(1, 20)] * 2, [(1, 5)], [(3, 0)], [(2, 8)], [(2, 0), (1, 9)], [(1, 33)]]
    batches = bench.size((1, 4, 16, 64, 128, 256), (1, 16, 64), ())
    contexts = bench.size((128, 1024, 4096), (128, 1024), ())
    decodes = [[(1, context - 1)] * batch for batch in batches for context in contexts]
    decodes += [[(1, 32_000)], [(1, 32_000)] * 8]
    prefills = [[(new, old)] for new in (64, 256, 1024, 2048, 4096, 8192) for old in (0, 4096)]
    several = [[(256, 0)] * 8, [(1000, 0)] * 4, [(512, 512)] * 8]
    mixed = [[(1, 1000)] * batch + [(new, 0)] for batch in (16, 64, 200) for new in (256, 1024, 2048)]
    return decodes + prefills + several + mixed


def run(bench: Bench) -> None:
    card, measured = spec(bench), None
    if card is None:  # not in roofline/hardware.py: what it reaches here takes the data sheet's place
        rates = {bench.dtype_name: gemm_flop_per_s(bench)}
        measured = HardwareSpec(bench.card.name, rates, copy_bytes_per_s(bench), bench.total_bytes(), "this run", True)
    samples: list[StepSample] = []
    models = {}
    for name in bench.size((QWEN, LLAMA), (QWEN,), (QWEN,)):
        config = config_of(bench, name)
        if why := does_not_fit(bench, config, bench.dtype):
            bench.report.skip(f"samples, {name}", why)
            continue
        models[name] = config
        try:
            bench.need(8, f"samples, {name}")
            measure(bench, name, config, samples)
        except OutOfTimeError:
            pass
    if len(samples) < 6:
        bench.report.skip("fit of the step-time model", f"{len(samples)} samples are fewer than its six constants")
        return
    hardware = {bench.card.name: card or measured}
    found = calibrate(samples, hardware=hardware, models=models)
    bench.report.data["calibration"] = asdict(found)
    bench.report.figure("step-time model fitted to these steps: mean error", found.accuracy.mape)
    bench.report.figure(
        "step-time model fitted to these steps: worst error", found.accuracy.worst, "", note=found.accuracy.worst_label
    )


def measure(bench: Bench, name: str, config, samples: list[StepSample]) -> None:
    """Adds the steps that fit into this card's memory."""
    model = build_model(config, random_weights(bench, config, bench.dtype))
    steps = steps_of(bench)
    num_blocks = blocks_that_fit(bench, model, BLOCK, max(blocks_of(pieces) for pieces in steps) * BLOCK)
    most = max(map(len, steps))
    limits = SchedulerConfig(most, STEP_TOKENS + most, LONGEST, num_blocks, BLOCK)
    core = build_engine(bench, model, limits)
    warm_up(bench, core)
    for number, pieces in enumerate(steps):
        if blocks_of(pieces) > num_blocks:
            bench.report.skip(f"samples, {name}, {shown(pieces)}", "its KV does not fit")
            continue
        bench.need(1, f"samples, {name}, from {shown(pieces)} on")
        found = None
        with bench.enough_memory(f"samples, {name}, {shown(pieces)}"):
            found = one(bench, core.runner, pieces, f"{number}-")
        if found is None:
            core.runner.reset()
            continue
        work, ms = found
        samples.append(StepSample(bench.card.name, bench.dtype_name, name, work, ms))
        bench.report.sample(samples[-1].to_dict())
        cost = ModelCosts(config, bench.dtype_name).step(work)
        bench.report.row("step times", {
            "model": name, "step": f"{shown(pieces):<34}", "n_prefill": work.n_prefill, "n_decode": work.n_decode,
            "kv_tokens": work.kv_tokens, "t_ms": ms, "GB/s": cost.bytes / ms / 1e6, "TFLOP/s": cost.flops / ms / 1e9,
        })  # fmt: skip
    core.loop.close()


def one(bench: Bench, runner, pieces: Pieces, name: str) -> tuple[StepWork, float]:
    """The step's work and the median of its times; a step of decodes alone goes on, any other is run anew."""
    is_decode = all(new == 1 for new, _ in pieces)
    repeats, times, names = bench.size(REPEATS, 3, 1), [], [f"{name}{i}" for i in range(len(pieces))]
    for number in range(repeats + 1):
        if is_decode and number:
            before = [old + number for _, old in pieces]
            plan = SchedulerOutput(
                scheduled_cached_reqs=CachedRequestData(names, before), num_scheduled_tokens=dict.fromkeys(names, 1)
            )
        else:
            runner.execute(SchedulerOutput(finished_req_ids=names if number else []))
            plan = plan_of(pieces, BLOCK, name, spare=repeats)
        start = time.perf_counter()
        runner.execute(plan)
        times.append(1e3 * (time.perf_counter() - start))
    runner.execute(SchedulerOutput(finished_req_ids=names))
    parts = [StepWork.decode(1, old + 1) if new == 1 and old else StepWork.prefill(new, old) for new, old in pieces]
    return StepWork.mixed(parts), statistics.median(times[1:])


def blocks_of(pieces: Pieces) -> int:
    return sum(-(-(new + old + REPEATS) // BLOCK) for new, old in pieces)


def shown(pieces: Pieces) -> str:
    """[(1, 999), (1, 999), (256, 0)] as "2 decodes at 1,000 + 256 new"."""
    words = []
    for new, old in dict.fromkeys(pieces):
        count = pieces.count((new, old))
        words.append(f"{count} × 1 at {old + 1:,}" if new == 1 else f"{count} × {new:,} after {old:,}")
    return " + ".join(words)
