"""Single parts of the CPU engine by themselves, for `cpu_engine.py` and `cpu_tried.py`. Knows steps and products."""

import os
import statistics
import time
from collections import Counter
from functools import partial
from pathlib import Path

import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.core.output import CachedRequestData, NewRequestData, SchedulerOutput
from mini_vllm.engine.attention.select import select_backend
from mini_vllm.engine.model_runner import ModelRunner
from mini_vllm.models.cpu_ops import FEW_TOKENS
from mini_vllm.models.packed import PackedLinear


def gemm_bound(llm: LLM) -> tuple[float, float]:
    """Seconds of the matrix products of the run that `llm.trace` records, and their number of rows on average."""
    model = llm.engine_core.model
    rows_of_step = Counter(step["budget_used"] for step in llm.trace.steps)
    heads = Counter(len(step["sampled"]) for step in llm.trace.steps)
    hidden, total = model.config.hidden_size, 0.0
    with torch.inference_mode():
        for rows, count in rows_of_step.items():
            total += count * products_s(model, rows, hidden)
        for rows, count in heads.items():
            x = torch.randn(rows, hidden, dtype=model.dtype)
            head = model.packed_head or model.compute_logits
            total += count * best_of(partial(product, head, x)) if rows else 0.0
    return total, sum(rows * n for rows, n in rows_of_step.items()) / sum(rows_of_step.values())


def product(linear, x: torch.Tensor) -> None:
    """At this very number of rows: without those that the engine adds to have few sizes."""
    if isinstance(linear, PackedLinear) and len(x) > FEW_TOKENS:
        torch.ops.mkldnn._linear_pointwise.default(x, linear.packed, linear.bias, "none", [], "")
    else:
        linear(x)


def products_s(model, rows: int, hidden: int) -> float:
    """All layers' products at this number of rows, each with its own weights, so that no cache helps."""
    x = torch.randn(rows, hidden, dtype=model.dtype)
    wide = torch.randn(rows, model.config.intermediate_size, dtype=model.dtype)
    heads = torch.randn(rows, model.config.num_attention_heads * model.config.head_dim, dtype=model.dtype)

    def run() -> None:
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            apart = [attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj]
            for linear in [attention.qkv_proj, mlp.gate_up_proj] if attention.qkv_proj else apart:
                product(linear, x)
            product(attention.o_proj, heads)
            product(mlp.down_proj, wide)

    return best_of(run)


def resident_mb() -> float:
    """Memory of this process, in 10**6 bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def best_of(run, repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def first_step(requests: int, prompt: int, blocks_each: int) -> SchedulerOutput:
    """A plan in which every request enters with its whole prompt."""
    plan = SchedulerOutput()
    for i in range(requests):
        blocks = list(range(1 + i * blocks_each, 1 + (i + 1) * blocks_each))
        plan.scheduled_new_reqs.append(NewRequestData(str(i), [5] * prompt, SamplingParams(), blocks, 0))
        plan.num_scheduled_tokens[str(i)] = prompt
    return plan


def prefill_s(model, backend, prompt: int, requests: int = 1) -> float:
    """Seconds of one step in which all prompts enter."""
    blocks_each = -(-prompt // 16)
    runner = ModelRunner(model, requests * blocks_each, 16, backend)
    start = time.perf_counter()
    runner.execute(first_step(requests, prompt, blocks_each))
    return time.perf_counter() - start


def decode_step_s(model, backend, batch: int, context: int = 128, steps: int = 20) -> float:
    """Seconds of a decode step of `batch` requests, the median of `steps`."""
    blocks_each = -(-(context + steps) // 16)
    runner, times = ModelRunner(model, batch * blocks_each, 16, backend), []
    runner.execute(first_step(batch, context, blocks_each))
    for k in range(steps):
        cached = CachedRequestData([str(i) for i in range(batch)], [context + k] * batch)
        plan = SchedulerOutput(scheduled_cached_reqs=cached, num_scheduled_tokens=dict.fromkeys(cached.req_ids, 1))
        start = time.perf_counter()
        runner.execute(plan)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def read_s(num_bytes: int, repeats: int = 9) -> float:
    """Seconds to read so many bytes from memory once, the median."""
    buffer, times = torch.ones(num_bytes // 4), []
    for _ in range(repeats):
        start = time.perf_counter()
        buffer.sum()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def alone(model, batch: int, context: int = 128) -> dict[str, float]:
    """Prefill of `batch` prompts in one step, then decode steps of all of them."""
    backend = select_backend("auto", model.config, model.dtype, model.device)
    prefill, decode = prefill_s(model, backend, context, batch), decode_step_s(model, backend, batch, context)
    return {"batch": batch, "prefill_tokens_per_s": batch * context / prefill, "decode_step_ms": 1e3 * decode,
            "decode_tokens_per_s": batch / decode}  # fmt: skip
