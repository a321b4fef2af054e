"""Part e: 256 requests end to end, all there at once, useful output tokens a second. Chapter 13.

The workload is nano-vllm's: prompts and outputs of 100 to 1,024 tokens, 133,966 output tokens in all, EOS ignored; here
greedy. Weights are random, in the shapes of Qwen3-0.6B and Llama-3-8B.

Byte roofline: each step that was run had to read all matrices once and the KV of its requests; the time of these bytes,
summed over the steps, is what no engine with these steps can beat. Given against the data sheet's bandwidth, which the
targets mean, and against the copy bandwidth of this run.
"""

import gc
import random
import time
from dataclasses import dataclass

from benchmarks.gpu_parts.bench import Bench, OutOfTimeError
from benchmarks.gpu_parts.engine import Served, Workload, blocks_that_fit, build_engine, num_replays, serve, warm_up
from benchmarks.gpu_parts.machine import copy_bytes_per_s, spec
from benchmarks.gpu_parts.models import LLAMA, QWEN, build_model, config_of, does_not_fit, random_weights
from mini_vllm import SchedulerConfig
from mini_vllm.roofline import ModelCosts

OUTPUT_TOKENS = 133_966  # of the whole workload; nano-vllm's README states the same number
TARGETS = {QWEN: 0.35, LLAMA: 0.60}  # share of the byte roofline


@dataclass(frozen=True)
class Case:
    """One way to serve the workload. seconds: about what it takes, start and warm-up included."""

    model: str
    name: str
    graphs: bool = True
    overlap: bool = True
    fused: bool = True
    seconds: float = 15.0


CASES = (
    Case(QWEN, "all on"),
    Case(LLAMA, "all on", seconds=20),
    Case(QWEN, "no overlap", overlap=False),
    Case(QWEN, "no CUDA graphs", graphs=False, seconds=25),
    Case(QWEN, "no fused kernels", fused=False),
    Case(LLAMA, "no CUDA graphs", graphs=False, seconds=25),
)


def nano_vllm_workload() -> Workload:
    """Of nano-vllm's bench.py: the same calls of `random` in the same order, so the same numbers."""
    rng = random.Random(0)
    prompts = [[rng.randint(0, 10_000) for _ in range(rng.randint(100, 1024))] for _ in range(256)]
    return [(prompt, tokens) for prompt, tokens in zip(prompts, [rng.randint(100, 1024) for _ in prompts], strict=True)]


def workload_of(bench: Bench, vocab: int) -> Workload:
    whole = nano_vllm_workload()
    if not bench.smoke:
        return whole[: 64 if bench.quick else None]
    return [([token % vocab for token in prompt[:3]], 2) for prompt, _ in whole[:2]]


def run(bench: Bench) -> None:
    copy = copy_bytes_per_s(bench)
    bench.report.figure("copy bandwidth in this run", copy / 1e9, "GB/s")
    for case in bench.size(CASES, CASES[:4], (CASES[0], CASES[2], CASES[4])):
        config = config_of(bench, case.model)
        label = f"offline, {case.model}, {case.name}"
        if why := does_not_fit(bench, config, bench.dtype):
            bench.report.skip(label, why)
            continue
        try:
            bench.need(case.seconds, label)
            with bench.enough_memory(label):
                measure(bench, case, config, workload_of(bench, config.vocab_size), copy)
        except OutOfTimeError:
            continue
        finally:
            gc.collect()


def measure(bench: Bench, case: Case, config, workload: Workload, copy: float) -> None:
    """One run of our engine, after a short one that compiles what is not compiled yet."""
    start = time.perf_counter()
    model = build_model(config, random_weights(bench, config, bench.dtype), case.fused)
    total = sum(len(prompt) + tokens for prompt, tokens in workload)
    limits = SchedulerConfig(
        max_num_seqs=len(workload),
        max_num_batched_tokens=8192,
        max_model_len=4096,
        num_gpu_blocks=blocks_that_fit(bench, model, 16, total + 16 * len(workload)),
        block_size=16,
    )
    core = build_engine(bench, model, limits, graphs=case.graphs, overlap=case.overlap)
    warm_up(bench, core)
    serve(bench, core, [(prompt, min(4, tokens)) for prompt, tokens in workload[:9]], "warm-up")
    started_s = time.perf_counter() - start
    served = serve(bench, core, workload, "run")
    core.loop.close()
    show(bench, case, config, served, started_s, copy, len(workload), num_replays(core))


def show(
    bench: Bench, case: Case, config, served: Served, started_s: float, copy: float, requests: int, replays: int
) -> None:
    moved, card = served.bytes_moved(ModelCosts(config, bench.dtype_name)), spec(bench)
    of_copy = moved / copy / served.seconds
    of_spec = moved / card.bytes_per_s / served.seconds if card else None
    whole = served.is_complete
    bench.report.row("offline", {
        "model": case.model, "with": f"{case.name:<34}", "requests": requests,
        "tok/s": served.num_tokens / served.seconds, "seconds": served.seconds, "tokens": served.num_tokens,
        "steps": len(served.steps), "replayed": replays, "ms a step": 1e3 * served.seconds / max(1, len(served.steps)),
        "of copy": of_copy, "of spec": of_spec, "scheduler": served.scheduler_s / served.seconds,
        "preempted": served.preemptions, "whole": whole,
        "start s": started_s,
    })  # fmt: skip
    if case.name != "all on":
        return
    target = TARGETS[case.model] if whole and requests == 256 else None
    note = "" if target else "of a run that was cut" if not whole else f"{requests} of 256 requests"
    against = "data sheet's" if card else "measured copy"
    name = f"{case.model}: share of the byte roofline, {against} bandwidth"
    bench.report.figure(name, of_spec if of_spec is not None else of_copy, "", target, note)
    bench.report.figure(f"{case.model}: scheduler's share of a step", served.scheduler_s / served.seconds)
    if target:
        bench.report.must(f"{case.model}: all {OUTPUT_TOKENS:,} output tokens", served.num_tokens == OUTPUT_TOKENS)
