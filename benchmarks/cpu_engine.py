"""How fast is the CPU engine? The same 32 requests on ours and on transformers, alternating in one run.

    python benchmarks/cpu_engine.py [--rounds 3] [--threads 2] [--only ours] [--json FILE]

1. End to end: benchmarks/workloads/cpu_32_requests.json, all there at once, useful output tokens a second: our engine,
   transformers' static batches of 8 and of 32 (padded left, each batch until its longest is done), and transformers'
   continuous batching.
2. The bound: the time of the workload's own matrix products, at the row counts of the steps that our engine ran;
   measured right after each of its runs, for how fast this machine is changes by the minute.
3. Decode at batch 1, 8, 32 and prefill alone, beside the time that reading all weights once takes on this machine.
Everything in bfloat16. About seven minutes on two cores that nobody else uses. Needs transformers and the model.
The threads of all systems wait for each other by spinning a little (GOMP_SPINCOUNT=4000, unless OMP_WAIT_POLICY or
GOMP_SPINCOUNT say otherwise): right for a machine of one's own; the engine's default is to sleep at once.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import time
from pathlib import Path

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "4000")  # read when torch is first imported
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.cpu_parts import alone, gemm_bound, read_s
from benchmarks.yardstick import yardstick_ms
from mini_vllm import LLM, SamplingParams
from mini_vllm.core.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.loaders.weights import load_model
from mini_vllm.models.hf_config import config_to_json
from mini_vllm.models.packed import make_fast
from mini_vllm.roofline import probe

HERE = Path(__file__).resolve().parent
MODEL, DTYPE = "smollm2-135m", "bfloat16"
SERVER = {"max_num_seqs": 32, "max_num_batched_tokens": 512, "num_gpu_blocks": 1024}
Requests = list[tuple[list[int], int]]  # (prompt ids, output tokens)


def workload() -> Requests:
    rows = json.loads((HERE / "workloads" / "cpu_32_requests.json").read_text(encoding="utf-8"))["requests"]
    return [(row["prompt_ids"], row["max_new_tokens"]) for row in rows]


# --- the four ways to serve the workload; each returns seconds ---


class Ours:
    name = "mini_vllm"

    def __init__(self) -> None:
        self.llm = LLM(MODEL, dtype=DTYPE, **SERVER)
        self.in_runner_s = 0.0  # of the latest run
        self.runner, self.execute = self.llm.engine_core.runner, self.llm.engine_core.runner.execute
        self.runner.execute = self._timed
        self.run([([1] * 16, 4)])

    def _timed(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        start = time.perf_counter()
        output = self.execute(plan)
        self.in_runner_s += time.perf_counter() - start
        return output

    def run(self, requests: Requests) -> float:
        params = [SamplingParams(max_tokens=tokens, ignore_eos=True) for _, tokens in requests]
        self.in_runner_s, start = 0.0, time.perf_counter()
        outputs = self.llm.generate([prompt for prompt, _ in requests], params, progress=False)
        taken = time.perf_counter() - start
        assert [len(o.token_ids) for o in outputs] == [tokens for _, tokens in requests]
        return taken


def transformers_model():
    """Their Llama on our weights, in bfloat16."""
    import transformers

    transformers.logging.set_verbosity_error()
    loaded = load_model(MODEL, DTYPE)
    config = transformers.LlamaConfig(**json.loads(config_to_json(loaded.config)), attn_implementation="sdpa")
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    model.load_state_dict(loaded.model.state_dict(), strict=False)
    model.tie_weights()
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    return model


class TransformersStatic:
    """A batch starts together and ends with its longest; the tokens beyond a request's own length are not useful."""

    def __init__(self, model, size: int) -> None:
        self.name, self.model, self.size = f"transformers static-{size}", model, size
        self.run([([1] * 16, 4)])

    def run(self, requests: Requests) -> float:
        start = time.perf_counter()
        for first in range(0, len(requests), self.size):
            batch = requests[first : first + self.size]
            width, longest = max(len(prompt) for prompt, _ in batch), max(tokens for _, tokens in batch)
            ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _ in batch])
            mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in batch])
            with torch.inference_mode():
                self.model.generate(
                    ids,
                    attention_mask=mask,
                    max_new_tokens=longest,
                    min_new_tokens=longest,
                    do_sample=False,
                    pad_token_id=0,
                    eos_token_id=None,
                )
        return time.perf_counter() - start


