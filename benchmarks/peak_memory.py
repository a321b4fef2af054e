"""How much memory does the CPU engine take? Peak resident memory of a fresh process that serves the 32 requests.

    python benchmarks/peak_memory.py [--requests 32] [--json FILE]

Two processes, one after the other: in the first the KV pool is as the requests leave it (memory is taken when a block
is first written), in the second all of it has been written before. Both are set beside weights + KV pool + 300 MB.
Python with torch and our modules alone, before any model, is measured in the same process and given apart: the 300 MB
have to hold it, too. MB are 10**6 bytes. Linux only (reads /proc). About a minute. Needs the model.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

HERE = Path(__file__).resolve().parent
MODEL, DTYPE = "smollm2-135m", "bfloat16"
SERVER = {"max_num_seqs": 32, "max_num_batched_tokens": 512, "num_gpu_blocks": 1024}
ALLOWED_MB = 300  # beside weights and KV pool


def memory_mb() -> dict[str, float]:
    """Of this process: now, at most so far, and of now what is pages of files and what is not."""
    names = {"VmRSS": "now", "VmHWM": "peak", "RssFile": "of_files", "RssAnon": "own"}
    rows = (line.split() for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    return {names[row[0][:-1]]: int(row[1]) * 1024 / 1e6 for row in rows if row[0][:-1] in names}


def serve(num_requests: int, whole_pool: bool) -> dict:
    """In a fresh process: the requests of the workload, and what memory was taken on the way."""
    from mini_vllm import LLM, SamplingParams
    from mini_vllm.engine.kv_pool import block_bytes
    from mini_vllm.loaders.weights import load_model  # noqa: F401  all that LLM imports counts as Python

    imported = memory_mb()
    llm = LLM(MODEL, dtype=DTYPE, device="cpu", **SERVER)
    pool = llm.engine_core.runner.kv_pool
    if whole_pool:
        for cache in pool.caches:
            cache.zero_()
    loaded = memory_mb()
    rows = json.loads((HERE / "workloads" / "cpu_32_requests.json").read_text(encoding="utf-8"))["requests"]
    rows = rows[:num_requests]
    params = [SamplingParams(max_tokens=row["max_new_tokens"], ignore_eos=True) for row in rows]
    outputs = llm.generate([row["prompt_ids"] for row in rows], params, progress=False)
    assert [len(o.token_ids) for o in outputs] == [row["max_new_tokens"] for row in rows]
    config, model = llm.engine_core.config, llm.engine_core.model
    one_block_mb = block_bytes(model.config, model.dtype, config.block_size) / 1e6
    weights_mb = sum(2 * a * (b[0] if b else 1) for a, *b in model.config.tensor_shapes().values()) / 1e6
    peak_mb, pool_mb = memory_mb()["peak"], config.num_gpu_blocks * one_block_mb
    return {
        "requests": len(rows),
        "python_with_torch_mb": imported["now"],
        "after_loading_mb": loaded["now"],
        "of_files_after_loading_mb": loaded["of_files"],
        "peak_mb": peak_mb,
        "weights_mb": weights_mb,
        "kv_pool_mb": pool_mb,
        "kv_blocks_used": llm.stats.peak["kv_blocks_used"],
        "kv_written_mb": pool_mb if whole_pool else llm.stats.peak["kv_blocks_used"] * one_block_mb,
        "beside_weights_and_pool_mb": peak_mb - weights_mb - pool_mb,
        "allowed_mb": ALLOWED_MB,
        "within": peak_mb <= weights_mb + pool_mb + ALLOWED_MB,
    }


def in_a_fresh_process(*arguments: str) -> dict:
    command = [sys.executable, __file__, "--child", *arguments]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def show(name: str, run: dict) -> None:
    verdict = "within" if run["within"] else "NOT WITHIN"
    limit = run["weights_mb"] + run["kv_pool_mb"] + run["allowed_mb"]
    print(f"{name}: peak {run['peak_mb']:.0f} MB, {verdict} {limit:.0f} MB")
    print(
        f"  weights {run['weights_mb']:.0f}, KV pool {run['kv_pool_mb']:.0f}, {run['allowed_mb']} allowed beside them"
    )
    print(f"  beside them {run['beside_weights_and_pool_mb']:.0f}; KV written {run['kv_written_mb']:.0f}")
    python_mb = run["python_with_torch_mb"]
    engine_mb = run["beside_weights_and_pool_mb"] - python_mb
    print(f"  Python with torch alone {python_mb:.0f}; without it, beside weights and pool {engine_mb:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=32, help="serve only the first of the workload")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "peak_memory.json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--whole-pool", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not Path("/proc/self/status").exists():
        sys.exit("this benchmark reads /proc/self/status, which only Linux has")
    if options.child:
        print(json.dumps(serve(options.requests, options.whole_pool)))
        return
    count = ("--requests", str(options.requests))
    used, whole = in_a_fresh_process(*count), in_a_fresh_process(*count, "--whole-pool")
    show("KV pool as it is used", used)
    show("all of the KV pool written", whole)
    import torch

    result = {
        "what": "Peak resident memory of the CPU engine, SmolLM2-135M in bfloat16; MB of 10**6 bytes",
        "as_used": used,
        "whole_pool": whole,
        "server": SERVER,
        "machine": platform.processor() or platform.machine(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": date.today().isoformat(),
    }
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written: {options.json}")


if __name__ == "__main__":
    main()
