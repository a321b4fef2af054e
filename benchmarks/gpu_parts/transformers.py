"""Part e, the peer: transformers' continuous batching on the same workload, shapes and weights. Chapter 13.

In a part of its own: what it leaves behind in the GPU's memory would shrink what is measured after it.
"""

from benchmarks.gpu_parts.bench import Bench, OutOfTimeError
from benchmarks.gpu_parts.models import LLAMA, QWEN, config_of, does_not_fit, random_weights
from benchmarks.gpu_parts.offline import workload_of
from benchmarks.gpu_parts.transformers_peer import serve_transformers


def run(bench: Bench) -> None:
    for name in bench.size((QWEN, LLAMA), (QWEN,), (QWEN,)):
        config, label = config_of(bench, name), f"{name}, transformers' continuous batching"
        if why := does_not_fit(bench, config, bench.dtype):
            bench.report.skip(label, why)
            continue
        workload = workload_of(bench, config.vocab_size)
        for may_switch in (True, False):
            try:
                bench.need(15, label)
            except OutOfTimeError:
                return
            with bench.peer(f"{label}{'' if may_switch else ', without FlashAttention'}"):
                # Half of the time for each model; a run that is cut is no result, and its row says so.
                limit_s = bench.clock.left() * (0.45 if name == QWEN and not bench.quick else 0.9)
                weights = random_weights(bench, config, bench.dtype)
                run = serve_transformers(bench, config, weights, workload, limit_s, may_switch)
                bench.report.row("transformers", {
                    "model": name, "requests": len(workload), "tok/s": run.tokens / run.seconds,
                    "seconds": run.seconds, "tokens": run.tokens, "whole": run.whole, "attention": run.attention,
                })  # fmt: skip
                break