class TransformersContinuous:
    """Their continuous batching, with pages of 16 tokens and our token budget; start-up and warm-up not counted."""

    name = "transformers continuous"

    def __init__(self, model) -> None:
        self.model = model

    def run(self, requests: Requests) -> float:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=128)
        config = ContinuousBatchingConfig(
            page_size=16, num_blocks=SERVER["num_gpu_blocks"], max_batch_tokens=SERVER["max_num_batched_tokens"]
        )
        manager = self.model.init_continuous_batching(generation, config)
        manager.start()
        try:
            start, left = time.perf_counter(), set()
            for i, (prompt, tokens) in enumerate(requests):
                left.add(manager.add_request(prompt, request_id=f"r{i}", max_new_tokens=tokens, eos_token_id=-1))
            while left:
                result = manager.get_result(timeout=60)
                if result is None:
                    raise RuntimeError(
                        f"transformers' continuous batching gave no result for 60 s; {len(left)} are left"
                    )
                if result.is_finished():
                    left.discard(result.request_id)
            return time.perf_counter() - start
        finally:
            manager.stop(block=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each system, alternating; the median counts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["ours"], help="leave the peers out")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "cpu_engine.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if (load := os.getloadavg()[0]) > 0.5:
        print(f"load average {load:.1f}: others are working, the times below mean little")
    requests = workload()
    useful = sum(tokens for _, tokens in requests)
    ours = Ours()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    systems: list = [ours]
    if not options.only:
        peer = transformers_model()
        systems += [TransformersStatic(peer, 8), TransformersStatic(peer, 32), TransformersContinuous(peer)]
    seconds: dict[str, list[float]] = {system.name: [] for system in systems}
    bounds_s: list[float] = []
    for number in range(options.rounds):
        for system in systems:
            seconds[system.name].append(system.run(requests))
            print(f"round {number + 1}: {system.name:26} {useful / seconds[system.name][-1]:7.1f} tok/s", flush=True)
            if system is ours:
                bound_s, mean_rows = gemm_bound(ours.llm)
                bounds_s.append(bound_s)
                print(f"         its products alone take {bound_s / seconds[ours.name][-1]:.0%} of that", flush=True)
    rates = {name: useful / statistics.median(times) for name, times in seconds.items()}
    peers = {name: rate for name, rate in rates.items() if name != ours.name}
    shares = [bound / run for bound, run in zip(bounds_s, seconds[ours.name], strict=True)]
    outside = 1 - ours.in_runner_s / seconds[ours.name][-1]

    model = make_fast(load_model(MODEL, DTYPE).model)
    weight_bytes = 2 * sum(a * (b[0] if b else 1) for a, *b in model.config.tensor_shapes().values())
    # How fast memory is differs from minute to minute on a shared machine: just before and just after, and five times.
    lone, floors_ms = [], []
    for _ in range(5):
        before, one, after = read_s(weight_bytes), alone(model, 1), read_s(weight_bytes)
        lone.append(one)
        floors_ms.append(1e3 * (before + after) / 2)
    floor_shares = [floor / one["decode_step_ms"] for floor, one in zip(floors_ms, lone, strict=True)]
    parts = [sorted(lone, key=lambda one: one["decode_step_ms"])[2], alone(model, 8), alone(model, 32)]
    machine = probe("cpu", DTYPE)
    result = {
        "what": "CPU engine: 32 mixed requests, bfloat16",
        "useful_output_tokens": useful,
        "tokens_per_s": rates,
        "seconds": seconds,
        "ratio_to_best_peer": rates[ours.name] / max(peers.values()) if peers else None,
        "gemm_bound_s": bounds_s,
        "share_of_gemm_bound": statistics.median(shares),
        "share_of_gemm_bound_of_each_run": shares,
        "mean_rows_of_a_step": mean_rows,
        "share_outside_the_runner": outside,
        "alone": parts,
        "read_floor_ms": statistics.median(floors_ms),
        "batch_1_share_of_floor": statistics.median(floor_shares),
        "batch_1_share_of_floor_each": floor_shares,
        "peak_rss_mb_after_loading": peak_mb,
        "load_average_before": load,
        "yardstick_ms": yardstick_ms(),
        "threads": options.threads,
        "waiting": {name: os.environ.get(name) for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")},
        "machine": machine.to_dict(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "server": SERVER,
    }
    print_table(result)
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written: {options.json}")


def print_table(result: dict) -> None:
    print(f"\n{result['useful_output_tokens']:,} useful output tokens, {result['threads']} threads, bfloat16")
    for name, rate in result["tokens_per_s"].items():
        print(f"  {name:28} {rate:8.1f} tok/s")
    if result["ratio_to_best_peer"]:
        print(f"  ratio to the best peer       {result['ratio_to_best_peer']:8.2f}   (target 1.5)")
    print(f"  share of the GEMM bound      {result['share_of_gemm_bound']:8.0%}   (target 65 %)")
    print(f"  scheduler, watch, trace, text{result['share_outside_the_runner']:8.1%}   (target 5 %)")
    for part in result["alone"]:
        print(
            f"  batch {part['batch']:2}: prefill {part['prefill_tokens_per_s']:7.0f} tok/s, decode "
            f"{part['decode_step_ms']:6.1f} ms a step = {part['decode_tokens_per_s']:6.1f} tok/s"
        )
    print(f"  reading all weights          {result['read_floor_ms']:8.1f} ms; batch 1 is at ", end="")
    print(f"{result['batch_1_share_of_floor']:.0%} of its speed (target 50 %)")


if __name__ == "__main__":
    main()
