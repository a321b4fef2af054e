"""What made the CPU engine faster, and what did not: each idea switched on after the one before it, in one run.

    python benchmarks/cpu_tried.py [--threads 2] [--json FILE]

Decode steps of 1, 8 and 32 requests and a prompt of 512 tokens, SmolLM2-135M in bfloat16, each way in a process of its
own (how threads wait is read once), then small operations side by side. About four minutes on two cores that nobody
else uses. The rows are stored for the book as they are, null results too.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

HERE = Path(__file__).resolve().parent
MODEL, DTYPE, CONTEXT, STEPS = "smollm2-135m", "bfloat16", 128, 20
SPIN = {"GOMP_SPINCOUNT": "4000"}

# name: (what it is, environment, options of `prepared`); each line keeps what the lines above it switched on
LADDER: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "plain": ("plain torch: seven products a layer, gather, then scaled dot product", {}, []),
    "joined": ("q, k, v and gate, up joined: four products a layer", {}, ["joined"]),
    "ordered": ("weights in oneDNN's order, laid out once", {}, ["packed"]),
    "ops": ("norm, rotation and gate as compiled C", {}, ["packed", "ops"]),
    "attention": ("decode attention as compiled C, without a gather", {}, ["packed", "ops", "attn"]),
    "prompts": ("attention of prompts as compiled C, 16 queries at a time", {}, ["packed", "ops", "attn", "prompts"]),
    "few": ("a product of our own for 1 to 16 tokens", {}, ["packed", "ops", "attn", "prompts", "few"]),
    "spin": ("threads that spin before they sleep", SPIN, ["packed", "ops", "attn", "prompts", "few"]),
}
KEPT = {
    "plain": "as the clear form",
    "spin": "for a machine of one's own: beside another busy process it is slower, so the default is to sleep",
}


def prepared(switches: list[str]):
    """(model, attention backend) with these switched on."""
    import torch

    from mini_vllm.engine.attention.cpu import CpuPagedAttention
    from mini_vllm.engine.attention.torch import TorchPagedAttention
    from mini_vllm.loaders.weights import load_model
    from mini_vllm.models import cpu_ops
    from mini_vllm.models import packed as linears
    from mini_vllm.models.ops import TorchOps

    model = load_model(MODEL, DTYPE).model
    if "joined" in switches:
        not_packed = type("NotPacked", (linears.JoinedLinear,), {"exact": 512, "pointer": None})
        linears.PackedLinear = not_packed  # type: ignore[misc, assignment]
        linears.pack_linears(model)
    if "packed" in switches:
        if "few" not in switches:
            cpu_ops.pointer_to = lambda *weight: None
        linears.pack_linears(model)
    if "ops" in switches:
        model.use_ops(cpu_ops.CpuOps())
    if "compiled" in switches:
        plain = TorchOps()
        for name in ("rms_norm", "add_rms_norm", "rotate", "silu_and_mul"):
            setattr(plain, name, torch.compile(getattr(plain, name), dynamic=True))
        model.use_ops(plain)
    if "prompts" not in switches:
        cpu_ops.can_prefill = lambda *heads: False
    return model, (CpuPagedAttention if "attn" in switches else TorchPagedAttention)()


def work(switches: list[str], threads: int) -> dict[str, float]:
    """What one process measures: milliseconds."""
    import torch

    from benchmarks.cpu_parts import decode_step_s, prefill_s

    torch.set_num_threads(threads)
    start = time.perf_counter()
    model, backend = prepared(switches)
    times = {f"decode {batch}": 1e3 * decode_step_s(model, backend, batch, CONTEXT, STEPS) for batch in (1, 8, 32)}
    times["prefill 512"] = 1e3 * min(prefill_s(model, backend, 512) for _ in range(3))
    return times | {"all of it": 1e3 * (time.perf_counter() - start)}


def measured(switches: list[str], env: dict[str, str], threads: int) -> dict[str, float]:
    settings = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", **env}
    if env:
        del settings["OMP_WAIT_POLICY"]
    command = [sys.executable, str(Path(__file__).resolve()), "--work", *switches, "--threads", str(threads)]
    done = subprocess.run(command, env=settings, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def change(before: dict[str, float] | None, after: dict[str, float]) -> str:
    """Both numbers of each part, so that the reader can judge."""
    names = [name for name in after if name != "all of it"]
    earlier = {name: f"{before[name]:.1f} → " if before else "" for name in names}
    return ", ".join(f"{name}: {earlier[name]}{after[name]:.1f} ms" for name in names)


def side_by_side(threads: int) -> list[tuple[str, str, str]]:
    """Small operations: (what, what it gave, kept)."""
    import torch
    import torch.nn.functional as F

    from mini_vllm.engine.input_batch import InputBatch

    torch.set_num_threads(threads)
    logits, rows = torch.randn(32, 49152).bfloat16(), torch.randn(16384, 192).bfloat16()
    slots = torch.randint(0, 16384, (32 * 256,))
    q, k = torch.randn(1, 9, 256, 64).bfloat16(), torch.randn(1, 3, 256, 64).bfloat16()
    mask = torch.ones(256, 256, dtype=torch.bool).tril()
    batch = InputBatch(torch.device("cpu"), 16, max_num_batched_tokens=512, max_num_seqs=32, max_model_len=2048)
    tables = [list(range(1 + 9 * i, 10 + 9 * i)) for i in range(32)]
    firsts, ones, ids = list(range(100, 132)), [1] * 32, [5] * 32
    mine = [batch.add_row(table) for table in tables]

    def new_tensors() -> None:
        slots = [table[first // 16] * 16 + first % 16 for table, first in zip(tables, firsts, strict=True)]
        for numbers in (ids, firsts, slots):
            torch.tensor(numbers)
        for rows_of_it in (list(range(33)), [first + 1 for first in firsts], tables):
            torch.tensor(rows_of_it, dtype=torch.int32)

    pairs: list[tuple[str, Callable[[], Any], Callable[[], Any], str]] = [
        ("greedy tokens of 32 rows by max, not argmax", lambda: logits.argmax(-1), lambda: logits.max(-1), "yes"),
        ("K of 32 x 256 tokens by index_select, not indexing",
         lambda: rows[slots], lambda: rows.index_select(0, slots), "yes"),
        ("a prompt of 256 tokens with is_causal, not a mask",
         lambda: F.scaled_dot_product_attention(q, k, k, attn_mask=mask, enable_gqa=True),
         lambda: F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True), "where C does not do it"),
        ("inputs of 32 decodes written into the same buffers, not into new tensors",
         new_tensors, lambda: batch.fill(ids, mine, firsts, ones), "yes: a CUDA graph must find them again"),
    ]  # fmt: skip
    found = []
    with torch.inference_mode():
        for what, before, after, kept in pairs:
            times = [statistics.median(_timed(run) for _ in range(30)) for run in (before, after)]
            found.append((what, f"{1e6 * times[0]:,.0f} → {1e6 * times[1]:,.0f} µs", kept))
    return found


def row_counts(threads: int) -> tuple[str, str, str]:
    """One product at row counts that it has not met before, each once: as they come, and padded to few sizes."""
    import torch

    from benchmarks.cpu_parts import resident_mb
    from mini_vllm.models.packed import PackedLinear, padded_rows

    torch.set_num_threads(threads)
    weight, counts, found = torch.randn(3072, 576).bfloat16(), range(17, 257), []

    def meet_all(linear: PackedLinear) -> None:
        for rows in counts:
            linear(torch.zeros(rows, 576).bfloat16())

    with torch.inference_mode():
        for exact in (512, 1):
            linear = PackedLinear([weight])
            linear.pointer, linear.exact = None, exact
            before = resident_mb()
            found.append((1e3 * _timed(partial(meet_all, linear)), resident_mb() - before))
    (exact_ms, exact_mb), (padded_ms, padded_mb) = found
    sizes = len({padded_rows(rows) for rows in counts})
    what = f"a product at {len(counts)} row counts, each for the first time, padded to {sizes} sizes"
    return what, f"{exact_ms:.0f} → {padded_ms:.0f} ms, {exact_mb:.0f} → {padded_mb:.0f} MB that stay", "yes"


def _timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, default=HERE / "results" / "cpu_tried.json")
    parser.add_argument("--work", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        print(json.dumps(work(options.work, options.threads)))
        return
    from mini_vllm.roofline.probe import device_name

    if (load := os.getloadavg()[0]) > 0.5:
        print(f"load average {load:.1f}: others are working, the times below mean little")
    where = f"{device_name('cpu')}, {options.threads} threads, Python {platform.python_version()}"
    rows: list[dict[str, Any]] = []

    def note(what: str, gave: str, kept: str) -> None:
        rows.append({"what": what, "gave": gave, "kept": kept, "measured_on": where})
        print(f"{what}\n    {gave}   kept: {kept}", flush=True)

    found: dict[str, dict[str, float]] = {}
    before: dict[str, float] | None = None
    for name, (what, env, switches) in LADDER.items():
        found[name] = measured(switches, env, options.threads)
        note(what, change(before, found[name]), KEPT.get(name, "yes"))
        before = found[name]
    best = LADDER["spin"][2]
    note("one thread, not two", change(found["spin"], measured(best, SPIN, 1)), "no")
    compiled = measured(["packed", "compiled"], {}, options.threads)
    longer_s = (compiled["all of it"] - found["ordered"]["all of it"]) / 1e3
    gave = f"{change(found['ordered'], compiled)}; the run took {longer_s:.0f} s longer, most of it compiling"
    note("torch.compile for norm, rotation and gate, where C stands now", gave, "no: C gives more, in a second")
    for what, gave, kept in side_by_side(options.threads):
        note(what, gave, kept)
    note(*row_counts(options.threads))
    result = {"what": "CPU engine: what was tried", "load_average_before": load, "tried": rows}
    options.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written: {options.json}")


if __name__ == "__main__":
    main()
